/* Observers: called around each change, released once. */
#include "check.h"

struct seen {
    size_t starts, ends, releases, offset, len;
};

static void start(size_t offset, size_t len, void *user)
{
    struct seen *seen = user;
    seen->starts++;
    seen->offset = offset, seen->len = len;
}

static void end(size_t offset, size_t len, void *user)
{
    struct seen *seen = user;
    seen->ends++;
    CHECK(seen->offset == offset && seen->len == len);
}

static void release(void *user)
{
    struct seen *seen = user;
    seen->releases++;
}

int main(void)
{
    hf_pool *pool = pool_of(8 * MIB);
    hf_region *region = region_of(pool, 4 * MIB);
    hf_observer observer = HF_OBSERVER_INIT, silent = HF_OBSERVER_INIT;
    struct seen seen = {0, 0, 0, 0, 0}, other = {0, 0, 0, 0, 0};
    hf_pin *pin;
    observer.user = &seen;
    observer.invalidate_start = start, observer.invalidate_end = end, observer.release = release;
    FAILS(HF_E_NULL, hf_region_observe(region, NULL));
    FAILS(HF_E_BAD_HANDLE, hf_region_observe(NULL, &observer));
    observer.size = 1;
    FAILS(HF_E_BAD_STRUCT, hf_region_observe(region, &observer));
    observer.size = sizeof observer;
    CHECK(seen.releases == 0);
    WELL(hf_region_observe(region, &observer));
    bytes_of(region)[BLOCK + 1] = 1;
    CHECK(seen.starts == 1 && seen.ends == 1 && seen.offset == BLOCK && seen.len == BLOCK);
    WELL(hf_region_discard(region, BLOCK, BLOCK));
    CHECK(seen.starts == 2 && seen.ends == 2);
    /* A second observer is refused and not released. */
    observer.user = &other;
    FAILS(HF_E_ALREADY_OBSERVED, hf_region_observe(region, &observer));
    CHECK(other.releases == 0 && hf_last_errno() == EEXIST);
    /* The observer is released when the last holder of the region is closed. */
    WELL(hf_region_pin(region, 0, 1, &pin));
    hf_region_close(region);
    CHECK(seen.releases == 0);
    hf_pin_close(pin);
    CHECK(seen.releases == 1 && other.starts == 0);
    region = region_of(pool, BLOCK);
    WELL(hf_region_observe(region, &silent));
    bytes_of(region)[0] = 1;
    hf_region_close(region);
    hf_pool_close(pool);
    return 0;
}
