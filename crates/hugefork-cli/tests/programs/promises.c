/* Tests Linux's guarantees for private anonymous memory one by one: alone, while a child shares
 * the memory, and while a child shares it and all of it has been written since. Exits with 0 if
 * all hold. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (1ul << 20)
#define PAGE 4096ul
/* Linux 5.18; older headers lack it. */
#define DONTNEED_LOCKED 24

static int broken;
#define HOLDS(what) do { if (!(what)) { broken++; printf("line %d, errno %d: %s\n", __LINE__, errno, #what); } } while (0)

static sigjmp_buf back;
static void on_fault(int signal) { siglongjmp(back, signal); }

static int reads(const volatile char *at) {
    if (sigsetjmp(back, 1)) return 0;
    (void)*at;
    return 1;
}

static int writes(volatile char *at) {
    if (sigsetjmp(back, 1)) return 0;
    *at = *at;
    return 1;
}

static char *mapped(size_t len) {
    char *at = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) abort();
    return at;
}

static int is(const char *at, size_t len, char value) {
    for (size_t i = 0; i < len; i++)
        if (at[i] != value) return 0;
    return 1;
}

enum sharing { ALONE, SHARED, WRITTEN, KINDS };
/* Of the eight MiB of `e`, the third and fourth are unmapped, and the sixth page. */
struct memory { char *a, *b, *c, *d, *e, *untouched; };

/* Calls on unmapped addresses, alone and within other ranges. */
static int holes(char *e) {
    int before = broken, fixed = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
    unsigned char seen[8 * 256];
    struct { char *at; size_t len; } ranges[] = {{e + 2 * MIB, 2 * MIB}, {e + 3 * MIB, PAGE}, {e + MIB, 2 * MIB},
        {e + 3 * MIB, 2 * MIB}, {e + MIB, 4 * MIB}, {e + 5 * PAGE, PAGE}, {e + 4 * PAGE, 3 * PAGE}};
    for (int i = 0; i < 7; i++) {
        char *at = ranges[i].at;
        size_t len = ranges[i].len;
        HOLDS(mincore(at, len, seen) == -1 && errno == ENOMEM);
        HOLDS(msync(at, len, MS_ASYNC) == -1 && errno == ENOMEM && msync(at, len, 1024) == -1 && errno == EINVAL);
        HOLDS(mlock(at, len) == -1 && errno == ENOMEM && munlock(at, len) == -1 && errno == ENOMEM);
        HOLDS(madvise(at, len, MADV_NORMAL) == -1 && errno == ENOMEM && madvise(at, len, 999) == -1 && errno == EINVAL);
        HOLDS(madvise(at, len, MADV_DONTDUMP) == -1 && errno == ENOMEM);
        HOLDS(mprotect(at, len, PROT_READ | PROT_WRITE) == -1 && errno == ENOMEM);
        HOLDS(mprotect(at, len, 1 << 20) == -1 && errno == EINVAL);
    }
    HOLDS(!reads(e + 2 * MIB) && !reads(e + 4 * MIB - 1) && reads(e + 2 * MIB - 1) && reads(e + 4 * MIB));
    /* A protection change stops at an unmapped page; advice continues. */
    HOLDS(mprotect(e + MIB, 4 * MIB, PROT_READ) == -1 && errno == ENOMEM);
    HOLDS(!writes(e + MIB) && !writes(e + 2 * MIB - 1) && writes(e + 4 * MIB) && !reads(e + 3 * MIB));
    HOLDS(mprotect(e + MIB, MIB, PROT_READ | PROT_WRITE) == 0 && writes(e + MIB));
    HOLDS(madvise(e + MIB, 4 * MIB, MADV_DONTNEED) == -1 && errno == ENOMEM);
    HOLDS(is(e + MIB, MIB, 0) && is(e + 4 * MIB, MIB, 0) && e[MIB - 1] == 5 && e[5 * MIB] == 5);
    HOLDS(mremap(e + 2 * MIB, PAGE, 2 * PAGE, MREMAP_MAYMOVE) == MAP_FAILED && errno == EFAULT);
    HOLDS(mremap(e + 3 * MIB, MIB, MIB, MREMAP_MAYMOVE) == MAP_FAILED && errno == EFAULT);
    HOLDS(mremap(e + MIB, 4 * MIB, 8 * MIB, MREMAP_MAYMOVE) == MAP_FAILED && errno == EFAULT);
    HOLDS(mmap(e + 3 * MIB, MIB, PROT_READ, fixed, -1, 0) == e + 3 * MIB && e[3 * MIB] == 0);
    HOLDS(mincore(e + 3 * MIB, 2 * MIB, seen) == 0 && mincore(e + 2 * MIB, MIB, seen) == -1 && errno == ENOMEM);
    HOLDS(mremap(e + MIB, 6 * MIB, PAGE, 0) == e + MIB && e[MIB] == 0 && !reads(e + MIB + PAGE));
    HOLDS(!reads(e + 3 * MIB) && !reads(e + 7 * MIB - 1) && is(e + 7 * MIB, MIB, 5));
    return broken - before;
}

