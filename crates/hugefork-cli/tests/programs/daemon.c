/* A program that goes to the background after it has allocated all its memory: the child
 * continues, and forks in turn. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define LEN (64ul << 20)

static int is(const char *at, char value) {
    for (size_t i = 0; i < LEN; i++)
        if (at[i] != value) return 0;
    return 1;
}

int main(void) {
    char *memory = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(memory, 1, LEN);
    int ends[2], bad = 0, status;
    char byte;
    if (pipe(ends)) return 65;
    if (fork() != 0) return 0;
    close(ends[1]);
    bad += read(ends[0], &byte, 1) != 0 || !is(memory, 1);
    for (char round = 2; round < 6; round++) {
        char *more = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        memset(more, round, LEN);
        pid_t child = fork();
        if (child == 0) _exit(!(is(memory, round - 1) && is(more, round)));
        memset(memory, round, LEN);
        bad += waitpid(child, &status, 0) != child || status || !is(memory, round) || munmap(more, LEN);
    }
    printf("%d bad\n", bad);
    return bad != 0;
}
