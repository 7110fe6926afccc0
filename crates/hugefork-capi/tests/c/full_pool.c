/* A write to a full pool: SIGBUS at its address, and a line with the reason. */
#include <setjmp.h>
#include <signal.h>

#include "check.h"

static sigjmp_buf back;
static void *volatile fault;

static void on_bus_error(int signal, siginfo_t *info, void *context)
{
    (void)signal, (void)context;
    fault = info->si_addr;
    siglongjmp(back, 1);
}

int main(void)
{
    hf_pool *pool = pool_of(2 * BLOCK);
    hf_region *full = region_of(pool, 2 * BLOCK), *other = region_of(pool, BLOCK);
    struct sigaction action;
    hf_fault_stats faults;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = on_bus_error;
    action.sa_flags = SA_SIGINFO;
    CHECK(sigaction(SIGBUS, &action, NULL) == 0);
    WELL(hf_region_populate(full));
    if (sigsetjmp(back, 1) == 0) {
        bytes_of(other)[77] = 1;
        CHECK(!"the write got memory");
    }
    CHECK(fault == bytes_of(other) + 77);
    faults.size = sizeof faults;
    WELL(hf_region_get_fault_stats(other, &faults));
    CHECK(faults.failed >= 1);
    /* Lazily freed memory makes room. */
    WELL(hf_region_lazy_free(full, 0, BLOCK, NULL));
    bytes_of(other)[77] = 1;
    CHECK(bytes_of(other)[77] == 1);
    hf_region_close(full);
    hf_region_close(other);
    hf_pool_close(pool);
    return 0;
}