/* The kernel drops no locked memory, and nothing after it. */
static int refused_dropping(char *e) {
    int before = broken;
    HOLDS(mlock(e + 6 * MIB + PAGE, PAGE) == 0);
    HOLDS(madvise(e + 5 * MIB, 3 * MIB, MADV_DONTNEED) == -1 && errno == EINVAL);
    HOLDS(is(e + 5 * MIB, MIB + PAGE, 0) && is(e + 6 * MIB + PAGE, 2 * MIB - PAGE, 5));
    HOLDS(munlock(e + 6 * MIB + PAGE, PAGE) == 0);
    memset(e + 5 * MIB, 5, MIB + PAGE);
    return broken - before;
}

/* Tests a child with its inherited memory. Returns a bit for each broken guarantee. */
static int child(struct memory m) {
    int bad = !(is(m.a, 16 * MIB, 7) && is(m.b, 5 * MIB + PAGE, 9) && is(m.c, 8 * MIB, 3) && is(m.d, 6 * MIB, 4));
    bad |= !is(m.untouched, 8 * MIB, 0) << 1;
    madvise(m.a, 4 * MIB, MADV_DONTNEED);
    bad |= !(is(m.a, 4 * MIB, 0) && is(m.a + 4 * MIB, 12 * MIB, 7)) << 2;
    madvise(m.a + 5 * MIB + PAGE, 2 * PAGE, MADV_DONTNEED);
    bad |= !(m.a[5 * MIB + PAGE - 1] == 7 && is(m.a + 5 * MIB + PAGE, 2 * PAGE, 0) && m.a[5 * MIB + 3 * PAGE] == 7) << 3;
    int dropped = madvise(m.a + 7 * MIB + PAGE, 2 * PAGE, DONTNEED_LOCKED);
    bad |= !(dropped == 0 && is(m.a + 7 * MIB + PAGE, 2 * PAGE, 0) && m.a[7 * MIB + 3 * PAGE] == 7) << 7;
    bad |= !(mremap(m.a, 0, 4 * MIB, MREMAP_MAYMOVE) == MAP_FAILED && errno == EINVAL) << 7;
    bad |= !(madvise(m.b, PAGE, MADV_REMOVE) == -1 && errno == EINVAL) << 7;
    char *aside = mremap(m.a + 9 * MIB, 4 * MIB, 4 * MIB, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);
    bad |= !(aside != MAP_FAILED && is(aside, 4 * MIB, 7) && is(m.a + 9 * MIB, 4 * MIB, 0)) << 2;
    bad |= !(is(m.a + 8 * MIB, MIB, 7) && is(m.a + 13 * MIB, 3 * MIB, 7)) << 2;
    char *moved = mremap(m.b, 5 * MIB + PAGE, 20 * MIB, MREMAP_MAYMOVE);
    bad |= !(moved != MAP_FAILED && is(moved, 5 * MIB + PAGE, 9) && is(moved + 5 * MIB + PAGE, 15 * MIB - PAGE, 0)) << 4;
    bad |= !(munmap(m.c, 8 * MIB) == 0 && !reads(m.c)) << 5;
    mprotect(m.d, PAGE, PROT_READ);
    bad |= !(!writes(m.d) && m.d[0] == 4 && writes(m.d + PAGE)) << 6;
    bad |= (holes(m.e) != 0) << 3;
    return bad;
}

