/* System calls of the library that are refused in a child, while the child writes all over what it has inherited, drops
   parts of it, takes rights and mappings away, and forks. Each page must have what was written last, in the child, in
   its own children, which look at what they had at their fork, and in the parent.

     a thread of the library ─ mremap, ioctl, … ─▶ seccomp ─▶ a thread of the parent: goes on, or ENOMEM and others
     in a child               ◀──────────────────────────────┘

   The library's calls are told from the program's by where they are made. Where the kernel refuses twice to move memory
   back, the library says so and aborts: so that call is refused once.
   Takes the number of children, and where the random numbers begin. Says what was asked and refused on standard error. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096ul
#define BLOCK (2ul << 20)
#define BLOCKS 20
#define PAGES (BLOCKS * 512ul)
#define SHARE (PAGES / 2)

struct random { uint64_t state; };
static uint64_t next(struct random *random) {
    uint64_t x = random->state;
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    return (random->state = x) >> 11;
}
static uint64_t below(struct random *random, uint64_t end) { return next(random) % end; }
static struct random seeded(uint64_t seed) {
    struct random random = {(seed + 1) * 0x9e3779b97f4a7c15ull | 1};
    for (int i = 0; i < 8; i++) next(&random);
    return random;
}

/* ---- what is refused ---- */

struct kind { const char *name; int call; uint64_t second; int errors[4]; };
/* `second`: only with this second argument, unless that is 0. */
static const struct kind KINDS[] = {
    {"userfaultfd", SYS_userfaultfd, 0, {EPERM, EMFILE, ENOMEM, ENOSYS}},
    {"UFFDIO_API", SYS_ioctl, 0xc018aa3f, {EINVAL, EPERM, ENOMEM, EAGAIN}},
    {"UFFDIO_REGISTER", SYS_ioctl, 0xc020aa00, {ENOMEM, EINVAL, EBUSY, EPERM}},
    {"UFFDIO_UNREGISTER", SYS_ioctl, 0x8010aa01, {ENOMEM, EINVAL, EPERM, EAGAIN}},
    {"UFFDIO_WAKE", SYS_ioctl, 0x8010aa02, {ENOMEM, EINVAL, EPERM, EAGAIN}},
    {"UFFDIO_ZEROPAGE", SYS_ioctl, 0xc020aa04, {ENOMEM, ENOENT, EINVAL, EPERM}},
    {"PAGEMAP_SCAN", SYS_ioctl, 0xc0606610, {ENOMEM, EINVAL, EPERM, ENOTTY}},
    {"PROCMAP_QUERY", SYS_ioctl, 0xc0686611, {ENOMEM, EINVAL, EPERM, ENOTTY}},
    {"mremap", SYS_mremap, 0, {ENOMEM, EAGAIN, EPERM, EFAULT}},
    {"mmap", SYS_mmap, 0, {ENOMEM, EAGAIN, EPERM, ENFILE}},
    {"munmap", SYS_munmap, 0, {ENOMEM, EPERM, EINVAL, ENOMEM}},
    {"madvise", SYS_madvise, 0, {ENOMEM, EAGAIN, EINVAL, EPERM}},
    {"mincore", SYS_mincore, 0, {ENOMEM, EAGAIN, EPERM, ENOSYS}},
    {"open", SYS_open, 0, {EMFILE, EPERM, ENOMEM, EINTR}},
    {"openat", SYS_openat, 0, {EMFILE, EPERM, ENOMEM, EINTR}},
    {"read", SYS_read, 0, {EINTR, ENOMEM, EPERM, EAGAIN}},
    {"pread64", SYS_pread64, 0, {EINTR, ENOMEM, EPERM, EIO}},
    {"poll", SYS_poll, 0, {EINTR, ENOMEM, EPERM, ENOSYS}},
    {"ppoll", SYS_ppoll, 0, {EINTR, ENOMEM, EPERM, ENOSYS}},
    {"close", SYS_close, 0, {EINTR, EIO, EPERM, ENOSYS}},
    {"close_range", SYS_close_range, 0, {ENOMEM, EMFILE, EPERM, ENOSYS}},
    {"clone", SYS_clone, 0, {EAGAIN, ENOMEM, EPERM, ENOSYS}},
    {"nanosleep", SYS_nanosleep, 0, {EINTR, EPERM, ENOSYS, EINTR}},
    {"clock_nanosleep", SYS_clock_nanosleep, 0, {EINTR, EPERM, ENOSYS, EINTR}},
    {"memfd_create", SYS_memfd_create, 0, {EMFILE, ENOMEM, EPERM, ENOSYS}},
    {"fcntl", SYS_fcntl, 0, {EMFILE, ENOMEM, EPERM, EBUSY}},
    {"prctl", SYS_prctl, 0, {EINVAL, EPERM, ENOSYS, ENOMEM}},
};
#define COUNT (sizeof KINDS / sizeof *KINDS)
static atomic_ulong asked[COUNT], refused[COUNT];

