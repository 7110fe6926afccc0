/* Changes since a snapshot, by block and by page, and the ids of snapshots. */
#include <pthread.h>

#include "check.h"

#define PAGE (4 * KIB)

/* The next range is this one. */
static void next_is(hf_changes *changes, size_t offset, size_t len)
{
    size_t found_offset, found_len;
    CHECK(hf_changes_next(changes, &found_offset, &found_len) == 1);
    CHECK(found_offset == offset && found_len == len);
}

static void nothing_follows(hf_changes *changes)
{
    size_t offset = 7, len = 7;
    CHECK(hf_changes_next(changes, &offset, &len) == 0 && offset == 0 && len == 0);
    CHECK(hf_changes_next(changes, &offset, &len) == 0);
}

static void ranges(hf_pool *pool)
{
    hf_region *live = region_of(pool, 4 * BLOCK);
    hf_snapshot *first, *second;
    hf_changes *changes;
    memset(bytes_of(live), 1, 4 * BLOCK);
    WELL(hf_region_snapshot(live, NULL, &first));
    WELL(hf_region_changed_since(live, first, HF_CHANGES_BY_PAGE, &changes));
    nothing_follows(changes);
    hf_changes_close(changes);
    bytes_of(live)[5] = 2;
    bytes_of(live)[PAGE] = 2;
    bytes_of(live)[3 * BLOCK - 1] = 2;
    bytes_of(live)[3 * BLOCK] = 1; /* the same value as before */
    WELL(hf_region_changed_since(live, first, HF_CHANGES_BY_PAGE, &changes));
    next_is(changes, 0, 2 * PAGE);
    next_is(changes, 3 * BLOCK - PAGE, PAGE);
    nothing_follows(changes);
    hf_changes_close(changes);
    WELL(hf_region_changed_since(live, first, HF_CHANGES_WRITTEN, &changes));
    size_t offset, len;
    CHECK(hf_changes_next(changes, &offset, &len) == 1 && offset == 0 && len >= 2 * PAGE);
    hf_changes_close(changes);
    WELL(hf_region_changed_since(live, first, HF_CHANGES_BY_BLOCK, &changes));
    next_is(changes, 0, BLOCK);
    next_is(changes, 2 * BLOCK, 2 * BLOCK);
    nothing_follows(changes);
    hf_changes_close(changes);

    WELL(hf_region_snapshot(live, NULL, &second));
    WELL(hf_snapshot_changed_since(second, first, HF_CHANGES_BY_BLOCK, &changes));
    next_is(changes, 0, BLOCK);
    next_is(changes, 2 * BLOCK, 2 * BLOCK);
    nothing_follows(changes);
    hf_changes_close(changes);
    /* Changes keep the compared objects alive, and can be closed before their end. */
    WELL(hf_snapshot_changed_since(first, second, HF_CHANGES_BY_PAGE, &changes));
    hf_snapshot_close(first);
    hf_snapshot_close(second);
    next_is(changes, 0, 2 * PAGE);
    hf_changes_close(changes);
    WELL(hf_region_snapshot(live, NULL, &first));
    WELL(hf_region_changed_since(live, first, HF_CHANGES_BY_BLOCK, &changes));
    hf_snapshot_close(first);
    hf_region_close(live);
    CHECK(stats_of(pool).regions == 1);
    nothing_follows(changes);
    hf_changes_close(changes);
    CHECK(stats_of(pool).regions == 0 && stats_of(pool).blocks_free == stats_of(pool).blocks);
}

static void ids(hf_pool *pool)
{
    hf_region *live = region_of(pool, BLOCK), *branch;
    hf_snapshot *first, *second, *of_branch;
    CHECK(hf_region_origin(live) == 0);
    WELL(hf_region_snapshot(live, NULL, &first));
    CHECK(hf_snapshot_id(first) != 0 && hf_snapshot_parent(first) == 0);
    WELL(hf_region_snapshot(live, NULL, &second));
    CHECK(hf_snapshot_id(second) > hf_snapshot_id(first) && hf_snapshot_parent(second) == hf_snapshot_id(first));
    WELL(hf_snapshot_fork(first, NULL, &branch));
    CHECK(hf_region_origin(live) == hf_snapshot_id(second) && hf_region_origin(branch) == hf_snapshot_id(first));
    WELL(hf_region_snapshot(branch, NULL, &of_branch));
    CHECK(hf_snapshot_parent(of_branch) == hf_snapshot_id(first));
    CHECK(hf_snapshot_id(NULL) == 0 && hf_snapshot_parent(NULL) == 0 && hf_region_origin(NULL) == 0);
    hf_snapshot_close(first);
    hf_snapshot_close(second);
    hf_snapshot_close(of_branch);
    hf_region_close(live);
    hf_region_close(branch);
}

