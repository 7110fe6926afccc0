/* Measures the stack depth of calls in bytes, by the changes on a thread's stack that was
 * filled before. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (1ul << 20)
#define LEN (256ul << 10)
#define ANYWHERE (MAP_PRIVATE | MAP_ANONYMOUS)
#define READ_WRITE (PROT_READ | PROT_WRITE)

static char *memory;

static void map_first(void) {
    memory = mmap(NULL, 64 * MIB, READ_WRITE, ANYWHERE, -1, 0);
    for (size_t at = 0; at < 64 * MIB; at += MIB) memory[at] = 1;
}

static void map(void) {
    char *at = mmap(NULL, 4 * MIB, READ_WRITE, ANYWHERE, -1, 0);
    at[0] = 1;
    munmap(at, 4 * MIB);
}

static void map_fixed(void) { mmap(memory + 24 * MIB + 4096, 2 * MIB, READ_WRITE, ANYWHERE | MAP_FIXED, -1, 0); }

static void remap(void) {
    char *at = mmap(NULL, 4 * MIB, READ_WRITE, ANYWHERE, -1, 0);
    at = mremap(at, 4 * MIB, 9 * MIB, MREMAP_MAYMOVE);
    munmap(at, 9 * MIB);
}

static void drop(void) {
    madvise(memory + 8 * MIB, 4 * MIB, MADV_DONTNEED);
    madvise(memory + 4096, 8192, MADV_DONTNEED);
}

static void protect(void) { mprotect(memory + 20 * MIB, 4096, PROT_READ); }

static void lock(void) { mlock(memory + 40 * MIB, 8192); }

static void allocate(void) {
    for (int nth = 0; nth < 100; nth++) {
        char *at = malloc(MIB);
        at[0] = 1;
        at = realloc(at, 3 * MIB);
        if (nth % 2) free(at);
    }
    char *at = malloc(40 * MIB);
    at[0] = 1;
    free(at);
}

static void fork_once(void) {
    pid_t child = fork();
    if (child == 0) _exit(0);
    waitpid(child, NULL, 0);
}

static void on_signal(int number) {
    pid_t child = fork();
    if (child == 0) _exit(number == 0);
    waitpid(child, NULL, 0);
}

static const struct {
    const char *name;
    void (*work)(void);
} all[] = {
    {"map-first", map_first}, {"map", map}, {"fork-first", fork_once}, {"fork", fork_once}, {"drop", drop},
    {"remap", remap}, {"protect", protect}, {"map-fixed", map_fixed}, {"lock", lock}, {"allocate", allocate},
    {"fork-again", fork_once},
};

static void *run(void *work) {
    ((void (*)(void))work)();
    return NULL;
}

static size_t untouched(const char *stack) {
    size_t at = 0;
    while (at < LEN && stack[at] == 0x5a) at++;
    return at;
}

static char *filled(void) {
    char *stack = mmap(NULL, LEN, READ_WRITE, ANYWHERE, -1, 0);
    return memset(stack, 0x5a, LEN);
}

static void say_all(const char *who, int first) {
    for (size_t nth = first; nth < sizeof all / sizeof *all; nth++) {
        char *stack = filled();
        pthread_attr_t attributes;
        pthread_t thread;
        pthread_attr_init(&attributes);
        pthread_attr_setstack(&attributes, stack, LEN);
        pthread_create(&thread, &attributes, run, (void *)all[nth].work);
        pthread_join(thread, NULL);
        printf("%s-%s %zu\n", who, all[nth].name, LEN - untouched(stack));
        munmap(stack, LEN);
    }
}

int main(void) {
    say_all("parent", 0);
    stack_t own = {.ss_sp = filled(), .ss_size = LEN};
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_ONSTACK};
    sigaltstack(&own, NULL);
    sigaction(SIGUSR1, &action, NULL);
    raise(SIGUSR1);
    printf("handler-fork %zu\n", LEN - untouched(own.ss_sp));
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        say_all("child", 1);
        fflush(stdout);
        _exit(0);
    }
    waitpid(child, NULL, 0);
    return 0;
}
