/* Heaps: a region with an allocator, which goes back with it, and which a child of fork(2) has
 * as it was. */
#include <pthread.h>
#include <stdatomic.h>

#include "check.h"

#define LEN (8 * MIB)
#define NODES 10000

struct node {
    struct node *next;
    size_t value;
};

/* Puts nodes with the values from `from` to `to` at the front of a list. */
static void push(hf_heap *heap, struct node **first, size_t from, size_t to)
{
    for (; from < to; from++) {
        struct node *node = hf_heap_alloc(heap, sizeof *node, _Alignof(struct node));
        CHECK(node != NULL);
        node->next = *first;
        node->value = from;
        *first = node;
    }
}

static void pop(hf_heap *heap, struct node **first, size_t count)
{
    while (count-- > 0) {
        struct node *node = *first;
        *first = node->next;
        hf_heap_free(heap, node, sizeof *node, _Alignof(struct node));
    }
}

/* Whether a list has the values from `count - 1` down to 0. */
static int counts_down_from(const struct node *node, size_t count)
{
    for (; node != NULL; node = node->next)
        if (count-- == 0 || node->value != count)
            return 0;
    return count == 0;
}

static hf_region *region_in(const hf_heap *heap)
{
    hf_region *region;
    WELL(hf_heap_region(heap, &region));
    return region;
}

static void sizes_and_alignments(hf_heap *heap)
{
    size_t size, alignment;
    for (alignment = 1; alignment <= 64 * KIB; alignment *= 2)
        for (size = 1; size < 100 * KIB; size = size * 3 + 1) {
            unsigned char *at = hf_heap_alloc(heap, size, alignment);
            CHECK(at != NULL && (uintptr_t)at % alignment == 0);
            memset(at, 7, size);
            hf_heap_free(heap, at, size, alignment);
        }
    CHECK(hf_heap_alloc(heap, 0, 8) != NULL);
    hf_heap_free(heap, NULL, 8, 8);
    CHECK(hf_heap_alloc(heap, 8, 0) == NULL && strstr(hf_last_error(), "power of two") != NULL);
    CHECK(hf_heap_alloc(heap, SIZE_MAX, 8) == NULL);
}

static void goes_back(hf_pool *pool, hf_heap *heap)
{
    hf_region *region = region_in(heap), *again = region_in(heap), *other = region_of(pool, BLOCK), *both[2];
    hf_snapshot *none, *some, *foreign, *inside;
    const hf_snapshot *goals[2];
    hf_operations *operations;
    struct node **first = hf_heap_alloc(heap, sizeof *first, _Alignof(struct node *));
    int child;
    *first = NULL;
    CHECK((char *)first >= (char *)hf_region_address(region));
    CHECK((char *)first < (char *)hf_region_address(region) + hf_region_len(region));
    WELL(hf_region_snapshot(region, NULL, &none));
    push(heap, first, 0, NODES);
    WELL(hf_region_snapshot(region, NULL, &some));
    pop(heap, first, NODES / 2);
    push(heap, first, 0, 2 * NODES);
    WELL(hf_region_reset_to(region, some, NULL));
    CHECK(counts_down_from(*first, NODES));
    /* The allocator is that of the snapshot, too. */
    push(heap, first, NODES, 2 * NODES);
    pop(heap, first, NODES);
    CHECK(counts_down_from(*first, NODES));
    WELL(hf_region_reset_to(again, none, NULL));
    CHECK(*first == NULL);

    /* Snapshots of others, and regions that are named twice by two handles. */
    WELL(hf_region_snapshot(other, NULL, &foreign));
    FAILS(HF_E_ANOTHER_LENGTH, hf_region_reset_to(region, foreign, NULL));
    both[0] = region, both[1] = again, goals[0] = goals[1] = some;
    FAILS(HF_E_BAD_VALUE, hf_region_reset_all(both, goals, 2, NULL));
    FAILS(HF_E_BAD_VALUE, hf_fork_with(both, goals, 2, &child));
    CHECK(child == -1);
    goals[0] = foreign;
    FAILS(HF_E_ANOTHER_LENGTH, hf_fork_with(both, goals, 1, &child));
    FAILS(HF_E_NULL, hf_fork_with(both, goals, 1, NULL));
    FAILS(HF_E_NULL, hf_fork_with(NULL, goals, 1, &child));

    /* No snapshot lies inside an operation. */
    WELL(hf_heap_operations(heap, &operations));
    WELL(hf_operations_enter(operations));
    FAILS(HF_E_INSIDE_OPERATION, hf_region_snapshot(region, NULL, &inside));
    WELL(hf_operations_leave(operations));
    hf_operations_close(operations);
    hf_snapshot_close(none);
    hf_snapshot_close(some);
    hf_snapshot_close(foreign);
    hf_region_close(other);
    hf_region_close(again);
    hf_region_close(region);
    hf_heap_free(heap, first, sizeof *first, _Alignof(struct node *));
}

