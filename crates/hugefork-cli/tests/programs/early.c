/* Forks, and writes to 40 pages of each 2 MiB of 64 MiB. Twice, after a line of its input, it fills so many MiB more as
 * its argument says. The child looks last of all whether it has what it had. With plain pages all of that is 70 MiB and
 * what it fills. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MIB = 1 << 20, DATA = 64 * MIB, PAGE = 4096 };

static char *mapped(size_t len) {
    char *at = mmap(0, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) exit(2);
    return at;
}

/* The word that says what a page should have. */
static int is(const char *data, size_t page, unsigned long value) {
    return ((const unsigned long *)(data + page * PAGE))[7] == value;
}

static void set(char *data, size_t page, unsigned long value) {
    ((unsigned long *)(data + page * PAGE))[7] = value;
}

int main(int argc, char **argv) {
    size_t more = strtoul(argc > 1 ? argv[1] : "0", 0, 10) * MIB, pages = DATA / PAGE, bad = 0;
    char *data = mapped(DATA);
    for (size_t page = 0; page < pages; page++) set(data, page, page);
    int ends[2], status;
    if (pipe(ends)) return 2;
    int child = fork();
    if (child == 0) {
        char byte;
        close(ends[1]);
        if (read(ends[0], &byte, 1) != 0) _exit(3);
        for (size_t page = 0; page < pages; page++) bad += !is(data, page, page);
        _exit(bad > 0);
    }
    close(ends[0]);
    for (size_t page = 0; page < pages; page++)
        if (page % 512 < 40) set(data, page, ~page);
    for (int half = 0; half < 2; half++) {
        puts("filled");
        fflush(stdout);
        getchar();
        memset(mapped(more), 1, more);
    }
    puts("filled");
    fflush(stdout);
    getchar();
    for (size_t page = 0; page < pages; page++) bad += !is(data, page, page % 512 < 40 ? ~page : page);
    close(ends[1]);
    waitpid(child, &status, 0);
    printf("%zu bad, the child %s\n", bad, status ? "lacks something" : "has all");
    return 0;
}
