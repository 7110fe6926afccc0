/* Resets of a region to a snapshot. */
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
        WELL(hf_region_reset_to(instance, first, &done));
        CHECK(done == 2 * BLOCK && bytes_of(instance)[5] == 1);
    }
    hf_snapshot_close(first);
    hf_region_close(instance);
    hf_snapshot_close(second);
    hf_region_close(live);
}

/* Regions of two pools are reset together, or not at all. */
static void several(hf_pool *pool)
{
    hf_pool *other_pool = pool_of(4 * MIB);
    hf_region *regions[3], *one = region_of(pool, BLOCK), *two = region_of(other_pool, 2 * BLOCK);
    hf_snapshot *of_one, *of_two;
    const hf_snapshot *goals[3];
    size_t done = 7;
    int round;
    memset(bytes_of(one), 1, BLOCK);
    memset(bytes_of(two), 2, 2 * BLOCK);
    WELL(hf_region_snapshot(one, NULL, &of_one));
    WELL(hf_region_snapshot(two, NULL, &of_two));
    regions[0] = two, regions[1] = one, regions[2] = two;
    goals[0] = of_two, goals[1] = of_one, goals[2] = of_two;
    for (round = 0; round < 3; round++) {
        bytes_of(one)[round] = bytes_of(two)[BLOCK + round] = 9;
        WELL(hf_region_reset_all(regions, goals, 2, round ? &done : NULL));
        CHECK(done == (round ? 3 * BLOCK : 7) && bytes_of(one)[round] == 1 && bytes_of(two)[BLOCK + round] == 2);
        CHECK(hf_region_origin(one) == hf_snapshot_id(of_one) && hf_region_origin(two) == hf_snapshot_id(of_two));
    }
    WELL(hf_region_reset_all(NULL, NULL, 0, &done));
    CHECK(done == 0);
    bytes_of(one)[0] = bytes_of(two)[0] = 9;
    done = 7;
    FAILS(HF_E_NULL, hf_region_reset_all(NULL, goals, 2, &done));
    CHECK(done == 0);
    FAILS(HF_E_NULL, hf_region_reset_all(regions, NULL, 2, NULL));
    FAILS(HF_E_BAD_VALUE, hf_region_reset_all(regions, goals, 3, &done));
    CHECK(done == 0 && strstr(hf_last_error(), "named twice") != NULL);
    goals[0] = of_one;
    FAILS(HF_E_ANOTHER_POOL, hf_region_reset_all(regions, goals, 2, &done));
    regions[0] = one, regions[1] = NULL;
    FAILS(HF_E_BAD_HANDLE, hf_region_reset_all(regions, goals, 2, &done));
    regions[1] = two, goals[1] = NULL;
    FAILS(HF_E_BAD_HANDLE, hf_region_reset_all(regions, goals, 2, &done));
    CHECK(done == 0 && bytes_of(one)[0] == 9 && bytes_of(two)[0] == 9);
    hf_snapshot_close(of_one);
    hf_snapshot_close(of_two);
    hf_region_close(one);
    hf_region_close(two);
    hf_pool_close(other_pool);
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
    done = 7;
    FAILS(HF_E_BAD_HANDLE, hf_region_reset_to(live, NULL, &done));
    CHECK(done == 0);
    FAILS(HF_E_BAD_HANDLE, hf_region_reset_to(NULL, of_longer, NULL));
    hf_snapshot_close(of_longer);
    hf_snapshot_close(of_other);
    hf_region_close(live);
    hf_region_close(longer);
    hf_region_close(other);
    hf_pool_close(other_pool);
}

/* A revoked part of a snapshot cannot be restored. */
static void revoked(void)
{
    hf_pool *pool = pool_of(3 * BLOCK);
    hf_region_options by_block = HF_REGION_OPTIONS_INIT;
    hf_region *live;
    hf_snapshot *saved;
    const hf_snapshot *goal;
    size_t done;
    by_block.copy_grain = HF_COPY_GRAIN_BLOCK;
    WELL(hf_region_create(pool, 2 * BLOCK, &by_block, &live));
    memset(bytes_of(live), 1, 2 * BLOCK);
    WELL(hf_region_snapshot(live, NULL, &saved));
    memset(bytes_of(live), 2, 2 * BLOCK);
    FAILS(HF_E_REVOKED, hf_region_reset_to(live, saved, &done));
    CHECK(done == 0 && bytes_of(live)[0] == 2 && bytes_of(live)[2 * BLOCK - 1] == 2);
    goal = saved;
    FAILS(HF_E_REVOKED, hf_region_reset_all(&live, &goal, 1, &done));
    CHECK(done == 0 && bytes_of(live)[0] == 2);
    hf_snapshot_close(saved);
    hf_region_close(live);
    hf_pool_close(pool);
}

int main(void)
{
    hf_pool *pool = pool_of(24 * MIB);
    there_and_back(pool);
    several(pool);
    refusals(pool);
    hf_pool_close(pool);
    revoked();
    return 0;
}
