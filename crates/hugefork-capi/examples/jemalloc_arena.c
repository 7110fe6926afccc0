/*
 * A jemalloc arena whose memory is a region: a snapshot captures the whole arena, while the
 * program continues to allocate, write and free in it. A child of fork(2) has the arena at the
 * same addresses, and goes on with it as with an arena of its own.
 *
 * jemalloc requests memory from extent hooks. These hand out the region from its beginning, one
 * block at a time, and let jemalloc keep and split its memory. Memory that jemalloc does not
 * need at the moment is lazily freed, so that the pool can reuse it. In a child the hooks fail
 * to free memory, and jemalloc keeps it.
 *
 * jemalloc's data about its extents lies elsewhere, so hf_region_reset_to cannot roll an arena
 * back: it would not reset that data. fork(2) copies that data, too, but a moment after the
 * region: no other thread may use the arena meanwhile.
 *
 *     cc -O2 jemalloc_arena.c $(pkg-config --cflags --libs hugefork) -ljemalloc
 */
#include <hugefork.h>
#include <jemalloc/jemalloc.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define NODES 100000

static void or_end(int code)
{
    if (code != 0) {
        fprintf(stderr, "%s: %s\n", hf_error_name(code), hf_last_error());
        exit(1);
    }
}

/* The hooks come first, so a pointer to them is a pointer to the whole struct. */
struct arena {
    extent_hooks_t hooks;
    hf_region *region;
    size_t block;
    atomic_size_t used;
};

static struct arena *arena_of(extent_hooks_t *hooks)
{
    return (struct arena *)hooks;
}

static size_t offset_of(const struct arena *arena, const void *at)
{
    return (size_t)((const char *)at - (const char *)hf_region_address(arena->region));
}

static void *give(extent_hooks_t *hooks, void *wanted, size_t size, size_t alignment, bool *zero, bool *commit,
                  unsigned which)
{
    struct arena *arena = arena_of(hooks);
    char *base = hf_region_address(arena->region);
    size_t step = alignment > arena->block ? alignment : arena->block, before, start, end;
    (void)which;
    if (wanted != NULL)
        return NULL;
    do {
        before = atomic_load(&arena->used);
        start = ((size_t)base + before + step - 1) / step * step - (size_t)base;
        end = start + size;
        if (end < start || end > hf_region_len(arena->region))
            return NULL;
    } while (!atomic_compare_exchange_weak(&arena->used, &before, end));
    /* Memory of a region is zero before its first write, and always committed. */
    *zero = *commit = true;
    return base + start;
}

/* Returns true: jemalloc keeps the memory and reuses it. */
static bool take_back(extent_hooks_t *hooks, void *at, size_t size, bool committed, unsigned which)
{
    (void)hooks, (void)at, (void)size, (void)committed, (void)which;
    return true;
}

static bool purge_lazily(extent_hooks_t *hooks, void *at, size_t size, size_t offset, size_t length, unsigned which)
{
    struct arena *arena = arena_of(hooks);
    (void)size, (void)which;
    return hf_region_lazy_free(arena->region, offset_of(arena, at) + offset, length, NULL) != 0;
}

static bool purge(extent_hooks_t *hooks, void *at, size_t size, size_t offset, size_t length, unsigned which)
{
    struct arena *arena = arena_of(hooks);
    (void)size, (void)which;
    return hf_region_discard(arena->region, offset_of(arena, at) + offset, length) != 0;
}

/* Neighbouring extents lie in one region, so they may be split and merged. */
static bool split(extent_hooks_t *hooks, void *at, size_t size, size_t left, size_t right, bool committed,
                  unsigned which)
{
    (void)hooks, (void)at, (void)size, (void)left, (void)right, (void)committed, (void)which;
    return false;
}

static bool merge(extent_hooks_t *hooks, void *left, size_t left_size, void *right, size_t right_size,
                  bool committed, unsigned which)
{
    (void)hooks, (void)left, (void)left_size, (void)right, (void)right_size, (void)committed, (void)which;
    return false;
}

