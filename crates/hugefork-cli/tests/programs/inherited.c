/* A child changes its memory: dropped inherited memory becomes zeros, and other memory there does not change. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (1ul << 20)
#define PAGE 4096ul

static int bad;

static void expect(int holds, const char *what) {
    if (holds) return;
    fprintf(stderr, "not so: %s\n", what);
    bad++;
}

static int is(const char *at, size_t len, char value) {
    for (size_t i = 0; i < len; i += PAGE)
        if (at[i] != value) return 0;
    return 1;
}

/* Whether a system call can write there. */
static int is_writable(char *at) {
    int ends[2];
    if (pipe(ends) || write(ends[1], at, 1) != 1) return 0;
    int got = read(ends[0], at, 1);
    close(ends[0]), close(ends[1]);
    return got == 1;
}

int main(void) {
    int rights = PROT_READ | PROT_WRITE, status;
    char *memory = mmap(NULL, 64 * MIB, rights, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(memory, 1, 64 * MIB);
    mprotect(memory + 5 * MIB, PAGE, PROT_READ);
    char *shared = mmap(memory + 10 * MIB, 2 * MIB, rights, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    memset(shared, 2, 2 * MIB);
    FILE *file = tmpfile();
    for (size_t i = 0; i < 6 * MIB; i++) putc(7, file);
    fflush(file);
    pid_t child = fork();
    if (child == 0) {
        madvise(memory, 16 * MIB, MADV_DONTNEED);
        expect(is(memory, 10 * MIB, 0) && is(memory + 12 * MIB, 4 * MIB, 0), "what is dropped reads as zeros");
        expect(!is_writable(memory + 5 * MIB), "a page that must not be written to stays so");
        expect(is_writable(memory) && is_writable(memory + 5 * MIB + PAGE), "the others can be written to");
        expect(is(shared, 2 * MIB, 2), "shared memory keeps its contents");
        shared[0] = 3;

        munmap(memory + 16 * MIB, 8 * MIB);
        char *of_file = mmap(memory + 16 * MIB, 4 * MIB, rights, MAP_SHARED | MAP_FIXED, fileno(file), 0);
        madvise(of_file, 4 * MIB, MADV_DONTNEED);
        expect(is(of_file, 4 * MIB, 7), "a file keeps its contents");
        of_file = mremap(of_file, 4 * MIB, 6 * MIB, MREMAP_MAYMOVE);
        expect(of_file != MAP_FAILED && is(of_file, 6 * MIB, 7), "a file's mapping grows");
        of_file[0] = 9;
        char byte = 0;
        expect(pread(fileno(file), &byte, 1, 0) == 1 && byte == 9, "it is the file's still");

        char *grown = mremap(memory + 32 * MIB, 16 * MIB, 48 * MIB, MREMAP_MAYMOVE);
        expect(grown != MAP_FAILED && is(grown, 16 * MIB, 1) && is(grown + 16 * MIB, 32 * MIB, 0), "memory grows");
        _exit(bad);
    }
    bad += waitpid(child, &status, 0) != child || status;
    expect(is(memory, 10 * MIB, 1) && is(memory + 12 * MIB, 52 * MIB, 1), "the parent has its own");
    expect(shared[0] == 3, "what is shared is the child's too");
    printf("%d bad\n", bad);
    return bad != 0;
}
