/* Children write all inherited memory in order, while their own threads and children check it,
 * with system calls in between. The argument is the number of rounds. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096ul
#define WORDS (256ul << 17)

static _Atomic uint64_t *memory;
static _Atomic size_t written;
static atomic_int is_over;

/* Each word contains its index, and above that the number of writes to it. */
static uint64_t word(size_t at, uint64_t times) { return times << 40 | at; }

static void *look_on(void *none) {
    for (uint64_t random = 88172645463325252ull; !is_over;) {
        random ^= random << 13, random ^= random >> 7, random ^= random << 17;
        size_t at = random % WORDS, before = written;
        uint64_t found = memory[at];
        if (found != word(at, 1) && found != word(at, 2)) _exit(10);
        if (at < before && found != word(at, 2)) _exit(11);
    }
    return none;
}

/* The memory of the child's child must not change. */
static int grandchild(size_t end) {
    usleep(20000);
    for (size_t at = 0; at < WORDS; at += 61)
        if (memory[at] != word(at, at < end ? 2 : 1)) return 12;
    for (size_t at = 0; at < WORDS; at++) memory[at] = word(at, 3);
    for (size_t at = 0; at < WORDS; at++)
        if (memory[at] != word(at, 3)) return 13;
    return 0;
}

static int child(int number) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, look_on, NULL)) return 20;
    pid_t forked = 0;
    int ends[2], status;
    if (pipe(ends)) return 21;
    for (size_t at = 0; at < WORDS; at++) {
        memory[at] = word(at, 2);
        written = at + 1;
        if (number % 2 && at == WORDS / 2 && (forked = fork()) == 0) _exit(grandchild(at + 1));
        if (at % (1 << 20) == 12345) {
            /* The kernel writes to pages that may be in the middle of a replacement. */
            char *to = (char *)memory + (at + 1) * 8 + PAGE * 300;
            uint64_t same[2] = {word((to - (char *)memory) / 8, 1), word((to - (char *)memory) / 8 + 1, 1)};
            if (at + 300 * 512 + 2 < WORDS && (write(ends[1], same, 16) != 16 || read(ends[0], to, 16) != 16)) return 22;
        }
    }
    is_over = 1;
    pthread_join(thread, NULL);
    for (size_t at = 0; at < WORDS; at++)
        if (memory[at] != word(at, 2)) return 23;
    char *bytes = (char *)memory;
    if (madvise(bytes + (32ul << 20), 4ul << 20, MADV_DONTNEED) || bytes[33ul << 20]) return 24;
    if (mprotect(bytes + (64ul << 20), PAGE, PROT_READ) || memory[64ul << 17] != word(64ul << 17, 2)) return 25;
    if (munmap(bytes + (128ul << 20), 64ul << 20)) return 26;
    return forked && (waitpid(forked, &status, 0) != forked || status) ? 27 : 0;
}

int main(int count, char **words) {
    if (count < 2) return 64;
    memory = mmap(NULL, WORDS * 8, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (size_t at = 0; at < WORDS; at++) memory[at] = word(at, 1);
    int bad = 0, status;
    for (int round = 0; round < atoi(words[1]); round++) {
        for (int nth = 0; nth < 2; nth++)
            if (fork() == 0) _exit(child(nth));
        for (int nth = 0; nth < 2; nth++)
            if (wait(&status) < 0 || status) printf("a child ended with %x\n", status), bad++;
    }
    for (size_t at = 0; at < WORDS; at++)
        if (memory[at] != word(at, 1)) bad++;
    printf("%d bad\n", bad);
    return bad != 0;
}
