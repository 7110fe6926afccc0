/* Dumps core, as a child that has not used its inherited memory, as that child's child, or as
 * the parent of such a child. Prints the address of the memory, whose words are known. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define LEN (32ul << 20)

static int ended_by_abort(pid_t child) {
    int status;
    return waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

int main(int count, char **words) {
    if (count < 2) return 64;
    struct rlimit all = {RLIM_INFINITY, RLIM_INFINITY};
    setrlimit(RLIMIT_CORE, &all);
    unsigned long *memory = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (size_t at = 0; at < LEN / 8; at++) memory[at] = at * 0x9E3779B97F4A7C15ul + 1;
    printf("%lx\n", (unsigned long)memory);
    fflush(stdout);
    const char *who = words[1];
    int ends[2];
    if (pipe(ends)) return 65;
    pid_t child = fork();
    if (child == 0) {
        if (strcmp(who, "child") == 0) abort();
        if (strcmp(who, "grandchild") == 0) {
            pid_t its = fork();
            if (its == 0) abort();
            _exit(ended_by_abort(its) ? 0 : 66);
        }
        /* Waits until the parent has ended. */
        char byte;
        close(ends[1]);
        _exit(read(ends[0], &byte, 1) != 0);
    }
    if (strcmp(who, "parent") == 0) abort();
    if (strcmp(who, "child") == 0) return !ended_by_abort(child);
    int status;
    return waitpid(child, &status, 0) != child || status != 0;
}
