/* Maps /dev/zero privately, which is private anonymous memory: it is filled, forked, dropped, grown and unmapped. What
   the kernel refuses of a descriptor it refuses. Says how much is not so, and waits until its input ends. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (1ul << 20)
#define PAGE 4096ul
#define LEN (64 * MIB)

static int bad;

static void expect(int holds, const char *what) {
    if (holds) return;
    fprintf(stderr, "not so: %s (errno %d)\n", what, errno);
    bad++;
}

static int is(const char *at, size_t len, char value) {
    for (size_t i = 0; i < len; i += PAGE)
        if (at[i] != value) return 0;
    return 1;
}

static char *map(int file, int flags, off_t offset) {
    return mmap(NULL, LEN, PROT_READ | PROT_WRITE, flags, file, offset);
}

static void refuses(int file, off_t offset, int why, const char *what) {
    errno = 0;
    char *at = map(file, MAP_PRIVATE, offset);
    expect(at == MAP_FAILED && errno == why, what);
    if (at != MAP_FAILED) munmap(at, LEN);
}

static void wait_for_success(pid_t child) {
    int status;
    expect(waitpid(child, &status, 0) == child && status == 0, "its child has the same");
}

/* Each has what was there at the fork, and what it has written since. */
static void forks(char *memory, char value) {
    int ends[2];
    char byte;
    memset(memory, value, LEN);
    expect(pipe(ends) == 0, "a pipe is there");
    pid_t child = fork();
    if (child == 0) {
        bad = 0;
        expect(read(ends[0], &byte, 1) == 1 && is(memory, LEN, value), "a child has what its parent had");
        memset(memory, value + 1, LEN / 2);
        expect(madvise(memory + MIB, 3 * MIB, MADV_DONTNEED) == 0 && is(memory + MIB, 3 * MIB, 0), "it drops it");
        expect(memory[0] == value + 1 && memory[4 * MIB] == value + 1 && memory[LEN - 1] == value, "and has the rest");
        _exit(bad != 0);
    }
    memset(memory + LEN / 4, value + 2, LEN / 2);
    expect(write(ends[1], "x", 1) == 1, "the child goes on");
    wait_for_success(child);
    expect(is(memory, LEN / 4, value) && is(memory + LEN / 4, LEN / 2, value + 2), "its parent has what it wrote");
    close(ends[0]), close(ends[1]);
}

int main(void) {
    int both = open("/dev/zero", O_RDWR), read_only = open("/dev/zero", O_RDONLY);
    int write_only = open("/dev/zero", O_WRONLY), path = open("/dev/zero", O_PATH), null = open("/dev/null", O_RDWR);
    refuses(write_only, 0, EACCES, "what cannot be read");
    refuses(path, 0, EBADF, "what is a path alone");
    refuses(-1, 0, EBADF, "no file");
    refuses(700, 0, EBADF, "a number of no file");
    refuses(null, 0, ENODEV, "another device");
    refuses(both, 1, EINVAL, "a part of a page");
    refuses(both, -(off_t)PAGE, EOVERFLOW, "an end behind all files");
    errno = 7;
    char *memory = map(both, MAP_PRIVATE, 0), *other = map(read_only, MAP_PRIVATE | MAP_NORESERVE, 5 * PAGE);
    expect(errno == 7 && memory != MAP_FAILED && other != MAP_FAILED, "what can be read is mapped");
    close(both), close(read_only);
    expect(is(memory, LEN, 0) && is(other, LEN, 0), "it is zero");
    for (int round = 0; round < 3; round++) {
        forks(memory, 1 + 3 * round);
        forks(other, 20 + 3 * round);
    }
    expect(madvise(other, LEN, MADV_DONTNEED) == 0 && is(other, LEN, 0), "what is dropped is zero");
    memset(other, 5, LEN);
    other = mremap(other, LEN, 2 * LEN, MREMAP_MAYMOVE);
    expect(other != MAP_FAILED && is(other, LEN, 5) && is(other + LEN, LEN, 0), "it grows");
    expect(munmap(other, 2 * LEN) == 0, "it is unmapped");
    both = open("/dev/zero", O_RDWR);
    char *shared = map(both, MAP_SHARED, 0);
    pid_t child = fork();
    if (child == 0) {
        memset(shared, 3, LEN);
        _exit(0);
    }
    wait_for_success(child);
    expect(shared != MAP_FAILED && is(shared, LEN, 3), "what is shared is");
    char *at = mmap(memory + 8 * MIB, 4 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, both, 0);
    expect(at == memory + 8 * MIB && is(at, 4 * MIB, 0) && at[-1] == 7 && at[9 * MIB] == 9, "it takes another's place");
    printf("%d bad\n", bad);
    fflush(stdout);
    char byte;
    return read(0, &byte, 1) != 0 || bad != 0;
}
