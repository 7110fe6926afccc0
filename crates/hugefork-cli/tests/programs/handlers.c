/* A library whose fork(2) handlers run before all others in the child, and change memory there. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stddef.h>
#include <sys/mman.h>

char *handled;
size_t handled_len;

static void in_child(void) {
    if (!handled) return;
    madvise(handled, 4ul << 20, MADV_DONTNEED);
    mprotect(handled + (6ul << 20), 4096, PROT_READ);
    mprotect(handled + (6ul << 20), 4096, PROT_READ | PROT_WRITE);
    munmap(handled + (8ul << 20), 2ul << 20);
    handled = mremap(handled, 8ul << 20, handled_len, MREMAP_MAYMOVE);
}

__attribute__((constructor)) static void begin(void) { pthread_atfork(NULL, NULL, in_child); }