/* Where the library's code lies; nothing if it is not there. */
static uint64_t code_start, code_end, code_of_programs;

static void find_code(void) {
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512], rights[8], path[400];
    unsigned long from, to;
    while (fgets(line, sizeof line, maps))
        if (sscanf(line, "%lx-%lx %7s %*s %*s %*s %399s", &from, &to, rights, path) == 4 && rights[2] == 'x' &&
            strstr(path, "/libhugefork-run"))
            code_start = from, code_end = to;
    fclose(maps);
    /* On the program's behalf, all calls are made there. */
    code_of_programs = (uint64_t)dlsym(RTLD_DEFAULT, "syscall");
    /* The filter compares the lower halves. */
    if (code_start >> 32 != code_end >> 32) code_end = (code_start >> 32 << 32) + 0xffffffff;
}

/* This thread asks from now on, and all that it makes. Gives where. */
static int install(void) {
#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define HALF(field, by) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field) + by)
    struct sock_filter steps[100], ask = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF);
    struct sock_filter allow = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    int len = 0;
#define STEP(...) steps[len++] = (struct sock_filter)__VA_ARGS__
    /* The library's threads are made by libc. Those that have thread-local data of their own are others. */
    STEP(LOAD(nr));
    STEP(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 0, 5));
    STEP(LOAD(args[0]));
    STEP(BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, CLONE_THREAD, 0, 2));
    STEP(BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, CLONE_SETTLS, 1, 0));
    steps[len++] = ask;
    steps[len++] = allow;
    STEP(HALF(instruction_pointer, 4));
    STEP(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)(code_start >> 32), 1, 0));
    steps[len++] = allow;
    STEP(LOAD(instruction_pointer));
    STEP(BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, (uint32_t)code_start, 1, 0));
    steps[len++] = allow;
    STEP(BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, (uint32_t)code_end, 0, 1));
    steps[len++] = allow;
    STEP(BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, (uint32_t)code_of_programs, 0, 2));
    STEP(BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, (uint32_t)code_of_programs + 96, 1, 0));
    steps[len++] = allow;
    STEP(LOAD(nr));
    for (size_t kind = 0; kind < COUNT; kind++) {
        STEP(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, KINDS[kind].call, 0, 1));
        steps[len++] = ask;
    }
    steps[len++] = allow;
    struct sock_fprog filter = {.len = len, .filter = steps};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) return -1;
    /* libc's own function: by the library's, it would leave the process alone from now on. */
    void *libc = dlopen("libc.so.6", RTLD_NOW | RTLD_NOLOAD);
    long (*call)(long, ...) = libc ? (long (*)(long, ...))dlsym(libc, "syscall") : NULL;
    if (!call) return -1;
    return call(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &filter);
}

static char *memory;
/* The child asks here; and says where to ask by `line`. */
static int line[2];

/* How calls of a child are refused. */
enum manner { SOME, ALL_FROM, ONLY_ONE, MANNERS };
struct wish { uint64_t seed; int listener; };

/* The call that a thread was refused last. */
struct last { uint32_t thread; uint64_t call, args[5]; };

static int is_helper(uint32_t thread) {
    char path[64], name[32] = "";
    snprintf(path, sizeof path, "/proc/%u/comm", thread);
    int file = open(path, O_RDONLY);
    if (file >= 0 && read(file, name, sizeof name - 1) < 0) name[0] = 0;
    if (file >= 0) close(file);
    return strncmp(name, "hugefork-child", 14) == 0;
}

