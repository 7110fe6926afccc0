/* Between descriptors and regions. */
#include <fcntl.h>

#include "check.h"

/* A system call that writes to a shared block fails with copies by block, and succeeds with
 * copies by page. */
static void system_calls(hf_pool *pool)
{
    int zeros = open("/dev/zero", O_RDONLY), grain;
    for (grain = HF_COPY_GRAIN_PAGE; grain <= HF_COPY_GRAIN_BLOCK; grain++) {
        hf_region_options options = HF_REGION_OPTIONS_INIT;
        hf_region *region;
        hf_snapshot *saved;
        unsigned char byte;
        options.copy_grain = grain;
        WELL(hf_region_create(pool, BLOCK, &options, &region));
        memset(bytes_of(region), 1, BLOCK);
        WELL(hf_region_snapshot(region, NULL, &saved));
        if (grain == HF_COPY_GRAIN_PAGE && hf_pool_has_page_grain(pool))
            CHECK(read(zeros, bytes_of(region) + 5, 9000) == 9000 && bytes_of(region)[9004] == 0);
        else
            CHECK(read(zeros, bytes_of(region) + 5, 9000) == -1 && errno == EFAULT);
        WELL(hf_snapshot_read_at(saved, 5, &byte, 1));
        CHECK(byte == 1);
        hf_snapshot_close(saved);
        hf_region_close(region);
    }
    close(zeros);
}

int main(void)
{
    hf_pool *pool = pool_of(8 * MIB);
    hf_region *region = region_of(pool, 4 * MIB);
    hf_snapshot *saved;
    FILE *file = tmpfile();
    size_t done = 7;
    int pipes[2], full = open("/dev/full", O_RDWR), fd;
    CHECK(file != NULL && full >= 0 && pipe(pipes) == 0);
    fd = fileno(file);
    memset(bytes_of(region), 1, 4 * MIB);
    WELL(hf_region_write_to(region, fd, MIB, 3 * MIB, &done));
    CHECK(done == 3 * MIB);
    WELL(hf_region_write_to_at(region, fd, 0, 4, 3 * MIB, NULL));
    memset(bytes_of(region), 2, 4 * MIB);
    CHECK(pwrite(fd, "abcd", 4, 0) == 4);
    WELL(hf_region_snapshot(region, NULL, &saved));
    /* read(2) would be EFAULT here. */
    WELL(hf_region_read_from_at(region, fd, 10, 4, 0, &done));
    CHECK(done == 4 && memcmp(bytes_of(region) + 9, "\2abcd\2", 6) == 0);
    /* The transfer stops at the end of the file. */
    CHECK(lseek(fd, 0, SEEK_SET) == 0);
    WELL(hf_region_read_from(region, fd, 0, 4 * MIB, &done));
    CHECK(done == 3 * MIB + 4 && bytes_of(region)[done - 1] == 1 && bytes_of(region)[done] == 2);
    WELL(hf_region_read_from(region, fd, 0, 1, NULL));
    hf_snapshot_close(saved);

    /* After an error, `done` has the number of bytes before it. */
    CHECK(write(pipes[1], "xyz", 3) == 3 && fcntl(pipes[0], F_SETFL, O_NONBLOCK) == 0);
    FAILS(HF_E_SYSTEM, hf_region_read_from(region, pipes[0], 0, 10, &done));
    CHECK(done == 3 && hf_last_errno() == EAGAIN && memcmp(bytes_of(region), "xyz", 3) == 0);
    FAILS(HF_E_SYSTEM, hf_region_read_from_at(region, pipes[0], 0, 1, 0, &done));
    CHECK(done == 0 && hf_last_errno() == ESPIPE);
    FAILS(HF_E_SYSTEM, hf_region_write_to(region, full, 0, 1, &done));
    CHECK(done == 0 && hf_last_errno() == ENOSPC);
    FAILS(HF_E_SYSTEM, hf_region_write_to_at(region, pipes[1], 0, 1, 0, NULL));
    FAILS(HF_E_SYSTEM, hf_region_write_to(region, 1000000, 0, 1, NULL));
    CHECK(hf_last_errno() == EBADF);
    FAILS(HF_E_BAD_VALUE, hf_region_read_from(region, -1, 0, 1, &done));
    FAILS(HF_E_BAD_VALUE, hf_region_write_to(region, -1, 0, 1, NULL));
    FAILS(HF_E_OUT_OF_RANGE, hf_region_read_from(region, fd, 4 * MIB, 1, &done));
    FAILS(HF_E_OUT_OF_RANGE, hf_region_write_to_at(region, fd, 0, (size_t)-1, 0, &done));
    FAILS(HF_E_BAD_HANDLE, hf_region_read_from(NULL, fd, 0, 1, &done));
    FAILS(HF_E_BAD_HANDLE, hf_region_write_to(NULL, fd, 0, 1, NULL));
    CHECK(done == 0);
    hf_region_close(region);
    system_calls(pool);
    hf_pool_close(pool);
    fclose(file);
    close(full), close(pipes[0]), close(pipes[1]);
    return 0;
}
