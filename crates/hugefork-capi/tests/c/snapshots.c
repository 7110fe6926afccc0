/* Snapshots: their bytes, their forks, and their revocation when the pool is full. */
#include <fcntl.h>

#include "check.h"

static void bytes(hf_pool *pool)
{
    hf_region *live = region_of(pool, 4 * MIB), *branch;
    hf_snapshot *saved;
    hf_pool *again;
    const void *mapped, *twice;
    unsigned char copy[8];
    memset(bytes_of(live), 1, 4 * MIB);
    WELL(hf_region_snapshot(live, NULL, &saved));
    memset(bytes_of(live), 2, 4 * MIB);
    CHECK(hf_snapshot_len(saved) == 4 * MIB && hf_snapshot_is_revoked(saved) == 0);
    WELL(hf_snapshot_read_at(saved, 3 * MIB, copy, sizeof copy));
    CHECK(copy[0] == 1 && copy[7] == 1);
    /* With length 0, a buffer may be NULL. */
    WELL(hf_snapshot_read_at(saved, 0, NULL, 0));
    WELL(hf_snapshot_read_at(saved, 4 * MIB, NULL, 0));
    FAILS(HF_E_OUT_OF_RANGE, hf_snapshot_read_at(saved, 4 * MIB + 1, NULL, 0));
    WELL(hf_snapshot_map(saved, &mapped));
    WELL(hf_snapshot_map(saved, &twice));
    CHECK(mapped == twice && (size_t)mapped % BLOCK == 0);
    CHECK(*((const unsigned char *)mapped + 4 * MIB - 1) == 1);
    WELL(hf_snapshot_fork(saved, NULL, &branch));
    bytes_of(branch)[0] = 3;
    CHECK(*(const unsigned char *)mapped == 1 && bytes_of(branch)[1] == 1 && bytes_of(live)[0] == 2);
    WELL(hf_snapshot_pool(saved, &again));
    hf_pool_close(again);
    /* It outlives the region. */
    hf_region_close(live);
    CHECK(*(const unsigned char *)mapped == 1);

    FAILS(HF_E_OUT_OF_RANGE, hf_snapshot_read_at(saved, 4 * MIB, copy, 1));
    FAILS(HF_E_OUT_OF_RANGE, hf_snapshot_read_at(saved, 1, copy, (size_t)-1));
    FAILS(HF_E_NULL, hf_snapshot_read_at(saved, 0, NULL, 1));
    FAILS(HF_E_NULL, hf_snapshot_map(saved, NULL));
    FAILS(HF_E_NULL, hf_snapshot_pool(saved, NULL));
    FAILS(HF_E_BAD_HANDLE, hf_snapshot_map(NULL, &twice));
    CHECK(twice == NULL);
    FAILS(HF_E_BAD_HANDLE, hf_snapshot_read_at(NULL, 0, copy, 1));
    FAILS(HF_E_BAD_HANDLE, hf_snapshot_is_revoked(NULL));
    FAILS(HF_E_BAD_HANDLE, hf_snapshot_fork(NULL, NULL, &live));
    FAILS(HF_E_BAD_HANDLE, hf_snapshot_write_to(NULL, 1, 0, 0, NULL));
    CHECK(live == NULL && hf_snapshot_len(NULL) == 0);
    hf_snapshot_close(NULL);
    hf_snapshot_close(saved);
    hf_region_close(branch);
}

static void several(hf_pool *pool)
{
    hf_region *regions[3] = {region_of(pool, 2 * MIB), region_of(pool, 4 * MIB), NULL};
    hf_region_options options = HF_REGION_OPTIONS_INIT;
    hf_snapshot *saved[3] = {(hf_snapshot *)pool, NULL, NULL};
    unsigned char byte;
    bytes_of(regions[0])[0] = 1;
    bytes_of(regions[1])[0] = 2;
    WELL(hf_region_snapshot_all(regions, 2, NULL, saved));
    bytes_of(regions[1])[0] = 3;
    CHECK(hf_snapshot_len(saved[0]) == 2 * MIB && hf_snapshot_len(saved[1]) == 4 * MIB);
    WELL(hf_snapshot_read_at(saved[1], 0, &byte, 1));
    CHECK(byte == 2);
    hf_snapshot_close(saved[0]);
    hf_snapshot_close(saved[1]);

    WELL(hf_region_snapshot_all(NULL, 0, NULL, NULL));
    FAILS(HF_E_NULL, hf_region_snapshot_all(NULL, 2, NULL, saved));
    FAILS(HF_E_NULL, hf_region_snapshot_all(regions, 2, NULL, NULL));
    saved[0] = (hf_snapshot *)pool;
    FAILS(HF_E_BAD_HANDLE, hf_region_snapshot_all(regions, 3, NULL, saved));
    CHECK(saved[0] == NULL);
    regions[2] = regions[0];
    FAILS(HF_E_BAD_VALUE, hf_region_snapshot_all(regions, 3, NULL, saved));
    options.max_cow_bytes = 2 * MIB;
    FAILS(HF_E_LIMIT_ON_SNAPSHOT, hf_region_snapshot_all(regions, 2, &options, saved));
    hf_region_close(regions[0]);
    hf_region_close(regions[1]);
}

