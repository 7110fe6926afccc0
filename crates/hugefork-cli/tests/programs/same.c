/* Makes random memory calls in itself, its children and their children, and prints each result and the contents of
   the pages. Two runs, with and without the library, must print the same. Arguments: the random seed, and the number
   of calls.

     … | slot | a hole | slot | a hole | much room

   No other mapping is placed in the holes: later mappings are longer than all of them, and the library's own
   mappings, which the kernel places as high as possible, fit into the room. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096ul
#define MIB (1ul << 20)
#define SLOTS 5
#define HOLE (8 * MIB)
#define LONG (224 * MIB)
#define ROOM (128 * MIB)
#define LOG (2 * MIB)

static struct slot {
    char *at;
    size_t pages;
    /* Whether the slot lies at its original place with holes beside it; whether it is a single
     * mapping for the kernel; whether it maps /dev/zero. */
    int is_alone, is_one, is_of_zeros;
} slots[SLOTS];

static uint64_t state;
static int ends[2], zeros, depth;
/* Each process has a log of its own in shared memory. */
static struct log { size_t len; char text[LOG - 8]; } *logs, *mine;
static uint64_t *logs_used;

static void say(const char *form, ...) {
    va_list values;
    va_start(values, form);
    size_t room = sizeof mine->text - mine->len;
    int len = vsnprintf(mine->text + mine->len, room, form, values);
    va_end(values);
    if (len < 0 || (size_t)len >= room) abort();
    mine->len += len;
}

static uint64_t below(uint64_t end) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return (state >> 11) % end;
}

/* Reads by the kernel, which reports an error where a direct access would end the program. */
static int read_word(const char *at, uint64_t *word) {
    if (write(ends[1], at, 8) != 8) return 0;
    if (read(ends[0], word, 8) != 8) abort();
    return 1;
}

static int write_word(char *at, uint64_t word) {
    uint64_t rest;
    if (write(ends[1], &word, 8) != 8) abort();
    if (read(ends[0], at, 8) == 8) return 1;
    if (read(ends[0], &rest, 8) != 8) abort();
    return 0;
}

/* Prints the contents of the readable pages; not those after the end, which are readable up to the next 2 MiB. */
static void look(const struct slot *slot) {
    size_t pages = slot->pages, since = 0;
    uint64_t last = 0, word;
    say("   ");
    for (size_t page = 0; page <= pages; page++) {
        word = ~0ul;
        if (page < pages) read_word(slot->at + page * PAGE, &word);
        if (page > 0 && (page == pages || word != last)) {
            say(" %zu-%zu:%ld", since, page, (long)last);
            since = page;
        }
        last = word;
    }
    say("\n");
}

static void change(uint64_t tag) {
    static const int advice[] = {
        MADV_NORMAL, MADV_WILLNEED, MADV_DONTNEED, MADV_DONTNEED, MADV_DONTNEED, MADV_HUGEPAGE, MADV_NOHUGEPAGE,
        MADV_DONTDUMP, MADV_DODUMP, MADV_DONTFORK, MADV_DOFORK, MADV_COLD, MADV_PAGEOUT, MADV_POPULATE_READ,
        MADV_POPULATE_WRITE, MADV_WIPEONFORK, MADV_KEEPONFORK, MADV_REMOVE, 24, 102, 103, /* _DONTNEED_LOCKED, guards */
        600, /* None. */
    };
    static const int rights[] = {PROT_NONE, PROT_READ, PROT_READ | PROT_WRITE, PROT_READ | PROT_WRITE, PROT_WRITE};
    struct slot *slot = &slots[below(SLOTS)];
    size_t all = slot->pages + (slot->is_alone ? 300 : 0);
    size_t from = below(all), pages = 1 + below(all - from);
    unsigned char seen[LONG / PAGE + 1000];
    if (below(4) == 0) from = from / 512 * 512, pages = all - from;
    if (below(3) == 0) pages = pages % 8 + 1 < all - from ? pages % 8 + 1 : 1;
    if (below(8) == 0) from = 0, pages = slot->pages;
    char *at = slot->at + from * PAGE;
    size_t len = pages * PAGE;
    /* Arguments that the kernel refuses. */
    switch (below(40)) {
    /* Memory after the mapping does not belong to the test. */
    case 0: at += 1, len -= 1; break;
    case 1: len = 0; break;
    case 2: len = -PAGE; break;
    case 3: len -= PAGE - 1; break;
    }
    int is_odd = (uintptr_t)at % PAGE != 0 || len == 0 || len > LONG;
    int nth = slot - slots, kind = below(20);
    long said = 0;
    errno = 0;
    switch (kind) {
    case 0: case 1: case 2: case 3: case 4: {
        size_t written = 0;
        for (size_t page = from; page < from + pages && page < slot->pages; page++) written += write_word(slot->at + page * PAGE, tag);
        say("%d: %zu of %zu written from %zu on\n", nth, written, pages, from);
        errno = 0;
        break;
    }
    case 5:
        said = munmap(at, len), slot->is_one = 0;
        say("%d: munmap %zu %zx: %ld %d\n", nth, from, len, said, errno);
        break;
    case 6: case 7: {
        int right = rights[below(5)];
        said = mprotect(at, len, right), slot->is_one = 0;
        say("%d: mprotect %zu %zx %d: %ld %d\n", nth, from, len, right, said, errno);
        break;
    }
    case 8: case 9: case 10: case 11: case 12: {
        int what = advice[below(sizeof advice / sizeof *advice)];
        /* For file mappings, even of zeros, the kernel gives other results. */
        if (slot->is_of_zeros && (what == MADV_WIPEONFORK || what == MADV_REMOVE)) break;
        said = madvise(at, len, what), slot->is_one = 0;
        say("%d: madvise %zu %zx %d: %ld %d\n", nth, from, len, what, said, errno);
        break;
    }
    case 13: {
        int fixed = below(3) ? MAP_FIXED : MAP_FIXED_NOREPLACE, right = rights[below(5)], is_of_zeros = below(2);
        if (len > LONG) break;
        char *new = is_of_zeros ? mmap(at, len, right, MAP_PRIVATE | fixed, zeros, 0)
                                : mmap(at, len, right, MAP_PRIVATE | MAP_ANONYMOUS | fixed, -1, 0);
        said = new == MAP_FAILED ? -1 : new - slot->at, slot->is_one = 0, slot->is_of_zeros |= is_of_zeros;
        say("%d: mmap %zu %zx %d %d: %ld %d\n", nth, from, len, right, fixed, said, errno);
        break;
    }
    case 14:
        said = below(2) ? mlock(at, len) : below(2) ? munlock(at, len) : mlock2(at, len, MLOCK_ONFAULT), slot->is_one = 0;
        say("%d: mlock %zu %zx: %ld %d\n", nth, from, len, said, errno);
        break;
    case 15: {
        static const int flags[] = {MS_ASYNC, MS_SYNC, MS_INVALIDATE, MS_ASYNC | MS_SYNC, 8};
        int flag = flags[below(5)];
        said = msync(at, len, flag);
        say("%d: msync %zu %zx %d: %ld %d\n", nth, from, len, flag, said, errno);
        break;
    }
    case 16:
        if (len > LONG) break;
        said = mincore(at, len, seen);
        say("%d: mincore %zu %zx: %ld %d\n", nth, from, len, said, errno);
        break;
    case 17: {
        /* Shrinks the slot in place, which works for any mapping. */
        if (is_odd) break;
        size_t shorter = 1 + below(pages);
        char *new = mremap(at, len, shorter * PAGE, 0);
        said = new == MAP_FAILED ? -1 : new - slot->at, slot->is_one = 0;
        say("%d: mremap %zu %zx to %zu: %ld %d\n", nth, from, len, shorter, said, errno);
        break;
    }
    case 18:
    case 19:
        if (!slot->is_one || slot->pages * PAGE >= LONG) break;
        char *new = mremap(slot->at, slot->pages * PAGE, LONG, kind == 18 ? MREMAP_MAYMOVE : 0);
        say("%d: grows from %zu: %d %d\n", nth, slot->pages, new != MAP_FAILED, errno);
        /* Whether the slot can grow in place depends on the memory after it. */
        if (new != MAP_FAILED) slot->at = new, slot->pages = LONG / PAGE, slot->is_alone = 0;
        break;
    }
    look(slot);
}

