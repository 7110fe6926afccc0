/* With handlers.c. Threads map and unmap meanwhile. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (1ul << 20)

extern char *handled;
extern size_t handled_len;
static atomic_int is_over;

static void *map_and_unmap(void *none) {
    while (!is_over) {
        char *more = mmap(NULL, 4 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        more[MIB] = 1;
        munmap(more, 4 * MIB);
    }
    return none;
}

static int is(const char *at, size_t len, char value) {
    for (size_t i = 0; i < len; i++)
        if (at[i] != value) return 0;
    return 1;
}

int main(void) {
    int bad = 0, status;
    char *memory = mmap(NULL, 64 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(memory, 5, 64 * MIB);
    pthread_t thread;
    pthread_create(&thread, NULL, map_and_unmap, NULL);
    handled = memory;
    handled_len = 16 * MIB;
    for (int round = 0; round < 30; round++) {
        pid_t child = fork();
        if (child == 0) {
            alarm(300);
            int holds = handled != MAP_FAILED && is(handled, 4 * MIB, 0) && is(handled + 4 * MIB, 4 * MIB, 5) &&
                        is(handled + 8 * MIB, 8 * MIB, 0) && is(memory + 10 * MIB, 54 * MIB, 5);
            _exit(!holds);
        }
        bad += waitpid(child, &status, 0) != child || status;
    }
    is_over = 1;
    pthread_join(thread, NULL);
    bad += !is(memory, 64 * MIB, 5);
    printf("%d bad\n", bad);
    return bad != 0;
}
