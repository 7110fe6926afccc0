/* Threads write all over the memory, and read from a pipe into it, while the program forks again and again. Children
   overlap, and some have children of their own; each checks that its memory is whole and does not change. No write
   may be lost, and no call may fail. Arguments: the number of forks; the maximum number of living children;
   optionally the number of threads that map, unmap, protect, empty and resize memory of their own meanwhile, and
   their random seed. These threads know the contents of each page, and every other child checks them. With one more
   argument, everything happens in a child with inherited memory. In the end all memory is unmapped, and the program
   waits for the end of its input. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096ul
#define PAGES (64ul * 256)
#define WRITERS 2
#define SHARE (PAGES / WRITERS)
#define READ_PAGES (8ul * 256)

/* The first and the last word of a page contain the page's index in the upper half, and the number of writes in the
 * lower. */
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

#define MOST_CHANGERS 8
#define SLOTS 8
#define MOST_PAGES (12ul * 256)

/* Value in place of rights: the page is unmapped. */
#define GONE 64

/* A mapping of a changing thread. The words of a page follow from its tag; tag 0 means zeros. */
struct slot {
    char *at;
    size_t pages;
    uint32_t tags[MOST_PAGES];
    signed char rights[MOST_PAGES];
    int is_whole;
    /* Whether no part of it ever had rights or advice of its own; otherwise the kernel may split it into several
     * mappings. */
    int is_one;
};

static struct changer {
    /* Held during a change: a fork under this lock has memory that matches the tags. */
    pthread_mutex_t lock;
    uint64_t random;
    uint32_t tag;
    struct slot slots[SLOTS];
    uint64_t changes;
} *changers;
static int changers_count;

static uint64_t word(uint32_t tag, size_t nth) { return tag ? tag * 0x9e3779b97f4a7c15ull + nth : 0; }

static uint64_t next_random(struct changer *changer) {
    uint64_t random = changer->random;
    random ^= random << 13, random ^= random >> 7, random ^= random << 17;
    return changer->random = random;
}

/* Index of a page of the slot with wrong contents; or -1. */
static long wrong_page(const struct slot *slot) {
    for (size_t page = 0; page < slot->pages; page++) {
        const uint64_t *words = (uint64_t *)(slot->at + page * PAGE);
        if (!(slot->rights[page] & PROT_READ)) continue;
        for (size_t i = 0; i < PAGE / 8; i++)
            if (words[i] != word(slot->tags[page], i)) return page;
    }
    return -1;
}

static void write_pages(struct changer *changer, struct slot *slot, size_t from, size_t to) {
    uint32_t tag = ++changer->tag;
    for (size_t page = from; page < to; page++) {
        if (!(slot->rights[page] & PROT_WRITE)) continue;
        uint64_t *words = (uint64_t *)(slot->at + page * PAGE);
        slot->tags[page] = tag + page;
        for (size_t i = 0; i < PAGE / 8; i++) words[i] = word(tag + page, i);
    }
    changer->tag += slot->pages;
}

