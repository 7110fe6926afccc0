/* Pins: memory that does not move, for system calls and devices, even after its region is
 * closed. */
#include <fcntl.h>

#include "check.h"

int main(void)
{
    hf_pool *pool = pool_of(8 * MIB);
    hf_region *region = region_of(pool, 4 * MIB);
    hf_snapshot *saved;
    hf_pin *pin, *pins[255], *one_more;
    int zeros = open("/dev/zero", O_RDONLY), nth;
    unsigned char *at;
    memset(bytes_of(region), 1, 4 * MIB);
    WELL(hf_region_pin(region, BLOCK + 5, 4096, &pin));
    at = hf_pin_address(pin);
    CHECK(at == bytes_of(region) + BLOCK + 5 && hf_pin_offset(pin) == BLOCK + 5 && hf_pin_len(pin) == 4096);
    WELL(hf_region_snapshot(region, NULL, &saved));
    /* Without the pin this is EFAULT. */
    CHECK(read(zeros, at, 4096) == 4096 && at[0] == 0 && at[4096] == 1);
    for (nth = 0; nth < 255; nth++)
        WELL(hf_region_pin(region, 0, 1, &pins[nth]));
    FAILS(HF_E_TOO_MANY_PINS, hf_region_pin(region, 0, BLOCK + 1, &one_more));
    CHECK(one_more == NULL && hf_last_errno() == EBUSY);
    for (nth = 0; nth < 255; nth++)
        hf_pin_close(pins[nth]);
    FAILS(HF_E_OUT_OF_RANGE, hf_region_pin(region, 4 * MIB, 1, &one_more));
    FAILS(HF_E_BAD_HANDLE, hf_region_pin(NULL, 0, 1, &one_more));
    FAILS(HF_E_NULL, hf_region_pin(region, 0, 1, NULL));
    CHECK(hf_pin_address(NULL) == NULL && hf_pin_len(NULL) == 0 && hf_pin_offset(NULL) == 0);
    /* The memory exists until the pin is closed. */
    hf_snapshot_close(saved);
    hf_region_close(region);
    CHECK(at[4096] == 1 && stats_of(pool).blocks_free == 2 && stats_of(pool).regions == 1);
    hf_pin_close(pin);
    CHECK(stats_of(pool).blocks_free == 4 && stats_of(pool).regions == 0);
    hf_pin_close(NULL);
    close(zeros);
    hf_pool_close(pool);
    return 0;
}
