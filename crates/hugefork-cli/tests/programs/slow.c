/* A library with a lock, and handlers of fork(2) that take it, as allocators have. Its `prepare` is called after those
   of what is preloaded, and takes its time. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

pthread_mutex_t slow_lock = PTHREAD_MUTEX_INITIALIZER;
/* Whether a fork is under way, and how long it takes. */
atomic_int slow_fork;
atomic_int slow_us = 2000;

static void prepare(void) {
    slow_fork = 1;
    usleep(slow_us);
    pthread_mutex_lock(&slow_lock);
}

static void after(void) {
    slow_fork = 0;
    pthread_mutex_unlock(&slow_lock);
}

__attribute__((constructor)) static void begin(void) { pthread_atfork(prepare, after, after); }
