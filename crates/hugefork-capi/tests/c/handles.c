/* Bad handles: null, closed, of another type, or arbitrary pointers. Each function reports
 * them. */
#include <stdint.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "check.h"

/* As many handles of each type as there are types. */
enum { POOL, REGION, SNAPSHOT, PIN, CHANGES, EXPORT, IMPORT, HEAP, TYPES };

/* The call returns no value, and reports the bad handle. */
#define NOTHING(call) nothing((uintptr_t)(call), #call, __LINE__)
/* Closing a bad handle only reports it; closing NULL is allowed. */
#define CLOSES_NOTHING(call, bad)                                                                                \
    do {                                                                                                         \
        forget();                                                                                                \
        (call);                                                                                                  \
        CHECK((strstr(hf_last_error(), "that is open") != NULL) == ((bad) != NULL));                             \
    } while (0)

/* Replaces the last error. */
static void forget(void)
{
    hf_pool *pool;
    FAILS(HF_E_NULL, hf_pool_create(NULL, &pool));
}

static void nothing(uintptr_t got, const char *what, int line)
{
    check(got == 0, what, __FILE__, line);
    check(strstr(hf_last_error(), "that is open") != NULL, what, __FILE__, line);
    forget();
}

static void no_pool(hf_pool *bad)
{
    hf_region *region = (hf_region *)1;
    hf_pool_stats stats;
    hf_fault_stats faults;
    hf_heap *heap = (hf_heap *)1;
    size_t bytes = 7;
    stats.size = sizeof stats;
    faults.size = sizeof faults;
    CLOSES_NOTHING(hf_pool_close(bad), bad);
    NOTHING(hf_pool_name(bad));
    NOTHING(hf_pool_block_size(bad));
    NOTHING(hf_pool_capacity(bad));
    NOTHING(hf_pool_fallback_reason(bad));
    NOTHING(hf_pool_no_page_grain(bad));
    NOTHING(hf_pool_clear_kernel(bad));
    NOTHING(hf_pool_copy_kernel(bad));
    FAILS(HF_E_BAD_HANDLE, hf_pool_backing(bad));
    FAILS(HF_E_BAD_HANDLE, hf_pool_has_page_grain(bad));
    FAILS(HF_E_BAD_HANDLE, hf_pool_reclaim(bad, 1, &bytes));
    CHECK(bytes == 0);
    FAILS(HF_E_BAD_HANDLE, hf_pool_trim(bad, NULL));
    FAILS(HF_E_BAD_HANDLE, hf_pool_get_stats(bad, &stats));
    FAILS(HF_E_BAD_HANDLE, hf_pool_get_fault_stats(bad, &faults));
    FAILS(HF_E_BAD_HANDLE, hf_region_create(bad, BLOCK, NULL, &region));
    FAILS(HF_E_BAD_HANDLE, hf_heap_create(bad, BLOCK, &heap));
    CHECK(region == NULL && heap == NULL);
}