static void *decide(void *of) {
    struct wish wish = *(struct wish *)of;
    free(of);
    struct random random = seeded(wish.seed);
    enum manner manner = below(&random, MANNERS + 1) % MANNERS;
    uint64_t one_in = 2 + below(&random, 30), from = below(&random, 40), which = below(&random, COUNT), count = 0;
    int error = KINDS[which].errors[below(&random, 4)];
    /* What is interrupted is done again. */
    if (manner == ALL_FROM && (error == EINTR || error == EAGAIN)) error = ENOMEM;
    struct last lasts[16] = {{0}};
    for (;;) {
        struct pollfd ready = {wish.listener, POLLIN, 0};
        if (poll(&ready, 1, -1) < 0 && errno != EINTR) break;
        if (ready.revents & (POLLHUP | POLLERR) && !(ready.revents & POLLIN)) break;
        struct seccomp_notif call;
        memset(&call, 0, sizeof call);
        if (ioctl(wish.listener, SECCOMP_IOCTL_NOTIF_RECV, &call)) continue;
        struct seccomp_notif_resp answer = {.id = call.id, .flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE};
        size_t kind = 0;
        const uint64_t *args = (const uint64_t *)call.data.args;
        while (kind < COUNT && (KINDS[kind].call != call.data.nr || (KINDS[kind].second && KINDS[kind].second != (uint32_t)args[1])))
            kind++;
        if (kind < COUNT) {
            asked[kind]++;
            int moves_back = call.data.nr == SYS_mremap && args[3] & MREMAP_DONTUNMAP &&
                             args[4] - (uint64_t)memory < PAGES * PAGE;
            struct last *last = &lasts[call.pid % 16];
            int is_again = last->thread == call.pid && last->call == (uint64_t)call.data.nr &&
                           memcmp(last->args, args, sizeof last->args) == 0;
            int is_one = which == kind && count++ >= from;
            int refuses = manner == SOME ? below(&random, one_in) == 0 : manner == ALL_FROM ? is_one : is_one && count == from + 1;
            /* A number stays open then, which a thread of the program's would miss. */
            if (refuses && call.data.nr == SYS_close && !is_helper(call.pid)) refuses = 0;
            if (refuses && moves_back && (is_again || manner == ALL_FROM)) refuses = 0;
            if (refuses) {
                refused[kind]++;
                *last = (struct last){.thread = call.pid, .call = call.data.nr};
                memcpy(last->args, args, sizeof last->args);
                answer.flags = 0;
                answer.error = -(manner == SOME ? KINDS[kind].errors[below(&random, 4)] : error);
            } else if (is_again) {
                last->thread = 0;
            }
        }
        ioctl(wish.listener, SECCOMP_IOCTL_NOTIF_SEND, &answer);
    }
    close(wish.listener);
    return NULL;
}

/* Takes listeners from children. */
static void *take_listeners(void *none) {
    for (;;) {
        struct wish *wish = malloc(sizeof *wish);
        union { char bytes[CMSG_SPACE(sizeof(int))]; struct cmsghdr align; } control;
        struct iovec part = {&wish->seed, sizeof wish->seed};
        struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
        if (recvmsg(line[0], &message, MSG_CMSG_CLOEXEC) <= 0 || !CMSG_FIRSTHDR(&message)) return none;
        memcpy(&wish->listener, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof wish->listener);
        pthread_t thread;
        pthread_attr_t detached;
        pthread_attr_init(&detached);
        pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
        if (pthread_create(&thread, &detached, decide, wish)) abort();
    }
}

#define NO_FILTER 99

static void begin_refusals(uint64_t seed) {
    int listener = install();
    if (listener < 0) {
        perror("seccomp");
        _exit(NO_FILTER);
    }
    union { char bytes[CMSG_SPACE(sizeof(int))]; struct cmsghdr align; } control;
    memset(&control, 0, sizeof control);
    struct iovec part = {&seed, sizeof seed};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    struct cmsghdr *first = CMSG_FIRSTHDR(&message);
    first->cmsg_level = SOL_SOCKET, first->cmsg_type = SCM_RIGHTS, first->cmsg_len = CMSG_LEN(sizeof listener);
    memcpy(CMSG_DATA(first), &listener, sizeof listener);
    if (sendmsg(line[1], &message, 0) != sizeof seed) _exit(98);
    close(listener);
    /* The library's thread leaves for this call, and comes back with the filter that this thread has. */
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
}

