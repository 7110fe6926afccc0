/* Regions: memory, forks, and all calls that change the memory at an address. */
#include "check.h"

static void writes_and_forks(hf_pool *pool)
{
    hf_region *live, *fork, *of_fork;
    hf_pool *again;
    hf_region_options options = HF_REGION_OPTIONS_INIT;
    hf_fault_stats faults;
    hf_region_stats stats;
    options.copy_grain = HF_COPY_GRAIN_BLOCK;
    WELL(hf_region_create(pool, 4 * MIB, &options, &live));
    CHECK(hf_region_len(live) == 4 * MIB && (size_t)bytes_of(live) % BLOCK == 0);
    CHECK(bytes_of(live)[4 * MIB - 1] == 0);
    memset(bytes_of(live), 1, 4 * MIB);
    WELL(hf_region_fork(live, &options, &fork));
    bytes_of(live)[0] = 2;
    bytes_of(fork)[1] = 3;
    WELL(hf_region_fork(fork, NULL, &of_fork));
    CHECK(bytes_of(live)[0] == 2 && bytes_of(live)[1] == 1);
    CHECK(bytes_of(fork)[0] == 1 && bytes_of(fork)[1] == 3);
    CHECK(bytes_of(of_fork)[0] == 1 && bytes_of(of_fork)[1] == 3);
    CHECK(hf_region_is_revoked(fork) == 0);
    faults.size = sizeof faults;
    WELL(hf_region_get_fault_stats(live, &faults));
    CHECK(faults.demand_zero == 2 && faults.copied == 1 && faults.bytes_copied == BLOCK && faults.snapshots == 1);
    CHECK(faults.handler_count == 3 && faults.handler_p50_ns <= faults.handler_p100_ns);
    stats.size = sizeof stats;
    WELL(hf_region_get_stats(live, &stats));
    CHECK(stats.blocks == 2 && stats.blocks_present == 2 && stats.blocks_shared == 1);
    WELL(hf_region_pool(live, &again));
    CHECK(again != pool && strcmp(hf_pool_name(again), hf_pool_name(pool)) == 0);
    /* The handles may be closed in any order. */
    hf_pool_close(again);
    hf_region_close(live);
    hf_region_close(fork);
    CHECK(bytes_of(of_fork)[1] == 3);
    hf_region_close(of_fork);
    CHECK(stats_of(pool).blocks_free == stats_of(pool).blocks);
}

struct progress {
    size_t calls, most;
};

static void progress(size_t done, void *user)
{
    struct progress *progress = user;
    progress->calls++;
    progress->most = done > progress->most ? done : progress->most;
}

static void memory(hf_pool *pool)
{
    hf_region *region = region_of(pool, 8 * MIB);
    struct progress seen = {0, 0};
    size_t bytes;
    hf_lazy_freed freed;
    WELL(hf_region_populate(region));
    WELL(hf_region_populate_with(region, 1, progress, &seen));
    CHECK(seen.calls == 1 && seen.most == 8 * MIB);
    WELL(hf_region_populate_with(region, 2, NULL, NULL));
    WELL(hf_region_populate_with(region, SIZE_MAX, NULL, NULL));
    WELL(hf_region_prepare_write(region, 5, 3 * MIB));
    WELL(hf_region_prepare_snapshot(region));
    memset(bytes_of(region), 1, 8 * MIB);
    WELL(hf_region_discard(region, BLOCK, BLOCK + 1));
    CHECK(bytes_of(region)[BLOCK - 1] == 1 && bytes_of(region)[BLOCK] == 0);
    CHECK(bytes_of(region)[2 * BLOCK] == 0 && bytes_of(region)[2 * BLOCK + 1] == 1);
    WELL(hf_region_discard(region, 8 * MIB, 0));

    freed.size = sizeof freed;
    WELL(hf_region_lazy_free(region, 0, 2 * BLOCK + 1, &freed));
    CHECK(freed.freed == BLOCK && freed.already == BLOCK && freed.unaligned == 1 && freed.shared == 0);
    CHECK(freed.pinned == 0 && freed.indivisible == 0 && freed.revoked == 0);
    WELL(hf_region_lazy_free(region, 3 * BLOCK, BLOCK, NULL));
    WELL(hf_region_cancel_lazy_free(region, 3 * BLOCK, BLOCK, &bytes));
    CHECK(bytes == BLOCK);
    WELL(hf_region_cancel_lazy_free(region, 3 * BLOCK, BLOCK, NULL));
    WELL(hf_pool_reclaim(pool, HF_NONE, &bytes));
    CHECK(bytes == BLOCK && bytes_of(region)[0] == 0 && bytes_of(region)[3 * BLOCK] == 1);
    WELL(hf_pool_reclaim(pool, 1, NULL));
    WELL(hf_region_advise(region, HF_ADVICE_NEAR));
    WELL(hf_region_advise(region, HF_ADVICE_WHOLE));
    WELL(hf_region_advise(region, HF_ADVICE_UNKNOWN));
    FAILS(HF_E_BAD_VALUE, hf_region_advise(region, 3));
    hf_region_close(region);
    WELL(hf_pool_trim(pool, &bytes));
    if (hf_pool_backing(pool) != HF_GRANTED_HUGETLB)
        CHECK(bytes >= 8 * MIB);
    WELL(hf_pool_trim(pool, NULL));
}

