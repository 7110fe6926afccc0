/* Reads a file past the page cache (O_DIRECT) into memory, while the program forks and a thread writes to other parts
   of the same pages. The data read must arrive. Arguments: the file to make, and the number of forks. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096ul
#define LEN (64ul << 20)

static char *memory;
static atomic_int is_over;

static void *write_beside(void *none) {
    for (size_t at = 0; !is_over; at = (at + PAGE) % LEN) {
        memory[at]++;
        if (at == 0) usleep(1000);
    }
    return none;
}

int main(int count, char **words) {
    if (count < 3) return 64;
    memory = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(memory, 1, LEN);
    int file = open(words[1], O_CREAT | O_RDWR | O_DIRECT, 0600), bad = 0, status;
    if (file < 0) {
        puts("no O_DIRECT");
        return 0;
    }
    /* 256 different blocks. */
    char *blocks = aligned_alloc(PAGE, 256 * PAGE);
    for (int nth = 0; nth < 256; nth++) memset(blocks + nth * PAGE, nth, PAGE);
    if (write(file, blocks, 256 * PAGE) != 256 * PAGE) return 65;
    pthread_t thread;
    pthread_create(&thread, NULL, write_beside, NULL);
    size_t at = 0;
    for (int forks = atoi(words[2]); forks > 0; forks--) {
        pid_t child = fork();
        if (child == 0) {
            usleep(20000);
            _exit(0);
        }
        for (int nth = 0; waitpid(child, &status, WNOHANG) == 0 || nth < 50; nth++, at = (at + 37 * PAGE) % LEN) {
            char *to = memory + at + 1024;
            if (pread(file, to, 1024, nth % 256 * PAGE) != 1024) return 66;
            for (size_t byte = 0; byte < 1024; byte++)
                if ((unsigned char)to[byte] != nth % 256) {
                    bad++;
                    break;
                }
        }
    }
    is_over = 1;
    pthread_join(thread, NULL);
    printf("%d bad\n", bad);
    return bad != 0;
}