/* ---- what the program does ---- */

/* How often each page was written; 0 if it was dropped and reads as zeros, GONE if it was unmapped. */
static uint32_t written[PAGES];
#define GONE UINT32_MAX
#define FAILED(what, page) (fprintf(stderr, "%s: page %zu, line %d, errno %d\n", what, (size_t)(page), __LINE__, errno), 0)

static uint64_t word(size_t page, size_t at) {
    return written[page] ? (uint64_t)written[page] << 40 | page << 12 | at : 0;
}

static void write_page(size_t page) {
    written[page]++;
    uint64_t *to = (uint64_t *)(memory + page * PAGE);
    for (size_t at = 0; at < 512; at++) to[at] = word(page, at);
}

static int is_whole(size_t page) {
    if (written[page] == GONE) return 1;
    const volatile uint64_t *from = (const uint64_t *)(memory + page * PAGE);
    for (size_t at = 0; at < 512; at++)
        if (from[at] != word(page, at)) {
            fprintf(stderr, "word %zu of page %zu is %lx and not %lx\n", at, page, (long)from[at], (long)word(page, at));
            return 0;
        }
    return 1;
}

static int are_whole(size_t from, size_t to) {
    for (size_t page = from; page < to; page++)
        if (!is_whole(page)) return 0;
    return 1;
}

static void write_all(size_t from, size_t to, int is_downwards) {
    for (size_t nth = 0; nth < to - from; nth++) {
        size_t page = is_downwards ? to - 1 - nth : from + nth;
        if (written[page] != GONE) write_page(page);
    }
}

/* A range without holes. */
static int is_there(size_t from, size_t count) {
    for (size_t page = from; page < from + count; page++)
        if (written[page] == GONE) return 0;
    return 1;
}

static int drop(size_t from, size_t count) {
    errno = 0;
    if (madvise(memory + from * PAGE, count * PAGE, MADV_DONTNEED) == 0) {
        memset(&written[from], 0, count * sizeof *written);
        return 1;
    }
    /* What it needs for that may be refused. Then each page is what it was, or dropped. */
    if (errno != EAGAIN) return FAILED("madvise", from);
    for (size_t page = from; page < from + count; page++) {
        uint64_t first = *(volatile uint64_t *)(memory + page * PAGE);
        if (first == 0) written[page] = 0;
    }
    return 1;
}

static int source[2];

/* One of what programs do, to a part of the first share. */
static int do_something(struct random *random) {
    size_t count = 1 + below(random, below(random, 3) ? 40 : 1400), from = below(random, SHARE - count);
    char *at = memory + from * PAGE;
    if (!is_there(from, count)) return 1;
    switch (below(random, 5)) {
    case 0:
    case 1:
        return drop(from, count);
    case 2: {
        if (mprotect(at, count * PAGE, PROT_READ)) return FAILED("mprotect", from);
        if (!are_whole(from, from + count)) return 0;
        if (below(random, 3) == 0 && !drop(from, count)) return 0;
        if (!are_whole(from, from + count)) return 0;
        if (mprotect(at, count * PAGE, PROT_READ | PROT_WRITE)) return FAILED("mprotect back", from);
        return 1;
    }
    case 3: {
        if (below(random, 4)) return 1;
        if (munmap(at, count * PAGE)) return FAILED("munmap", from);
        for (size_t page = from; page < from + count; page++) written[page] = GONE;
        return 1;
    }
    default: {
        /* The kernel writes. */
        uint64_t words[512];
        written[from]++;
        for (size_t i = 0; i < 512; i++) words[i] = word(from, i);
        if (write(source[1], words, PAGE) != PAGE || read(source[0], at, PAGE) != PAGE) return FAILED("read", from);
        return 1;
    }
    }
}

static int new_memory(struct random *random) {
    size_t len = (1 + below(random, 3)) * BLOCK + below(random, 2) * PAGE;
    char *at = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) return FAILED("mmap", len);
    memset(at, 5, len);
    for (size_t i = 0; i < len; i += 64)
        if (at[i] != 5) return FAILED("new memory", i);
    return munmap(at, len) == 0;
}

