/* Pools: their options, their properties, and refused options. */
#include "check.h"

static int built(hf_pool_options *options)
{
    hf_pool *pool = (hf_pool *)1;
    int code = hf_pool_create(options, &pool);
    CHECK((code == 0) == (pool != NULL));
    hf_pool_close(pool);
    return code;
}

static void refusals(void)
{
    hf_pool_options good = HF_POOL_OPTIONS_INIT, bad;
    good.capacity = 8 * MIB;
    WELL(built(&good));
    bad = good, bad.capacity = 0;
    FAILS(HF_E_ZERO_SIZE, built(&bad));
    bad = good, bad.capacity = BLOCK + 1;
    FAILS(HF_E_NOT_A_MULTIPLE, built(&bad));
    bad = good, bad.block_size = 3000;
    FAILS(HF_E_NOT_A_BLOCK_SIZE, built(&bad));
    bad = good, bad.block_size = 4 * KIB, bad.capacity = GIB << 10;
    FAILS(HF_E_TOO_MANY_BLOCKS, built(&bad));
    bad = good, bad.capacity = GIB << 17;
    FAILS(HF_E_BEYOND_THE_MACHINE, built(&bad));
    CHECK(hf_errno(HF_E_BEYOND_THE_MACHINE) == ENOMEM && hf_last_errno() == ENOMEM);
    /* No huge page has such a small block size. */
    bad = good, bad.block_size = 4 * KIB, bad.backing = HF_BACKING_HUGETLB, bad.fallback = HF_FALLBACK_REFUSED;
    FAILS(HF_E_BACKING_UNAVAILABLE, built(&bad));
    bad = good, bad.backing = 4;
    FAILS(HF_E_BAD_VALUE, built(&bad));
    bad = good, bad.fallback = -1;
    FAILS(HF_E_BAD_VALUE, built(&bad));
    bad = good, bad.commit = 2;
    FAILS(HF_E_BAD_VALUE, built(&bad));
    bad = good, bad.swap = 2;
    FAILS(HF_E_BAD_VALUE, built(&bad));
    bad = good, bad.exports = 2;
    FAILS(HF_E_BAD_VALUE, built(&bad));
    bad = good, bad.children = 2;
    FAILS(HF_E_BAD_VALUE, built(&bad));
    bad = good, bad.unused = 1;
    FAILS(HF_E_BAD_VALUE, built(&bad));
    bad = good, bad.core_dump = 2;
    FAILS(HF_E_BAD_VALUE, built(&bad));
    bad = good, bad.zeroed_low = MIB;
    FAILS(HF_E_BAD_VALUE, built(&bad));
    bad = good, bad.zeroed_high = MIB, bad.zeroed_cpu_percent = 101;
    FAILS(HF_E_BAD_VALUE, built(&bad));
    bad = good, bad.zeroed_high = MIB, bad.zeroed_cpu_percent = -1;
    FAILS(HF_E_BAD_VALUE, built(&bad));
    bad = good, bad.reclaim_under_pressure = 2;
    FAILS(HF_E_BAD_VALUE, built(&bad));
    bad = good, bad.pressure_step = MIB;
    FAILS(HF_E_BAD_VALUE, built(&bad));
    bad = good, bad.pressure_file = "/proc/pressure/memory";
    FAILS(HF_E_BAD_VALUE, built(&bad));
    bad = good, bad.reclaim_under_pressure = 1, bad.pressure_stall_us = 1;
    FAILS(HF_E_BAD_VALUE, built(&bad));
    FAILS(HF_E_NULL, hf_pool_create(&good, NULL));
    FAILS(HF_E_NULL, built(NULL));
    setenv("HUGEFORK_KERNEL", "magic", 1);
    FAILS(HF_E_BAD_SETTING, built(&good));
    unsetenv("HUGEFORK_KERNEL");
}

/* Structs of other releases. */
static void sizes(void)
{
    struct {
        hf_pool_options known;
        size_t unknown[3];
    } newer = {HF_POOL_OPTIONS_INIT, {0, 0, 0}};
    newer.known.size = sizeof newer;
    newer.known.capacity = 8 * MIB;
    WELL(built(&newer.known));
    newer.unknown[2] = 1;
    FAILS(HF_E_BAD_STRUCT, built(&newer.known));
    newer.known.size = 0;
    FAILS(HF_E_BAD_STRUCT, built(&newer.known));
    newer.known.size = offsetof(hf_pool_options, swap);
    WELL(built(&newer.known));
    newer.known.size = offsetof(hf_pool_options, swap) - 1;
    FAILS(HF_E_BAD_STRUCT, built(&newer.known));
    newer.known.size = (size_t)-1;
    FAILS(HF_E_BAD_STRUCT, built(&newer.known));
}

