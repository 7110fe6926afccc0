/* A process without enough addresses for regions. */
#include <sys/resource.h>

#include "check.h"

int main(void)
{
    struct rlimit limit = {GIB, GIB};
    hf_pool_options options = HF_POOL_OPTIONS_INIT;
    hf_pool *pool;
    CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
    options.capacity = 8 * MIB;
    FAILS(HF_E_OUT_OF_ADDRESSES, hf_pool_create(&options, &pool));
    CHECK(pool == NULL && strstr(hf_last_error(), "RLIMIT_AS") != NULL);
    return 0;
}
