/* A child of fork(2): it has no regions, its calls report that, and closing its handles does
 * not affect the parent. */
#include <fcntl.h>
#include <sys/wait.h>

#include "check.h"

static pid_t parent;
static int releases;

static void release(void *user)
{
    (void)user;
    if (getpid() != parent)
        _exit(2);
    releases++;
}

int main(void)
{
    hf_pool *pool = pool_of(8 * MIB);
    hf_region *region = region_of(pool, 4 * MIB), *observed = region_of(pool, BLOCK), *none;
    hf_pool_options options = HF_POOL_OPTIONS_INIT;
    hf_observer observer = HF_OBSERVER_INIT;
    hf_snapshot *saved, *no_snapshot;
    hf_changes *changes, *no_changes;
    hf_export *exported, *no_export;
    hf_pin *pin, *no_pin;
    hf_pool *no_pool;
    const void *mapped;
    unsigned char byte;
    size_t done, offset;
    pid_t child;
    int status;
    parent = getpid();
    memset(bytes_of(region), 1, 4 * MIB);
    WELL(hf_region_snapshot(region, NULL, &saved));
    WELL(hf_region_pin(region, 0, 1, &pin));
    WELL(hf_region_changed_since(region, saved, HF_CHANGES_BY_PAGE, &changes));
    WELL(hf_snapshot_export(saved, &exported));
    observer.release = release;
    WELL(hf_region_observe(observed, &observer));
    options.capacity = 4 * MIB;
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        FAILS(HF_E_FORKED_CHILD, hf_pool_create(&options, &no_pool));
        FAILS(HF_E_FORKED_CHILD, hf_pool_reclaim(pool, 1, NULL));
        FAILS(HF_E_FORKED_CHILD, hf_pool_trim(pool, NULL));
        FAILS(HF_E_FORKED_CHILD, hf_region_create(pool, BLOCK, NULL, &none));
        FAILS(HF_E_FORKED_CHILD, hf_region_populate(region));
        FAILS(HF_E_FORKED_CHILD, hf_region_populate_with(region, 2, NULL, NULL));
        FAILS(HF_E_FORKED_CHILD, hf_region_prepare_write(region, 0, 1));
        FAILS(HF_E_FORKED_CHILD, hf_region_discard(region, 0, 1));
        FAILS(HF_E_FORKED_CHILD, hf_region_lazy_free(region, 0, 1, NULL));
        FAILS(HF_E_FORKED_CHILD, hf_region_cancel_lazy_free(region, 0, 1, NULL));
        FAILS(HF_E_FORKED_CHILD, hf_region_pin(region, 0, 1, &no_pin));
        FAILS(HF_E_FORKED_CHILD, hf_region_observe(region, &observer));
        FAILS(HF_E_FORKED_CHILD, hf_region_fork(region, NULL, &none));
        FAILS(HF_E_FORKED_CHILD, hf_region_snapshot(region, NULL, &no_snapshot));
        FAILS(HF_E_FORKED_CHILD, hf_region_read_from(region, 0, 0, 1, &done));
        FAILS(HF_E_FORKED_CHILD, hf_region_write_to(region, 1, 0, 1, &done));
        FAILS(HF_E_FORKED_CHILD, hf_snapshot_map(saved, &mapped));
        FAILS(HF_E_FORKED_CHILD, hf_snapshot_read_at(saved, 0, &byte, 1));
        FAILS(HF_E_FORKED_CHILD, hf_snapshot_write_to(saved, 1, 0, 1, &done));
        FAILS(HF_E_FORKED_CHILD, hf_snapshot_fork(saved, NULL, &none));
        FAILS(HF_E_FORKED_CHILD, hf_region_reset_to(region, saved, NULL));
        FAILS(HF_E_FORKED_CHILD, hf_region_reset_all(&region, (const hf_snapshot *const *)&saved, 1, &done));
        FAILS(HF_E_FORKED_CHILD, hf_region_changed_since(region, saved, HF_CHANGES_BY_PAGE, &no_changes));
        FAILS(HF_E_FORKED_CHILD, hf_snapshot_changed_since(saved, saved, HF_CHANGES_BY_PAGE, &no_changes));
        FAILS(HF_E_FORKED_CHILD, hf_changes_next(changes, &offset, &done));
        FAILS(HF_E_FORKED_CHILD, hf_snapshot_export(saved, &no_export));
        FAILS(HF_E_FORKED_CHILD, hf_snapshot_export_copy(saved, &no_export));
        CHECK(hf_last_errno() == EOPNOTSUPP);
        WELL(hf_reinstall_handler());
        /* Calls that only read handles work. */
        CHECK(stats_of(pool).blocks == 4 && hf_region_len(region) == 4 * MIB);
        CHECK(hf_snapshot_id(saved) == hf_region_origin(region) && hf_export_len(exported) == 4 * MIB);
        hf_changes_close(changes);
        hf_export_close(exported);
        hf_pin_close(pin);
        hf_region_close(observed);
        hf_region_close(region);
        hf_snapshot_close(saved);
        hf_pool_close(pool);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 0);
    /* The parent's objects are unchanged. */
    CHECK(bytes_of(region)[4 * MIB - 1] == 1);
    WELL(hf_snapshot_read_at(saved, 0, &byte, 1));
    CHECK(byte == 1 && hf_changes_next(changes, &offset, &done) == 0);
    CHECK(fcntl(hf_export_fd(exported), F_GETFD) == FD_CLOEXEC);
    hf_changes_close(changes);
    hf_export_close(exported);
    hf_snapshot_close(saved);
    hf_pin_close(pin);
    hf_region_close(region);
    CHECK(stats_of(pool).regions == 1 && releases == 0);
    hf_region_close(observed);
    CHECK(releases == 1);
    hf_pool_close(pool);
    return 0;
}
