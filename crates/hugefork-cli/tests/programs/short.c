/* One child lives to the end; another ends after its parent has written to all that both have seen. What was copied for
   the second is of no use then until a third comes. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define LEN (64ul << 20)

static char *memory;

/* Until the other end of the pipe is closed. */
static pid_t child(int ends[2], char value) {
    if (pipe(ends)) _exit(65);
    pid_t child = fork();
    if (child == 0) {
        char byte;
        close(ends[1]);
        read(ends[0], &byte, 1);
        for (size_t at = 0; at < LEN; at += 4096)
            if (memory[at] != value) _exit(1);
        _exit(0);
    }
    return child;
}

static int end(pid_t child, int ends[2]) {
    int status;
    close(ends[0]);
    close(ends[1]);
    return child < 0 || waitpid(child, &status, 0) != child || status;
}

int main(void) {
    int first_ends[2], second_ends[2], bad = 0;
    memory = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(memory, 1, LEN);
    pid_t first = child(first_ends, 1);
    memset(memory, 2, LEN);
    puts("written");
    fflush(stdout);
    getchar();
    pid_t second = child(second_ends, 2);
    memset(memory, 3, LEN);
    puts("written");
    fflush(stdout);
    getchar();
    /* The second has inherited this end of the first's pipe. */
    bad += end(second, second_ends);
    puts("gone");
    fflush(stdout);
    getchar();
    bad += end(first, first_ends);
    printf("%d bad\n", bad);
    return 0;
}