struct node {
    struct node *next;
    size_t value;
};

/* A pointer of the live heap, as an address in the snapshot. */
static const struct node *in_snapshot(const struct node *live, const struct arena *arena, const char *snapshot)
{
    return live == NULL ? NULL : (const struct node *)(const void *)(snapshot + offset_of(arena, live));
}

/* Frees the nodes and allocates another, in a child. Returns whether all nodes were right. */
static int change_in_child(struct node *first, unsigned which, int flags)
{
    struct node *node, *next;
    size_t nth = NODES;
    char command[64];
    for (node = first; node != NULL; node = next) {
        next = node->next;
        if (node->value != --nth)
            return 0;
        dallocx(node, flags);
    }
    snprintf(command, sizeof command, "arena.%u.purge", which);
    mallctl(command, NULL, NULL, NULL, 0);
    node = mallocx(sizeof *node, flags);
    if (node == NULL)
        return 0;
    node->value = 1;
    return nth == 0;
}

int main(void)
{
    static struct arena arena = {.hooks = {.alloc = give, .dalloc = take_back, .purge_lazy = purge_lazily,
                                           .purge_forced = purge, .split = split, .merge = merge}};
    extent_hooks_t *hooks = &arena.hooks;
    hf_pool_options options = HF_POOL_OPTIONS_INIT;
    hf_pool *pool;
    hf_snapshot *saved;
    const void *mapped;
    struct node *first = NULL, *head, *node;
    const struct node *copy;
    unsigned which;
    size_t nth, count = 0, sum = 0, size = sizeof which;
    int flags;
    char command[64];
    pid_t child;
    int status;
    options.name = "jemalloc";
    options.children = HF_CHILDREN_INHERIT;
    options.capacity = (size_t)128 << 20;
    or_end(hf_pool_create(&options, &pool));
    or_end(hf_region_create(pool, (size_t)64 << 20, NULL, &arena.region));
    arena.block = hf_pool_block_size(pool);
    if (mallctl("arenas.create", &which, &size, &hooks, sizeof hooks) != 0) {
        fprintf(stderr, "jemalloc makes no arena\n");
        return 1;
    }
    /* Without a thread cache, all memory is allocated from the arena and freed to it. */
    flags = MALLOCX_ARENA(which) | MALLOCX_TCACHE_NONE;
    for (nth = 0; nth < NODES; nth++) {
        node = mallocx(sizeof *node, flags);
        if (node == NULL)
            return 1;
        node->next = first, node->value = nth;
        first = node;
    }

    head = first;
    child = fork();
    if (child == 0)
        _exit(!change_in_child(first, which, flags));
    or_end(hf_region_snapshot(arena.region, NULL, &saved));
    /* The program frees the live list, and jemalloc frees memory. */
    while (first != NULL) {
        node = first;
        first = node->next;
        node->value = 0;
        dallocx(node, flags);
    }
    snprintf(command, sizeof command, "arena.%u.purge", which);
    if (mallctl(command, NULL, NULL, NULL, 0) != 0)
        return 1;

    /* The snapshot still has the list. The list's pointers are addresses of the live heap. */
    or_end(hf_snapshot_map(saved, &mapped));
    for (copy = in_snapshot(head, &arena, mapped); copy != NULL; copy = in_snapshot(copy->next, &arena, mapped)) {
        count++;
        sum += copy->value;
    }
    if (count != NODES || sum != (size_t)NODES * (NODES - 1) / 2) {
        fprintf(stderr, "the snapshot has %zu nodes, which sum up to %zu\n", count, sum);
        return 1;
    }
    printf("%zu nodes in %zu MiB of a jemalloc arena were snapshotted\n", count, atomic_load(&arena.used) >> 20);
    hf_snapshot_close(saved);
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0) {
        fprintf(stderr, "the child has another arena\n");
        return 1;
    }
    printf("a child has changed its copy of them\n");
    /* The region is not closed: a jemalloc arena cannot be destroyed here. */
    hf_pool_close(pool);
    return 0;
}