static void every_option(void)
{
    hf_pool_options options = HF_POOL_OPTIONS_INIT;
    hf_pool *pool;
    hf_pool_stats stats;
    options.name = "all\nof them";
    options.capacity = 32 * MIB;
    options.block_size = 64 * KIB;
    options.backing = HF_BACKING_SHMEM_BASE;
    options.fallback = HF_FALLBACK_REFUSED;
    options.commit = HF_COMMIT_ON_DEMAND;
    options.core_dump = HF_CORE_DUMP_INCLUDED;
    options.swap = HF_SWAP_ALLOWED;
    options.children = HF_CHILDREN_HAVE_NOTHING;
    options.obtain_ahead = 16 * MIB;
    options.zeroed_low = MIB;
    options.zeroed_high = 2 * MIB;
    options.zeroed_cpu_percent = 10;
    options.reclaim_under_pressure = 1;
    options.pressure_file = "/proc/pressure/memory";
    options.pressure_stall_us = 150000;
    options.pressure_window_us = 2000000;
    options.pressure_step = MIB;
    WELL(hf_pool_create(&options, &pool));
    CHECK(strcmp(hf_pool_name(pool), "all?of them") == 0);
    CHECK(hf_pool_block_size(pool) == 64 * KIB && hf_pool_capacity(pool) == 32 * MIB);
    CHECK(hf_pool_backing(pool) == HF_GRANTED_SHMEM_BASE);
    CHECK(strcmp(hf_granted_name(hf_pool_backing(pool)), "shmem-base") == 0);
    CHECK(strcmp(hf_granted_name(0), "unknown") == 0);
    CHECK(hf_pool_fallback_reason(pool) == NULL);
    CHECK((hf_pool_has_page_grain(pool) == 1) == (hf_pool_no_page_grain(pool) == NULL));
    CHECK(strlen(hf_pool_clear_kernel(pool)) > 0 && strlen(hf_pool_copy_kernel(pool)) > 0);
    stats = stats_of(pool);
    CHECK(stats.blocks == 512 && stats.blocks_free == 512 && stats.supply_running == 1 && stats.stock_running == 1);
    CHECK(stats.mappings <= stats.mappings_limit && stats.metadata_bytes > 0 && stats.blocks_leaked == 0);
    hf_pool_close(pool);

    options.obtain_ahead = HF_NONE;
    options.zeroed_low = options.zeroed_high = 0;
    options.zeroed_cpu_percent = 0;
    options.reclaim_under_pressure = 0;
    options.pressure_file = NULL;
    options.pressure_stall_us = options.pressure_window_us = options.pressure_step = 0;
    options.commit = HF_COMMIT_UPFRONT;
    WELL(hf_pool_create(&options, &pool));
    stats = stats_of(pool);
    CHECK(stats.supply_running == 0 && stats.stock_running == 0 && stats.pressure_running == 0);
    CHECK(stats.blocks_zeroed_free == 512);
    hf_pool_close(pool);

    /* The machine may lack it. Then the pool names the missing feature. */
    options.backing = HF_BACKING_HUGETLB;
    options.swap = HF_SWAP_REFUSED;
    options.fallback = HF_FALLBACK_ALLOWED;
    options.block_size = 0;
    WELL(hf_pool_create(&options, &pool));
    CHECK((hf_pool_backing(pool) == HF_GRANTED_HUGETLB) == (hf_pool_fallback_reason(pool) == NULL));
    hf_pool_close(pool);
}

