/* Operations: a snapshot contains all writes of an operation or none. */
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>

#include "check.h"

static hf_region *one, *other;
static hf_operations *operations;
static atomic_int is_over, begun;

/* Writes a number to the first region, and then to the second. */
static void *writes(void *uses_operations)
{
    _Atomic uint64_t *first = hf_region_address(one), *second = hf_region_address(other);
    uint64_t number;
    for (number = 1; !atomic_load(&is_over); number++) {
        if (uses_operations != NULL) {
            WELL(hf_operations_enter(operations));
            WELL(hf_operations_enter(operations));
        }
        atomic_store(first, number);
        atomic_store(&begun, 1);
        atomic_store(second, number);
        if (uses_operations != NULL) {
            WELL(hf_operations_leave(operations));
            WELL(hf_operations_leave(operations));
        }
    }
    return NULL;
}

/* Whether the cut fell between the two writes. */
static int is_torn(void)
{
    hf_region *both[2];
    hf_snapshot *saved[2];
    uint64_t first, second;
    both[0] = one, both[1] = other;
    WELL(hf_region_snapshot_all(both, 2, NULL, saved));
    WELL(hf_snapshot_read_at(saved[0], 0, &first, sizeof first));
    WELL(hf_snapshot_read_at(saved[1], 0, &second, sizeof second));
    hf_snapshot_close(saved[0]);
    hf_snapshot_close(saved[1]);
    return first != second;
}

static void cuts_beside(void *uses_operations)
{
    pthread_t writer;
    int round;
    atomic_store(&is_over, 0);
    atomic_store(&begun, 0);
    CHECK(pthread_create(&writer, NULL, writes, uses_operations) == 0);
    while (!atomic_load(&begun))
        ;
    if (uses_operations == NULL)
        while (!is_torn())
            ;
    for (round = 0; uses_operations != NULL && round < 200; round++)
        CHECK(!is_torn());
    atomic_store(&is_over, 1);
    pthread_join(writer, NULL);
}

static void *enters_and_ends(void *unused)
{
    (void)unused;
    WELL(hf_operations_enter(operations));
    return NULL;
}

static void *snapshots(void *unused)
{
    hf_snapshot *saved;
    (void)unused;
    FAILS(HF_E_OPERATION_GOES_ON, hf_region_snapshot(one, NULL, &saved));
    CHECK(saved == NULL);
    return NULL;
}

int main(void)
{
    hf_pool *pool = pool_of(32 * MIB);
    hf_operations *others;
    hf_snapshot *saved;
    pthread_t thread;
    one = region_of(pool, BLOCK);
    other = region_of(pool, BLOCK);
    cuts_beside(NULL);
    WELL(hf_operations_create(HF_FOREVER, &operations));
    WELL(hf_region_set_operations(one, operations));
    WELL(hf_region_set_operations(other, operations));
    cuts_beside(&operations);
    /* The regions still use it. */
    hf_operations_close(operations);
    WELL(hf_region_snapshot(one, NULL, &saved));
    hf_region_close(one);
    hf_region_close(other);
    hf_snapshot_close(saved);

    one = region_of(pool, BLOCK);
    WELL(hf_operations_create(1, &operations));
    WELL(hf_operations_create(0, &others));
    WELL(hf_region_set_operations(one, operations));
    FAILS(HF_E_ANOTHER_OPERATIONS, hf_region_set_operations(one, others));
    FAILS(HF_E_BAD_VALUE, hf_operations_leave(operations));
    WELL(hf_operations_enter(operations));
    FAILS(HF_E_INSIDE_OPERATION, hf_region_snapshot(one, NULL, &saved));
    FAILS(HF_E_INSIDE_OPERATION, hf_region_prepare_snapshot(one));
    CHECK(pthread_create(&thread, NULL, snapshots, NULL) == 0);
    pthread_join(thread, NULL);
    WELL(hf_operations_leave(operations));
    /* A thread that ends has left. */
    CHECK(pthread_create(&thread, NULL, enters_and_ends, NULL) == 0);
    pthread_join(thread, NULL);
    WELL(hf_region_snapshot(one, NULL, &saved));
    FAILS(HF_E_BAD_HANDLE, hf_operations_enter(NULL));
    FAILS(HF_E_BAD_HANDLE, hf_operations_leave((hf_operations *)one));
    FAILS(HF_E_BAD_HANDLE, hf_region_set_operations(one, NULL));
    FAILS(HF_E_NULL, hf_operations_create(0, NULL));
    hf_snapshot_close(saved);
    hf_region_close(one);
    hf_operations_close(others);
    hf_operations_close(operations);
    hf_operations_close(NULL);
    hf_pool_close(pool);
    return 0;
}