static void map_slot(struct changer *changer, struct slot *slot) {
    slot->pages = 64 + next_random(changer) % (MOST_PAGES - 64);
    if (next_random(changer) % 2) slot->pages = (slot->pages + 511) / 512 * 512;
    slot->at = mmap(NULL, slot->pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (slot->at == MAP_FAILED) fail("mmap", slot->pages);
    memset(slot->tags, 0, sizeof slot->tags);
    memset(slot->rights, PROT_READ | PROT_WRITE, sizeof slot->rights);
    slot->is_whole = slot->is_one = 1;
}

/* Another thread may have mapped something in the unmapped part. */
static void unmap_pages(struct slot *slot, size_t from, size_t to) {
    for (size_t page = from; page < to;) {
        size_t end = page;
        while (end < to && slot->rights[end] != GONE) end++;
        if (end > page && munmap(slot->at + page * PAGE, (end - page) * PAGE)) fail("munmap", page);
        page = end + 1;
    }
    memset(slot->rights + from, GONE, to - from);
    slot->is_whole = 0;
}

static void change(struct changer *changer) {
    struct slot *slot = &changer->slots[next_random(changer) % SLOTS];
    if (!slot->at) return map_slot(changer, slot);
    size_t from = next_random(changer) % slot->pages, to = from + 1 + next_random(changer) % (slot->pages - from);
    if (next_random(changer) % 4 == 0) from = from / 512 * 512;
    if (next_random(changer) % 2 && to - from > 8) to = from + 8;
    char *start = slot->at + from * PAGE;
    size_t len = (to - from) * PAGE;
    static const int advice[] = {MADV_HUGEPAGE, MADV_NORMAL, MADV_WILLNEED, MADV_COLD, MADV_DONTDUMP, MADV_DODUMP};
    switch (next_random(changer) % 16) {
    case 0:
        unmap_pages(slot, 0, slot->pages);
        slot->at = NULL;
        break;
    case 1:
        unmap_pages(slot, from, to);
        break;
    case 2:
        if (slot->is_whole) {
            int rights = next_random(changer) % 3 ? PROT_READ : PROT_NONE;
            if (mprotect(start, len, rights)) fail("mprotect", from);
            memset(slot->rights + from, rights, to - from);
            slot->is_one = 0;
        }
        break;
    case 3:
        if (slot->is_whole) {
            if (mprotect(slot->at, slot->pages * PAGE, PROT_READ | PROT_WRITE)) fail("mprotect of all", slot->pages);
            memset(slot->rights, PROT_READ | PROT_WRITE, slot->pages);
        }
        break;
    case 4:
    case 5:
        if (slot->is_whole) {
            if (madvise(start, len, MADV_DONTNEED)) fail("madvise", from);
            memset(slot->tags + from, 0, (to - from) * sizeof slot->tags[0]);
        }
        break;
    case 6:
        if (!slot->is_whole) break;
        if (madvise(start, len, advice[next_random(changer) % 6])) fail("advice", from);
        slot->is_one = 0;
        break;
    case 7: {
        size_t pages = 64 + next_random(changer) % (MOST_PAGES - 64);
        int is_to_write = !memchr(slot->rights, PROT_NONE, slot->pages) && !memchr(slot->rights, PROT_READ, slot->pages);
        if (!slot->is_whole || !slot->is_one || !is_to_write) break;
        slot->at = mremap(slot->at, slot->pages * PAGE, pages * PAGE, MREMAP_MAYMOVE);
        if (slot->at == MAP_FAILED) fail("mremap", pages);
        if (pages > slot->pages) memset(slot->tags + slot->pages, 0, (pages - slot->pages) * sizeof slot->tags[0]);
        slot->pages = pages;
        break;
    }
    case 8: {
        long wrong = wrong_page(slot);
        if (wrong >= 0) fail("a page does not hold what it should", wrong);
        break;
    }
    default:
        write_pages(changer, slot, from, to);
    }
    changer->changes++;
}

static void *change_all_over(void *number) {
    struct changer *changer = &changers[(size_t)number];
    while (!is_over) {
        pthread_mutex_lock(&changer->lock);
        change(changer);
        pthread_mutex_unlock(&changer->lock);
        if (next_random(changer) % 16 == 0) usleep(100);
    }
    return NULL;
}

/* Whether all memory of the threads matches their records. */
static int is_as_they_know(void) {
    for (int i = 0; i < changers_count; i++)
        for (int j = 0; j < SLOTS; j++)
            if (changers[i].slots[j].at && wrong_page(&changers[i].slots[j]) >= 0) return 0;
    return 1;
}

static uint64_t sum(void) {
    uint64_t sum = 0;
    for (size_t page = 0; page < PAGES; page++) {
        if (memory[page * 512] >> 32 != page) _exit(3);
        sum = sum * 31 + memory[page * 512];
    }
    return sum;
}

/* Whether an ended child has found a mistake. */
static int ended_badly(void) {
    int status;
    pid_t ended = wait(&status);
    if (ended >= 0 && status == 0) return 0;
    fprintf(stderr, "child %d ended with wait status %#x\n", (int)ended, status);
    return 1;
}

static int child(int number) {
    int knows = number % 2;
    if (knows && !is_as_they_know()) return 6;
    uint64_t before = sum();
    usleep(number * 7919 % 20000);
    if (number % 3 == 0) {
        pid_t grandchild = fork();
        if (grandchild == 0) {
            usleep(number * 7919 % 30000);
            _exit(sum() == before ? 0 : 4);
        }
        int status;
        /* The other children outlive their parents. */
        if (number % 2 && (waitpid(grandchild, &status, 0) != grandchild || status)) return 5;
    }
    if (knows && !is_as_they_know()) return 7;
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
    int status;
    pid_t first = count > 5 ? fork() : 0;
    if (first != 0) {
        close(ends[1]);
        return waitpid(first, &status, 0) == first && WIFEXITED(status) ? WEXITSTATUS(status) : 68;
    }
    pthread_t threads[WRITERS + 2];
    for (size_t i = 0; i < WRITERS; i++) pthread_create(&threads[i], NULL, write_all_over, (void *)i);
    pthread_create(&threads[WRITERS], NULL, feed, NULL);
    pthread_create(&threads[WRITERS + 1], NULL, read_all_over, NULL);
    changers_count = count > 3 ? atoi(words[3]) : 0;
    if (changers_count > MOST_CHANGERS) return 64;
    changers = calloc(MOST_CHANGERS, sizeof *changers);
    pthread_t changing[MOST_CHANGERS];
    for (int i = 0; i < changers_count; i++) {
        changers[i].random = 88172645463325252ull + 977 * i + (count > 4 ? atoi(words[4]) : 0);
        pthread_mutex_init(&changers[i].lock, NULL);
        pthread_create(&changing[i], NULL, change_all_over, (void *)(size_t)i);
    }
    for (int number = 1; number <= forks; number++) {
        int knows = number % 2;
        for (int i = 0; i < changers_count && knows; i++) pthread_mutex_lock(&changers[i].lock);
        pid_t forked = fork();
        if (forked < 0) return 66;
        if (forked == 0) _exit(child(number));
        for (int i = 0; i < changers_count && knows; i++) pthread_mutex_unlock(&changers[i].lock);
        for (alive++; alive >= most; alive--) bad += ended_badly();
        /* Other threads map and unmap meanwhile. */
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
    for (int i = 0; i < changers_count; i++) pthread_join(changing[i], NULL);
    if (!is_as_they_know()) bad++;
    for (int i = 0; i < changers_count; i++)
        for (int j = 0; j < SLOTS; j++)
            if (changers[i].slots[j].at) unmap_pages(&changers[i].slots[j], 0, changers[i].slots[j].pages);
    if (munmap(buffer, READ_PAGES * PAGE) || munmap((void *)memory, PAGES * PAGE)) return 69;
    printf("%d forks, %d bad\n", forks, bad);
    fflush(stdout);
    getchar();
    return bad != 0;
}
