/* Has a child that lives on, and writes to all that both have seen. Then, for each line of input, it maps, fills and
   unmaps some more; at the word "end" its child ends first. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define LEN (64ul << 20)
#define MORE (4ul << 20)

static char *map(size_t len) {
    return mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

int main(void) {
    char line[16], *memory = map(LEN);
    int ends[2], status = 0;
    memset(memory, 1, LEN);
    if (pipe(ends)) return 65;
    pid_t child = fork();
    if (child == 0) {
        char byte;
        close(ends[1]);
        read(ends[0], &byte, 1);
        for (size_t at = 0; at < LEN; at += 4096)
            if (memory[at] != 1) _exit(1);
        _exit(0);
    }
    memset(memory, 2, LEN);
    do {
        puts("ready");
        fflush(stdout);
        if (!fgets(line, sizeof line, stdin)) return 66;
        if (child > 0 && !strcmp(line, "end\n")) {
            close(ends[1]);
            if (waitpid(child, &status, 0) != child || status) return 67;
            child = 0;
        }
        char *more = map(MORE);
        if (more == MAP_FAILED) return 68;
        for (size_t at = 0; at < MORE; at += 4096) {
            if (more[at]) return 69;
            more[at] = 3;
        }
        munmap(more, MORE);
    } while (strcmp(line, "over\n"));
    for (size_t at = 0; at < LEN; at += 4096)
        if (memory[at] != 2) return 70;
    return 0;
}
