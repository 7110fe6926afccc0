/* With slow.c. Threads change memory while another thread forks: no thread may wait for ever,
 * no other memory may change, children must have all memory, and unmapped memory must be freed.
 * */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (1ul << 20)
#define PIECES 150

extern pthread_mutex_t slow_lock;
extern atomic_int slow_forks, slow_us;

static _Atomic(char *) first;
static char *pieces[PIECES];
static char *region;
static atomic_int is_over, bad, is_ready;

static char *map(size_t len) {
    return mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

static int is(const char *at, size_t len, char value) {
    for (size_t i = 0; i < len; i += 4096)
        if (at[i] != value) return 0;
    return 1;
}

static void *first_memory(void *none) {
    int begun = slow_forks;
    is_ready = 1;
    while (slow_forks == begun) {}
    char *new = map(64 * MIB);
    memset(new, 3, 64 * MIB);
    first = new;
    return none;
}

static void *unmap_all(void *none) {
    int begun = slow_forks;
    is_ready = 1;
    while (slow_forks == begun) {}
    for (int i = 0; i < PIECES; i++) munmap(pieces[i], 2 * MIB);
    return none;
}

static void *use_all(void *none) {
    while (!is_over) {
        pthread_mutex_lock(&slow_lock);
        region[0] = region[12 * MIB] = 1;
        /* The range contains a hole, and a read-only page. */
        madvise(region, 16 * MIB, MADV_DONTNEED);
        bad += region[0] != 0 || region[12 * MIB] != 0;
        madvise(region, 2 * MIB, MADV_HUGEPAGE);
        mprotect(region, 2 * MIB, PROT_READ | PROT_WRITE);
        char *more = map(4 * MIB);
        bad += !is(more, 4 * MIB, 0);
        memset(more, 4, 2 * MIB);
        munmap(more, 2 * MIB);
        munmap(more + 2 * MIB, 2 * MIB);
        pthread_mutex_unlock(&slow_lock);
    }
    return none;
}

static pthread_t start(void *(*work)(void *)) {
    pthread_t thread;
    is_ready = 0;
    pthread_create(&thread, NULL, work, NULL);
    return thread;
}

static void end(pid_t child) {
    int status;
    bad += child < 0 || waitpid(child, &status, 0) != child || status;
}

int main(void) {
    alarm(300);
    /* The process has no big memory when the fork begins. */
    pthread_t thread = start(first_memory);
    while (!is_ready) {}
    slow_us = 50000;
    pid_t child = fork();
    if (child == 0) {
        alarm(300);
        char *own = map(64 * MIB);
        memset(own, 5, 64 * MIB);
        _exit((first && !is(first, 64 * MIB, 3)) || !is(own, 64 * MIB, 5));
    }
    end(child);
    pthread_join(thread, NULL);
    bad += !is(first, 64 * MIB, 3);

    for (int i = 0; i < PIECES; i++) memset(pieces[i] = map(2 * MIB), 6, 2 * MIB);
    thread = start(unmap_all);
    while (!is_ready) {}
    child = fork();
    if (child == 0) _exit(!is(first, 64 * MIB, 3));
    end(child);
    pthread_join(thread, NULL);
    munmap(map(2 * MIB), 2 * MIB);
    int ends[2];
    if (pipe(ends)) return 65;
    for (int i = 0; i < PIECES; i++) bad += write(ends[1], pieces[i], 1) != -1 || errno != EFAULT;

    slow_us = 1000;
    region = map(16 * MIB);
    memset(region, 1, 16 * MIB);
    mprotect(region + 5 * MIB, 4096, PROT_NONE);
    munmap(region + 8 * MIB, 2 * MIB);
    pthread_t threads[] = {start(use_all)};
    pid_t last = 0;
    for (int round = 0; round < 30; round++) {
        child = fork();
        if (child == 0) {
            usleep(3000);
            _exit(!is(first, 64 * MIB, 3 + round % 100));
        }
        /* These writes give the library pages to write back. */
        memset(first, 3 + (round + 1) % 100, 64 * MIB);
        if (last) end(last);
        last = child;
    }
    end(last);
    is_over = 1;
    pthread_join(threads[0], NULL);
    printf("%d bad\n", bad);
    return bad != 0;
}
