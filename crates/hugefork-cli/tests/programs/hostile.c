/* Has something that looks like the library's statistics, and would keep whoever reads it waiting for ever: a pipe of
   that name, or memory of which it handles the page faults. Or maps a file whose name is no text. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static int failed(const char *what) {
    perror(what);
    return 1;
}

int main(int count, char **words) {
    if (count < 3) return 64;
    const char *kind = words[1];
    if (chdir(words[2])) return failed("chdir");
    if (strcmp(kind, "pipe") == 0) {
        /* The path of what is mounted nowhere begins with it. */
        if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL)) return failed("unshare");
        mkdir("top", 0700);
        if (mount("none", "top", "tmpfs", 0, NULL) || mkfifo("top/memfd:hugefork-stats", 0600)) return failed("mount");
        if (open("top/memfd:hugefork-stats", O_PATH) < 0 || umount2("top", MNT_DETACH)) return failed("open");
    } else if (strcmp(kind, "faults") == 0) {
        int memory = memfd_create("hugefork-stats", 0), faults = syscall(SYS_userfaultfd, O_CLOEXEC);
        if (faults < 0 || ftruncate(memory, 4096)) return failed("userfaultfd");
        void *at = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
        struct uffdio_api api = {.api = UFFD_API};
        struct uffdio_register all = {.range = {(unsigned long)at, 4096}, .mode = UFFDIO_REGISTER_MODE_MISSING};
        if (ioctl(faults, UFFDIO_API, &api) || ioctl(faults, UFFDIO_REGISTER, &all)) return failed("register");
        close(memory);
    } else {
        int file = open("\xff\xfe libhugefork-run-", O_CREAT | O_RDWR, 0600);
        if (ftruncate(file, 4096)) return failed("ftruncate");
        mmap(NULL, 4096, PROT_READ, MAP_SHARED, file, 0);
    }
    puts("ready");
    fflush(stdout);
    getchar();
    return 0;
}
