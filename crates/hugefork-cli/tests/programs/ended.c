/* Ends its threads by the system call that ends one thread, while a child lives or has lived.
 * The argument names the way. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (1ul << 20)

static void end(long status) {
#ifdef __x86_64__
    __asm__ volatile("syscall" : : "a"(60l), "D"(status) : "rcx", "r11", "memory");
#endif
    syscall(SYS_exit, status);
}

/* Waits until the first thread has ended. The library's thread may check then, too: it must see
 * that one thread is left. */
static void let_the_first_end(void) {
    char text[512], *rest;
    do {
        FILE *file = fopen("/proc/self/stat", "r");
        rest = file && fgets(text, sizeof text, file) ? strrchr(text, ')') : NULL;
        if (file) fclose(file);
    } while (rest && strncmp(rest, ") Z", 3));
    usleep(400000);
}

static void *end_later(void *nothing) {
    let_the_first_end();
    end(9);
    return nothing;
}

static void *return_later(void *nothing) {
    let_the_first_end();
    return nothing;
}

/* Memory in the pool, and a child that lives as long as its parent, or has ended. */
static void prepare(int is_to_live) {
    char *memory = mmap(NULL, 64 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(memory, 1, 64 * MIB);
    int ends[2];
    if (pipe(ends)) _exit(64);
    pid_t child = fork();
    if (child == 0) {
        char byte;
        close(ends[1]);
        _exit(is_to_live && read(ends[0], &byte, 1) != 0);
    }
    close(ends[0]);
    if (!is_to_live) waitpid(child, NULL, 0);
}

int main(int count, char **words) {
    if (count < 3) return 65;
    pthread_t thread;
    prepare(!strcmp(words[2], "child-lives"));
    if (!strcmp(words[1], "first")) end(7);
    if (!strcmp(words[1], "other")) {
        pthread_create(&thread, NULL, end_later, NULL);
        end(5);
    }
    if (!strcmp(words[1], "libc")) {
        pthread_create(&thread, NULL, return_later, NULL);
        pthread_exit(NULL);
    }
    return 66;
}