static void refusals(hf_pool *pool)
{
    hf_pool *other_pool = pool_of(4 * MIB);
    hf_region *live = region_of(pool, BLOCK), *longer = region_of(pool, 2 * BLOCK), *other = region_of(other_pool, BLOCK);
    hf_snapshot *saved, *of_longer, *of_other;
    hf_changes *changes = (hf_changes *)1;
    size_t offset, len;
    WELL(hf_region_snapshot(live, NULL, &saved));
    WELL(hf_region_snapshot(longer, NULL, &of_longer));
    WELL(hf_region_snapshot(other, NULL, &of_other));
    FAILS(HF_E_ANOTHER_POOL, hf_region_changed_since(live, of_other, HF_CHANGES_BY_PAGE, &changes));
    CHECK(changes == NULL);
    FAILS(HF_E_ANOTHER_POOL, hf_snapshot_changed_since(of_other, saved, HF_CHANGES_BY_PAGE, &changes));
    FAILS(HF_E_ANOTHER_LENGTH, hf_region_changed_since(live, of_longer, HF_CHANGES_BY_PAGE, &changes));
    FAILS(HF_E_ANOTHER_LENGTH, hf_snapshot_changed_since(of_longer, saved, HF_CHANGES_BY_PAGE, &changes));
    FAILS(HF_E_BAD_VALUE, hf_region_changed_since(live, saved, 3, &changes));
    FAILS(HF_E_BAD_VALUE, hf_snapshot_changed_since(saved, saved, -1, &changes));
    FAILS(HF_E_NULL, hf_region_changed_since(live, saved, HF_CHANGES_BY_PAGE, NULL));
    FAILS(HF_E_NULL, hf_snapshot_changed_since(saved, saved, HF_CHANGES_BY_PAGE, NULL));
    FAILS(HF_E_BAD_HANDLE, hf_region_changed_since(NULL, saved, HF_CHANGES_BY_PAGE, &changes));
    FAILS(HF_E_BAD_HANDLE, hf_region_changed_since(live, NULL, HF_CHANGES_BY_PAGE, &changes));
    FAILS(HF_E_BAD_HANDLE, hf_snapshot_changed_since(NULL, saved, HF_CHANGES_BY_PAGE, &changes));
    FAILS(HF_E_BAD_HANDLE, hf_snapshot_changed_since(saved, NULL, HF_CHANGES_BY_PAGE, &changes));
    FAILS(HF_E_BAD_HANDLE, hf_changes_next(NULL, &offset, &len));
    WELL(hf_region_changed_since(live, saved, HF_CHANGES_BY_PAGE, &changes));
    FAILS(HF_E_NULL, hf_changes_next(changes, NULL, &len));
    FAILS(HF_E_NULL, hf_changes_next(changes, &offset, NULL));
    hf_changes_close(changes);
    hf_changes_close(NULL);
    hf_snapshot_close(saved);
    hf_snapshot_close(of_longer);
    hf_snapshot_close(of_other);
    hf_region_close(live);
    hf_region_close(longer);
    hf_region_close(other);
    hf_pool_close(other_pool);
}

/* A revoked part cannot be compared. Changes before it are returned. */
static void revoked(void)
{
    hf_pool *pool = pool_of(3 * BLOCK);
    hf_region_options by_block = HF_REGION_OPTIONS_INIT;
    hf_region *live;
    hf_snapshot *saved;
    hf_changes *changes;
    size_t offset, len;
    by_block.copy_grain = HF_COPY_GRAIN_BLOCK;
    WELL(hf_region_create(pool, 2 * BLOCK, &by_block, &live));
    memset(bytes_of(live), 1, 2 * BLOCK);
    WELL(hf_region_snapshot(live, NULL, &saved));
    memset(bytes_of(live), 2, 2 * BLOCK);
    CHECK(hf_snapshot_is_revoked(saved) == 1);
    WELL(hf_region_changed_since(live, saved, HF_CHANGES_BY_PAGE, &changes));
    FAILS(HF_E_REVOKED, hf_changes_next(changes, &offset, &len));
    CHECK(offset == 0 && len == 0);
    nothing_follows(changes);
    hf_changes_close(changes);
    hf_snapshot_close(saved);
    hf_region_close(live);
    hf_pool_close(pool);
}

/* The ranges that one of several threads has got. */
struct share {
    hf_changes *changes;
    size_t bytes;
};

static void *takes(void *share_of_it)
{
    struct share *share = share_of_it;
    size_t offset, len;
    while (hf_changes_next(share->changes, &offset, &len) == 1)
        share->bytes += len;
    return NULL;
}

static void by_several_threads(hf_pool *pool)
{
    hf_region *live = region_of(pool, 2 * BLOCK);
    hf_snapshot *saved;
    struct share one = {NULL, 0}, other;
    pthread_t thread;
    size_t page;
    WELL(hf_region_snapshot(live, NULL, &saved));
    for (page = 0; page < 2 * BLOCK; page += 2 * PAGE)
        bytes_of(live)[page] = 1;
    WELL(hf_region_changed_since(live, saved, HF_CHANGES_BY_PAGE, &one.changes));
    other = one;
    CHECK(pthread_create(&thread, NULL, takes, &other) == 0);
    takes(&one);
    pthread_join(thread, NULL);
    CHECK(one.bytes + other.bytes == BLOCK);
    hf_changes_close(one.changes);
    hf_snapshot_close(saved);
    hf_region_close(live);
}

int main(void)
{
    hf_pool *pool = pool_of(24 * MIB);
    ranges(pool);
    ids(pool);
    refusals(pool);
    by_several_threads(pool);
    CHECK(stats_of(pool).regions == 0);
    hf_pool_close(pool);
    revoked();
    return 0;
}
