// Asks of `malloc` and its like what libc promises, also across threads and forks. Says how much of it was broken, and
// whether small memory lies in the heap that libc's own has.
#define _GNU_SOURCE
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static int broken;

#define PROMISED(what) \
    do { \
        if (!(what)) { \
            broken++; \
            fprintf(stderr, "line %d: %s\n", __LINE__, #what); \
        } \
    } while (0)

static int is_at(void *at, size_t alignment) { return at && (uintptr_t)at % alignment == 0; }

static void results(void) {
    char *at = malloc(0), *other = malloc(0);
    PROMISED(at && other && at != other);
    free(at), free(other), free(NULL);
    for (size_t len = 1; len < (64u << 20); len = len * 3 + 1) {
        at = malloc(len);
        PROMISED(is_at(at, len < 16 ? 8 : 16) && malloc_usable_size(at) >= len);
        memset(at, 7, len);
        at = realloc(at, len * 2);
        PROMISED(at[0] == 7 && at[len - 1] == 7);
        memset(at, 8, len * 2);
        at = realloc(at, len / 2 + 1);
        PROMISED(at[0] == 8 && at[len / 2] == 8);
        free(at);
        at = calloc(len, 3);
        size_t zeros = 0;
        while (zeros < len * 3 && !at[zeros]) zeros++;
        PROMISED(zeros == len * 3);
        memset(at, 9, len * 3);
        free(at);
    }
    PROMISED(malloc_usable_size(NULL) == 0);
    PROMISED(realloc(malloc(5), 0) == NULL);
    // Kept from the compiler, which knows that these fail.
    volatile size_t most = PTRDIFF_MAX, half = SIZE_MAX / 2;
    errno = 0;
    PROMISED(malloc(most) == NULL && errno == ENOMEM);
    errno = 0;
    PROMISED(calloc(half, 4) == NULL && errno == ENOMEM);
    errno = 0;
    at = malloc(5);
    PROMISED(reallocarray(at, half, 4) == NULL && errno == ENOMEM);
    errno = 0;
    PROMISED(realloc(at, most) == NULL && errno == ENOMEM);
    at = reallocarray(at, 100, 10);
    PROMISED(at && malloc_usable_size(at) >= 1000);
    free(at);
}

static void alignments(void) {
    for (size_t alignment = sizeof(void *); alignment <= (8u << 20); alignment *= 2) {
        void *at = NULL;
        PROMISED(posix_memalign(&at, alignment, 100) == 0 && is_at(at, alignment));
        at = realloc(at, 5000);
        PROMISED(at && malloc_usable_size(at) >= 5000);
        free(at);
        at = aligned_alloc(alignment, alignment * 3);
        PROMISED(is_at(at, alignment));
        memset(at, 1, alignment * 3);
        free(at);
        at = memalign(alignment, 10);
        PROMISED(is_at(at, alignment));
        free(at);
    }
    void *at = (void *)1;
    volatile size_t odd = 24;
    PROMISED(posix_memalign(&at, odd, 8) == EINVAL && posix_memalign(&at, 4, 8) == EINVAL && at == (void *)1);
    at = memalign(odd, 8);
    PROMISED(is_at(at, 32));
    free(at);
    at = valloc(1);
    PROMISED(is_at(at, 4096));
    free(at);
    at = pvalloc(4097);
    PROMISED(is_at(at, 4096) && malloc_usable_size(at) >= 8192);
    free(at);
}

// What one thread allocates, the other frees.
#define BOX 64
static struct {
    pthread_mutex_t lock;
    unsigned char *at[BOX];
    size_t len[BOX];
} box = {PTHREAD_MUTEX_INITIALIZER, {0}, {0}};
static volatile int over;

static void exchange(unsigned *random) {
    *random = *random * 1664525 + 1013904223;
    unsigned place = *random >> 8 & (BOX - 1);
    size_t len = *random >> 14 & 1 ? *random >> 4 & 0xfffff : *random >> 20;
    unsigned char *mine = malloc(len + 1);
    memset(mine, place, len + 1);
    pthread_mutex_lock(&box.lock);
    unsigned char *theirs = box.at[place];
    size_t their_len = box.len[place];
    box.at[place] = mine, box.len[place] = len + 1;
    pthread_mutex_unlock(&box.lock);
    if (theirs) {
        if (theirs[0] != place || theirs[their_len - 1] != place || theirs[their_len / 2] != place) broken++;
        free(theirs);
    }
}

static void *exchanger(void *seed) {
    unsigned random = (unsigned)(uintptr_t)seed;
    while (!over) exchange(&random);
    return NULL;
}

// Children of a process with threads at work allocate too; none of them may wait for ever.
static void forks(void) {
    pthread_t threads[3];
    for (uintptr_t i = 0; i < 3; i++) pthread_create(&threads[i], NULL, exchanger, (void *)(i + 1));
    for (int round = 0; round < 60; round++) {
        unsigned random = round;
        exchange(&random);
        pid_t child = fork();
        if (child == 0) {
            alarm(250);
            for (int i = 0; i < 2000; i++) {
                size_t len = (i * 7919) % 300000 + 1;
                char *at = malloc(len);
                at[0] = at[len - 1] = 1;
                free(at);
            }
            _exit(0);
        }
        int status = -1;
        PROMISED(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    }
    over = 1;
    for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
}

int main(void) {
    char *begin = sbrk(0), *small = malloc(100);
    results();
    alignments();
    forks();
    int is_libcs = small < (char *)sbrk(0) && small > begin - (64 << 20);
    free(small);
    printf("%d broken, %s\n", broken, is_libcs ? "in libc's heap" : "elsewhere");
    return 0;
}