static int made(hf_pool *pool, size_t len, const hf_region_options *options)
{
    hf_region *region = (hf_region *)1;
    int code = hf_region_create(pool, len, options, &region);
    CHECK((code == 0) == (region != NULL));
    hf_region_close(region);
    return code;
}

static void refusals(hf_pool *pool)
{
    hf_region *region = region_of(pool, 4 * MIB), *all, *none;
    hf_snapshot *snapshot;
    hf_region_options options = HF_REGION_OPTIONS_INIT;
    hf_region_stats stats;
    hf_fault_stats faults;
    hf_lazy_freed freed;
    size_t bytes = 7;
    FAILS(HF_E_ZERO_SIZE, made(pool, 0, NULL));
    FAILS(HF_E_NOT_A_MULTIPLE, made(pool, 1, NULL));
    FAILS(HF_E_LARGER_THAN_POOL, made(pool, hf_pool_capacity(pool) + BLOCK, NULL));
    FAILS(HF_E_BAD_HANDLE, made(NULL, BLOCK, NULL));
    FAILS(HF_E_NULL, hf_region_create(pool, BLOCK, NULL, NULL));
    options.reserve = 2;
    FAILS(HF_E_BAD_VALUE, made(pool, BLOCK, &options));
    options.reserve = HF_RESERVE_NONE, options.copy_grain = 3;
    FAILS(HF_E_BAD_VALUE, made(pool, BLOCK, &options));
    options.copy_grain = HF_COPY_GRAIN_AUTO, options.unused = 1;
    FAILS(HF_E_BAD_VALUE, made(pool, BLOCK, &options));
    options.unused = 0, options.calls_wait = 2;
    FAILS(HF_E_BAD_VALUE, made(pool, BLOCK, &options));
    options.calls_wait = 0, options.size = 8;
    FAILS(HF_E_BAD_STRUCT, made(pool, BLOCK, &options));
    options.size = sizeof options, options.reserve = HF_RESERVE_FULL;
    WELL(hf_region_create(pool, hf_pool_capacity(pool), &options, &all));
    CHECK(stats_of(pool).blocks_reserved == stats_of(pool).blocks);
    FAILS(HF_E_NOT_RESERVABLE, made(pool, BLOCK, &options));
    FAILS(HF_E_NOT_RESERVABLE, hf_region_fork(region, &options, &none));
    CHECK(none == NULL);
    FAILS(HF_E_POOL_FULL, hf_region_populate(region));
    FAILS(HF_E_POOL_FULL, hf_region_populate_with(region, 2, NULL, NULL));
    FAILS(HF_E_POOL_FULL, hf_region_prepare_write(region, 0, 1));
    hf_region_close(all);
    options.reserve = HF_RESERVE_NONE, options.max_cow_bytes = BLOCK;
    FAILS(HF_E_LIMIT_ON_SNAPSHOT, hf_region_snapshot(region, &options, &snapshot));
    CHECK(snapshot == NULL);

    FAILS(HF_E_OUT_OF_RANGE, hf_region_prepare_write(region, 4 * MIB, 1));
    FAILS(HF_E_OUT_OF_RANGE, hf_region_discard(region, 1, 4 * MIB));
    FAILS(HF_E_OUT_OF_RANGE, hf_region_discard(region, (size_t)-1, (size_t)-1));
    FAILS(HF_E_OUT_OF_RANGE, hf_region_cancel_lazy_free(region, 0, (size_t)-1, &bytes));
    CHECK(bytes == 0);
    freed.size = sizeof freed;
    FAILS(HF_E_OUT_OF_RANGE, hf_region_lazy_free(region, 5 * MIB, 0, &freed));
    CHECK(freed.size == sizeof freed && freed.freed == 0 && freed.unaligned == 0);
    memset(bytes_of(region), 1, BLOCK);
    freed.size = 1;
    FAILS(HF_E_BAD_STRUCT, hf_region_lazy_free(region, 0, BLOCK, &freed));
    WELL(hf_region_cancel_lazy_free(region, 0, BLOCK, &bytes));
    CHECK(bytes == 0);

    stats.size = sizeof stats, faults.size = sizeof faults;
    FAILS(HF_E_BAD_HANDLE, hf_region_populate(NULL));
    FAILS(HF_E_BAD_HANDLE, hf_region_populate_with(NULL, 1, NULL, NULL));
    FAILS(HF_E_BAD_HANDLE, hf_region_prepare_write(NULL, 0, 0));
    FAILS(HF_E_BAD_HANDLE, hf_region_prepare_snapshot(NULL));
    FAILS(HF_E_BAD_HANDLE, hf_region_discard(NULL, 0, 0));
    FAILS(HF_E_BAD_HANDLE, hf_region_lazy_free(NULL, 0, 0, NULL));
    FAILS(HF_E_BAD_HANDLE, hf_region_cancel_lazy_free(NULL, 0, 0, NULL));
    FAILS(HF_E_BAD_HANDLE, hf_region_advise(NULL, 0));
    FAILS(HF_E_BAD_HANDLE, hf_region_is_revoked(NULL));
    FAILS(HF_E_BAD_HANDLE, hf_region_fork(NULL, NULL, &none));
    FAILS(HF_E_BAD_HANDLE, hf_region_snapshot(NULL, NULL, &snapshot));
    FAILS(HF_E_BAD_HANDLE, hf_region_get_stats(NULL, &stats));
    FAILS(HF_E_BAD_HANDLE, hf_region_get_fault_stats(NULL, &faults));
    FAILS(HF_E_NULL, hf_region_get_stats(region, NULL));
    FAILS(HF_E_NULL, hf_region_fork(region, NULL, NULL));
    FAILS(HF_E_NULL, hf_region_snapshot(region, NULL, NULL));
    FAILS(HF_E_NULL, hf_region_pool(region, NULL));
    CHECK(hf_region_address(NULL) == NULL && hf_region_len(NULL) == 0);
    hf_region_close(NULL);
    hf_region_close(region);
}