static void no_region(hf_region *bad, hf_region *good, const hf_snapshot *snapshot)
{
    hf_observer observer = HF_OBSERVER_INIT;
    hf_region *regions[2], *fork;
    hf_snapshot *saved, *both[2];
    const hf_snapshot *goals[2];
    hf_changes *changes;
    hf_region_stats stats;
    hf_fault_stats faults;
    hf_pool *pool;
    hf_pin *pin;
    size_t done = 7;
    int child;
    stats.size = sizeof stats;
    faults.size = sizeof faults;
    CLOSES_NOTHING(hf_region_close(bad), bad);
    NOTHING(hf_region_address(bad));
    NOTHING(hf_region_len(bad));
    NOTHING(hf_region_origin(bad));
    FAILS(HF_E_BAD_HANDLE, hf_region_pool(bad, &pool));
    CHECK(pool == NULL);
    FAILS(HF_E_BAD_HANDLE, hf_region_populate(bad));
    FAILS(HF_E_BAD_HANDLE, hf_region_populate_with(bad, 2, NULL, NULL));
    FAILS(HF_E_BAD_HANDLE, hf_region_prepare_write(bad, 0, 1));
    FAILS(HF_E_BAD_HANDLE, hf_region_discard(bad, 0, 1));
    FAILS(HF_E_BAD_HANDLE, hf_region_lazy_free(bad, 0, 1, NULL));
    FAILS(HF_E_BAD_HANDLE, hf_region_cancel_lazy_free(bad, 0, 1, &done));
    CHECK(done == 0);
    FAILS(HF_E_BAD_HANDLE, hf_region_pin(bad, 0, 1, &pin));
    CHECK(pin == NULL);
    FAILS(HF_E_BAD_HANDLE, hf_region_advise(bad, HF_ADVICE_NEAR));
    FAILS(HF_E_BAD_HANDLE, hf_region_observe(bad, &observer));
    FAILS(HF_E_BAD_HANDLE, hf_region_is_revoked(bad));
    FAILS(HF_E_BAD_HANDLE, hf_region_fork(bad, NULL, &fork));
    FAILS(HF_E_BAD_HANDLE, hf_region_snapshot(bad, NULL, &saved));
    CHECK(fork == NULL && saved == NULL);
    FAILS(HF_E_BAD_HANDLE, hf_region_reset_to(bad, snapshot, &done));
    FAILS(HF_E_BAD_HANDLE, hf_region_changed_since(bad, snapshot, HF_CHANGES_BY_PAGE, &changes));
    CHECK(changes == NULL);
    regions[0] = good, regions[1] = bad;
    FAILS(HF_E_BAD_HANDLE, hf_region_snapshot_all(regions, 2, NULL, both));
    CHECK(both[0] == NULL && both[1] == NULL);
    goals[0] = goals[1] = snapshot;
    FAILS(HF_E_BAD_HANDLE, hf_region_reset_all(regions, goals, 2, &done));
    CHECK(done == 0);
    FAILS(HF_E_BAD_HANDLE, hf_fork_with(regions, goals, 2, &child));
    CHECK(child == -1);
    FAILS(HF_E_BAD_HANDLE, hf_region_get_stats(bad, &stats));
    FAILS(HF_E_BAD_HANDLE, hf_region_get_fault_stats(bad, &faults));
    FAILS(HF_E_BAD_HANDLE, hf_region_read_from(bad, 0, 0, 1, &done));
    FAILS(HF_E_BAD_HANDLE, hf_region_read_from_at(bad, 0, 0, 1, 0, &done));
    FAILS(HF_E_BAD_HANDLE, hf_region_write_to(bad, 1, 0, 1, &done));
    FAILS(HF_E_BAD_HANDLE, hf_region_write_to_at(bad, 1, 0, 1, 0, &done));
}

static void no_snapshot(hf_snapshot *bad, hf_region *region, const hf_snapshot *good)
{
    hf_region *fork;
    hf_changes *changes;
    hf_export *exported;
    hf_pool *pool;
    const hf_snapshot *goals[1];
    const void *mapped;
    size_t done = 7;
    char byte;
    CLOSES_NOTHING(hf_snapshot_close(bad), bad);
    NOTHING(hf_snapshot_len(bad));
    NOTHING(hf_snapshot_id(bad));
    NOTHING(hf_snapshot_parent(bad));
    FAILS(HF_E_BAD_HANDLE, hf_snapshot_pool(bad, &pool));
    FAILS(HF_E_BAD_HANDLE, hf_snapshot_map(bad, &mapped));
    CHECK(mapped == NULL);
    FAILS(HF_E_BAD_HANDLE, hf_snapshot_read_at(bad, 0, &byte, 1));
    FAILS(HF_E_BAD_HANDLE, hf_snapshot_write_to(bad, 1, 0, 1, &done));
    CHECK(done == 0);
    FAILS(HF_E_BAD_HANDLE, hf_snapshot_is_revoked(bad));
    FAILS(HF_E_BAD_HANDLE, hf_snapshot_fork(bad, NULL, &fork));
    FAILS(HF_E_BAD_HANDLE, hf_snapshot_export(bad, &exported));
    FAILS(HF_E_BAD_HANDLE, hf_snapshot_export_copy(bad, &exported));
    FAILS(HF_E_BAD_HANDLE, hf_snapshot_changed_since(bad, good, HF_CHANGES_BY_PAGE, &changes));
    FAILS(HF_E_BAD_HANDLE, hf_snapshot_changed_since(good, bad, HF_CHANGES_BY_PAGE, &changes));
    FAILS(HF_E_BAD_HANDLE, hf_region_changed_since(region, bad, HF_CHANGES_BY_PAGE, &changes));
    FAILS(HF_E_BAD_HANDLE, hf_region_reset_to(region, bad, &done));
    goals[0] = bad;
    FAILS(HF_E_BAD_HANDLE, hf_region_reset_all(&region, goals, 1, &done));
}

