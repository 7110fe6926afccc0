/* Locks all of its memory. Arguments: "libc" or "kernel", for the function to call; the flags;
 * and whether a child lives meanwhile. Prints the MiB in its page tables, the number of missing
 * pages, and the number of wrong pages. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096ul
#define MIB (1ul << 20)
#define LEN (48 * MIB)

static int bad;

static char *map(size_t len, int value) {
    char *at = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) exit(65);
    for (size_t page = 0; page < len; page += PAGE) at[page] = value;
    return at;
}

static int wrong(const char *at, size_t len, int value) {
    int count = 0;
    for (size_t page = 0; page < len; page += PAGE) count += at[page] != value || at[page + 1] != 0;
    return count;
}

static int is_missing(char *at, size_t len) {
    static unsigned char there[LEN / PAGE];
    int count = 0;
    mincore(at, len, there);
    for (size_t page = 0; page < len / PAGE; page++) count += (there[page] & 1) == 0;
    return count;
}

/* A child that checks the memory and waits for a signal to end. */
static pid_t child_of(const char *at, int value, int *ends) {
    if (pipe(ends) != 0) exit(66);
    pid_t child = fork();
    if (child == 0) {
        char byte;
        close(ends[1]);
        int count = wrong(at, LEN, value);
        (void)!read(ends[0], &byte, 1);
        _exit(count + wrong(at, LEN, value) != 0);
    }
    close(ends[0]);
    return child;
}

static void end(pid_t child, const int *ends) {
    int status;
    close(ends[1]);
    bad += waitpid(child, &status, 0) != child || status != 0;
}

static long resident(void) {
    long all, resident;
    FILE *file = fopen("/proc/self/statm", "r");
    if (file == NULL || fscanf(file, "%ld %ld", &all, &resident) != 2) exit(67);
    fclose(file);
    return resident * (long)PAGE / (long)MIB;
}

int main(int count, char **words) {
    if (count < 4) return 64;
    int flags = atoi(words[2]), has_child = atoi(words[3]), ends[2];
    char *before = map(LEN, 1), *heap = malloc(16 * MIB);
    memset(heap, 3, 16 * MIB);
    pid_t child = child_of(before, 1, ends);
    if (!has_child) end(child, ends);
    for (size_t page = 0; page < LEN; page += 8 * PAGE) before[page] = 1;
    int locked = strcmp(words[1], "libc") == 0 ? mlockall(flags) : (int)syscall(SYS_mlockall, flags);
    if (locked != 0) {
        puts("not locked");
        return 0;
    }
    long has = resident();
    if (has_child) end(child, ends);
    bad += wrong(before, LEN, 1) + (heap[0] != 3) + (heap[16 * MIB - 1] != 3);
    int missing = is_missing(before, LEN);
    char *after = map(8 * MIB, 2);
    child = child_of(before, 1, ends);
    for (size_t page = 0; page < LEN; page += PAGE) before[page] = 4;
    end(child, ends);
    bad += wrong(before, LEN, 4) + wrong(after, 8 * MIB, 2);
    has = resident() > has ? resident() : has;
    printf("%ld MiB, %d missing, %d bad\n", has, missing, bad);
    return 0;
}