static void limits(hf_pool *pool)
{
    hf_region_options options = HF_REGION_OPTIONS_INIT;
    hf_region *region;
    hf_snapshot *saved;
    options.max_cow_bytes = BLOCK;
    options.copy_grain = HF_COPY_GRAIN_BLOCK;
    /* The write to the first block copies it; the write to the second revokes it from the
     * snapshot. */
    WELL(hf_region_create(pool, 2 * BLOCK, &options, &region));
    memset(bytes_of(region), 1, 2 * BLOCK);
    WELL(hf_region_snapshot(region, NULL, &saved));
    CHECK(hf_snapshot_is_revoked(saved) == 0);
    /* One call for both might begin at the end, as musl's memset does. */
    memset(bytes_of(region), 2, BLOCK);
    memset(bytes_of(region) + BLOCK, 2, BLOCK);
    CHECK(hf_snapshot_is_revoked(saved) == 1);
    FAILS(HF_E_REVOKED, hf_snapshot_read_at(saved, BLOCK, bytes_of(region), 1));
    CHECK(strstr(hf_last_error(), "max_cow_bytes were used up: make it with HF_RESERVE_FULL") != NULL);
    hf_snapshot_close(saved);
    hf_region_close(region);
}

/* A region copies pages or blocks, according to its options. */
static void grains(hf_pool *pool)
{
    int grain;
    for (grain = HF_COPY_GRAIN_AUTO; grain <= HF_COPY_GRAIN_BLOCK; grain++) {
        hf_region_options options = HF_REGION_OPTIONS_INIT;
        hf_region *region;
        hf_snapshot *saved;
        hf_fault_stats faults;
        unsigned char byte;
        options.copy_grain = grain;
        options.max_cow_bytes = 2 * BLOCK;
        WELL(hf_region_create(pool, BLOCK, &options, &region));
        memset(bytes_of(region), 1, BLOCK);
        WELL(hf_region_snapshot(region, NULL, &saved));
        bytes_of(region)[5] = 2;
        WELL(hf_snapshot_read_at(saved, 5, &byte, 1));
        CHECK(byte == 1 && bytes_of(region)[5] == 2);
        faults.size = sizeof faults;
        WELL(hf_region_get_fault_stats(region, &faults));
        if (grain == HF_COPY_GRAIN_PAGE)
            CHECK(faults.copied == (hf_pool_has_page_grain(pool) ? 0 : 1));
        if (grain == HF_COPY_GRAIN_BLOCK)
            CHECK(faults.copied == 1 && faults.cow_mapped == 0);
        hf_snapshot_close(saved);
        hf_region_close(region);
    }
}

int main(void)
{
    hf_pool *pool = pool_of(16 * MIB);
    writes_and_forks(pool);
    memory(pool);
    refusals(pool);
    limits(pool);
    grains(pool);
    CHECK(stats_of(pool).regions == 0);
    hf_pool_close(pool);
    return 0;
}
