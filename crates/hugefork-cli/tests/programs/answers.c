/* Makes the call in its argument, in the program, its child or its child's child, and prints
 * how many results differ from the kernel's. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (1ul << 20)
#define PAGE 4096ul

static int bad;
static char *memory;

static void expect(int holds, const char *what) {
    if (holds) return;
    fprintf(stderr, "not so: %s (errno %d)\n", what, errno);
    bad++;
}

static int is(const char *at, size_t len, char value) {
    for (size_t i = 0; i < len; i += PAGE)
        if (at[i] != value) return 0;
    return 1;
}

/* Runs the test in a child. */
static void in_child(void (*work)(void)) {
    int status;
    pid_t child = fork();
    if (child == 0) {
        bad = 0;
        work();
        _exit(bad != 0);
    }
    expect(waitpid(child, &status, 0) == child && status == 0, "its child has the same");
}

/* Dropped memory reads as zeros. */
static void drop(void) {
    expect(madvise(memory + PAGE, 2 * PAGE, MADV_DONTNEED) == 0 && is(memory + PAGE, 2 * PAGE, 0), "pages are dropped");
    expect(is(memory + 3 * PAGE, MIB, 1), "and no others");
    expect(madvise(memory + 8 * MIB, 4 * MIB, MADV_DONTNEED) == 0 && is(memory + 8 * MIB, 4 * MIB, 0), "blocks are dropped");
    char *grown = mremap(memory + 16 * MIB, 4 * MIB, 8 * MIB, MREMAP_MAYMOVE);
    expect(grown != MAP_FAILED && is(grown, 4 * MIB, 1) && is(grown + 4 * MIB, 4 * MIB, 0), "memory grows");
}

static void drop_in_child(void) { in_child(drop); }

/* The parent of the process that drops the memory has ended. */
static void drop_as_daemon(void) {
    int ends[2];
    char seen = 9;
    if (pipe(ends)) _exit(1);
    pid_t child = fork();
    if (child == 0) {
        if (fork()) _exit(0);
        while (getppid() == child) usleep(1000);
        drop();
        seen = bad != 0;
        _exit(write(ends[1], &seen, 1) != 1);
    }
    waitpid(child, NULL, 0);
    expect(read(ends[0], &seen, 1) == 1 && seen == 0, "a daemon has the same");
}

static void *drop_when_alone(void *nothing) {
    char status[512];
    do {
        usleep(1000);
        FILE *file = fopen("/proc/self/status", "r");
        status[file ? fread(status, 1, sizeof status - 1, file) : 0] = 0;
        if (file) fclose(file);
    } while (!strstr(status, "State:\tZ"));
    drop();
    _exit(bad != 0);
    return nothing;
}

/* The first thread has ended. */
static void drop_in_thread(void) {
    pthread_t thread;
    pthread_create(&thread, NULL, drop_when_alone, NULL);
    pthread_exit(NULL);
}

/* Guards drop the contents for good. A kernel without guards (before Linux 6.13) changes
 * nothing. */
static void guard(void) {
    char *places[2] = {memory + 5 * PAGE, memory + 8 * MIB};
    size_t lens[2] = {2 * PAGE, 4 * MIB};
    for (int nth = 0; nth < 2; nth++) {
        int guarded = madvise(places[nth], lens[nth], 102);
        expect(guarded == 0 || errno == EINVAL, "guards come, or there are none");
        if (guarded == 0) expect(madvise(places[nth], lens[nth], 103) == 0, "guards go");
        expect(is(places[nth], lens[nth], guarded != 0), "what was guarded is dropped");
        expect(places[nth][-1] == 1 && places[nth][lens[nth]] == 1, "and nothing else");
    }
}

/* `struct io_uring_params`, with the addresses of the program's own rings (Linux 6.5). */
struct params {
    uint32_t sq_entries, cq_entries, flags, cpu, idle, features, wq, more[3];
    struct {
        uint32_t head, tail, mask, entries, flags, dropped, array, more;
        uint64_t at;
    } sq;
    struct {
        uint32_t head, tail, mask, entries, overflow, cqes, flags, more;
        uint64_t at;
    } cq;
};