static void no_other(void *bad, int type)
{
    size_t one, two, three;
    hf_pool *pool;
    hf_region *region;
    hf_operations *operations;
    if (type != HEAP) {
        CLOSES_NOTHING(hf_heap_close(bad), bad);
        FAILS(HF_E_BAD_HANDLE, hf_heap_region(bad, &region));
        FAILS(HF_E_BAD_HANDLE, hf_heap_operations(bad, &operations));
        NOTHING(hf_heap_alloc(bad, 1, 1));
        NOTHING((hf_heap_free(bad, &one, 1, 1), 0));
    }
    if (type != PIN) {
        CLOSES_NOTHING(hf_pin_close(bad), bad);
        NOTHING(hf_pin_address(bad));
        NOTHING(hf_pin_offset(bad));
        NOTHING(hf_pin_len(bad));
    }
    if (type != CHANGES) {
        CLOSES_NOTHING(hf_changes_close(bad), bad);
        FAILS(HF_E_BAD_HANDLE, hf_changes_next(bad, &one, &two));
    }
    if (type != EXPORT) {
        CLOSES_NOTHING(hf_export_close(bad), bad);
        FAILS(HF_E_BAD_HANDLE, hf_export_fd(bad));
        NOTHING(hf_export_extents(bad));
        FAILS(HF_E_BAD_HANDLE, hf_export_extent(bad, 0, &one, &two, &three));
        NOTHING(hf_export_len(bad));
        NOTHING(hf_export_page_size(bad));
        FAILS(HF_E_BAD_HANDLE, hf_export_pool(bad, &pool));
    }
    if (type != IMPORT) {
        CLOSES_NOTHING(hf_import_close(bad), bad);
        NOTHING(hf_import_address(bad));
        NOTHING(hf_import_len(bad));
        FAILS(HF_E_BAD_HANDLE, hf_import_is_sealed(bad));
        FAILS(HF_E_BAD_HANDLE, hf_import_read_at(bad, 0, &one, 1));
    }
}

static void *open_handles[TYPES];

static void open_all(void)
{
    hf_pool *pool = pool_of(16 * MIB);
    hf_region *region = region_of(pool, BLOCK);
    hf_snapshot *saved;
    hf_pin *pin;
    hf_changes *changes;
    hf_export *exported;
    hf_import *imported;
    hf_heap *heap;
    bytes_of(region)[0] = 1;
    WELL(hf_region_snapshot(region, NULL, &saved));
    WELL(hf_region_pin(region, 0, 1, &pin));
    WELL(hf_region_changed_since(region, saved, HF_CHANGES_BY_PAGE, &changes));
    WELL(hf_snapshot_export(saved, &exported));
    WELL(hf_import_map(hf_export_fd(exported), hf_export_extents(exported), &imported));
    WELL(hf_heap_create(pool, BLOCK, &heap));
    open_handles[POOL] = pool;
    open_handles[REGION] = region;
    open_handles[SNAPSHOT] = saved;
    open_handles[PIN] = pin;
    open_handles[CHANGES] = changes;
    open_handles[EXPORT] = exported;
    open_handles[IMPORT] = imported;
    open_handles[HEAP] = heap;
}

static void close_all(void)
{
    hf_changes_close(open_handles[CHANGES]);
    hf_export_close(open_handles[EXPORT]);
    hf_import_close(open_handles[IMPORT]);
    hf_heap_close(open_handles[HEAP]);
    hf_pin_close(open_handles[PIN]);
    hf_snapshot_close(open_handles[SNAPSHOT]);
    hf_region_close(open_handles[REGION]);
    hf_pool_close(open_handles[POOL]);
}

