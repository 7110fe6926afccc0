/* Opens a file with O_DIRECT by the function in its argument, or pins memory in another way,
 * and waits for the end of its input. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

int main(int count, char **words) {
    if (count < 2) return 64;
    size_t len = 64ul << 20;
    char *memory = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(memory, 1, len);
    const char *name = words[1];
    int flags = O_RDONLY | O_DIRECT;
    void *function = dlsym(RTLD_DEFAULT, name);
    if (function == NULL) {
        puts("none");
    } else if (strstr(name, "openat")) {
        ((int (*)(int, const char *, int, ...))function)(AT_FDCWD, "/dev/null", flags, 0);
        puts("called");
    } else if (strstr(name, "handle")) {
        struct file_handle handle = {0};
        ((int (*)(int, struct file_handle *, int))function)(AT_FDCWD, &handle, flags);
        puts("called");
    } else if (strstr(name, "mkostemps")) {
        char path[] = "nowhere/XXXXXX.end";
        ((int (*)(char *, int, int))function)(path, 4, O_DIRECT);
        puts("called");
    } else if (strstr(name, "mkostemp")) {
        char path[] = "nowhere/XXXXXX";
        ((int (*)(char *, int))function)(path, O_DIRECT);
        puts("called");
    } else if (strstr(name, "open")) {
        ((int (*)(const char *, int, ...))function)("/dev/null", flags, 0);
        puts("called");
    } else if (strstr(name, "fcntl")) {
        ((int (*)(int, int, ...))function)(0, F_SETFL, O_DIRECT);
        puts("called");
    } else if (strcmp(name, "setsockopt") == 0 && count == 4) {
        int any = 1;
        setsockopt(-1, atoi(words[2]), atoi(words[3]), &any, sizeof any);
        puts("called");
    }
    fflush(stdout);
    getchar();
    return 0;
}
