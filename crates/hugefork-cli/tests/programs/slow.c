/* A library with a lock, and handlers of fork(2) that take it, as allocators have. Its `prepare` takes its time. With
   PAST it is registered with libc itself, past what is preloaded, and called after the handlers of that. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

pthread_mutex_t slow_lock = PTHREAD_MUTEX_INITIALIZER;
/* Whether a fork is under way, how many have begun, and how long each takes. */
atomic_int slow_fork;
atomic_int slow_forks;
atomic_int slow_us = 2000;

static void prepare(void) {
    slow_fork = 1;
    slow_forks++;
    usleep(slow_us);
    pthread_mutex_lock(&slow_lock);
}

static void after(void) {
    slow_fork = 0;
    pthread_mutex_unlock(&slow_lock);
}

__attribute__((constructor)) static void begin(void) {
#ifdef PAST
    void *libc = dlopen("libc.so.6", RTLD_NOW | RTLD_NOLOAD);
    typedef void handler(void);
    int (*registers)(handler *, handler *, handler *, void *) = dlsym(libc, "__register_atfork");
    registers(prepare, after, after, NULL);
#else
    pthread_atfork(prepare, after, after);
#endif
}
