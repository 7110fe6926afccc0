/* A child with inherited memory enters a user namespace of its own, which only a
 * single-threaded process may do, and writes to its memory before and after. Many such
 * children, some of them while the library's thread runs. */
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define LEN (48ul << 20)

int main(void) {
    char *memory = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(memory, 1, LEN);
    int bad = 0, status;
    for (int tried = 0; tried < 30; tried++) {
        pid_t child = fork();
        if (child == 0) {
            memset(memory, 2, LEN / 2);
            usleep(tried % 20 * 700);
            if (unshare(CLONE_NEWUSER)) _exit(1);
            memset(memory + LEN / 4, 3, LEN / 2);
            for (size_t at = 0; at < LEN; at++)
                if (memory[at] != (at < LEN / 4 ? 2 : at < LEN / 4 * 3 ? 3 : 1)) _exit(2);
            _exit(0);
        }
        bad += waitpid(child, &status, 0) != child || status;
    }
    printf("%d bad\n", bad);
    return 0;
}
