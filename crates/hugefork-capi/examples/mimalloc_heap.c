/*
 * A mimalloc heap in a region: a snapshot captures the whole heap with all its allocations,
 * while the program continues to allocate and free. A child of fork(2) has the heap at the same
 * addresses, and goes on with it as with a heap of its own.
 *
 * mimalloc 2.0.9 or newer can manage given memory. The memory must be aligned to 32 MiB and be
 * passed with `is_large`, so that mimalloc neither protects nor frees it: hugefork manages the
 * pages of a region. mimalloc's data about threads and heaps lies elsewhere. So a snapshot is
 * for reading, and hf_region_reset_to cannot roll a heap back: it would not reset that data.
 * fork(2) copies that data, too, but a moment after the region: no other thread may use the heap
 * meanwhile.
 *
 *     cc -O2 mimalloc_heap.c $(pkg-config --cflags --libs hugefork) -lmimalloc
 */
#include <hugefork.h>
#include <mimalloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define ALIGNED ((size_t)32 << 20)
#define MANAGED (4 * ALIGNED)
#define WORDS 200000

static void or_end(int code)
{
    if (code != 0) {
        fprintf(stderr, "%s: %s\n", hf_error_name(code), hf_last_error());
        exit(1);
    }
}

struct word {
    struct word *next;
    char *text;
};

/* A pointer of the live heap, as an address in the snapshot. */
static const void *in_snapshot(const void *live, const hf_region *region, const char *snapshot)
{
    return live == NULL ? NULL : snapshot + ((const char *)live - (const char *)hf_region_address(region));
}

/* Frees the words and allocates others, in a child. Returns whether all words were right. */
static int change_in_child(mi_heap_t *heap, struct word *first)
{
    struct word *word, *next;
    size_t nth = WORDS;
    char text[32];
    for (word = first; word != NULL; word = next) {
        next = word->next;
        snprintf(text, sizeof text, "word %zu", --nth);
        if (strcmp(word->text, text) != 0)
            return 0;
        mi_free(word->text);
        word->text = mi_heap_strdup(heap, "the child's");
        mi_free(word);
    }
    return nth == 0;
}

int main(void)
{
    hf_pool_options options = HF_POOL_OPTIONS_INIT;
    hf_pool *pool;
    hf_region *region;
    hf_snapshot *saved;
    hf_region_stats stats = HF_REGION_STATS_INIT;
    mi_arena_id_t arena;
    mi_heap_t *heap;
    struct word *first = NULL;
    const struct word *word;
    const void *mapped;
    size_t start, nth, count = 0;
    pid_t child;
    int status;
    options.name = "mimalloc";
    options.children = HF_CHILDREN_INHERIT;
    options.capacity = 2 * (MANAGED + ALIGNED);
    or_end(hf_pool_create(&options, &pool));
    or_end(hf_region_create(pool, MANAGED + ALIGNED, NULL, &region));
    start = ((size_t)hf_region_address(region) + ALIGNED - 1) / ALIGNED * ALIGNED;
    if (!mi_manage_os_memory_ex((void *)start, MANAGED, true, true, true, -1, true, &arena) ||
        (heap = mi_heap_new_in_arena(arena)) == NULL) {
        fprintf(stderr, "mimalloc does not take the memory\n");
        return 1;
    }
    for (nth = 0; nth < WORDS; nth++) {
        struct word *next = mi_heap_malloc(heap, sizeof *next);
        char text[32];
        if (next == NULL)
            return 1;
        snprintf(text, sizeof text, "word %zu", nth);
        next->text = mi_heap_strdup(heap, text);
        next->next = first;
        first = next;
    }

    child = fork();
    if (child == 0)
        _exit(!change_in_child(heap, first));
    or_end(hf_region_snapshot(region, NULL, &saved));
    /* The live heap changes: every other text is freed, all others are overwritten. */
    for (nth = WORDS, word = first; nth-- > 0; word = word->next) {
        if (nth % 2 == 0)
            mi_free(word->text);
        else
            strcpy(word->text, "gone");
    }

    or_end(hf_snapshot_map(saved, &mapped));
    for (word = in_snapshot(first, region, mapped); word != NULL; word = in_snapshot(word->next, region, mapped)) {
        char text[32];
        count++;
        snprintf(text, sizeof text, "word %d", WORDS - (int)count);
        if (strcmp(in_snapshot(word->text, region, mapped), text) != 0) {
            fprintf(stderr, "the snapshot has lost \"%s\"\n", text);
            return 1;
        }
    }
    or_end(hf_region_get_stats(region, &stats));
    printf("%zu words in %zu blocks of a mimalloc heap were snapshotted\n", count, stats.blocks_present);
    if (count != WORDS)
        return 1;
    hf_snapshot_close(saved);
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0) {
        fprintf(stderr, "the child has another heap\n");
        return 1;
    }
    printf("a child has changed its copy of them\n");
    /* The region is not closed: mimalloc never releases memory that it was given. */
    hf_pool_close(pool);
    return 0;
}
