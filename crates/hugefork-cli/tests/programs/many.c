/* Forks faster than the worker can follow, and has many living children. Each child checks that its
 * memory does not change. Pages written meanwhile are copied, and can be written back when all
 * children have ended. Then it forks when no descriptor is left. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (1ul << 20)
#define LEN (64 * MIB)
#define BLOCK (2 * MIB)
#define AT_ONCE 150

static char *memory;

static void write_a_page_of_each_block(char value) {
    for (size_t at = 0; at < LEN; at += BLOCK) memory[at] = value;
}

static int is_everywhere(char value) {
    for (size_t at = 0; at < LEN; at += BLOCK)
        if (memory[at] != value || memory[at + 4096] != 1) return 0;
    return 1;
}

/* Checks once more when the other end of the pipe is closed. */
static pid_t child_that_waits(int ends[2], char value) {
    pid_t child = fork();
    if (child == 0) {
        char byte;
        close(ends[1]);
        int was = is_everywhere(value);
        if (read(ends[0], &byte, 1) != 0) _exit(2);
        _exit(!was || !is_everywhere(value));
    }
    return child;
}

static int ended_badly(pid_t child) {
    int status;
    return child < 0 || waitpid(child, &status, 0) != child || status != 0;
}

int main(void) {
    int bad = 0, ends[2];
    pid_t children[AT_ONCE];
    memory = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(memory, 1, LEN);
    for (int number = 0; number < 400; number++) {
        pid_t child = fork();
        if (child == 0) _exit(0);
        bad += ended_badly(child);
    }
    if (pipe(ends)) return 65;
    for (int number = 0; number < AT_ONCE; number++) {
        children[number] = child_that_waits(ends, 1 + number % 100);
        write_a_page_of_each_block(1 + (number + 1) % 100);
    }
    write_a_page_of_each_block(7);
    close(ends[1]);
    for (int number = 0; number < AT_ONCE; number++) bad += ended_badly(children[number]);
    printf("%d bad\n", bad);
    fflush(stdout);
    getchar();
    struct rlimit limit, none;
    getrlimit(RLIMIT_NOFILE, &limit);
    none = limit;
    none.rlim_cur = 0;
    if (pipe(ends)) return 65;
    setrlimit(RLIMIT_NOFILE, &none);
    pid_t child = child_that_waits(ends, 7);
    setrlimit(RLIMIT_NOFILE, &limit);
    write_a_page_of_each_block(8);
    close(ends[1]);
    bad += ended_badly(child);
    return bad != 0 || !is_everywhere(8);
}
