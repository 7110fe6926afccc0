/* Defines malloc and free itself, calling libc's by their internal names, and uses the other functions from any
   library. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void *__libc_malloc(size_t len);
void __libc_free(void *old);

static long calls;

void *malloc(size_t len) {
    calls++;
    return __libc_malloc(len);
}

void free(void *old) {
    calls++;
    __libc_free(old);
}

int main(void) {
    for (size_t len = 1; len < 1 << 24; len = len * 3 + 1) {
        void *plain = malloc(len), *zero = calloc(1, len), *aligned = NULL;
        if (posix_memalign(&aligned, 64, len)) return 1;
        memset(plain, 1, len), memset(zero, 1, len), memset(aligned, 1, len);
        plain = realloc(plain, len + 100);
        free(plain), free(zero), free(aligned), free(strdup("text"));
    }
    puts(calls > 0 ? "0 bad" : "1 bad");
    return 0;
}
