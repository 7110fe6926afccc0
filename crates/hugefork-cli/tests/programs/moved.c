/* A child moves inherited memory to other addresses, drops parts of it there, and extends it. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif
#define MIB (1ul << 20)
#define PAGE 4096ul

static int bad;

static void expect(int holds, const char *what) {
    if (holds) return;
    fprintf(stderr, "not so: %s\n", what);
    bad++;
}

static int is(const char *at, size_t len, char value) {
    for (size_t i = 0; i < len; i += 512)
        if (at[i] != value) return 0;
    return 1;
}

/* Reserved addresses far from all other memory, from before the pool was made. */
static char *far_away;

static char *place(size_t len) {
    char *at = far_away;
    far_away += len;
    return at;
}

/* Whether a system call can write there. */
static int is_writable(char *at) {
    int ends[2];
    if (pipe(ends) || write(ends[1], "x", 1) != 1) return 0;
    int got = read(ends[0], at, 1);
    close(ends[0]), close(ends[1]);
    return got == 1;
}

static void drops(char *at, size_t len) {
    expect(madvise(at + PAGE, PAGE, MADV_DONTNEED) == 0 && is(at + PAGE, PAGE, 0) && is(at + 2 * PAGE, PAGE, 1),
           "a page that is dropped reads as zeros, the next does not");
    expect(madvise(at, len, MADV_DONTNEED) == 0 && is(at, len, 0), "what is dropped reads as zeros");
}

/* One thread writes while another moves the memory: each write is at the old or at the new address. */
#define PAGES 2048
static _Atomic int is_over;
static _Atomic long written;
static long last[PAGES];

static void *write_there(void *memory) {
    for (long count = 1; !is_over; count++) {
        last[count % PAGES] = count;
        *(volatile long *)((char *)memory + count % PAGES * PAGE) = count;
        written = count;
    }
    return NULL;
}

static void moved_beside_a_writer(char *memory) {
    pthread_t writer;
    pthread_create(&writer, NULL, write_there, memory);
    while (written < 3 * PAGES) {}
    char *there = mremap(memory, PAGES * PAGE, PAGES * PAGE, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);
    long then = written;
    while (written < then + PAGES / 2) {}
    is_over = 1;
    pthread_join(writer, NULL);
    expect(there != MAP_FAILED, "memory moves beside a writer");
    for (size_t page = 0; there != MAP_FAILED && page < PAGES; page++) {
        long here = *(long *)(memory + page * PAGE), moved = *(long *)(there + page * PAGE);
        if (here == last[page] || (here == 0 && moved == last[page])) continue;
        fprintf(stderr, "page %zu: %ld here, %ld there, but %ld was written\n", page, here, moved, last[page]);
        bad++;
        break;
    }
}

int main(void) {
    int rights = PROT_READ | PROT_WRITE, status, flags = MREMAP_MAYMOVE | MREMAP_FIXED;
    far_away = mmap(NULL, 96 * MIB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *memory = mmap(NULL, 96 * MIB, rights, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(memory, 1, 96 * MIB);
    int ends[2];
    if (pipe(ends)) return 1;
    pid_t child = fork();
    if (child == 0) {
        char byte;
        if (read(ends[0], &byte, 1) != 1) _exit(1);
        memset(memory + 2 * MIB, 1, MIB); /* Some of it is the child's own. */

        char *to = mremap(memory, 8 * MIB, 8 * MIB, flags, place(8 * MIB));
        expect(to != MAP_FAILED && is(to, 8 * MIB, 1), "what is moved has its contents");
        drops(to, 8 * MIB);

        to = mremap(memory + 8 * MIB, 8 * MIB, 8 * MIB, flags | MREMAP_DONTUNMAP, place(8 * MIB));
        expect(to != MAP_FAILED && is(to, 8 * MIB, 1), "so has what leaves its addresses behind");
        expect(is(memory + 8 * MIB, 8 * MIB, 0), "those read as zeros");
        memory[8 * MIB] = 3;
        expect(memory[8 * MIB] == 3 && to[0] == 1, "and can be written to");
        drops(memory + 16 * MIB, 2 * MIB);
        drops(to, 8 * MIB);

        to = mremap(memory + 18 * MIB, 2 * MIB, 2 * MIB, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);
        expect(to != MAP_FAILED && is(to, 2 * MIB, 1) && is(memory + 18 * MIB, 2 * MIB, 0), "wherever it goes");
        drops(to, 2 * MIB);

        to = mremap(memory + 24 * MIB, 4 * MIB, 4 * MIB, flags, place(4 * MIB));
        char *grown = mremap(to, 4 * MIB, 8 * MIB, MREMAP_MAYMOVE);
        expect(grown != MAP_FAILED && is(grown, 4 * MIB, 1) && is(grown + 4 * MIB, 4 * MIB, 0), "what has moved grows");
        to = mremap(memory + 32 * MIB, 4 * MIB, 8 * MIB, flags, place(8 * MIB));
        expect(to != MAP_FAILED && is(to, 4 * MIB, 1) && is(to + 4 * MIB, 4 * MIB, 0), "it grows as it moves");
        to = mremap(memory + 40 * MIB, 8 * MIB, 2 * MIB, flags, place(8 * MIB));
        expect(to != MAP_FAILED && is(to, 2 * MIB, 1), "it shrinks as it moves");

        /* A page with a protection of its own. */
        mprotect(memory + 48 * MIB + PAGE, PAGE, PROT_READ), mprotect(memory + 48 * MIB + 3 * PAGE, PAGE, PROT_NONE);
        to = place(2 * PAGE);
        expect(mremap(memory + 48 * MIB + PAGE, PAGE, PAGE, flags, to) == to && is(to, PAGE, 1), "a page moves");
        expect(!is_writable(to), "one that must not be written to stays so");
        expect(mremap(memory + 48 * MIB + 3 * PAGE, PAGE, PAGE, flags, to + PAGE) == to + PAGE, "so does one without rights");
        expect(!is_writable(to + PAGE) && !mprotect(to + PAGE, PAGE, rights) && is(to + PAGE, PAGE, 1), "which has contents");
        expect(!madvise(to, 2 * PAGE, MADV_DONTNEED) && is(to, 2 * PAGE, 0), "both can be dropped");

        /* Another part of the inherited memory; the child's own child has it, too. */
        to = mremap(memory + 56 * MIB, 4 * MIB, 4 * MIB, flags, memory + 61 * MIB);
        expect(to == memory + 61 * MIB && is(to, 4 * MIB, 1) && is(memory + 65 * MIB, MIB, 1), "it moves within itself");
        pid_t grandchild = fork();
        if (grandchild == 0) {
            drops(to, 4 * MIB);
            expect(is(grown, 4 * MIB, 1) && is(grown + 4 * MIB, 4 * MIB, 0), "a grandchild has what has grown");
            _exit(bad);
        }
        expect(waitpid(grandchild, &status, 0) == grandchild && status == 0, "a grandchild has it, and may drop it");
        moved_beside_a_writer(memory + 80 * MIB);
        expect(mremap(memory + 72 * MIB, 0, MIB, MREMAP_MAYMOVE) == MAP_FAILED, "private memory is not mapped twice");
        expect(is(memory + 72 * MIB, MIB, 1), "and stays");
        _exit(bad);
    }
    memset(memory, 2, 96 * MIB); /* The child must not see the parent's later writes. */
    bad += write(ends[1], "x", 1) != 1;
    bad += waitpid(child, &status, 0) != child || status;
    expect(is(memory, 96 * MIB, 2), "the parent has its own");
    printf("%d bad\n", bad);
    return bad != 0;
}
