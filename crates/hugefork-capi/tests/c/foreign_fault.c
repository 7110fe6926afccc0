/* A fault of the program's own, beside those that hugefork resolves. */
#include "check.h"

int main(void)
{
    hf_pool *pool = pool_of(8 * MIB);
    hf_region *region = region_of(pool, BLOCK);
    volatile int *nowhere = (volatile int *)8;
    bytes_of(region)[0] = 1;
    *nowhere = 1;
    return 0;
}
