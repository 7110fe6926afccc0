/* Children report open descriptors that lead to their parent's memory or /proc files. Some are
 * forked while another thread makes the library read /proc. The library's descriptors never
 * occupy the lowest free number: a file that the program opens there is not disturbed. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static int inherited(pid_t of) {
    char path[64], leads[256], own[64];
    int count = 0;
    sprintf(own, "/proc/%d/", of);
    for (int number = 0; number < 2048; number++) {
        sprintf(path, "/proc/self/fd/%d", number);
        ssize_t len = readlink(path, leads, sizeof leads - 1);
        if (len < 0) continue;
        leads[len] = 0;
        if (strncmp(leads, "/memfd:hugefork", 15) == 0 || strncmp(leads, own, strlen(own)) == 0) {
            fprintf(stderr, "%d leads to %s\n", number, leads);
            count++;
        }
    }
    return count;
}

static atomic_int ends_now;

/* A call that the kernel refuses for anonymous memory may have been refused because the memory
 * is inherited, so the library checks. */
static void *reads_proc(void *page) {
    while (!ends_now) madvise(page, 4096, MADV_REMOVE);
    return NULL;
}

static int forked_beside(pid_t parent) {
    int bad = 0, status;
    for (int nth = 0; nth < 100; nth++) {
        pid_t child = fork();
        if (child == 0) _exit(inherited(parent));
        if (waitpid(child, &status, 0) != child || status) bad++;
    }
    return bad;
}

static int put_beside(int file) {
    struct stat wanted, found;
    int bad = 0;
    fstat(file, &wanted);
    for (int nth = 0; nth < 20000; nth++) {
        int lowest = dup(file);
        close(lowest);
        if (dup2(file, lowest) != lowest) bad++;
        for (int look = 0; look < 10; look++) {
            if (fstat(lowest, &found) || found.st_ino != wanted.st_ino) {
                bad++;
                break;
            }
        }
        close(lowest);
    }
    return bad;
}

int main(void) {
    size_t len = 64ul << 20;
    char *memory = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(memory, 1, len);
    pid_t parent = getpid();
    int bad = 0, status, ends[2];
    if (pipe(ends)) return 65;
    for (int nth = 0; nth < 3; nth++) {
        /* The first child remains alive, so that the library has a fork to record. */
        if (fork() == 0) {
            char byte;
            close(ends[1]);
            int count = inherited(parent);
            if (nth == 0 && read(ends[0], &byte, 1) != 0) count++;
            pid_t its = nth == 1 ? fork() : -1;
            if (its == 0) _exit(inherited(parent));
            if (its > 0 && waitpid(its, &status, 0) == its) count += WEXITSTATUS(status);
            _exit(count);
        }
    }
    close(ends[1]);
    while (wait(&status) > 0) bad += WIFEXITED(status) ? WEXITSTATUS(status) : 1;
    pthread_t reader;
    if (pthread_create(&reader, NULL, reads_proc, memory)) return 65;
    bad += forked_beside(parent) + put_beside(ends[0]);
    ends_now = 1;
    pthread_join(reader, NULL);
    printf("%d bad\n", bad);
    return bad != 0;
}
