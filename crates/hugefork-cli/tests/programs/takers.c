/* A child that writes much of what it has inherited, but not all, and waits for its input to end. Then it changes some of
   that in all ways that there are, beside a thread that goes on writing the rest, and has children who look on. Prints the
   child's number, and in the end how much is bad. */
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
#define PAGES (96ul * 256)
/* The thread has all pages from here on. */
#define SHARED (48ul * 256)

static uint64_t *memory;
/* What the first and the last word of each page are. */
static uint64_t is[PAGES];
static atomic_int is_over, lost;

static int has(size_t page) { return memory[page * 512] == is[page] && memory[page * 512 + 511] == is[page]; }

static void put(size_t page, uint64_t value) { memory[page * 512] = memory[page * 512 + 511] = is[page] = value; }

static int all(size_t from, size_t to) {
    int bad = 0;
    for (size_t page = from; page < to; page++) bad += is[page] != UINT64_MAX && !has(page);
    return bad;
}

/* In order, again and again, and now and then anywhere. */
static void *go_on_writing(void *none) {
    uint64_t random = 88172645463325252ull;
    for (size_t next = SHARED; !is_over; next = next + 1 < PAGES ? next + 1 : SHARED) {
        random ^= random << 13, random ^= random >> 7, random ^= random << 17;
        size_t page = random % 8 ? next : SHARED + random % (PAGES - SHARED);
        if (!has(page)) lost++;
        put(page, is[page] + 1);
    }
    return none;
}

static int change(uint64_t random, int ends[2]) {
    size_t page = random / 16 % (SHARED - 600), len = 1 + random / 8 % 3 * 256;
    char *at = (char *)memory + page * PAGE;
    int bad = 0;
    for (size_t i = page; i < page + len; i++)
        if (is[i] == UINT64_MAX) return 0;
    switch (random % 8) {
    case 0:
        bad += madvise(at, len * PAGE, MADV_DONTNEED) != 0;
        for (size_t i = page; i < page + len; i++) is[i] = 0;
        break;
    case 1:
        bad += mprotect(at, len * PAGE, PROT_READ) != 0 || all(page, page + len);
        bad += mprotect(at, len * PAGE, PROT_READ | PROT_WRITE) != 0;
        break;
    case 2:
        if (len > 1) break;
        bad += munmap(at, PAGE) != 0;
        is[page] = UINT64_MAX;
        break;
    case 3: {
        uint64_t words[512] = {random};
        words[511] = random;
        bad += write(ends[1], words, PAGE) != PAGE || read(ends[0], at, PAGE) != PAGE;
        is[page] = random;
        break;
    }
    case 4:
        bad += mlock(at, len * PAGE) != 0 || munlock(at, len * PAGE) != 0;
        break;
    case 5: {
        char *to = mmap(NULL, len * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        char *there = mremap(at, len * PAGE, len * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to);
        if (there != to || mremap(there, len * PAGE, len * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, at) != at) bad++;
        break;
    }
    default:
        for (size_t i = page; i < page + len; i++) put(i, random + i);
    }
    return bad + all(page, page + len);
}

static int child(void) {
    int ends[2], status, bad = 0;
    for (size_t page = 0; page < PAGES; page++)
        if (page % 512 < 400) put(page, page + 2);
    printf("%d\n", (int)getpid());
    fflush(stdout);
    getchar();
    bad += all(0, PAGES);
    pthread_t thread;
    if (pipe(ends) || pthread_create(&thread, NULL, go_on_writing, NULL)) return 65;
    uint64_t random = 362436069362436069ull;
    for (int round = 0; round < 60; round++) {
        for (int times = 0; times < 20; times++) {
            random ^= random << 13, random ^= random >> 7, random ^= random << 17;
            bad += change(random, ends);
        }
        pid_t forked = fork();
        if (forked == 0) {
            int worse = all(0, SHARED);
            usleep(round % 7 * 1000);
            for (size_t page = 0; page < SHARED; page++)
                if (is[page] != UINT64_MAX && round % 2) put(page, 7 * page);
            _exit(worse + all(0, SHARED) != 0);
        }
        bad += forked < 0 || waitpid(forked, &status, 0) != forked || status;
        bad += all(0, SHARED);
    }
    is_over = 1;
    pthread_join(thread, NULL);
    return bad + lost + all(0, PAGES);
}

int main(void) {
    memory = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (size_t page = 0; page < PAGES; page++) put(page, page + 1);
    pid_t forked = fork();
    if (forked == 0) {
        int bad = child();
        printf("%d bad\n", bad);
        fflush(stdout);
        _exit(bad != 0);
    }
    int status, bad = waitpid(forked, &status, 0) != forked || status;
    for (size_t page = 0; page < PAGES; page++) is[page] = page + 1;
    return bad || all(0, PAGES);
}
