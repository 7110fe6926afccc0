/* Threads write, and read from a pipe, all over the memory, while the program forks again and again. Children overlap,
   and some have children of their own; each looks whether its memory is whole and stays as it is. No write may be lost,
   and no call may fail. Takes the number of forks, and how many children may live at once. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096ul
#define PAGES (64ul * 256)
#define WRITERS 2
#define SHARE (PAGES / WRITERS)
#define READ_PAGES (8ul * 256)

/* The first word of a page has its number above, and below how often it was written. The last word is the same. */
static _Atomic uint64_t *memory;
static char *buffer;
static uint32_t written[WRITERS][SHARE];
static atomic_int is_over;
static int ends[2];

static void fail(const char *what, size_t at) {
    fprintf(stderr, "%s at %zu\n", what, at);
    abort();
}

static void *write_all_over(void *number) {
    size_t me = (size_t)number;
    uint64_t random = 88172645463325252ull + me;
    while (!is_over) {
        random ^= random << 13, random ^= random >> 7, random ^= random << 17;
        size_t mine = random % SHARE, page = me * SHARE + mine;
        if (memory[page * 512] != ((uint64_t)page << 32 | written[me][mine])) fail("a write was lost", page);
        uint64_t next = (uint64_t)page << 32 | ++written[me][mine];
        memory[page * 512] = next;
        memory[page * 512 + 511] = next;
        if (random % 64 == 0) usleep(100);
    }
    return NULL;
}

static void *feed(void *none) {
    uint32_t block[PAGE / 4];
    for (uint32_t number = 0; !is_over; number++) {
        for (size_t i = 0; i < PAGE / 4; i++) block[i] = number;
        if (write(ends[1], block, PAGE) != PAGE) fail("write(2)", number);
    }
    close(ends[1]);
    return none;
}

static void *read_all_over(void *none) {
    for (uint32_t number = 0;; number++) {
        size_t at = number * 37ul % READ_PAGES * PAGE;
        for (size_t got = 0; got < PAGE;) {
            ssize_t more = read(ends[0], buffer + at + got, PAGE - got);
            if (more < 0) fail("read(2)", number);
            if (more == 0) return none;
            got += more;
        }
        for (size_t i = 0; i < PAGE / 4; i++)
            if (((uint32_t *)(buffer + at))[i] != number) fail("what was read was lost", number);
        usleep(200);
    }
}

static uint64_t sum(void) {
    uint64_t sum = 0;
    for (size_t page = 0; page < PAGES; page++) {
        if (memory[page * 512] >> 32 != page) _exit(3);
        sum = sum * 31 + memory[page * 512];
    }
    return sum;
}

/* Whether a child that has ended saw something else than it should have. */
static int ended_badly(void) {
    int status;
    pid_t ended = wait(&status);
    if (ended >= 0 && status == 0) return 0;
    fprintf(stderr, "child %d ended with wait status %#x\n", (int)ended, status);
    return 1;
}

static int child(int number) {
    uint64_t before = sum();
    usleep(number * 7919 % 20000);
    if (number % 3 == 0) {
        pid_t grandchild = fork();
        if (grandchild == 0) {
            usleep(number * 7919 % 30000);
            _exit(sum() == before ? 0 : 4);
        }
        int status;
        /* The others outlive their parents. */
        if (number % 2 && (waitpid(grandchild, &status, 0) != grandchild || status)) return 5;
    }
    return sum() == before ? 0 : 2;
}

int main(int count, char **words) {
    if (count < 3) return 64;
    int forks = atoi(words[1]), most = atoi(words[2]), alive = 0, bad = 0;
    int rights = PROT_READ | PROT_WRITE, flags = MAP_PRIVATE | MAP_ANONYMOUS;
    memory = mmap(NULL, PAGES * PAGE, rights, flags, -1, 0);
    buffer = mmap(NULL, READ_PAGES * PAGE, rights, flags, -1, 0);
    if ((void *)memory == MAP_FAILED || buffer == MAP_FAILED || pipe(ends)) return 65;
    for (size_t page = 0; page < PAGES; page++) memory[page * 512] = memory[page * 512 + 511] = (uint64_t)page << 32;
    pthread_t threads[WRITERS + 2];
    for (size_t i = 0; i < WRITERS; i++) pthread_create(&threads[i], NULL, write_all_over, (void *)i);
    pthread_create(&threads[WRITERS], NULL, feed, NULL);
    pthread_create(&threads[WRITERS + 1], NULL, read_all_over, NULL);
    for (int number = 1; number <= forks; number++) {
        pid_t forked = fork();
        if (forked < 0) return 66;
        if (forked == 0) _exit(child(number));
        for (alive++; alive >= most; alive--) bad += ended_badly();
        /* Others map and unmap meanwhile. */
        size_t len = (2 + number % 7) * (1ul << 20) + number % 3 * PAGE;
        char *more = mmap(NULL, len, rights, flags, -1, 0);
        if (more == MAP_FAILED) return 67;
        for (size_t at = 0; at < len; at += PAGE) {
            if (more[at]) fail("new memory is not zero", at);
            more[at] = 1;
        }
        munmap(more, len);
        usleep(number * 7919 % 10000);
    }
    for (; alive; alive--) bad += ended_badly();
    is_over = 1;
    for (size_t i = 0; i < WRITERS + 2; i++) pthread_join(threads[i], NULL);
    printf("%d forks, %d bad\n", forks, bad);
    return bad != 0;
}
