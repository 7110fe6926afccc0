/* A child that counts references, or with an argument a parent, while a child lives: in each page of what it shares a
   count goes up and down again, once in the first part, and again and again in the second, by a thread that looks at each
   step whether the one before was lost. A third part it changes for good. For each byte of its input it has a child of its
   own, which does the same, prints its number, and does so again at the next byte. Prints its own number first, and how
   much is bad when its input has ended. */
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

/* What one step has written is there at the next. */
static void step(size_t page, uint64_t from, uint64_t by) {
    if (*word(page) != inherited(page) + from) lost++;
    *word(page) = inherited(page) + from + by;
}

static void up_and_down(size_t page) {
    step(page, 0, 1);
    step(page, 1, -1);
    if (*word(page) != inherited(page)) lost++;
}

static uint64_t next(uint64_t *random) {
    *random ^= *random << 13, *random ^= *random >> 7, *random ^= *random << 17;
    return *random;
}

/* A count is up while a thousand others go up: long enough for a page to be dropped that was as before just then. */
static void *count(void *none) {
    static size_t are_up[1024];
    static char is_up[PART];
    uint64_t random = 88172645463325252ull;
    for (size_t turn = 0; !is_over; turn++) {
        size_t *oldest = &are_up[turn % 1024], nth = next(&random) % PART;
        if (is_up[*oldest]) step(PART + *oldest, 1, -1), is_up[*oldest] = 0;
        *oldest = nth;
        if (!is_up[nth]) step(PART + nth, 0, 1), is_up[nth] = 1;
    }
    for (size_t nth = 0; nth < PART; nth++)
        if (is_up[nth]) step(PART + nth, 1, -1);
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

/* Waits for the end of a pipe's input, unless it is none, and says whether all is as it was. */
static int is_as_before(int pipe) {
    char byte;
    if (pipe >= 0 && read(pipe, &byte, 1) != 0) return 0;
    int bad = 0;
    for (size_t page = 0; page < 3 * PART; page++) bad += *word(page) != inherited(page);
    if (bad) printf("%d bad in the other process\n", bad);
    return bad == 0;
}

int main(int words, char **arguments) {
    int in_parent = words > 1 && arguments[1], ends[2];
    /* Later than where a pool begins to be worth it. */
    for (int nth = 0; nth < 2; nth++) mmap(NULL, 8ul << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    void *at = mmap(NULL, 3 * PART * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) return 2;
    memory = at;
    for (size_t page = 0; page < 3 * PART; page++) *word(page) = inherited(page);
    if (pipe(ends)) return 2;
    pid_t child = fork();
    if (child == 0) close(ends[1]);
    if (in_parent && child == 0) return !is_as_before(ends[0]);
    if (!in_parent && child) {
        int status;
        waitpid(child, &status, 0);
        return status != 0 || !is_as_before(-1);
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
            close(ends[1]);
            for (size_t page = 0; page < PART; page++) up_and_down(page);
            printf("%d\n", getpid());
            fflush(stdout);
            int ended = read(0, &byte, 1) != 1;
            for (size_t page = 0; page < PART; page++) up_and_down(page);
            _exit(ended || lost);
        }
        int status;
        bad += waitpid(grandchild, &status, 0) != grandchild || status != 0;
    }
    is_over = 1;
    for (int nth = 0; nth < 2; nth++) pthread_join(threads[nth], NULL);
    for (size_t page = 0; page < 2 * PART; page++) bad += *word(page) != inherited(page);
    for (size_t nth = 0; nth < PART; nth++) bad += *word(2 * PART + nth) != inherited(2 * PART + nth) + changed[nth];
    if (in_parent) {
        int status;
        close(ends[1]);
        bad += waitpid(child, &status, 0) != child || status != 0;
    }
    printf("%d bad\n", bad + lost);
    return bad + lost != 0;
}
