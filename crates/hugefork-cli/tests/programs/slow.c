/* A library with a lock, and fork(2) handlers that take it, like those of allocators. Its
 * `prepare` is slow. With PAST it is registered with libc directly, bypassing preloaded
 * libraries, and called after their handlers. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

pthread_mutex_t slow_lock = PTHREAD_MUTEX_INITIALIZER;
/* Whether a fork is in progress, the number of forks begun, and the duration of each. */
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