static void run(size_t calls);

/* A child makes as many calls as its parent meanwhile. */
static void forks(size_t calls) {
    struct log *its = &logs[__atomic_fetch_add(logs_used, 1, __ATOMIC_RELAXED)];
    uint64_t seed = state * 0x9e3779b97f4a7c15ull | 1;
    int status;
    pid_t child = fork();
    if (child == 0) {
        mine = its, state = seed, depth++;
        if (pipe(ends)) abort();
        for (int nth = 0; nth < SLOTS; nth++) look(&slots[nth]);
        run(calls);
        _exit(0);
    }
    for (size_t nth = 0; nth < calls / 2; nth++) change(state);
    waitpid(child, &status, 0);
    say("a child: %d\n", status);
    memcpy(mine->text + mine->len, its->text, its->len);
    mine->len += its->len;
    say("it has ended\n");
    for (int nth = 0; nth < SLOTS; nth++) look(&slots[nth]);
}

static void run(size_t calls) {
    for (size_t nth = 0; nth < calls; nth++) {
        if (depth < 2 && below(calls / 3 + 1) == 0 && *logs_used < 30) forks(calls / 3);
        else change(state);
    }
}

int main(int count, char **words) {
    if (count < 3) return 64;
    state = (strtoull(words[1], NULL, 10) + 1) * 0x9e3779b97f4a7c15ull | 1;
    for (int nth = 0; nth < 8; nth++) below(2);
    logs = mmap(NULL, 64 * LOG, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    logs_used = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    mine = &logs[(*logs_used)++];
    zeros = open("/dev/zero", O_RDWR);
    if (pipe(ends) || zeros < 0) return 65;
    char *holes[SLOTS + 1], *room = mmap(NULL, ROOM, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int nth = 0; nth <= SLOTS; nth++) {
        /* The first mapping creates the pool. */
        holes[nth] = mmap(NULL, HOLE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (nth == SLOTS) break;
        struct slot *slot = &slots[nth];
        /* The kernel serves mappings of /dev/zero, and may place the library's own mappings beside them: see the
         * ranges below. */
        *slot = (struct slot){NULL, 600 + below(1400), 1, 1, below(2) & 0};
        if (below(3) == 0) slot->pages = slot->pages / 512 * 512 + 512;
        int flags = MAP_PRIVATE | (slot->is_of_zeros ? 0 : MAP_ANONYMOUS);
        int file = slot->is_of_zeros ? zeros : -1;
        slot->at = mmap(NULL, slot->pages * PAGE, PROT_READ | PROT_WRITE, flags, file, 0);
        if (slot->at == MAP_FAILED) return 66;
    }
    /* This mapping fills the addresses beside the last hole, where there is no further hole. */
    mmap(NULL, 16 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int nth = 0; nth <= SLOTS; nth++) munmap(holes[nth], HOLE);
    munmap(room, ROOM);
    run(strtoull(words[2], NULL, 10));
    for (size_t done = 0; done < mine->len;) {
        ssize_t more = write(1, mine->text + done, mine->len - done);
        if (more <= 0) return 67;
        done += more;
    }
    return 0;
}