/* Each backing is built, or reported as missing, and the pool reports its kind. */
static void every_backing(void)
{
    int backing;
    for (backing = HF_BACKING_AUTO; backing <= HF_BACKING_SHMEM_BASE; backing++) {
        hf_pool_options options = HF_POOL_OPTIONS_INIT;
        hf_pool *pool;
        int code;
        options.capacity = 4 * MIB;
        options.backing = backing;
        options.core_dump = HF_CORE_DUMP_LEFT_OUT;
        options.fallback = backing == HF_BACKING_AUTO ? HF_FALLBACK_ALLOWED : HF_FALLBACK_REFUSED;
        code = hf_pool_create(&options, &pool);
        if (code != 0) {
            CHECK(backing == HF_BACKING_HUGETLB || backing == HF_BACKING_SHMEM_HUGE);
            FAILS(HF_E_BACKING_UNAVAILABLE, code);
            continue;
        }
        switch (hf_pool_backing(pool)) {
        case HF_GRANTED_HUGETLB:
            CHECK(backing == HF_BACKING_AUTO || backing == HF_BACKING_HUGETLB);
            break;
        case HF_GRANTED_SHMEM_HUGE:
        case HF_GRANTED_SHMEM_COLLAPSED:
        case HF_GRANTED_SHMEM_OWN_TMPFS:
            CHECK(backing == HF_BACKING_AUTO || backing == HF_BACKING_SHMEM_HUGE);
            break;
        case HF_GRANTED_SHMEM_BASE:
            CHECK(backing == HF_BACKING_AUTO || backing == HF_BACKING_SHMEM_BASE);
            break;
        default:
            CHECK(!"a backing without a constant");
        }
        hf_pool_close(pool);
    }
}

/* Bad handles. */
static void handles(void)
{
    hf_pool *pool = pool_of(8 * MIB);
    hf_region *region = region_of(pool, BLOCK);
    hf_pool_stats stats;
    hf_fault_stats faults;
    size_t bytes = 7;
    CHECK(hf_pool_name(NULL) == NULL && hf_pool_block_size(NULL) == 0 && hf_pool_capacity(NULL) == 0);
    CHECK(hf_pool_fallback_reason(NULL) == NULL && hf_pool_no_page_grain(NULL) == NULL);
    CHECK(hf_pool_clear_kernel(NULL) == NULL && hf_pool_copy_kernel(NULL) == NULL);
    FAILS(HF_E_BAD_HANDLE, hf_pool_backing(NULL));
    FAILS(HF_E_BAD_HANDLE, hf_pool_has_page_grain(NULL));
    FAILS(HF_E_BAD_HANDLE, hf_pool_reclaim(NULL, 1, &bytes));
    CHECK(bytes == 0);
    FAILS(HF_E_BAD_HANDLE, hf_pool_trim(NULL, NULL));
    /* Of another type. */
    FAILS(HF_E_BAD_HANDLE, hf_pool_trim((hf_pool *)(void *)region, NULL));
    CHECK(strstr(hf_last_error(), "of another type") != NULL && strstr(hf_last_error(), "hf_pool") != NULL);
    FAILS(HF_E_BAD_HANDLE, hf_region_populate((hf_region *)(void *)pool));
    hf_pool_close((hf_pool *)(void *)region);
    CHECK(hf_region_len(region) == BLOCK);
    stats.size = sizeof stats;
    FAILS(HF_E_BAD_HANDLE, hf_pool_get_stats(NULL, &stats));
    FAILS(HF_E_NULL, hf_pool_get_stats(pool, NULL));
    stats.size = 3;
    FAILS(HF_E_BAD_STRUCT, hf_pool_get_stats(pool, &stats));
    faults.size = 0;
    FAILS(HF_E_BAD_STRUCT, hf_pool_get_fault_stats(pool, &faults));
    faults.size = sizeof faults;
    WELL(hf_pool_get_fault_stats(pool, &faults));
    CHECK(faults.demand_zero == 0 && faults.handler_count == 0);
    hf_region_close(region);
    hf_pool_close(pool);
    hf_pool_close(NULL);
}

static void library(void)
{
    CHECK(strcmp(hf_version(), HF_VERSION) == 0);
    CHECK(strcmp(hf_last_error(), "") == 0 && hf_last_errno() == 0);
    WELL(hf_reinstall_handler());
    CHECK(strcmp(hf_error_name(0), "ok") == 0 && hf_errno(0) == 0);
    CHECK(strcmp(hf_error_name(HF_E_POOL_FULL), "pool_full") == 0 && hf_errno(HF_E_POOL_FULL) == ENOMEM);
    CHECK(strcmp(hf_error_name(HF_E_PANIC), "panic") == 0 && hf_errno(HF_E_PANIC) == EIO);
    CHECK(strcmp(hf_error_name(1), "unknown") == 0 && hf_errno(-1) == EIO);
}

int main(void)
{
    library();
    refusals();
    sizes();
    every_option();
    every_backing();
    handles();
    return 0;
}
