/*
 * Saves a table to a file while other threads continue to write to it. The file contains the
 * table at one moment.
 *
 *     cc -O2 -pthread snapshot_while_writing.c $(pkg-config --cflags --libs hugefork)
 */
#include <hugefork.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define ACCOUNTS ((size_t)1 << 20)
#define TOTAL ((int64_t)ACCOUNTS * 100)

static _Atomic int64_t *accounts;
static atomic_int is_over;
static atomic_long transfers;

static void or_end(int code)
{
    if (code != 0) {
        fprintf(stderr, "%s: %s\n", hf_error_name(code), hf_last_error());
        exit(1);
    }
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e3 + time.tv_nsec / 1e6;
}

/* Moves money between accounts: withdraws it first, then deposits it. */
static void *transfer(void *unused)
{
    unsigned long random = 88172645463325252ul;
    (void)unused;
    while (!atomic_load(&is_over)) {
        size_t from, to;
        random ^= random << 13, random ^= random >> 7, random ^= random << 17;
        from = random % ACCOUNTS, to = (random >> 32) % ACCOUNTS;
        atomic_fetch_sub(&accounts[from], 1);
        atomic_fetch_add(&accounts[to], 1);
        atomic_fetch_add(&transfers, 1);
    }
    return NULL;
}

int main(int count, char **arguments)
{
    hf_pool_options options = HF_POOL_OPTIONS_INIT;
    hf_pool *pool;
    hf_region *live;
    hf_snapshot *saved;
    pthread_t writer;
    const int64_t *copy;
    const void *mapped;
    int64_t sum = 0;
    size_t nth, done;
    double before, after;
    FILE *file = count > 1 ? fopen(arguments[1], "wb") : tmpfile();
    if (file == NULL) {
        perror("the file to save to");
        return 1;
    }
    options.name = "accounts";
    options.capacity = (size_t)64 << 20;
    or_end(hf_pool_create(&options, &pool));
    or_end(hf_region_create(pool, ACCOUNTS * sizeof *accounts, NULL, &live));
    accounts = hf_region_address(live);
    for (nth = 0; nth < ACCOUNTS; nth++)
        accounts[nth] = 100;
    if (pthread_create(&writer, NULL, transfer, NULL) != 0)
        return 1;
    while (atomic_load(&transfers) < 100000)
        ;

    before = now();
    or_end(hf_region_snapshot(live, NULL, &saved));
    after = now();
    /* The writer continues meanwhile. */
    or_end(hf_snapshot_write_to(saved, fileno(file), 0, hf_snapshot_len(saved), &done));
    or_end(hf_snapshot_map(saved, &mapped));
    copy = mapped;
    for (nth = 0; nth < ACCOUNTS; nth++)
        sum += copy[nth];
    atomic_store(&is_over, 1);
    pthread_join(writer, NULL);
    /* One transfer may have been in progress: withdrawn, but not yet deposited. */
    if (sum != TOTAL && sum != TOTAL - 1) {
        fprintf(stderr, "money got lost: %lld of %lld\n", (long long)sum, (long long)TOTAL);
        return 1;
    }
    printf("snapshot of %zu MiB in %.3f ms; %zu MiB saved during %ld transfers\n", hf_snapshot_len(saved) >> 20,
           after - before, done >> 20, atomic_load(&transfers));
    hf_snapshot_close(saved);
    hf_region_close(live);
    hf_pool_close(pool);
    fclose(file);
    return 0;
}