static void to_descriptors(hf_pool *pool)
{
    hf_region *live = region_of(pool, 4 * MIB);
    hf_snapshot *saved;
    size_t done = 7;
    unsigned char byte;
    FILE *file = tmpfile();
    int full = open("/dev/full", O_WRONLY);
    CHECK(file != NULL && full >= 0);
    memset(bytes_of(live), 1, 4 * MIB);
    WELL(hf_region_snapshot(live, NULL, &saved));
    memset(bytes_of(live), 2, 4 * MIB);
    WELL(hf_snapshot_write_to(saved, fileno(file), 1, 4 * MIB - 1, &done));
    CHECK(done == 4 * MIB - 1 && pread(fileno(file), &byte, 1, 3 * (off_t)MIB) == 1 && byte == 1);
    WELL(hf_snapshot_write_to(saved, fileno(file), 0, 0, NULL));
    FAILS(HF_E_SYSTEM, hf_snapshot_write_to(saved, full, 0, 1, &done));
    CHECK(done == 0 && hf_last_errno() == ENOSPC && strstr(hf_last_error(), "No space left") != NULL);
    FAILS(HF_E_BAD_VALUE, hf_snapshot_write_to(saved, -1, 0, 1, &done));
    CHECK(hf_last_errno() == EBADF);
    FAILS(HF_E_OUT_OF_RANGE, hf_snapshot_write_to(saved, fileno(file), 0, 5 * MIB, NULL));
    close(full);
    fclose(file);
    hf_snapshot_close(saved);
    hf_region_close(live);
}

/* The parent writes on, and revokes a block. */
static void revoked(void)
{
    hf_pool *pool = pool_of(2 * BLOCK);
    hf_region_options by_block = HF_REGION_OPTIONS_INIT, reserved = HF_REGION_OPTIONS_INIT;
    hf_region *live, *fork;
    hf_snapshot *saved, *promised;
    const void *mapped;
    unsigned char byte;
    size_t done;
    FILE *file = tmpfile();
    by_block.copy_grain = HF_COPY_GRAIN_BLOCK;
    reserved.reserve = HF_RESERVE_FULL;
    WELL(hf_region_create(pool, 2 * BLOCK, &by_block, &live));
    memset(bytes_of(live), 1, 2 * BLOCK);
    WELL(hf_region_snapshot(live, NULL, &saved));
    /* A snapshot with HF_RESERVE_FULL reserves no blocks. */
    WELL(hf_region_snapshot(live, &reserved, &promised));
    hf_snapshot_close(promised);
    WELL(hf_snapshot_fork(saved, NULL, &fork));
    bytes_of(live)[0] = 2;
    CHECK(hf_snapshot_is_revoked(saved) == 1 && hf_region_is_revoked(fork) == 1);
    FAILS(HF_E_REVOKED, hf_snapshot_read_at(saved, 0, &byte, 1));
    WELL(hf_snapshot_read_at(saved, BLOCK, &byte, 1));
    CHECK(byte == 1);
    FAILS(HF_E_REVOKED, hf_snapshot_write_to(saved, fileno(file), BLOCK - MIB, 2 * MIB, &done));
    FAILS(HF_E_REVOKED, hf_snapshot_map(saved, &mapped));
    FAILS(HF_E_REVOKED, hf_region_write_to(fork, fileno(file), 0, 1, &done));
    hf_region_close(live);
    FAILS(HF_E_REVOKED, hf_region_populate(fork));
    /* A discard replaces the revoked block by new memory. */
    WELL(hf_region_discard(fork, 0, BLOCK));
    WELL(hf_region_populate(fork));
    CHECK(hf_region_is_revoked(fork) == 0 && bytes_of(fork)[BLOCK] == 1);
    hf_snapshot_close(saved);
    hf_region_close(fork);
    fclose(file);
    hf_pool_close(pool);
}

int main(void)
{
    hf_pool *pool = pool_of(16 * MIB);
    bytes(pool);
    several(pool);
    to_descriptors(pool);
    hf_pool_close(pool);
    revoked();
    return 0;
}