/* Empty requests through rings in the program's own memory, before and after a fork. */
static void ring(void) {
    struct params params = {.flags = 1 << 14};
    char *rings = memory + 8 * MIB, *entries = rings + 4 * PAGE;
    memset(rings, 0, 8 * PAGE);
    params.cq.at = (uintptr_t)rings, params.sq.at = (uintptr_t)entries;
    long file = syscall(SYS_io_uring_setup, 8, &params);
    if (file < 0) return;
    volatile uint32_t *tail = (void *)(rings + params.sq.tail), *array = (void *)(rings + params.sq.array);
    volatile uint32_t *done = (void *)(rings + params.cq.tail);
    for (uint32_t nth = 0; nth < 6; nth++) {
        int ends[2], status;
        pid_t child = -1;
        if (nth % 2 && !pipe(ends)) child = fork();
        if (child == 0) _exit(read(ends[0], &status, 1) != 1);
        memset(entries + nth % 8 * 64, 0, 64);
        array[nth % 8] = nth % 8;
        __atomic_store_n(tail, nth + 1, __ATOMIC_RELEASE);
        expect(syscall(SYS_io_uring_enter, file, 1, 0, 0, NULL, 0) == 1, "a request is taken");
        expect(__atomic_load_n(done, __ATOMIC_ACQUIRE) == nth + 1, "and answered");
        if (child > 0) {
            expect(write(ends[1], "x", 1) == 1 && waitpid(child, &status, 0) == child && status == 0, "a child ends");
            close(ends[0]), close(ends[1]);
        }
    }
}

/* The program may not write to files, so the library must not either. */
static void forks(void) {
    for (int round = 0; round < 3; round++) {
        memset(memory, 1, 16 * MIB);
        in_child(drop);
    }
}

/* Unmapped addresses, also after mapped ones. */
static void bad_pointers(void) {
    char *gone = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap(gone + PAGE, PAGE);
    void *places[] = {(void *)8, gone + PAGE - 8, gone + PAGE};
    int ends[2], self = syscall(SYS_pidfd_open, getpid(), 0);
    int faults = syscall(SYS_userfaultfd, O_CLOEXEC);
    expect(pipe(ends) == 0, "a pipe is there");
    expect(syscall(SYS_openat2, AT_FDCWD, ".", NULL, 0) == -1 && (errno == EINVAL || errno == ENOSYS), "openat2 of nothing");
    expect(vmsplice(ends[1], NULL, 1, 0) == -1 && errno == EFAULT, "vmsplice of nothing");
    for (int nth = 0; nth < 3; nth++) {
        if (nth != 1) expect(syscall(SYS_openat2, AT_FDCWD, ".", places[nth], 24) == -1 && (errno == EFAULT || errno == ENOSYS), "openat2");
        expect(vmsplice(ends[1], places[nth], 1, 0) == -1 && errno == EFAULT, "vmsplice");
        long said = syscall(440, self, places[nth], 1, MADV_COLD, 0);
        expect(said == -1 && (errno == EFAULT || errno == ENOSYS), "process_madvise that drops nothing");
        said = syscall(440, self, places[nth], 1, MADV_DONTNEED, 0);
        expect(said == -1 && (errno == EFAULT || errno == EINVAL || errno == ENOSYS), "process_madvise");
        expect(ioctl(ends[0], 0xc020aa00, places[nth]) == -1 && errno == ENOTTY, "an ioctl that is another's");
        if (faults >= 0) expect(ioctl(faults, 0xc020aa00, places[nth]) == -1, "an ioctl");
    }
    close(self), close(faults), close(ends[0]), close(ends[1]);
}

/* Closes all unknown descriptors, past libc. */
static void close_past_libc(void) {
#ifdef __x86_64__
    long answer;
    __asm__ volatile("syscall" : "=a"(answer) : "a"(436l), "D"(3l), "S"(~0l), "d"(0l) : "rcx", "r11", "memory");
#endif
}

static char seen;

static void see_and_write(void) {
    expect(is(memory, 64 * MIB, seen), "a child has what its parent had");
    memset(memory, 99, 64 * MIB);
    expect(is(memory, 64 * MIB, 99), "and writes what it likes");
    expect(madvise(memory + 8 * MIB, 4 * MIB, MADV_DONTNEED) == 0 && is(memory + 8 * MIB, 4 * MIB, 0), "and drops it");
}

