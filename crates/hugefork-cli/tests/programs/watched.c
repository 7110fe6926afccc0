/* A program handles the page faults of its own memory (userfaultfd), also after a fork. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (1ul << 20)
#define PAGE 4096ul
#define LEN (32 * MIB)

static int faults, over[2];

/* Each missing page is filled with the same byte. */
static void *handle(void *fill) {
    for (;;) {
        struct pollfd ready[2] = {{faults, POLLIN, 0}, {over[0], POLLIN, 0}};
        poll(ready, 2, -1);
        if (ready[1].revents) return NULL;
        struct uffd_msg message;
        if (read(faults, &message, sizeof message) != sizeof message) continue;
        struct uffdio_copy copy = {message.arg.pagefault.address & -PAGE, (unsigned long)fill, PAGE, 0, 0};
        if (ioctl(faults, UFFDIO_COPY, &copy) && errno != EEXIST) abort();
    }
}

static int watch_more(char *memory, size_t len) {
    struct uffdio_register all = {{(unsigned long)memory, len}, UFFDIO_REGISTER_MODE_MISSING, 0};
    return ioctl(faults, UFFDIO_REGISTER, &all) == 0;
}

static int watch(char *memory, size_t len) {
    struct uffdio_api api = {UFFD_API, 0, 0};
    faults = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
    if (faults < 0) {
        int device = open("/dev/userfaultfd", O_RDWR | O_CLOEXEC);
        faults = ioctl(device, USERFAULTFD_IOC_NEW, O_CLOEXEC | O_NONBLOCK);
        close(device);
    }
    return faults >= 0 && ioctl(faults, UFFDIO_API, &api) == 0 && watch_more(memory, len);
}

static size_t wrong(const char *memory, size_t len, char value) {
    size_t pages = 0;
    for (size_t at = 0; at < len; at += PAGE) pages += memory[at] != value;
    return pages;
}

static void start_handler(pthread_t *thread) {
    char *fill = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(fill, 7, PAGE);
    if (pipe(over)) abort();
    pthread_create(thread, NULL, handle, fill);
}

static void end_handler(pthread_t thread) {
    if (write(over[1], "x", 1) != 1) abort();
    pthread_join(thread, NULL);
    close(faults);
}

/* Pages dropped before the registration are missing in the middle of present memory. */
static size_t drop_and_watch(char *memory) {
    memset(memory, 1, 2 * MIB);
    madvise(memory + MIB, MIB / 2, MADV_DONTNEED);
    if (!watch_more(memory, 2 * MIB)) return 1;
    size_t bad = wrong(memory, MIB, 1) + wrong(memory + MIB, MIB / 2, 7) + wrong(memory + MIB * 3 / 2, MIB / 2, 1);
    if (bad) fprintf(stderr, "%zu pages that were dropped are wrong\n", bad);
    return bad;
}

int main(void) {
    int rights = PROT_READ | PROT_WRITE, status;
    char *memory = mmap(NULL, 2 * LEN, rights, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *others = memory + LEN;
    char *dropped = mmap(NULL, 4 * MIB, rights, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(others, 1, LEN);
    memset(dropped, 1, 4 * MIB);
    if (!watch(memory, LEN)) return puts("not allowed"), 0;
    pthread_t thread;
    start_handler(&thread);
    size_t bad = wrong(memory, LEN / 2, 7) + drop_and_watch(dropped);
    for (int round = 0; round < 2; round++) {
        pid_t child = fork();
        if (child == 0) {
            /* Unregistered memory works as usual; and a child may register its inherited
             * memory. */
            size_t found = wrong(memory, LEN / 2, 7) + wrong(others, LEN, 1);
            close(faults);
            if (!watch(others, LEN / 2)) _exit(2);
            start_handler(&thread);
            madvise(others, LEN / 4, MADV_DONTNEED);
            found += wrong(others, LEN / 4, 7) + wrong(others + LEN / 4, LEN / 2, 1);
            found += drop_and_watch(dropped + 2 * MIB);
            end_handler(thread);
            _exit(found != 0);
        }
        memset(others, 1, LEN);
        bad += waitpid(child, &status, 0) != child || status;
        madvise(memory, LEN / 4, MADV_DONTNEED);
        size_t here = wrong(memory, round ? LEN : LEN / 2, 7) + wrong(others, LEN, 1);
        if (here) fprintf(stderr, "%zu pages are wrong after a fork\n", here);
        bad += here;
    }
    end_handler(thread);
    printf("%zu bad\n", bad);
    return bad != 0;
}