static void contents(struct memory m) {
    char *a = m.a;
    HOLDS(madvise(a + 2 * MIB, 4 * MIB, MADV_DONTNEED) == 0 && is(a + 2 * MIB, 4 * MIB, 0));
    HOLDS(a[2 * MIB - 1] == 7 && a[6 * MIB] == 7);
    memset(a + 2 * MIB, 8, 4 * MIB);
    HOLDS(is(a + 2 * MIB, 4 * MIB, 8));
    HOLDS(madvise(a + 3 * MIB + PAGE, 3 * PAGE, MADV_DONTNEED) == 0 && is(a + 3 * MIB + PAGE, 3 * PAGE, 0));
    HOLDS(a[3 * MIB + PAGE - 1] == 8 && a[3 * MIB + 4 * PAGE] == 8);
    HOLDS(madvise(a + 9 * MIB + PAGE, PAGE, DONTNEED_LOCKED) == 0 && is(a + 9 * MIB + PAGE, PAGE, 0));
    HOLDS(a[9 * MIB + PAGE - 1] == 7 && a[9 * MIB + 2 * PAGE] == 7);
    HOLDS(madvise(a + 7 * MIB, 2 * MIB, MADV_FREE) == 0 && a[7 * MIB - 1] == 7 && a[9 * MIB] == 7);
    memset(a + 7 * MIB, 1, 2 * MIB);
    HOLDS(is(a + 7 * MIB, 2 * MIB, 1));
    int ends[2];
    HOLDS(pipe(ends) == 0 && write(ends[1], "hello", 5) == 5);
    HOLDS(read(ends[0], m.c + 5 * MIB, 5) == 5 && memcmp(m.c + 5 * MIB, "hello", 5) == 0);
    close(ends[0]);
    close(ends[1]);
    HOLDS(is(m.untouched, 8 * MIB, 0));
}