/* Waits until none of the memory is a private file mapping: after that, pages are not moved.
 * Without the library this is true from the start. */
static void wait_until_settled(void) {
    char line[512], rights[5];
    for (int are_private = 1; are_private; usleep(1000)) {
        FILE *maps = fopen("/proc/self/maps", "r");
        are_private = 0;
        while (fgets(line, sizeof line, maps)) {
            size_t from, to, offset;
            int has = sscanf(line, "%zx-%zx %4s %zx", &from, &to, rights, &offset) == 4;
            int is_of_memory = has && from < (size_t)memory + 64 * MIB && to > (size_t)memory;
            are_private |= is_of_memory && rights[3] == 'p' && strstr(line, "memfd:") != NULL;
        }
        fclose(maps);
    }
}

/* Forks after it has closed all unknown descriptors. */
static void close_all_and_fork(void) {
    for (seen = 1; seen < 6; seen++) {
        if (seen > 1) wait_until_settled(), close_past_libc();
        memset(memory, seen, 64 * MIB);
        in_child(see_and_write);
        expect(is(memory, 64 * MIB, seen), "a parent keeps what it has");
    }
    char *at = mmap(memory + 8 * MIB + PAGE, 4 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    expect(at == memory + 8 * MIB + PAGE && is(at, 4 * MIB, 0), "something else takes its place");
    expect(at[-1] == 5 && at[4 * MIB] == 5, "and only there");
    expect(madvise(memory + 32 * MIB, 5 * MIB, MADV_DONTNEED) == 0 && is(memory + 32 * MIB, 5 * MIB, 0), "it is dropped");
    expect(mprotect(memory + 48 * MIB, MIB, PROT_READ) == 0 && is(memory + 48 * MIB, MIB, 5), "it is protected");
    expect(munmap(memory + 56 * MIB, 4 * MIB) == 0 && is(memory + 60 * MIB, 4 * MIB, 5), "it is unmapped");
}

/* Closes all unknown descriptors, and opens its own files under their numbers. */
static void close_all(void) {
    int files[32];
    close_past_libc();
    for (int nth = 0; nth < 32; nth++) {
        files[nth] = fcntl(0, F_DUPFD, 900);
        expect(files[nth] >= 900, "numbers are free");
    }
    expect(dup2(1, files[0]) == files[0], "a file comes in place of another");
    for (int nth = 0; nth < 16; nth++) expect(close(files[nth]) == 0, "what the program has opened, it closes");
    expect(close_range(files[16], files[31], 0) == 0 && fcntl(files[20], F_GETFD) == -1, "or all of it");
}

/* Whether a mapping has a flag, given by its two letters. */
static int has_flag(const char *at, const char *flag) {
    char line[512];
    unsigned long from, to;
    int is_it = 0, has = 0;
    FILE *file = fopen("/proc/self/smaps", "r");
    while (fgets(line, sizeof line, file)) {
        if (sscanf(line, "%lx-%lx ", &from, &to) == 2) is_it = (unsigned long)at >= from && (unsigned long)at < to;
        if (is_it && !strncmp(line, "VmFlags:", 8)) has = strstr(line + 8, flag) != NULL;
    }
    fclose(file);
    return has;
}

/* Dropped memory preserves its advice. */
static void drop_with_flags(void) {
    char *places[2] = {memory + 8 * MIB, memory + 25 * MIB + PAGE};
    size_t lens[2] = {4 * MIB, 2 * PAGE};
    for (int nth = 0; nth < 2; nth++) {
        char *at = places[nth];
        size_t len = lens[nth];
        expect(!madvise(at, len, MADV_DONTDUMP) && !madvise(at, len, MADV_DONTFORK), "advice is taken");
        expect(!madvise(at, len, MADV_DONTNEED) && is(at, len, 0), "what has flags is dropped");
        expect(has_flag(at, " dd") && has_flag(at, " dc"), "and keeps them");
        memset(at, 3, len);
        expect(has_flag(at, " dd") && has_flag(at, " dc") && is(at, len, 3), "also when it is written");
        expect(at[-1] == 1 && at[len] == 1, "and what is beside it stays");
        at += 8 * MIB;
        if (mlock(at, len)) continue;
        int done = madvise(at, len, 24); /* MADV_DONTNEED_LOCKED */
        expect(done == 0 && is(at, len, 0) && has_flag(at, " lo"), "what is locked stays so");
    }
}

/* Enters a removed directory as its root, where there is no /proc. */
static int leave_proc(void) {
    char place[] = "/tmp/hugefork-XXXXXX";
    if (geteuid() || !mkdtemp(place)) return 0;
    return chdir(place) == 0 && rmdir(place) == 0 && chroot(".") == 0;
}

static void leave_and_drop(void) {
    if (leave_proc()) drop();
}

static void leave_and_drop_in_grandchild(void) {
    if (leave_proc()) in_child(drop);
}

/* A child drops inherited memory where the library cannot ask which memory is inherited. */
static void drop_without_proc(void) {
    in_child(leave_and_drop);
    in_child(leave_and_drop_in_grandchild);
    if (!leave_proc()) return;
    for (int round = 0; round < 3; round++) {
        memset(memory, 1, 64 * MIB);
        in_child(drop);
        expect(is(memory, 64 * MIB, 1), "its parent keeps it");
    }
}

static void *nothing(void *argument) { return argument; }

static int limit(int what, rlim_t most) {
    struct rlimit limit;
    getrlimit(what, &limit);
    limit.rlim_cur = most;
    return setrlimit(what, &limit);
}

/* Allocates memory until it fails; returns the number of MiB. */
static size_t take_all(void) {
    static char *pieces[512];
    size_t count = 0;
    while (count < 512) {
        char *piece = mmap(NULL, 4 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (piece == MAP_FAILED) break;
        piece[0] = 1;
        pieces[count++] = piece;
    }
    expect(count == 512 || errno == ENOMEM, "the kernel says that there is no more");
    for (size_t nth = 0; nth < count; nth++) munmap(pieces[nth], 4 * MIB);
    return 4 * count;
}

static void limit_addresses(void) {
    pthread_t thread;
    expect(limit(RLIMIT_AS, 1024 * MIB) == 0, "addresses are limited");
    size_t taken = take_all();
    expect(taken >= 512 && taken <= 1024, "so much is there, and no more");
    int made = pthread_create(&thread, NULL, nothing, NULL);
    expect(made == 0, "threads are there");
    if (made == 0) pthread_join(thread, NULL);
    expect(is(memory, 64 * MIB, 1), "memory is what it was");
    in_child(drop);
}

static void limit_addresses_in_child(void) { in_child(limit_addresses); }

static void limit_data(void) {
    expect(limit(RLIMIT_DATA, 512 * MIB) == 0, "data are limited");
    size_t taken = take_all();
    expect(taken >= 256 && taken <= 512, "so much is there, and no more");
    expect(is(memory, 64 * MIB, 1), "memory is what it was");
    in_child(drop);
}

/* Flags of the files that the program did not open. */
static size_t others_files(void) {
    size_t bytes = 0;
    struct stat file;
    for (int number = 3; number < 1024; number++)
        if (fstat(number, &file) == 0 && S_ISREG(file.st_mode)) bytes += file.st_blocks * 512;
    return bytes;
}

/* With few descriptors, memory held by children must still be freed each time. A program that
 * hangs is killed. */
static void limit_files(void) {
    expect(limit(RLIMIT_NOFILE, 64) == 0, "descriptors are limited");
    for (int round = 0; round < 12; round++) {
        memset(memory, 1, 64 * MIB);
        in_child(drop);
        memset(memory, 2, 64 * MIB);
        while (others_files() > 160 * MIB) usleep(10000);
    }
    int first = open("/dev/null", O_RDONLY), second = open("/dev/null", O_RDONLY);
    expect(first == 3 && second == 4, "numbers are the program's");
    close(first), close(second);
}

static int disabled(void) { return prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0); }

/* A program that disables huge pages reads its own setting. */
static void disable(void) {
    expect(prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) == 0 && disabled() == 1, "it is so");
    expect(prctl(PR_SET_THP_DISABLE, 0, 2, 0, 0) == -1 && errno == EINVAL, "no flags where nothing is disabled");
    expect(prctl(PR_SET_THP_DISABLE, 1, 1, 0, 0) == -1 && errno == EINVAL, "no unknown flags");
    expect(prctl(PR_SET_THP_DISABLE, 1, 0, 3, 0) == -1 && errno == EINVAL, "nothing more");
    expect(prctl(PR_SET_THP_DISABLE, 1, 0, 0, 4) == -1 && errno == EINVAL, "and nothing more");
    expect(prctl(PR_GET_THP_DISABLE, 1, 0, 0, 0) == -1 && errno == EINVAL, "nor for who asks");
    expect(prctl(PR_GET_THP_DISABLE, 0, 0, 0, 1) == -1 && errno == EINVAL, "whatever the place");
    expect(disabled() == 1, "it is still so");
    int is_known = prctl(PR_SET_THP_DISABLE, 1, 2, 0, 0) == 0; /* Except where it is advised, Linux 6.18. */
    expect(is_known || errno == EINVAL, "some or all");
    expect(disabled() == (is_known ? 3 : 1), "and which");
    expect(prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0) == 0 && disabled() == 0, "it is over");
}

