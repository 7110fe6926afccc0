/* A child drops many small pieces of its inherited memory in random order, as Redis does with
 * each saved value. They must read as zeros, for the child's own child too, and be writable,
 * and all other memory must not change. Prints the number of mappings used. Signal handlers may
 * access the piece that is being dropped. */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096ul

static size_t count_mappings(void) {
    FILE *maps = fopen("/proc/self/maps", "r");
    size_t count = 0;
    for (int c; (c = fgetc(maps)) != EOF;) count += c == '\n';
    fclose(maps);
    return count;
}

static char *memory;
static size_t pieces;

/* Of the four pages of a piece, drops the middle two. */
static int expected(size_t page) { return page % 4 == 1 || page % 4 == 2 ? 0 : 1 + (int)(page % 100); }

static int bad(void) {
    int found = 0;
    for (size_t page = 0; page < 4 * pieces; page++)
        for (size_t at = 0; at < PAGE; at += 63) found += memory[page * PAGE + at] != expected(page);
    return found;
}

/* The area after the pieces. */
#define MORE 64
static char *more_memory;

static void count_there(int number) {
    for (size_t page = 0; page < MORE; page++) more_memory[page * PAGE]++;
}

static void drop_beside_a_handler(void) {
    struct itimerval often = {{0, 50}, {0, 50}}, never = {{0, 0}, {0, 0}};
    signal(SIGALRM, count_there);
    setitimer(ITIMER_REAL, &often, NULL);
    for (int round = 0; round < 3000; round++)
        if (madvise(more_memory + round % (MORE - 1) * PAGE, 2 * PAGE, MADV_DONTNEED)) _exit(7);
    setitimer(ITIMER_REAL, &never, NULL);
    signal(SIGALRM, SIG_DFL);
}

int main(int count, char **words) {
    pieces = count > 1 ? atol(words[1]) : 3000;
    size_t len = 4 * pieces * PAGE;
    memory = mmap(NULL, len + MORE * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    more_memory = memset(memory + len, 1, MORE * PAGE);
    for (size_t page = 0; page < 4 * pieces; page++) memset(memory + page * PAGE, 1 + (int)(page % 100), PAGE);
    int status, wrong = 0, more[2];
    if (pipe(more)) return 1;
    pid_t child = fork();
    if (child == 0) {
        drop_beside_a_handler();
        size_t before = count_mappings();
        for (size_t nth = 0; nth < pieces; nth++) {
            size_t piece = nth * 7919 % pieces;
            char *at = memory + (4 * piece + 1) * PAGE;
            if (nth % 2) at[100] = 99;
            if (madvise(at, 2 * PAGE, MADV_DONTNEED)) _exit(1);
        }
        size_t new = count_mappings() - before;
        if (write(more[1], &new, sizeof new) != sizeof new) _exit(2);
        if (bad()) _exit(3);
        pid_t grandchild = fork();
        if (grandchild == 0) _exit(bad() != 0);
        if (waitpid(grandchild, &status, 0) != grandchild || status) _exit(4);
        for (size_t piece = 0; piece < pieces; piece++) memory[(4 * piece + 2) * PAGE + 7] = 5;
        for (size_t piece = 0; piece < pieces; piece++) {
            char *at = memory + (4 * piece + 1) * PAGE;
            if (at[0] || at[PAGE + 6] || at[PAGE + 7] != 5) _exit(5);
            at[PAGE + 7] = 0;
        }
        if (bad()) _exit(6);
        /* Without a descriptor the call may fail, and then nothing has changed. */
        struct rlimit few = {20, 20};
        setrlimit(RLIMIT_NOFILE, &few);
        while (dup(1) >= 0) {}
        memory[0] = 77;
        errno = 0;
        int refused = madvise(memory, PAGE, MADV_DONTNEED);
        _exit(refused ? memory[0] != 77 || errno != ENOMEM : memory[0] != 0);
    }
    size_t new = 0;
    wrong += read(more[0], &new, sizeof new) != sizeof new;
    wrong += waitpid(child, &status, 0) != child || status;
    for (size_t page = 0; page < 4 * pieces; page++)
        for (size_t at = 0; at < PAGE; at += 63) wrong += memory[page * PAGE + at] != 1 + (int)(page % 100);
    printf("%zu mappings more, %d bad\n", new, wrong);
    return 0;
}
