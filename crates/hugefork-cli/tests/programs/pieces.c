// Mappings smaller than a huge page, which share one: each has its own contents, and changes to one do not affect its
// neighbours. Prints the number of violations, and the number of adjacent mappings.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PIECES 96
#define LEN (1 << 20)

static unsigned char *at[PIECES];
static unsigned char value[PIECES];
static int broken;

static unsigned char *map(void) {
    unsigned char *new = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (new == MAP_FAILED) exit(2);
    for (size_t i = 0; i < LEN; i++) broken += new[i] != 0;
    return new;
}

static void check(void) {
    for (int piece = 0; piece < PIECES; piece++)
        if (at[piece])
            for (size_t i = 0; i < LEN; i++) broken += at[piece][i] != value[piece];
}

static void fill(int piece, unsigned char with) {
    value[piece] = with;
    memset(at[piece], with, LEN);
}

int main(void) {
    int follow = 0;
    // From then on the program gets a pool.
    char *big = mmap(NULL, 64 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    big[0] = 1;
    for (int piece = 0; piece < PIECES; piece++) {
        at[piece] = map();
        fill(piece, piece + 1);
        follow += piece && at[piece] == at[piece - 1] + LEN;
    }
    check();
    for (int round = 0; round < 6; round++) {
        for (int piece = round; piece < PIECES; piece += 7) {
            switch ((piece + round) % 5) {
            case 0:
                munmap(at[piece], LEN), at[piece] = NULL;
                break;
            case 1:
                madvise(at[piece], LEN, MADV_DONTNEED), value[piece] = 0;
                break;
            case 2: {
                // It cannot grow over its neighbour.
                unsigned char *new = mremap(at[piece], LEN, 2 * LEN, MREMAP_MAYMOVE);
                if (new == MAP_FAILED) exit(3);
                for (size_t i = LEN; i < 2 * LEN; i++) broken += new[i] != 0;
                munmap(new + LEN, LEN);
                at[piece] = new;
                break;
            }
            case 3:
                mprotect(at[piece], LEN, PROT_READ);
                mprotect(at[piece], LEN, PROT_READ | PROT_WRITE);
                break;
            default:
                fill(piece, round + 100);
            }
        }
        check();
        pid_t child = fork();
        if (child == 0) {
            check();
            for (int piece = 0; piece < PIECES; piece += 2)
                if (at[piece]) fill(piece, 200);
            check();
            _exit(broken != 0);
        }
        for (int piece = 1; piece < PIECES; piece += 4)
            if (at[piece]) fill(piece, round + 50);
        for (int piece = 0; piece < PIECES; piece++)
            if (!at[piece] && piece % 2) at[piece] = map(), fill(piece, piece);
        check();
        int status = -1;
        waitpid(child, &status, 0);
        broken += status != 0;
        check();
    }
    printf("%d broken, %s\n", broken, follow >= PIECES / 2 - 1 ? "side by side" : "apart");
    return 0;
}