#define ODD (5 * MIB + PAGE)
static char *odd;

/* Makes a mapping that is not a multiple of 2 MiB: after its end, addresses are unmapped for
 * all calls. */
static void map_odd(void) {
    char *above = mmap(NULL, 16 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    odd = mmap(NULL, ODD, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap(above, 16 * MIB);
    memset(odd, 2, ODD);
}

/* Addresses after the end of a mapping are unmapped, and the mapping before does not change. */
static void ask_behind(void) {
    char *end = odd + ODD;
    unsigned char seen[4];
    expect(msync(end, PAGE, MS_ASYNC) == -1 && errno == ENOMEM, "msync finds nothing");
    expect(mincore(end, 2 * PAGE, seen) == -1 && errno == ENOMEM, "nor does mincore");
    expect(mprotect(end, PAGE, PROT_READ) == -1 && errno == ENOMEM, "nor mprotect");
    expect(mlock(end, PAGE) == -1 && errno == ENOMEM, "nor mlock");
    expect(munlock(end, PAGE) == -1 && errno == ENOMEM, "nor munlock");
    expect(madvise(end, PAGE, MADV_NORMAL) == -1 && errno == ENOMEM, "nor advice");
    expect(madvise(end, PAGE, MADV_DONTNEED) == -1 && errno == ENOMEM, "nor who drops it");
    expect(mincore(end - PAGE, 2 * PAGE, seen) == -1 && errno == ENOMEM, "nor who begins before");
    expect(is(odd, ODD, 2), "what is before is what it was");
    expect(madvise(end - PAGE, 2 * PAGE, MADV_DONTNEED) == -1 && errno == ENOMEM && end[-PAGE] == 0, "it is dropped");
    end[-PAGE] = 2;
    char *at = mmap(end, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    expect(at == end && *at == 0 && (*at = 1) && mincore(end, PAGE, seen) == 0, "something else comes there");
    expect(is(odd, ODD, 2) && munmap(end, PAGE) == 0, "and goes");
    expect(mincore(end, PAGE, seen) == -1 && errno == ENOMEM, "nothing is there again");
}

static void move_behind(void) {
    void *moved = mremap(odd, ODD + PAGE, 32 * MIB, MREMAP_MAYMOVE);
    expect(moved == MAP_FAILED && errno == EFAULT && is(odd, ODD, 2), "who moves more than there is moves nothing");
}

static void ask_behind_in_child(void) { in_child(ask_behind); }

/* Asks in the middle of a range that may become the child's own memory. */
static void write_and_ask_behind(void) {
    for (size_t first = 0; first < 2 * PAGE; first += PAGE)
        for (size_t at = first; at < ODD; at += 2 * PAGE) odd[at] = 2;
    ask_behind();
    in_child(ask_behind);
}

/* Asks after it has installed a filter that allows every system call. */
static void filter_and_ask_behind(void) {
    struct sock_filter step = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog filter = {1, &step};
    expect(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) && !prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter), "a filter");
    ask_behind();
    expect(madvise(odd, ODD, MADV_DONTNEED) == 0 && is(odd, ODD, 0), "all of it is dropped");
    memset(odd, 2, ODD);
    in_child(ask_behind);
    /* The kernel's reason cannot be checked. */
    expect(mremap(odd, ODD + PAGE, 32 * MIB, MREMAP_MAYMOVE) == MAP_FAILED && is(odd, ODD, 2), "nothing is moved");
}

static void ends(void) {
    map_odd();
    in_child(ask_behind);
    in_child(move_behind);
    in_child(ask_behind_in_child);
    for (int times = 0; times < 8; times++) in_child(write_and_ask_behind);
    in_child(filter_and_ask_behind);
    move_behind();
    ask_behind();
    in_child(ask_behind);
    in_child(move_behind);
    expect(is(odd, ODD, 2), "a parent keeps what it has");
}

static void see_nothing(void) { expect(is(memory + 8 * MIB, 4 * MIB, 0) && memory[8 * MIB - 1] == 1, "it is wiped"); }

/* Excludes memory from children, and then looks for it in a child. */
static void wipe(void) {
    expect(madvise(memory + 8 * MIB, 4 * MIB, MADV_WIPEONFORK) == 0, "it is to be wiped");
    expect(is(memory + 8 * MIB, 4 * MIB, 1), "and is there still");
    in_child(see_nothing);
    expect(madvise(memory + 8 * MIB, 4 * MIB, MADV_KEEPONFORK) == 0 && is(memory, 16 * MIB, 1), "it is kept again");
    in_child(drop);
}

/* Locked memory is dropped only on explicit request. */
static void drop_locked(void) {
    char *at = memory + 8 * MIB;
    if (mlock(at + MIB, 8 * PAGE)) return;
    expect(madvise(at + MIB, PAGE, MADV_DONTNEED) == -1 && errno == EINVAL, "it is locked");
    expect(madvise(at + MIB, PAGE, MADV_FREE) == -1 && errno == EINVAL, "also for who frees it");
    expect(madvise(at, 4 * MIB, MADV_DONTNEED) == -1 && errno == EINVAL, "also in the middle of something");
    expect(is(at, MIB, 0) && is(at + MIB, 3 * MIB, 1), "what is before is dropped, and nothing else");
    expect(madvise(at + MIB, 2 * PAGE, 24) == 0 && is(at + MIB, 2 * PAGE, 0), "who says so drops it"); /* _LOCKED */
    expect(munlock(at + MIB, 8 * PAGE) == 0, "it is locked no longer");
    expect(madvise(at, 4 * MIB, MADV_DONTNEED) == 0 && is(at, 4 * MIB, 0), "and is dropped");
}

static const struct {
    const char *name;
    void (*work)(void);
    int is_in_child;
} all[] = {
    {"drop-in-grandchild", drop_in_child, 1},
    {"drop-as-daemon", drop_as_daemon, 1},
    {"drop-in-thread", drop_in_thread, 1},
    {"guard", guard, 1},
    {"bad-pointers", bad_pointers, 0},
    {"close-all", close_all, 0},
    {"close-all-and-fork", close_all_and_fork, 0},
    {"drop-without-proc", drop_without_proc, 0},
    {"limit-addresses", limit_addresses, 0},
    {"limit-addresses-in-child", limit_addresses_in_child, 0},
    {"limit-data", limit_data, 0},
    {"limit-files", limit_files, 0},
    {"drop-with-flags", drop_with_flags, 1},
    {"disable", disable, 0},
    {"ends", ends, 0},
    {"wipe", wipe, 1},
    {"drop-locked", drop_locked, 1},
    {"no-files", forks, 0},
    {"ring", ring, 0},
};

int main(int count, char **words) {
    struct rlimit none = {0, 0};
    if (count > 1 && strcmp(words[1], "no-files") == 0) setrlimit(RLIMIT_FSIZE, &none);
    memory = mmap(NULL, 64 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(memory, 1, 64 * MIB);
    for (size_t nth = 0; nth < sizeof all / sizeof *all; nth++) {
        if (count < 2 || strcmp(words[1], all[nth].name)) continue;
        if (all[nth].is_in_child) in_child(all[nth].work);
        else all[nth].work();
        printf("%d bad\n", bad);
        return bad != 0;
    }
    return 64;
}
