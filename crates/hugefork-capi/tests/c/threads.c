/* Threads: each has its own last error; some write while another takes snapshots. */
#include <pthread.h>
#include <stdatomic.h>

#include "check.h"

static hf_pool *pool;
static pthread_barrier_t barrier;

/* Each thread fails in its own way, and still reads its own message after the other has failed
 * too. */
static void *fails_alone(void *way)
{
    hf_region *region;
    const char *text;
    CHECK(strcmp(hf_last_error(), "") == 0 && hf_last_errno() == 0);
    if (way != NULL)
        FAILS(HF_E_LARGER_THAN_POOL, hf_region_create(pool, GIB, NULL, &region));
    else
        FAILS(HF_E_BAD_HANDLE, hf_region_create(NULL, BLOCK, NULL, &region));
    text = hf_last_error();
    pthread_barrier_wait(&barrier);
    CHECK(text == hf_last_error() && strstr(text, way != NULL ? "larger than pool" : "null pointer") != NULL);
    /* A success does not change the last error. */
    region = region_of(pool, BLOCK);
    hf_region_close(region);
    CHECK(strstr(hf_last_error(), way != NULL ? "larger than pool" : "null pointer") != NULL);
    return NULL;
}

static hf_region *state;
static atomic_int is_over;

/* Writes a number to the first block, and then to the second. */
static void *writes(void *unused)
{
    _Atomic uint64_t *first = hf_region_address(state);
    _Atomic uint64_t *second = first + BLOCK / sizeof *first;
    uint64_t number;
    (void)unused;
    for (number = 1; !atomic_load(&is_over); number++) {
        atomic_store(first, number);
        atomic_store(second, number);
    }
    return NULL;
}

static void snapshots_while_writing(void)
{
    pthread_t writer;
    int round;
    state = region_of(pool, 2 * BLOCK);
    CHECK(pthread_create(&writer, NULL, writes, NULL) == 0);
    for (round = 0; round < 200; round++) {
        hf_snapshot *saved;
        uint64_t first, second;
        WELL(hf_region_snapshot(state, NULL, &saved));
        WELL(hf_snapshot_read_at(saved, 0, &first, sizeof first));
        WELL(hf_snapshot_read_at(saved, BLOCK, &second, sizeof second));
        /* The cut is consistent. */
        CHECK(first == second || first == second + 1);
        hf_snapshot_close(saved);
    }
    atomic_store(&is_over, 1);
    pthread_join(writer, NULL);
    hf_region_close(state);
}

int main(void)
{
    pthread_t one, other;
    pool = pool_of(16 * MIB);
    CHECK(pthread_barrier_init(&barrier, NULL, 2) == 0);
    CHECK(pthread_create(&one, NULL, fails_alone, NULL) == 0);
    CHECK(pthread_create(&other, NULL, fails_alone, &pool) == 0);
    pthread_join(one, NULL);
    pthread_join(other, NULL);
    CHECK(strcmp(hf_last_error(), "") == 0);
    snapshots_while_writing();
    hf_pool_close(pool);
    return 0;
}
