/* Enters a sandbox: a filter that kills the process for all system calls except those of libc's
 * `malloc` and `fork`, and the program's own. It installs the filter by libc's syscall() or
 * prctl(), for the whole process; afterwards it allocates, drops, moves and writes earlier
 * memory, and forks. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (1ul << 20)
#define LEN (64 * MIB)

static char *memory;

#define ALLOW(name) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##name, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

static int filter(const char *by) {
    struct sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        ALLOW(mmap), ALLOW(munmap), ALLOW(mremap), ALLOW(madvise), ALLOW(mprotect), ALLOW(brk), ALLOW(futex),
        ALLOW(clone), ALLOW(clone3), ALLOW(set_robust_list), ALLOW(getrandom), ALLOW(wait4),
        ALLOW(write), ALLOW(exit_group),
#if __GLIBC_PREREQ(2, 37)
        ALLOW(rt_sigprocmask), ALLOW(rseq), ALLOW(gettid),
#endif
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog program = {sizeof rules / sizeof *rules, rules};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) return -1;
    if (!strcmp(by, "prctl")) return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
    return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program);
}

static int is_all(const char *at, size_t len, char byte) {
    for (size_t offset = 0; offset < len; offset++)
        if (at[offset] != byte) return 0;
    return 1;
}

/* Uses memory with as few system calls of its own as possible. Returns the first mistake found.
 * */
static int work(void) {
    for (size_t len = 10; len < 64 * MIB; len *= 3) {
        char *volatile block = malloc(len);
        if (!block) return 1;
        memset(block, 5, len);
        block = realloc(block, 2 * len);
        if (!block || !is_all(block, len, 5)) return 2;
        free(block);
    }
    char *new = mmap(NULL, 16 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (new == MAP_FAILED || !is_all(new, 16 * MIB, 0)) return 3;
    memset(new, 6, 16 * MIB);
    if (madvise(new + MIB, MIB, MADV_DONTNEED) || !is_all(new + MIB, MIB, 0)) return 4;
    /* Memory from before the filter. */
    if (!is_all(memory, LEN, 1)) return 5;
    for (size_t at = 0; at < 16 * MIB; at += 4096) memory[at] = 2;
    if (madvise(memory + 2 * MIB, 7 * MIB, MADV_DONTNEED) || !is_all(memory + 2 * MIB, 7 * MIB, 0)) return 6;
    if (madvise(memory + 20 * MIB + 4096, 8192, MADV_DONTNEED) || !is_all(memory + 20 * MIB + 4096, 8192, 0)) return 7;
    memory[3 * MIB] = 7;
    if (memory[3 * MIB] != 7 || memory[20 * MIB] != 1 || memory[20 * MIB + 3 * 4096] != 1) return 8;
    if (mprotect(memory + 30 * MIB, MIB, PROT_READ) || mprotect(memory + 30 * MIB, MIB, PROT_READ | PROT_WRITE)) return 9;
    memset(memory + 30 * MIB, 8, MIB);
    if (munmap(memory + 40 * MIB, 3 * MIB)) return 10;
    if (!is_all(memory + 43 * MIB, 17 * MIB, 1) || !is_all(memory + 32 * MIB, 8 * MIB, 1)) return 11;
    char *moved = mremap(new, 16 * MIB, 32 * MIB, MREMAP_MAYMOVE);
    if (moved == MAP_FAILED || moved[0] != 6 || moved[31 * MIB] != 0 || !is_all(moved + 2 * MIB, 14 * MIB, 6)) return 12;
    moved = mremap(memory + 56 * MIB, 4 * MIB, 8 * MIB, MREMAP_MAYMOVE);
    if (moved == MAP_FAILED || !is_all(moved, 4 * MIB, 1) || !is_all(moved + 4 * MIB, 4 * MIB, 0)) return 13;
    return 0;
}

static int ended(pid_t child) {
    int status;
    if (child < 0 || wait4(child, &status, 0, NULL) != child) return 100;
    return WIFSIGNALED(status) ? 200 + WTERMSIG(status) : WEXITSTATUS(status);
}

static int fork_and_work(void) {
    for (int nth = 0; nth < 3; nth++) {
        pid_t child = fork();
        if (child == 0) _exit(work());
        int status = ended(child);
        if (status) return status;
    }
    return 0;
}

static int threads(void) {
    DIR *tasks = opendir("/proc/self/task");
    int count = -2;
    while (readdir(tasks)) count++;
    closedir(tasks);
    return count;
}

static void say(const char *what, int status) {
    if (status) printf("%s: %d\n", what, status);
}

/* Each is a process of its own, whose parent has forked before. */
static int of_a_process(int is_child, const char *by) {
    if (is_child) {
        pid_t child = fork();
        if (child) return ended(child);
        for (size_t at = 48 * MIB; at < 56 * MIB; at += 4096) memory[at] = 1;
        if (filter(by)) _exit(90);
        int status = fork_and_work();
        _exit(status ? status : work());
    }
    if (filter(by)) return 90;
    int status = fork_and_work();
    return status ? status : work();
}

int main(int argc, char **argv) {
    static char line[BUFSIZ];
    setvbuf(stdout, line, _IOFBF, sizeof line);
    const char *what = argc > 1 ? argv[1] : "", *by = argc > 2 ? argv[2] : "syscall";
    memory = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(memory, 1, LEN);
    int wakes[2];
    pipe(wakes);
    /* It lives as long as the program, because the caller waits for its end. */
    pid_t lives = fork();
    if (lives == 0) {
        char byte;
        close(wakes[1]);
        read(wakes[0], &byte, 1);
        _exit(0);
    }
    close(wakes[0]);
    int status = 0;
    if (!strcmp(what, "program")) {
        status = of_a_process(0, by);
    } else if (!strcmp(what, "child")) {
        status = of_a_process(1, by);
    } else if (!strcmp(what, "strict")) {
        pid_t child = fork();
        if (child == 0) {
            for (size_t at = 0; at < LEN / 2; at += 4096) memory[at] = 2;
            if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT)) _exit(90);
            for (size_t at = 0; at < LEN; at += 4096) memory[at] = 3;
            syscall(SYS_exit, memory[LEN / 2] != 3);
        }
        status = ended(child);
    } else if (!strcmp(what, "threads")) {
        /* Chromium's zygote exits if it has an additional thread. */
        pid_t child = fork();
        if (child == 0) {
            for (int round = 0; round < 50; round++) {
                memset(memory, round, LEN);
                if (threads() != 1) _exit(1);
            }
            pid_t inner = fork();
            if (inner == 0) _exit(threads() != 1);
            if (threads() != 1) _exit(2);
            _exit(ended(inner));
        }
        status = ended(child);
    } else if (!strcmp(what, "spaces")) {
        int here = open("/proc/self/ns/mnt", O_RDONLY);
        if (unshare(CLONE_NEWNS)) status = 1;
        else if (setns(here, CLONE_NEWNS)) status = 2;
        else if (unshare(CLONE_NEWUSER)) status = 3;
        else if (!is_all(memory, LEN, 1)) status = 4;
        else {
            pid_t child = fork();
            if (child == 0) _exit(unshare(CLONE_NEWNS) ? 5 : work());
            status = ended(child);
        }
    }
    say(what, status);
    puts("done");
    fflush(stdout);
    _exit(status != 0);
}
