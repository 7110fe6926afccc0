/* Children of fork(2) that inherit the regions of a pool. */
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "check.h"

#define LEN (8 * MIB)

/* Waits until no child has memory of the pool any more. */
static void until_free(const hf_pool *pool, size_t blocks)
{
    const struct timespec soon = {0, 1000000};
    int nth;
    for (nth = 0; stats_of(pool).blocks_free != blocks; nth++) {
        CHECK(nth < 100000);
        nanosleep(&soon, NULL);
    }
}

static int is_filled(const unsigned char *bytes, unsigned char value)
{
    return bytes[0] == value && memcmp(bytes, bytes + 1, LEN - 1) == 0;
}

/* Parent and child write to the region, and neither sees the writes of the other. A pointer into
 * the region is valid in the child. */
static void each_has_its_own(void)
{
    hf_pool *pool = inherited_pool(32 * MIB);
    hf_region *region = region_of(pool, LEN), *more;
    unsigned char *bytes = bytes_of(region), **pointer, byte = 0;
    hf_snapshot *saved;
    hf_export *exported;
    int goes_on[2];
    pid_t child;
    CHECK(pipe(goes_on) == 0);
    memset(bytes, 1, LEN);
    child = fork();
    if (child == 0) {
        /* The parent has written by then. */
        CHECK(read(goes_on[0], &byte, 1) == 1 && is_filled(bytes, 1));
        CHECK(hf_region_address(region) == bytes && hf_region_len(region) == LEN);
        pointer = (unsigned char **)(void *)bytes;
        *pointer = bytes + LEN - 1;
        **pointer = 7;
        CHECK(bytes[LEN - 1] == 7);
        memset(bytes, 3, LEN);
        child = fork();
        if (child == 0) {
            CHECK(is_filled(bytes, 3));
            memset(bytes, 4, LEN);
            _exit(0);
        }
        wait_for(child);
        CHECK(is_filled(bytes, 3));
        FAILS(HF_E_FORKED_CHILD, hf_region_snapshot(region, NULL, &saved));
        FAILS(HF_E_FORKED_CHILD, hf_region_create(pool, BLOCK, NULL, &more));
        hf_region_close(region);
        hf_pool_close(pool);
        /* The memory is still there. */
        CHECK(is_filled(bytes, 3));
        _exit(0);
    }
    memset(bytes, 2, LEN);
    CHECK(stats_of(pool).blocks_free < 12);
    CHECK(write(goes_on[1], &byte, 1) == 1);
    wait_for(child);
    CHECK(is_filled(bytes, 2));
    until_free(pool, 12);
    /* Such a pool exports, too. */
    WELL(hf_region_snapshot(region, NULL, &saved));
    WELL(hf_snapshot_export(saved, &exported));
    hf_export_close(exported);
    hf_snapshot_close(saved);
    hf_region_close(region);
    hf_pool_close(pool);
    close(goes_on[0]);
    close(goes_on[1]);
}

static hf_operations *transfers;
static _Atomic uint64_t *accounts;
static atomic_int is_over;

static void *transfer(void *unused)
{
    (void)unused;
    while (!atomic_load(&is_over)) {
        WELL(hf_operations_enter(transfers));
        atomic_fetch_sub(&accounts[0], 1);
        atomic_fetch_add(&accounts[1000], 1);
        WELL(hf_operations_leave(transfers));
    }
    return NULL;
}

/* A child sees no half of an operation. */
static void between_operations(void)
{
    hf_pool *pool = inherited_pool(16 * MIB);
    hf_region *region = region_of(pool, BLOCK);
    pthread_t thread;
    int nth;
    accounts = (_Atomic uint64_t *)hf_region_address(region);
    WELL(hf_operations_create(0, &transfers));
    WELL(hf_region_set_operations(region, transfers));
    CHECK(pthread_create(&thread, NULL, transfer, NULL) == 0);
    for (nth = 0; nth < 50; nth++) {
        pid_t child = fork();
        if (child == 0)
            _exit(atomic_load(&accounts[0]) + atomic_load(&accounts[1000]) != 0);
        wait_for(child);
    }
    atomic_store(&is_over, 1);
    CHECK(pthread_join(thread, NULL) == 0);
    hf_operations_close(transfers);
    hf_region_close(region);
    until_free(pool, 8);
    hf_pool_close(pool);
}

int main(void)
{
    each_has_its_own();
    between_operations();
    return 0;
}
