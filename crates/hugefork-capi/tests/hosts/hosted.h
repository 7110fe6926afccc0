/* Shared by both hosts: one region, and snapshots of it. After a failure the last error has the
 * reason. */
#ifndef HOSTED_H
#define HOSTED_H

#include <hugefork.h>
#include <stdio.h>
#include <stdlib.h>

static hf_pool *hosted_pool;
static hf_region *hosted_region;

static int hosted_open(size_t len)
{
    hf_pool_options options = HF_POOL_OPTIONS_INIT;
    int failed;
    options.name = "hosted";
    options.capacity = 4 * len;
    failed = hf_pool_create(&options, &hosted_pool);
    return failed != 0 ? failed : hf_region_create(hosted_pool, len, NULL, &hosted_region);
}

static void *hosted_address(void)
{
    return hf_region_address(hosted_region);
}

/* Returns NULL on failure. */
static hf_snapshot *hosted_snapshot(void)
{
    hf_snapshot *snapshot = NULL;
    return hf_region_snapshot(hosted_region, NULL, &snapshot) == 0 ? snapshot : NULL;
}

/* Returns -1 on failure; the hosts write only positive numbers. */
static int64_t hosted_read(const hf_snapshot *snapshot, size_t offset)
{
    int64_t value;
    return hf_snapshot_read_at(snapshot, offset, &value, sizeof value) == 0 ? value : -1;
}

/* Whether all blocks were returned to the pool. */
static int hosted_end(void)
{
    hf_pool_stats stats;
    int is_well;
    hf_region_close(hosted_region);
    stats.size = sizeof stats;
    is_well = hf_pool_get_stats(hosted_pool, &stats) == 0 && stats.blocks_free == stats.blocks;
    hf_pool_close(hosted_pool);
    return is_well;
}

#endif
