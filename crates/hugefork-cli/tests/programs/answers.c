/* What the kernel answers to calls about memory, and what the memory is like afterwards: a line for each call and range,
   to be compared with the same where somebody else answers. Takes a shape, which says what is in the middle of the
   memory, and who asks: a program alone, a child that has inherited the memory, or a parent while a child lives.

     | 12 MiB, a few pages of which were written | 4 MiB where nothing is mapped |

   Of each line, the last word has two letters for each page that is looked at: x if nobody can read it, r or w if it can
   be read or also written; and = if it has what was written, 0 if it has a zero. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096ul
#define MIB (1ul << 20)
#define LEN (12 * MIB)
#define HOLE (4 * MIB)
/* So many calls between two forks. */
#define BATCH 24

static int ends[2], file;
static char said[1 << 20];
static size_t said_len;

static void say(const char *format, ...) {
    va_list words;
    va_start(words, format);
    said_len += vsnprintf(said + said_len, sizeof said - said_len, format, words);
    va_end(words);
}

static void flush(void) {
    for (size_t at = 0; at < said_len;) {
        ssize_t done = write(1, said + at, said_len - at);
        if (done <= 0) _exit(3);
        at += done;
    }
    said_len = 0;
}

#define LONG (1ul << 50)
struct range { const char *name; size_t from, len; };
static const struct range RANGES[] = {
    {"all", 0, LEN},
    {"first-block", 0, 2 * MIB},
    {"two-blocks", 2 * MIB, 4 * MIB},
    {"middle-block", 4 * MIB, 2 * MIB},
    {"page", 3 * MIB, PAGE},
    {"before-the-middle", 3 * MIB, 2 * MIB},
    {"over-the-middle", 3 * MIB, 6 * MIB},
    {"in-the-middle", 5 * MIB, PAGE},
    {"two-pages-in-the-middle", 5 * MIB - PAGE, 2 * PAGE},
    {"over-the-end", 11 * MIB, 2 * MIB},
    {"from-the-end", LEN, PAGE},
    {"block-behind", LEN + 2 * MIB, 2 * MIB},
    {"odd", 3 * MIB, PAGE + 100},
    {"none", 3 * MIB, 0},
    {"none-behind", LEN + MIB, 0},
    {"unaligned", 3 * MIB + 100, PAGE},
    {"overflows", 3 * MIB, -PAGE},
    {"rounds-to-none", 3 * MIB, -100},
    {"too-long", 3 * MIB, LONG},
};
#define RANGE_COUNT (sizeof RANGES / sizeof *RANGES)

/* Pages that are looked at: around each MiB, and around the ends of ranges. */
static int looks_at(size_t page) { return page % 256 <= 1 || page % 256 == 255 || page % 256 == 128; }

static unsigned char value(size_t page) { return 1 + page % 100; }