static atomic_int is_over;

/* Writes the second share, up and down, in order. */
static void *write_beside(void *none) {
    for (int is_downwards = 0; !is_over; is_downwards ^= 1) {
        write_all(SHARE, PAGES, is_downwards);
        if (!are_whole(SHARE, PAGES)) _exit(11);
    }
    return none;
}

static int grandchild(struct random random) {
    alarm(100);
    if (!are_whole(0, SHARE)) return 21;
    for (size_t page = SHARE; page < PAGES; page++) {
        /* Somebody was about to write one of them. */
        uint64_t first = *(volatile uint64_t *)(memory + page * PAGE) >> 40;
        if (first + 1 - written[page] > 2) return FAILED("snapshot", page) + 22;
    }
    if (below(&random, 2)) write_all(0, SHARE, 0);
    usleep(10000);
    size_t count = 1 + below(&random, 500), from = below(&random, SHARE - count);
    if (is_there(from, count) && !drop(from, count)) return 23;
    write_all(0, PAGES, 1);
    return are_whole(0, PAGES) ? 0 : 24;
}

static int child(uint64_t seed) {
    struct random random = seeded(seed);
    alarm(100);
    begin_refusals(seed);
    if (pipe(source)) return 31;
    pthread_t thread;
    if (pthread_create(&thread, NULL, write_beside, NULL)) return 32;
    pid_t forked[3];
    int count = 0;
    size_t rounds = 3 + below(&random, 4);
    for (size_t round = 0; round < rounds; round++) {
        write_all(0, SHARE, below(&random, 2));
        size_t things = below(&random, 12);
        for (size_t i = 0; i < things; i++)
            if (!do_something(&random)) return 33;
        if (!new_memory(&random)) return 34;
        if (count < 2 && below(&random, 3) == 0) {
            pid_t pid = fork();
            if (pid == 0) _exit(grandchild(random));
            if (pid < 0) return 35;
            forked[count++] = pid;
        }
        if (!are_whole(0, SHARE)) return 36;
        usleep(5000);
    }
    is_over = 1;
    pthread_join(thread, NULL);
    if (!are_whole(0, PAGES)) return 37;
    for (int nth = 0; nth < count; nth++) {
        int status;
        if (waitpid(forked[nth], &status, 0) != forked[nth] || status) return fprintf(stderr, "a grandchild: %x\n", status), 38;
    }
    return 0;
}

int main(int argc, char **words) {
    if (argc < 3) return 64;
    setvbuf(stderr, NULL, _IOLBF, 0);
    find_code();
    int children = atoi(words[1]), bad = 0;
    uint64_t seed = strtoul(words[2], NULL, 0);
    pthread_t thread;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, line)) return 1;
    if (pthread_create(&thread, NULL, take_listeners, NULL)) return 1;
    memory = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (size_t page = 0; page < PAGES; page++) write_page(page);
    struct random random = seeded(seed);
    for (int nth = 0; nth < children; nth++) {
        pid_t forked[2] = {0};
        int count = 1 + (below(&random, 3) == 0);
        for (int i = 0; i < count; i++)
            if ((forked[i] = fork()) == 0) _exit(child(seed + nth * 2 + i));
        for (int i = 0; i < 2000; i++) write_page(below(&random, PAGES));
        for (int i = 0; i < count; i++) {
            int status;
            if (waitpid(forked[i], &status, 0) != forked[i]) return 1;
            if (WIFEXITED(status) && WEXITSTATUS(status) == NO_FILTER) {
                puts("no filter");
                return 0;
            }
            if (status) {
                bad++;
                fprintf(stderr, "the child with %lu ended with %x\n", (long)(seed + nth * 2 + i), status);
            }
        }
        if (nth % 8 == 7 && !are_whole(0, PAGES)) bad++;
    }
    if (!are_whole(0, PAGES)) bad++;
    unsigned long all = 0;
    for (size_t kind = 0; kind < COUNT; kind++) {
        if (asked[kind]) fprintf(stderr, "%s %lu of %lu\n", KINDS[kind].name, refused[kind], asked[kind]);
        all += refused[kind];
    }
    fprintf(stderr, "%lu refused in all\n", all);
    printf("%d bad\n", bad);
    return bad != 0;
}
