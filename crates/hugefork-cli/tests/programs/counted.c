/* A child that counts references: in each page of what it has inherited a count goes up and down again, once in the first
   part, and again and again in the second, by a thread that looks at each step whether the one before was lost. A third
   part it changes for good. It has children of its own that do the same. Prints its number, waits for its input to end,
   and prints how much is bad. */
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
#define PART (32ul * 256)

static volatile uint64_t *memory;
static uint64_t changed[PART];
static atomic_int is_over, lost;

static uint64_t inherited(size_t page) { return page * 0x9e3779b97f4a7c15ull; }

static volatile uint64_t *word(size_t page) { return memory + page * 512 + page % 512; }

/* Both steps are looked at: what the first has written is there at the second. */
static void up_and_down(size_t page) {
    volatile uint64_t *count = word(page);
    if (*count != inherited(page)) lost++;
    (*count)++;
    if (*count != inherited(page) + 1) lost++;
    (*count)--;
    if (*count != inherited(page)) lost++;
}

static uint64_t next(uint64_t *random) {
    *random ^= *random << 13, *random ^= *random >> 7, *random ^= *random << 17;
    return *random;
}

static void *count(void *none) {
    for (uint64_t random = 88172645463325252ull; !is_over;) up_and_down(PART + next(&random) % PART);
    return none;
}

static void *change(void *none) {
    for (uint64_t random = 362436069ull; !is_over;) {
        size_t nth = next(&random) % PART;
        volatile uint64_t *here = word(2 * PART + nth);
        if (*here != inherited(2 * PART + nth) + changed[nth]) lost++;
        /* Now and then it is as it was. */
        changed[nth] = random % 4 ? changed[nth] + 1 : 0;
        *here = inherited(2 * PART + nth) + changed[nth];
    }
    return none;
}

int main(void) {
    /* Later than where a pool begins to be worth it. */
    for (int nth = 0; nth < 2; nth++) mmap(NULL, 8ul << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    void *at = mmap(NULL, 3 * PART * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) return 2;
    memory = at;
    for (size_t page = 0; page < 3 * PART; page++) *word(page) = inherited(page);
    pid_t child = fork();
    if (child) {
        int status;
        waitpid(child, &status, 0);
        int bad = 0;
        for (size_t page = 0; page < 3 * PART; page++) bad += *word(page) != inherited(page);
        if (bad) printf("%d bad in the parent\n", bad);
        return status != 0 || bad;
    }
    printf("%d\n", getpid());
    fflush(stdout);
    for (size_t page = 0; page < PART; page++) up_and_down(page);
    pthread_t threads[2];
    pthread_create(&threads[0], NULL, count, NULL);
    pthread_create(&threads[1], NULL, change, NULL);
    int bad = 0;
    for (char byte; read(0, &byte, 1) > 0;) {
        pid_t grandchild = fork();
        if (grandchild == 0) {
            for (size_t page = 0; page < PART; page++) up_and_down(page);
            usleep(700000);
            for (size_t page = 0; page < PART; page++) up_and_down(page);
            _exit(lost != 0);
        }
        int status;
        bad += waitpid(grandchild, &status, 0) != grandchild || status != 0;
    }
    is_over = 1;
    for (int nth = 0; nth < 2; nth++) pthread_join(threads[nth], NULL);
    for (size_t page = 0; page < 2 * PART; page++) bad += *word(page) != inherited(page);
    for (size_t nth = 0; nth < PART; nth++) bad += *word(2 * PART + nth) != inherited(2 * PART + nth) + changed[nth];
    printf("%d bad\n", bad + lost);
    return bad + lost != 0;
}