static char *map(size_t len, int rights, int flags) {
    char *at = mmap(NULL, len, rights, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
    if (at == MAP_FAILED) _exit(4);
    return at;
}

static char *shaped(const char *shape) {
    char *at = map(LEN + HOLE, PROT_READ | PROT_WRITE, 0), *middle = at + 5 * MIB;
    for (size_t page = 0; page < LEN / PAGE; page++)
        if (looks_at(page)) at[page * PAGE] = value(page);
    int bad = munmap(at + LEN, HOLE);
    int rights = PROT_READ | PROT_WRITE;
    if (strcmp(shape, "whole") == 0) {}
    else if (strcmp(shape, "page-hole") == 0) bad |= munmap(middle, PAGE);
    else if (strcmp(shape, "block-hole") == 0) bad |= munmap(at + 4 * MIB, 2 * MIB);
    else if (strcmp(shape, "odd-hole") == 0) bad |= munmap(at + 3 * MIB + PAGE, 3 * MIB);
    else if (strcmp(shape, "protected-page") == 0) bad |= mprotect(middle, PAGE, PROT_READ);
    else if (strcmp(shape, "protected-block") == 0) bad |= mprotect(at + 4 * MIB, 2 * MIB, PROT_NONE);
    else if (strcmp(shape, "file") == 0)
        bad |= mmap(middle, PAGE, PROT_READ, MAP_PRIVATE | MAP_FIXED, file, 0) == MAP_FAILED;
    else if (strcmp(shape, "shared-file") == 0)
        bad |= mmap(at + 4 * MIB, 2 * MIB, rights, MAP_SHARED | MAP_FIXED, file, 0) == MAP_FAILED;
    else bad = 1;
    if (bad) _exit(5);
    return at;
}

/* What is at a place, in two letters. */
static void look(const char *at, size_t page, int may_be_dropped) {
    unsigned char byte;
    if (write(ends[1], at, 1) != 1) {
        say("x-");
        return;
    }
    int is_writable = read(ends[0], (void *)at, 1) == 1;
    if (!is_writable && read(ends[0], &byte, 1) != 1) _exit(6);
    byte = *(const volatile unsigned char *)at;
    int is_own = byte == value(page);
    say("%c%c", is_writable ? 'w' : 'r', may_be_dropped ? '~' : is_own ? '=' : byte == 0 ? '0' : 'F');
}

static void look_at_all(const char *at, size_t len, int may_be_dropped) {
    for (size_t page = 0; page < len / PAGE; page++)
        if (looks_at(page)) look(at + page * PAGE, page, may_be_dropped);
}

/* A new place, where the kernel knows only of what is mapped over it. */
static char *place(void) { return map(LEN + HOLE, PROT_NONE, MAP_NORESERVE); }

static const int ADVICES[] = {0, 1, 2, 3, 4, 5, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 99, -1, 102, 103};
#define ADVICE_COUNT (sizeof ADVICES / sizeof *ADVICES)
static const int OTHERS = 34;

static const size_t RESIZED[] = {PAGE, MIB, 2 * MIB, 0, LEN, LEN + MIB, 100, -PAGE};

static void answer(char *at, const struct range *range, size_t call) {
    char *from = at + range->from, *other = NULL, *got = NULL;
    size_t len = range->len, moved_len = 0;
    long done = 0;
    int is_free = 0, is_place = 0, rights = PROT_READ | PROT_WRITE, fixed = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    static unsigned char vector[(LEN + HOLE) / PAGE + 1];
    errno = 0;
    char name[64];
#define CALL(what, ...) (snprintf(name, sizeof name, what), done = __VA_ARGS__)
#define PLACE(what, ...) (snprintf(name, sizeof name, what), is_place = 1, errno = 0, got = __VA_ARGS__)
    if (call < ADVICE_COUNT) {
        int advice = ADVICES[call];
        is_free = advice == 8;
        /* That would reach all that the program has. */
        if (len == LONG) len = LEN + HOLE;
        CALL("madvise", madvise(from, len, advice));
        snprintf(name, sizeof name, "madvise-%d", advice);
    } else
        switch (call - ADVICE_COUNT) {
        case 0: CALL("munmap", munmap(from, len)); break;
        case 1: CALL("mprotect-r", mprotect(from, len, PROT_READ)); break;
        case 2: CALL("mprotect-rw", mprotect(from, len, rights)); break;
        case 3: CALL("mprotect-none", mprotect(from, len, PROT_NONE)); break;
        case 4: CALL("mprotect-bad", mprotect(from, len, 0x70)); break;
        case 5: CALL("mprotect-grows-both", mprotect(from, len, PROT_GROWSDOWN | PROT_GROWSUP)); break;
        case 6: CALL("mincore", mincore(from, len, vector)); break;
        case 7: CALL("msync-sync", msync(from, len, MS_SYNC)); break;
        case 8: CALL("msync-async", msync(from, len, MS_ASYNC)); break;
        case 9: CALL("msync-bad", msync(from, len, MS_ASYNC | MS_SYNC)); break;
        case 10: CALL("mlock", mlock(from, len)); break;
        case 11: CALL("mlock2", mlock2(from, len, 1)); break;
        case 12: CALL("munlock", munlock(from, len)); break;
        case 13: PLACE("mmap-fixed", mmap(from, len, rights, fixed, -1, 0)); break;
        case 14: PLACE("mmap-fixed-r", mmap(from, len, PROT_READ, fixed, -1, 0)); break;
        case 15: PLACE("mmap-fixed-file", mmap(from, len, rights, MAP_PRIVATE | MAP_FIXED, file, 0)); break;
        case 16: PLACE("mmap-fixed-bad-file", mmap(from, len, rights, MAP_PRIVATE | MAP_FIXED, -1, 0)); break;
        case 17: PLACE("mmap-fixed-bad-offset", mmap(from, len, rights, MAP_PRIVATE | MAP_FIXED, file, 100)); break;
        case 18: PLACE("mmap-noreplace", mmap(from, len, rights, fixed & ~MAP_FIXED | MAP_FIXED_NOREPLACE, -1, 0)); break;
        case 19: PLACE("mmap-no-kind", mmap(from, len, rights, MAP_ANONYMOUS | MAP_FIXED, -1, 0)); break;
        case 20: {
            got = mmap(from, len, rights, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            CALL("mmap-hint", got == MAP_FAILED ? -1 : 0);
            if (got != MAP_FAILED) munmap(got, len), got = NULL;
            break;
        }
        case 21: PLACE("mremap-moved", mremap(from, len, moved_len = len, MREMAP_MAYMOVE | MREMAP_FIXED, other = place())); break;
        case 22: PLACE("mremap-moved-longer", mremap(from, len, moved_len = len + MIB, MREMAP_MAYMOVE | MREMAP_FIXED, other = place())); break;
        case 23: PLACE("mremap-kept", mremap(from, len, moved_len = len, MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP, other = place())); break;
        case 24: PLACE("mremap-kept-longer", mremap(from, len, len + PAGE, MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP, other = place())); break;
        case 25: PLACE("mremap-fixed-only", mremap(from, len, len, MREMAP_FIXED, other = place())); break;
        case 26: PLACE("mremap-over-itself", mremap(from, len, len, MREMAP_MAYMOVE | MREMAP_FIXED, from + PAGE)); break;
        case 27: PLACE("mremap-unaligned", mremap(from, len, len, MREMAP_MAYMOVE | MREMAP_FIXED, from + 100)); break;
        case 28: PLACE("mremap-bad", mremap(from, len, len, 64)); break;
        case 29: PLACE("mremap-nothing", mremap(from, 0, moved_len = len, MREMAP_MAYMOVE)); break;
        case 30: PLACE("mremap-moved-shorter", mremap(from, len, moved_len = MIB, MREMAP_MAYMOVE | MREMAP_FIXED, other = place())); break;
        case 31: CALL("munlock-after-mlock", mlock(from, len) ? -1 : munlock(from, len)); break;
        case 32: CALL("madvise-dontneed-locked", (mlock(from, len), madvise(from, len, MADV_DONTNEED))); break;
        case 33: CALL("munmap-twice", (munmap(from, len), munmap(from, len))); break;
        default: {
            size_t nth = call - ADVICE_COUNT - OTHERS, resized = RESIZED[nth / 2];
            PLACE("mremap", mremap(from, len, moved_len = resized, nth % 2 ? MREMAP_MAYMOVE : 0));
            snprintf(name, sizeof name, "mremap-%zx-%s", resized, nth % 2 ? "may-move" : "stays");
        }
        }
    int reason = errno;
    if (is_place && got == MAP_FAILED) done = -1;
    say("%s %s %ld", name, range->name, done);
    if (done == -1) say("(%s)", strerrorname_np(reason));
    if (is_place && done != -1) say("(%s)", got == from ? "there" : got == other ? "place" : "elsewhere");
    say(" ");
    look_at_all(at, LEN + HOLE, is_free);
    /* What is there now came from there. */
    if (is_place && done != -1 && got != from && moved_len && moved_len < LEN + HOLE && range->from % PAGE == 0) {
        say(" ");
        size_t end = (moved_len + PAGE - 1) / PAGE, first = range->from / PAGE;
        for (size_t page = 0; page < end; page++)
            if (looks_at(first + page)) look(got + page * PAGE, first + page, is_free);
    }
    say("\n");
    if (other) munmap(other, LEN + HOLE);
    if (got && got != MAP_FAILED && got != from && moved_len < 2 * LEN) munmap(got, moved_len);
}

int main(int count, char **words) {
    if (count != 3) return 64;
    const char *shape = words[1], *who = words[2];
    char *first = map(64 * MIB, PROT_READ | PROT_WRITE, 0);
    munmap(first, 64 * MIB);
    file = memfd_create("file", 0);
    if (pipe(ends) || ftruncate(file, LEN)) return 1;
    static char letters[LEN];
    memset(letters, 'F', LEN);
    if (write(file, letters, LEN) != (ssize_t)LEN) return 1;
    size_t calls = ADVICE_COUNT + OTHERS + 2 * sizeof RESIZED / sizeof *RESIZED, all = calls * RANGE_COUNT;
    for (size_t next = 0; next < all; next += BATCH) {
        size_t end = next + BATCH < all ? next + BATCH : all;
        char *at[BATCH];
        for (size_t nth = next; nth < end; nth++) at[nth - next] = shaped(shape);
        int until[2], status;
        if (pipe(until)) return 1;
        pid_t child = strcmp(who, "alone") == 0 ? -1 : fork();
        int asks = (child == 0) == (strcmp(who, "child") == 0);
        if (asks)
            for (size_t nth = next; nth < end; nth++) answer(at[nth - next], &RANGES[nth % RANGE_COUNT], nth / RANGE_COUNT);
        flush();
        if (child == 0) {
            char byte;
            close(until[1]);
            _exit(asks ? 0 : read(until[0], &byte, 1) != 0);
        }
        close(until[0]);
        close(until[1]);
        if (child > 0 && (waitpid(child, &status, 0) != child || status)) return fprintf(stderr, "child: %x\n", status), 2;
        for (size_t nth = next; nth < end; nth++) munmap(at[nth - next], LEN + HOLE);
    }
    return 0;
}
