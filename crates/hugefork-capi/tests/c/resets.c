/* Resets: a region goes back to a snapshot. */
#include "check.h"

static void there_and_back(hf_pool *pool)
{
    hf_region *live = region_of(pool, 2 * BLOCK), *instance;
    hf_snapshot *first, *second;
    hf_fault_stats faults;
    size_t done = 7;
    int round;
    memset(bytes_of(live), 1, BLOCK);
    WELL(hf_region_snapshot(live, NULL, &first));
    memset(bytes_of(live), 2, 2 * BLOCK);
    WELL(hf_region_snapshot(live, NULL, &second));
    for (round = 0; round < 3; round++) {
        bytes_of(live)[round] = 3;
        bytes_of(live)[BLOCK + round] = 3;
        WELL(hf_region_reset_to(live, first, &done));
        CHECK(done == 2 * BLOCK && hf_region_origin(live) == hf_snapshot_id(first));
        CHECK(bytes_of(live)[round] == 1 && bytes_of(live)[BLOCK - 1] == 1 && bytes_of(live)[BLOCK + round] == 0);
        WELL(hf_region_reset_to(live, second, NULL));
        CHECK(bytes_of(live)[0] == 2 && bytes_of(live)[2 * BLOCK - 1] == 2);
    }
    faults.size = sizeof faults;
    WELL(hf_region_get_fault_stats(live, &faults));
    CHECK(faults.resets == 6 && faults.blocks_exchanged > 0);

    WELL(hf_snapshot_fork(first, NULL, &instance));
    for (round = 0; round < 3; round++) {
        bytes_of(instance)[5] = 9;
        WELL(hf_region_reset(instance, &done));
        CHECK(done == 2 * BLOCK && bytes_of(instance)[5] == 1);
    }
    WELL(hf_region_reset(instance, NULL));
    hf_snapshot_close(first);
    bytes_of(instance)[5] = 9;
    FAILS(HF_E_NO_ORIGIN, hf_region_reset(instance, &done));
    CHECK(done == 0 && hf_last_errno() == ENOENT && bytes_of(instance)[5] == 9);
    hf_region_close(instance);
    hf_snapshot_close(second);
    hf_region_close(live);
}

static void refusals(hf_pool *pool)
{
    hf_pool *other_pool = pool_of(4 * MIB);
    hf_region *live = region_of(pool, BLOCK), *longer = region_of(pool, 2 * BLOCK), *other = region_of(other_pool, BLOCK);
    hf_snapshot *of_longer, *of_other;
    size_t done = 7;
    WELL(hf_region_snapshot(longer, NULL, &of_longer));
    WELL(hf_region_snapshot(other, NULL, &of_other));
    FAILS(HF_E_ANOTHER_LENGTH, hf_region_reset_to(live, of_longer, &done));
    CHECK(done == 0);
    FAILS(HF_E_ANOTHER_POOL, hf_region_reset_to(live, of_other, &done));
    FAILS(HF_E_NO_ORIGIN, hf_region_reset(live, NULL));
    done = 7;
    FAILS(HF_E_BAD_HANDLE, hf_region_reset_to(live, NULL, &done));
    CHECK(done == 0);
    FAILS(HF_E_BAD_HANDLE, hf_region_reset_to(NULL, of_longer, NULL));
    FAILS(HF_E_BAD_HANDLE, hf_region_reset(NULL, NULL));
    hf_snapshot_close(of_longer);
    hf_snapshot_close(of_other);
    hf_region_close(live);
    hf_region_close(longer);
    hf_region_close(other);
    hf_pool_close(other_pool);
}

/* What was taken away from a snapshot cannot be had again. */
static void revoked(void)
{
    hf_pool *pool = pool_of(3 * BLOCK);
    hf_region_options by_block = HF_REGION_OPTIONS_INIT;
    hf_region *live;
    hf_snapshot *saved;
    size_t done;
    by_block.copy_grain = HF_COPY_GRAIN_BLOCK;
    WELL(hf_region_create(pool, 2 * BLOCK, &by_block, &live));
    memset(bytes_of(live), 1, 2 * BLOCK);
    WELL(hf_region_snapshot(live, NULL, &saved));
    memset(bytes_of(live), 2, 2 * BLOCK);
    FAILS(HF_E_REVOKED, hf_region_reset_to(live, saved, &done));
    CHECK(done == 0 && bytes_of(live)[0] == 2 && bytes_of(live)[2 * BLOCK - 1] == 2);
    hf_snapshot_close(saved);
    hf_region_close(live);
    hf_pool_close(pool);
}

int main(void)
{
    hf_pool *pool = pool_of(24 * MIB);
    there_and_back(pool);
    refusals(pool);
    hf_pool_close(pool);
    revoked();
    return 0;
}
