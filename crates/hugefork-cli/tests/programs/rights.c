/* With slow.c. Changes memory in ways that only the kernel can do, while holding a lock that a
 * fork(2) handler takes, like an allocator: no thread may wait for ever, and all changes must
 * happen. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (1ul << 20)

extern pthread_mutex_t slow_lock;
extern atomic_int slow_fork;

static atomic_int is_over, bad;
static atomic_long rounds;

static char *map(size_t len) {
    char *at = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(at, 1, len);
    return at;
}

static void *change(void *none) {
    while (!is_over) {
        char *all = map(16 * MIB);
        /* Begins while a fork is in progress, if possible. */
        for (int i = 0; i < 1000 && !slow_fork && !is_over; i++) usleep(10);
        pthread_mutex_lock(&slow_lock);
        bad += mprotect(all, 4096, PROT_NONE) != 0;
        mlock(all + 2 * MIB, 4096);
        bad += mmap(all + 4 * MIB, 2 * MIB, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED;
        bad += madvise(all + 6 * MIB, 4096, MADV_DONTDUMP) != 0;
        char *moved = mremap(all + 8 * MIB, 2 * MIB, 4 * MIB, MREMAP_MAYMOVE);
        bad += moved == MAP_FAILED || moved[0] != 1 || moved[2 * MIB] != 0;
        bad += all[4 * MIB] != 0 || all[6 * MIB] != 1 || all[12 * MIB] != 1;
        munmap(moved, 4 * MIB);
        munmap(all, 16 * MIB);
        pthread_mutex_unlock(&slow_lock);
        rounds++;
    }
    return none;
}

int main(void) {
    char *kept = map(64 * MIB);
    pthread_t thread;
    pthread_create(&thread, NULL, change, NULL);
    while (!rounds) usleep(100);
    for (int round = 0; round < 60; round++) {
        pid_t child = fork();
        if (child == 0) _exit(kept[0] != 1 || kept[63 * MIB] != 1);
        int status;
        bad += child < 0 || waitpid(child, &status, 0) != child || status;
    }
    is_over = 1;
    pthread_join(thread, NULL);
    printf("%d bad\n", bad);
    return bad != 0;
}
