/* A program changes its memory by rarely used calls, or by calls without a libc function. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef SYS_process_madvise
#define SYS_process_madvise 440
#endif
#ifndef SYS_mseal
#define SYS_mseal 462
#endif
#define MIB (1ul << 20)
#define PAGE 4096ul

static int bad;
static const char *who;

static void expect(int holds, const char *what) {
    if (holds) return;
    fprintf(stderr, "not so in the %s: %s\n", who, what);
    bad++;
}

static int is(const char *at, size_t len, char value) {
    for (size_t i = 0; i < len; i += 512)
        if (at[i] != value) return 0;
    return 1;
}

/* A call without libc, on architectures that this test knows. */
static long without_libc(long number, long a, long b) {
#ifdef __x86_64__
    long answer;
    __asm__ volatile("syscall" : "=a"(answer) : "a"(number), "D"(a), "S"(b) : "rcx", "r11", "memory");
    return answer;
#else
    return syscall(number, a, b);
#endif
}

/* The kernel may lack some of these calls, or refuse them: then it reports that, and nothing
 * has changed. */
static void by_other_doors(char *memory) {
    int self = syscall(SYS_pidfd_open, getpid(), 0);
    struct iovec pieces[2] = {{memory, 4 * MIB}, {memory + 5 * MIB + PAGE, 2 * PAGE}};
    long done = syscall(SYS_process_madvise, self, pieces, 2, MADV_DONTNEED, 0);
    expect(done < 0 ? errno == EINVAL || errno == ENOSYS : done == 4 * MIB + 2 * PAGE, "process_madvise says what it has done");
    expect(is(memory, 4 * MIB, done < 0) && is(memory + 5 * MIB + PAGE, 2 * PAGE, done < 0), "and has done it");
    expect(is(memory + 4 * MIB, MIB + PAGE, 1), "and nothing else");
#if __GLIBC_PREREQ(2, 36)
    pieces[0].iov_base = memory + 4 * MIB, pieces[0].iov_len = MIB;
    pieces[1].iov_base = memory + 7 * MIB, pieces[1].iov_len = PAGE;
    done = process_madvise(self, pieces, 2, MADV_DONTNEED, 0);
    expect(is(memory + 4 * MIB, MIB, done < 0) && is(memory + 7 * MIB, PAGE, done < 0), "so does libc's function");
    expect(process_madvise(self, pieces, 2, MADV_DONTNEED, 1) == -1 && errno == EINVAL, "flags are refused");
    expect(process_madvise(-1, pieces, 2, MADV_DONTNEED, 0) == -1, "so is no process");
    expect(process_madvise(self, pieces, 0, MADV_COLD, 0) == 0, "nothing is done to nothing");
#endif
    close(self);

    memory += 8 * MIB;
    expect(syscall(SYS_madvise, memory, MIB + PAGE, MADV_DONTNEED) == 0 && is(memory, MIB + PAGE, 0), "what is dropped is zero");
    expect(syscall(SYS_mprotect, memory + 2 * PAGE, PAGE, PROT_READ) == 0, "rights change");
    expect(remap_file_pages(memory + 4 * MIB, 2 * PAGE, 0, 1, 0) == -1 && errno == EINVAL, "only a file's pages are remapped");
    expect(is(memory + 4 * MIB, MIB, 1), "and none of private memory");
    int segment = shmget(IPC_PRIVATE, 2 * PAGE, IPC_CREAT | 0600);
    char *shared = shmat(segment, memory + 5 * MIB, SHM_REMAP);
    shmctl(segment, IPC_RMID, NULL);
    expect(shared == memory + 5 * MIB && is(shared, 2 * PAGE, 0) && is(shared + 2 * PAGE, PAGE, 1), "a segment comes in place of memory");
    if (shared == memory + 5 * MIB) memset(shared, 5, 2 * PAGE);
    syscall(SYS_munmap, memory + 6 * MIB, MIB);
    char *here = mmap(memory + 6 * MIB, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    expect(here == memory + 6 * MIB, "what is unmapped is free");
    if (here == memory + 6 * MIB) here[0] = 6;
    char *to = mmap(NULL, MIB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    expect((char *)syscall(SYS_mremap, memory + 7 * MIB, MIB, MIB, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to, "memory moves");
    expect(is(to, MIB, 1) && !madvise(to, MIB, MADV_DONTNEED) && is(to, MIB, 0), "and is dropped there");
    syscall(SYS_mmap, memory + 7 * MIB, MIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    memset(memory + 7 * MIB, 8, MIB);

    memory += 8 * MIB; /* For good. */
    long sealed = syscall(SYS_mseal, memory + PAGE, 2 * PAGE, 0);
    if (sealed == 0) {
        expect(munmap(memory, MIB) == -1 && errno == EPERM && is(memory, MIB, 1), "what is sealed is not unmapped");
        memory[PAGE] = 9;
    }
}

/* Checks after a fork that the library has not touched what has replaced the program's memory. */
static void still_there(char *memory, int is_child) {
    expect(is(memory, 5 * MIB, 0) || is(memory, 5 * MIB, 1), "what was dropped stays so");
    memory += 8 * MIB;
    expect(is(memory, MIB + PAGE, 0) && is(memory + 2 * MIB, 3 * MIB, 1), "the rest too");
    expect(is(memory + 5 * MIB, 2 * PAGE, 5) && is(memory + 5 * MIB + 2 * PAGE, PAGE, 1), "a segment is there still");
    if (is_child) memory[5 * MIB] = 5, memory[6 * MIB] = 7;
    expect(memory[6 * MIB] == 7 || !is_child, "so is a mapping");
    expect(is(memory + 7 * MIB, MIB, 8), "so is one at a place of the program's choice");
    expect(memory[8 * MIB + 4 * PAGE] == 1 && (memory[8 * MIB + PAGE] == 9 || memory[8 * MIB + PAGE] == 1), "and what is sealed");
}

/* Unmaps two pieces without the library's knowledge, and maps other memory there: one piece lies
 * inside a 2 MiB block, the other is a whole block. */
static void unseen(char *memory) {
    size_t holes[2] = {memory + 3 * MIB + PAGE - memory, ((unsigned long)memory + 6 * MIB) / (2 * MIB) * 2 * MIB - (unsigned long)memory};
    size_t lens[2] = {2 * PAGE, 2 * MIB};
    for (int nth = 0; nth < 2; nth++) {
        char *at = memory + holes[nth];
        without_libc(SYS_munmap, (long)at, lens[nth]);
        char *put = mmap(NULL, lens[nth], PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        memset(put, 4, lens[nth]);
        if (put != at) {
#ifdef __x86_64__
            long answer;
            register long flags __asm__("r10") = MREMAP_MAYMOVE | MREMAP_FIXED;
            register long to __asm__("r8") = (long)at;
            __asm__ volatile("syscall" : "=a"(answer) : "a"(SYS_mremap), "D"(put), "S"(lens[nth]), "d"(lens[nth]), "r"(flags), "r"(to) : "rcx", "r11", "memory");
#else
            mremap(put, lens[nth], lens[nth], MREMAP_MAYMOVE | MREMAP_FIXED, at);
#endif
        }
    }
    for (int round = 0; round < 3; round++) {
        int status;
        pid_t child = fork();
        if (child == 0) {
            who = "child";
            for (int nth = 0; nth < 2; nth++) expect(is(memory + holes[nth], lens[nth], 4), "what nobody has seen come is there");
            expect(is(memory, 3 * MIB, 1) && is(memory + 3 * MIB + 3 * PAGE, MIB, 1), "and all around it");
            memory[3 * MIB] = 3, memory[holes[0]] = 4;
            _exit(bad != 0);
        }
        who = "parent";
        expect(waitpid(child, &status, 0) == child && status == 0, "its child agrees");
        for (int nth = 0; nth < 2; nth++) expect(is(memory + holes[nth], lens[nth], 4), "what nobody has seen come is there");
        expect(is(memory, 3 * MIB, 1) && is(memory + 3 * MIB + 3 * PAGE, MIB, 1), "a child's writes are its own, as before");
        for (size_t page = 0; page < 3 * MIB; page += PAGE) memory[page] = 1; /* Which is copied, and goes back. */
        usleep(20000);
    }
}

int main(int count, char **words) {
    (void)words;
    int rights = PROT_READ | PROT_WRITE, status;
    char *memory = mmap(NULL, 96 * MIB, rights, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(memory, 1, 96 * MIB);
    who = "program";
    if (count > 1) {
        unseen(memory);
        printf("%d bad\n", bad);
        return bad != 0;
    }
    by_other_doors(memory);
    for (int round = 0; round < 2; round++) {
        pid_t child = fork();
        if (child == 0) {
            who = "child";
            still_there(memory, 1);
            by_other_doors(memory + 32 * MIB);
            pid_t grandchild = fork();
            if (grandchild == 0) {
                who = "grandchild";
                still_there(memory + 32 * MIB, 0);
                _exit(bad != 0);
            }
            expect(waitpid(grandchild, &status, 0) == grandchild && status == 0, "its child has the same");
            _exit(bad != 0);
        }
        expect(waitpid(child, &status, 0) == child && status == 0, "its child has the same");
        still_there(memory, 0);
        expect(is(memory + 32 * MIB, 24 * MIB, 1), "what a child does is its own business");
    }
    printf("%d bad\n", bad);
    return bad != 0;
}
