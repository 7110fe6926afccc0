/* Children of a program with nearly the maximum number of mappings, hundreds of them in a pool:
 * each child must live and have its parent's memory. Prints the number of children that do not.
 * */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (1ul << 20)
#define PAGE 4096ul
#define PIECES 600ul

static int lines(const char *path, int *first) {
    FILE *file = fopen(path, "r");
    int count = 0, byte;
    if (first && fscanf(file, "%d", first) != 1) return -1;
    while ((byte = fgetc(file)) != EOF) count += byte == '\n';
    fclose(file);
    return count;
}

int main(void) {
    int rights = PROT_READ | PROT_WRITE, flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, most, bad = 0;
    char *memory = mmap(NULL, (PIECES + 1) * 4 * MIB, rights, flags, -1, 0);
    memory = (char *)(((uintptr_t)memory + 2 * MIB - 1) & ~(2 * MIB - 1));
    for (size_t nth = 0; nth < PIECES; nth++) {
        memory[nth * 4 * MIB] = 1;
        /* The block after it then belongs to the kernel. */
        if (mprotect(memory + nth * 4 * MIB + 2 * MIB, PAGE, PROT_READ)) return 2;
    }
    if (lines("/proc/sys/vm/max_map_count", &most) < 0 || most > 200000) return puts("0 bad"), 0;
    char *many = mmap(NULL, 2ul * most * PAGE, PROT_NONE, flags, -1, 0);
    size_t next = 1;
    for (int left = 2000; left > 150; left -= 200) {
        for (int missing = most - left - lines("/proc/self/maps", NULL); missing > 0; missing -= 2, next += 2)
            if (mprotect(many + next * PAGE, PAGE, PROT_READ)) return printf("%d bad\n", bad), 0;
        pid_t child = fork();
        if (child < 0) continue;
        if (child == 0) {
            for (size_t nth = 0; nth < PIECES; nth++) bad += memory[nth * 4 * MIB] != 1 || memory[nth * 4 * MIB + PAGE];
            _exit(bad != 0);
        }
        int status;
        bad += waitpid(child, &status, 0) != child || status != 0;
    }
    printf("%d bad\n", bad);
    return 0;
}