/* A child has a heap and a region as they were, and the parent has them as they are. */
static void child_of_yesterday(hf_pool *pool, hf_heap *heap)
{
    hf_region *regions[2], *now = region_of(pool, BLOCK);
    const hf_snapshot *goals[2];
    hf_snapshot *saved[2], *more;
    struct node **first = hf_heap_alloc(heap, sizeof *first, _Alignof(struct node *));
    int child;
    *first = NULL;
    regions[0] = region_in(heap), regions[1] = region_of(pool, BLOCK);
    push(heap, first, 0, NODES);
    bytes_of(regions[1])[0] = 1, bytes_of(now)[0] = 1;
    WELL(hf_region_snapshot_all(regions, 1, NULL, saved));
    WELL(hf_region_snapshot(regions[1], NULL, &saved[1]));
    goals[0] = saved[0], goals[1] = saved[1];
    pop(heap, first, NODES);
    bytes_of(regions[1])[0] = 2, bytes_of(now)[0] = 2;
    WELL(hf_fork_with(regions, goals, 2, &child));
    if (child == 0) {
        CHECK(counts_down_from(*first, NODES) && bytes_of(regions[1])[0] == 1 && bytes_of(now)[0] == 2);
        push(heap, first, NODES, 3 * NODES);
        CHECK(counts_down_from(*first, 3 * NODES));
        pop(heap, first, 3 * NODES);
        FAILS(HF_E_FORKED_CHILD, hf_region_snapshot(regions[0], NULL, &more));
        FAILS(HF_E_FORKED_CHILD, hf_fork_with(regions, goals, 2, &child));
        _exit(0);
    }
    CHECK(*first == NULL && bytes_of(regions[1])[0] == 2);
    push(heap, first, 0, 2 * NODES);
    wait_for(child);
    CHECK(counts_down_from(*first, 2 * NODES));
    pop(heap, first, 2 * NODES);
    hf_snapshot_close(saved[0]);
    hf_snapshot_close(saved[1]);
    hf_region_close(regions[0]);
    hf_region_close(regions[1]);
    hf_region_close(now);
}

static void children_without_regions(void)
{
    hf_pool *pool = pool_of(16 * MIB);
    hf_region *region = region_of(pool, BLOCK);
    const hf_snapshot *goal;
    hf_snapshot *saved;
    int child;
    WELL(hf_region_snapshot(region, NULL, &saved));
    goal = saved;
    FAILS(HF_E_NOT_EXPORTABLE, hf_fork_with(&region, &goal, 1, &child));
    CHECK(child == -1);
    hf_snapshot_close(saved);
    hf_region_close(region);
    hf_pool_close(pool);
}

static void full(hf_pool *pool)
{
    struct node *first = NULL;
    size_t count = 0;
    hf_heap *heap;
    void *at;
    FAILS(HF_E_LARGER_THAN_POOL, hf_heap_create(pool, 2 * hf_pool_capacity(pool), &heap));
    WELL(hf_heap_create(pool, BLOCK, &heap));
    while ((at = hf_heap_alloc(heap, KIB, 8)) != NULL) {
        *(struct node **)at = first;
        first = at;
        count++;
    }
    CHECK(hf_last_errno() == ENOMEM && strstr(hf_last_error(), "no room for 1024 more") != NULL && count > 1000);
    hf_heap_free(heap, first, KIB, 8);
    CHECK(hf_heap_alloc(heap, KIB, 8) == first);
    hf_heap_close(heap);
}

#define THREADS 4
#define SLOTS 1000

static hf_heap *shared;
static _Atomic(size_t *) slots[SLOTS];

/* Puts allocations into the slots, and frees those of other threads that lie there. */
static void *exchange(void *random_of)
{
    size_t random = (size_t)random_of, round;
    for (round = 0; round < 50000; round++) {
        size_t *new = NULL, *old, nth, size;
        random ^= random << 13, random ^= random >> 7, random ^= random << 17;
        size = 16 + random % (random % 100 == 0 ? 30000 : 300);
        if (random >> 63 != 0) {
            new = hf_heap_alloc(shared, size, 8);
            CHECK(new != NULL);
            new[0] = new[1] = size;
        }
        old = atomic_exchange(&slots[(random >> 20) % SLOTS], new);
        if (old != NULL) {
            nth = old[0];
            CHECK(old[1] == nth);
            hf_heap_free(shared, old, nth, 8);
        }
    }
    return NULL;
}

static void threads(hf_heap *heap)
{
    hf_region *region = region_in(heap);
    pthread_t threads[THREADS];
    hf_snapshot *saved;
    size_t nth;
    shared = heap;
    for (nth = 0; nth < THREADS; nth++)
        CHECK(pthread_create(&threads[nth], NULL, exchange, (void *)(nth + 1)) == 0);
    for (nth = 0; nth < 20; nth++) {
        WELL(hf_region_snapshot(region, NULL, &saved));
        hf_snapshot_close(saved);
    }
    for (nth = 0; nth < THREADS; nth++)
        CHECK(pthread_join(threads[nth], NULL) == 0);
    hf_region_close(region);
}

int main(void)
{
    hf_pool *pool;
    hf_heap *heap;
    children_without_regions();
    pool = inherited_pool(64 * MIB);
    WELL(hf_heap_create(pool, LEN, &heap));
    sizes_and_alignments(heap);
    goes_back(pool, heap);
    child_of_yesterday(pool, heap);
    full(pool);
    hf_heap_close(heap);
    WELL(hf_heap_create(pool, 3 * LEN, &heap));
    threads(heap);
    hf_heap_close(heap);
    hf_pool_close(pool);
    return 0;
}