/* A handle is refused wherever another type than `type` is expected. */
static void refused(void *bad, int type, hf_region *region, const hf_snapshot *snapshot)
{
    if (type != POOL)
        no_pool(bad);
    if (type != REGION)
        no_region(bad, region, snapshot);
    if (type != SNAPSHOT)
        no_snapshot(bad, region, snapshot);
    no_other(bad, type);
}

/* Many handles are opened and closed; a use of a closed one is at worst a wrong result. */
static void come_and_go(hf_region *region)
{
    hf_snapshot *saved, *first;
    int round;
    WELL(hf_region_snapshot(region, NULL, &first));
    hf_snapshot_close(first);
    for (round = 0; round < 3000; round++) {
        WELL(hf_region_snapshot(region, NULL, &saved));
        CHECK(hf_snapshot_len(saved) == BLOCK && (round > 1000 || saved != first));
        if (round < 1000)
            NOTHING(hf_snapshot_len(first));
        else
            CHECK(hf_snapshot_len(first) % BLOCK == 0);
        hf_snapshot_close(saved);
        FAILS(HF_E_BAD_HANDLE, hf_snapshot_is_revoked(saved));
        CHECK(strstr(hf_last_error(), "is closed") != NULL);
    }
}

/* The address of freed memory as a number, because the compiler would reject the pointer. */
static uintptr_t freed(void)
{
    void *volatile memory = malloc(64);
    volatile uintptr_t address = (uintptr_t)memory;
    CHECK(memory != NULL);
    free(memory);
    return address;
}

int main(void)
{
    void *closed[TYPES], *no_access;
    char zeros[256] = "";
    hf_region *region;
    hf_snapshot *saved;
    hf_pool *pool;
    uintptr_t address;
    size_t nth;
    pid_t child;
    int type, status;

    open_all();
    memcpy(closed, open_handles, sizeof closed);
    close_all();
    open_all();
    region = open_handles[REGION], saved = open_handles[SNAPSHOT];
    for (type = 0; type < TYPES; type++) {
        refused(closed[type], TYPES, region, saved);
        FAILS(HF_E_BAD_HANDLE, hf_pool_backing(closed[type]));
        CHECK(strstr(hf_last_error(), "is closed") != NULL);
        refused(open_handles[type], type, region, saved);
    }

    /* The library must not read the memory behind these; AddressSanitizer would report it. */
    address = freed();
    no_access = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(no_access != MAP_FAILED);
    {
        void *pointers[] = {NULL, (void *)1, (void *)8, (void *)-1, (void *)-8, zeros, zeros + 3, (void *)address,
                            no_access, hf_region_address(region), (char *)open_handles[POOL] + 1,
                            (char *)open_handles[POOL] + 8, (void *)(uintptr_t)hf_version(), stderr};
        for (nth = 0; nth < sizeof pointers / sizeof *pointers; nth++)
            refused(pointers[nth], TYPES, region, saved);
    }
    come_and_go(region);

    /* The same in a child of fork(2), which has no memory of regions. */
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        hf_import_close(open_handles[IMPORT]);
        FAILS(HF_E_BAD_HANDLE, hf_import_is_sealed(open_handles[IMPORT]));
        FAILS(HF_E_BAD_HANDLE, hf_region_populate(closed[REGION]));
        FAILS(HF_E_BAD_HANDLE, hf_region_populate(no_access));
        FAILS(HF_E_FORKED_CHILD, hf_region_populate(region));
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);

    /* All open handles still work. */
    WELL(hf_region_pool(region, &pool));
    CHECK(pool != open_handles[POOL] && hf_pool_capacity(pool) == 16 * MIB);
    hf_pool_close(pool);
    CHECK(hf_region_len(region) == BLOCK && hf_snapshot_len(saved) == BLOCK && hf_pin_len(open_handles[PIN]) == 1);
    CHECK(hf_export_len(open_handles[EXPORT]) == BLOCK && hf_import_len(open_handles[IMPORT]) == BLOCK);
    WELL(hf_changes_next(open_handles[CHANGES], &nth, &nth));
    close_all();
    CHECK(munmap(no_access, 4096) == 0);
    return 0;
}
