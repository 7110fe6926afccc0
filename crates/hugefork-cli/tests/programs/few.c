/* May open no files when it forks, and nobody lives then. What is written while its child lives lies in single pages,
   and can go back into its blocks when the child lives no more. Then the same again. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define LEN (64ul << 20)

int main(void) {
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = 1024;
    setrlimit(RLIMIT_NOFILE, &limit);
    char *memory = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(memory, 1, LEN);
    volatile int *written = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    while (open("/dev/null", O_RDONLY) >= 0) {}
    for (int round = 1; round <= 2; round++) {
        int status;
        pid_t child = fork();
        if (child == 0) {
            while (*written < round) usleep(1000);
            _exit(memory[0] != round);
        }
        for (size_t at = 0; at < LEN; at += 2ul << 20) memory[at] = round + 1;
        *written = round;
        if (child < 0 || waitpid(child, &status, 0) != child || status) return 1;
        puts("written");
        fflush(stdout);
        getchar();
    }
    return 0;
}