static void rights_and_places(struct memory m) {
    char *a = m.a;
    HOLDS(mprotect(a + 10 * MIB, PAGE, PROT_NONE) == 0 && !reads(a + 10 * MIB));
    HOLDS(a[10 * MIB - 1] == 7 && a[10 * MIB + PAGE] == 7);
    HOLDS(mprotect(a + 10 * MIB, PAGE, PROT_READ | PROT_WRITE) == 0 && a[10 * MIB] == 7 && writes(a + 10 * MIB));
    HOLDS(munmap(a + 12 * MIB + PAGE, PAGE) == 0 && !reads(a + 12 * MIB + PAGE));
    HOLDS(a[12 * MIB + PAGE - 1] == 7 && a[12 * MIB + 2 * PAGE] == 7);
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    char *at = mmap(a + 13 * MIB, MIB, PROT_READ | PROT_WRITE, flags, -1, 0);
    HOLDS(at == a + 13 * MIB && is(at, MIB, 0) && a[13 * MIB - 1] == 7 && a[14 * MIB] == 7);
    int file = open("/proc/self/exe", O_RDONLY);
    at = mmap(a + 14 * MIB, PAGE, PROT_READ, MAP_PRIVATE | MAP_FIXED, file, 0);
    HOLDS(at == a + 14 * MIB && memcmp(at, "\177ELF", 4) == 0 && a[14 * MIB + PAGE] == 7);
    close(file);
    at = mmap(a, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    HOLDS(at == MAP_FAILED && errno == EEXIST && a[0] == 7);
    unsigned char seen[8 * 256];
    HOLDS(mincore(m.c, 8 * MIB, seen) == 0 && msync(m.c, 8 * MIB, MS_SYNC) == 0);
    HOLDS(mlock(m.c, PAGE) == 0 && munlock(m.c, PAGE) == 0 && m.c[0] == 3);
    HOLDS(mprotect(m.c, 8 * MIB, PROT_READ) == 0 && !writes(m.c + MIB) && m.c[MIB] == 3);
    HOLDS(mprotect(m.c, 8 * MIB, PROT_READ | PROT_WRITE) == 0 && writes(m.c + MIB));
    HOLDS(madvise(m.untouched, 8 * MIB, MADV_HUGEPAGE) == 0 || errno == EINVAL);
    HOLDS(madvise(m.untouched, 8 * MIB, MADV_DONTDUMP) == 0 && writes(m.untouched));
    HOLDS(madvise((void *)1, PAGE, MADV_NORMAL) == -1 && errno == EINVAL);
}

/* A refused call changes nothing. */
static void refused_unmapping(struct memory m) {
    /* Addresses may have up to 57 bits. */
    size_t beyond = 1ul << 62;
    HOLDS(munmap(m.a, beyond) == -1 && errno == EINVAL && munmap(m.a, -(size_t)m.a) == -1 && errno == EINVAL);
    HOLDS(munmap(m.a, ~0ul) == -1 && errno == EINVAL && munmap(m.a, 0) == -1 && errno == EINVAL);
    HOLDS(munmap(m.a + 1, PAGE) == -1 && errno == EINVAL && reads(m.a) && m.a[0] == 7 && m.a[MIB] == 7);
}

/* Mappings at addresses that the program chooses: inside the memory, and overlapping its end.
 * */
static void refused_mappings(struct memory m) {
    int rights = PROT_READ | PROT_WRITE, private = MAP_PRIVATE | MAP_FIXED, plain = private | MAP_ANONYMOUS;
    int file = open("/proc/self/exe", O_RDONLY), directory = open("/", O_RDONLY), nul = open("/dev/null", O_WRONLY);
    char *a = m.a + PAGE, *b = m.b, *none = m.e + 2 * MIB;
    HOLDS(mmap(a, 4 * MIB, rights, private, -1, 0) == MAP_FAILED && errno == EBADF);
    HOLDS(mmap(a, 4 * MIB, PROT_READ, private, directory, 0) == MAP_FAILED && errno == ENODEV);
    HOLDS(mmap(a, 4 * MIB, PROT_READ, private, nul, 0) == MAP_FAILED && errno == EACCES);
    HOLDS(mmap(a, 4 * MIB, rights, MAP_SHARED | MAP_FIXED, file, 0) == MAP_FAILED && errno == EACCES);
    HOLDS(mmap(a, 4 * MIB, PROT_READ, private, file, 1) == MAP_FAILED && errno == EINVAL);
    HOLDS(mmap(a, 4 * MIB, rights, MAP_FIXED | MAP_ANONYMOUS, -1, 0) == MAP_FAILED && errno == EINVAL);
    HOLDS(mmap(a, 0, rights, plain, -1, 0) == MAP_FAILED && errno == EINVAL);
    HOLDS(mmap(a + 1, PAGE, rights, plain, -1, 0) == MAP_FAILED && errno == EINVAL);
    HOLDS(mmap(a, 1ul << 62, rights, plain | MAP_NORESERVE, -1, 0) == MAP_FAILED && errno == ENOMEM);
    HOLDS(mmap(a, ~0ul, rights, plain | MAP_NORESERVE, -1, 0) == MAP_FAILED && errno == ENOMEM);
    int fixed = MREMAP_MAYMOVE | MREMAP_FIXED;
    HOLDS(mremap(b, 2 * MIB, 2 * MIB, MREMAP_FIXED, a) == MAP_FAILED && errno == EINVAL);
    HOLDS(mremap(b, 2 * MIB, 2 * MIB, fixed | 64, a) == MAP_FAILED && errno == EINVAL);
    HOLDS(mremap(b, 2 * MIB, 2 * MIB, fixed, a + 1) == MAP_FAILED && errno == EINVAL);
    HOLDS(mremap(b + 1, 2 * MIB, 2 * MIB, fixed, a) == MAP_FAILED && errno == EINVAL);
    HOLDS(mremap(b, 2 * MIB, 0, fixed, a) == MAP_FAILED && errno == EINVAL);
    HOLDS(mremap(b, 2 * MIB, 1ul << 62, fixed, a) == MAP_FAILED && errno == EINVAL);
    HOLDS(mremap(b, 4 * MIB, 4 * MIB, fixed, b + 2 * MIB) == MAP_FAILED && errno == EINVAL);
    HOLDS(mremap(none, 2 * MIB, 2 * MIB, fixed, a) == MAP_FAILED && errno == EFAULT);
    HOLDS(is(m.a, 2 * MIB, 7) && is(m.a + 2 * MIB, MIB + PAGE, 8) && is(m.a + 3 * MIB + 4 * PAGE, 2 * MIB, 8) && is(b, 5 * MIB + PAGE, 9));
    for (int *number = (int[]){file, directory, nul, -1}; *number >= 0; number++) close(*number);
}

static void lengths(struct memory m) {
    /* Only shared memory can be mapped twice in this way. */
    HOLDS(mremap(m.b, 0, 4 * MIB, MREMAP_MAYMOVE) == MAP_FAILED && errno == EINVAL);
    HOLDS(is(m.b, 5 * MIB + PAGE, 9));
    char *b = mremap(m.b, 5 * MIB + PAGE, 40 * MIB, MREMAP_MAYMOVE);
    HOLDS(b != MAP_FAILED && is(b, 5 * MIB + PAGE, 9) && is(b + 5 * MIB + PAGE, 35 * MIB - PAGE, 0));
    char *shorter = mremap(b, 40 * MIB, 3 * MIB, 0);
    HOLDS(shorter == b && is(b, 3 * MIB, 9) && !reads(b + 3 * MIB) && !reads(b + 30 * MIB));
    char *place = mmap(NULL, 4 * MIB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *moved = mremap(b, 3 * MIB, 4 * MIB, MREMAP_MAYMOVE | MREMAP_FIXED, place);
    HOLDS(moved == place && is(moved, 3 * MIB, 9) && is(moved + 3 * MIB, MIB, 0) && !reads(b));
    HOLDS(munmap(moved, 4 * MIB) == 0 && !reads(moved));
    HOLDS(munmap(m.c, 8 * MIB) == 0 && !reads(m.c) && !reads(m.c + 8 * MIB - 1));
    HOLDS(munmap(m.untouched, 8 * MIB) == 0 && munmap(m.a, 16 * MIB) == 0 && munmap(m.d, 6 * MIB) == 0);
    HOLDS(munmap(m.e, 8 * MIB) == 0 && !reads(m.e));
    HOLDS(!reads(m.a) && !reads(m.d));
    int flags = MAP_PRIVATE | MAP_ANONYMOUS;
    char *there = mmap(m.a + 4 * MIB, 3 * MIB, PROT_READ | PROT_WRITE, flags | MAP_FIXED_NOREPLACE, -1, 0);
    HOLDS(there == m.a + 4 * MIB && is(there, 3 * MIB, 0) && munmap(m.a, 16 * MIB) == 0 && !reads(there));
    there = mmap(m.a + 4 * MIB, 3 * MIB, PROT_READ | PROT_WRITE, flags | MAP_FIXED, -1, 0);
    HOLDS(there == m.a + 4 * MIB && is(there, 3 * MIB, 0));
    memset(there, 6, 3 * MIB);
    char *near = mmap(m.a + 2 * MIB + PAGE, MIB, PROT_READ | PROT_WRITE, flags, -1, 0);
    HOLDS(near != MAP_FAILED && near != there && is(near, MIB, 0) && writes(near) && munmap(near, MIB) == 0);
    char *again = mapped(64 * MIB);
    HOLDS(is(again, 64 * MIB, 0));
    memset(again, 1, 64 * MIB);
    HOLDS(munmap(again, 64 * MIB) == 0 && is(there, 3 * MIB, 6) && munmap(there, 3 * MIB) == 0);
    /* The kernel follows a hint if the address is free. */
    there = mmap(again + 4 * MIB, 3 * MIB, PROT_READ, flags, -1, 0);
    near = mmap(again + 3 * MIB, 2 * MIB, PROT_READ | PROT_WRITE, flags, -1, 0);
    HOLDS(there == again + 4 * MIB && is(there, 3 * MIB, 0) && !writes(there));
    HOLDS(near != again + 3 * MIB && is(near, 2 * MIB, 0) && writes(near) && !writes(there));
    HOLDS(munmap(there, 3 * MIB) == 0 && munmap(near, 2 * MIB) == 0);
}

static void all(enum sharing kind) {
    struct memory m = {mapped(16 * MIB), mapped(5 * MIB + PAGE), mapped(8 * MIB), mapped(6 * MIB), mapped(8 * MIB), mapped(8 * MIB)};
    memset(m.a, 7, 16 * MIB);
    memset(m.b, 9, 5 * MIB + PAGE);
    memset(m.c, 3, 8 * MIB);
    memset(m.d, 4, 6 * MIB);
    memset(m.e, 5, 8 * MIB);
    HOLDS(munmap(m.e + 2 * MIB, 2 * MIB) == 0 && munmap(m.e + 5 * PAGE, PAGE) == 0);
    int ends[2];
    pid_t forked = 0;
    HOLDS(pipe(ends) == 0);
    if (kind != ALONE && (forked = fork()) == 0) {
        char byte;
        close(ends[1]);
        _exit(read(ends[0], &byte, 1) == 0 ? child(m) : 255);
    }
    if (kind == WRITTEN) memset(m.a, 7, 16 * MIB);
    contents(m);
    refused_unmapping(m);
    refused_mappings(m);
    refused_dropping(m.e);
    holes(m.e);
    rights_and_places(m);
    lengths(m);
    close(ends[0]);
    close(ends[1]);
    int status = 0;
    HOLDS(forked == 0 || (waitpid(forked, &status, 0) == forked && status == 0));
    if (status) printf("child: %x\n", status);
}

static void processes(void) {
    char *at = mapped(4 * MIB);
    int status;
    pid_t forked = vfork();
    if (forked == 0) _exit(5);
    HOLDS(waitpid(forked, &status, 0) == forked && WEXITSTATUS(status) == 5);
    HOLDS(system("true") == 0);
    /* Like a daemon. */
    for (int number = 3; number < 2000; number++) close(number);
    close_range(3, ~0u, 0);
    memset(at, 3, 4 * MIB);
    forked = fork();
    if (forked == 0) _exit(!is(at, 4 * MIB, 3));
    memset(at, 4, 4 * MIB);
    HOLDS(waitpid(forked, &status, 0) == forked && status == 0 && is(at, 4 * MIB, 4));
}

int main(void) {
    struct sigaction action = {.sa_handler = on_fault, .sa_flags = SA_NODEFER};
    sigaction(SIGSEGV, &action, NULL);
    sigaction(SIGBUS, &action, NULL);
    for (int round = 0; round < 2; round++)
        for (enum sharing kind = ALONE; kind < KINDS; kind++) all(kind);
    processes();
    printf("%d broken\n", broken);
    return broken != 0;
}
