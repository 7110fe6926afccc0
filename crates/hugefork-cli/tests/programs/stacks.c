/* Threads on stacks that the program has allocated. At the end of a thread, the kernel writes a
 * word to its stack and wakes the thread that waits for it, which it finds by the page: a fork
 * in between must not change the page. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (1ul << 20)

static atomic_int may_end, joined, joiner;

static void *work(void *none) {
    while (!may_end) usleep(1000);
    return none;
}

static void *join(void *thread) {
    joiner = syscall(SYS_gettid);
    pthread_join(*(pthread_t *)thread, NULL);
    joined = 1;
    return NULL;
}

/* Waits until the thread that joins the other sleeps. */
static void let_it_wait(void) {
    for (long call = -1; call != SYS_futex; usleep(1000)) {
        char path[64];
        snprintf(path, sizeof path, "/proc/self/task/%d/syscall", joiner);
        FILE *file = fopen(path, "r");
        if (file && fscanf(file, "%ld", &call) != 1) call = -1;
        if (file) fclose(file);
    }
}

int main(void) {
    alarm(300);
    char *memory = mmap(NULL, 64 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(memory, 1, 64 * MIB);
    for (int round = 0; round < 5; round++) {
        pthread_t worker, waiter;
        pthread_attr_t attributes;
        may_end = joined = joiner = 0;
        pthread_attr_init(&attributes);
        if (pthread_attr_setstack(&attributes, memory + round * 8 * MIB, 8 * MIB)) return 65;
        if (pthread_create(&worker, &attributes, work, NULL)) return 66;
        pthread_create(&waiter, NULL, join, &worker);
        let_it_wait();
        pid_t child = fork();
        if (child == 0) _exit(joined);
        may_end = 1;
        pthread_join(waiter, NULL);
        int status;
        if (waitpid(child, &status, 0) != child || status) return 67;
    }
    puts("0 bad");
    return 0;
}
