/* A process that has reached its limit of mappings. */
#include <sys/mman.h>

#include "check.h"

#define PAGE ((size_t)4096)
#define LEFT 20

/* Makes `count` mappings outside of hugefork. */
static void use_up(size_t count)
{
    char *start = mmap(NULL, count * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    size_t nth;
    CHECK(start != MAP_FAILED);
    for (nth = 1; nth < count; nth += 2)
        CHECK(mprotect(start + nth * PAGE, PAGE, PROT_READ) == 0);
}

int main(void)
{
    static hf_region *regions[2 * LEFT];
    hf_pool *pool = pool_of(8 * MIB);
    int count = 0, code = 0, nth;
    size_t limit = stats_of(pool).mappings_limit;
    hf_pool_close(pool);
    if (limit > 1000000) {
        fprintf(stderr, "%zu mappings are allowed\n", limit);
        return SKIPPED;
    }
    use_up(limit - LEFT);
    /* A pool that is built now takes them into account. */
    pool = pool_of(8 * MIB);
    while (count < 2 * LEFT && (code = hf_region_create(pool, BLOCK, NULL, &regions[count])) == 0)
        count++;
    FAILS(HF_E_TOO_MANY_MAPPINGS, code);
    CHECK(regions[count] == NULL && strstr(hf_last_error(), "vm.max_map_count") != NULL);
    for (nth = 0; nth < count; nth++)
        hf_region_close(regions[nth]);
    CHECK(stats_of(pool).regions == 0);
    hf_pool_close(pool);
    return 0;
}
