/* Shared by the C tests. A failed check prints its place, and ends the program. */
#ifndef CHECK_H
#define CHECK_H

#include <errno.h>
#include <hugefork.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
#define GIB ((size_t)1 << 30)
#define BLOCK (2 * MIB)

/* The exit status of a program that cannot do its work on this machine. */
#define SKIPPED 77

#define CHECK(condition) check((condition) != 0, #condition, __FILE__, __LINE__)
/* The call succeeds. */
#define WELL(call) check_code((call), 0, #call, __FILE__, __LINE__)
/* The call fails with this code, and sets a message. */
#define FAILS(code, call) check_code((call), (code), #call, __FILE__, __LINE__)

static inline void check(int is_well, const char *what, const char *file, int line)
{
    if (!is_well) {
        fprintf(stderr, "%s:%d: %s; last error: %s\n", file, line, what, hf_last_error());
        _exit(1);
    }
}

static inline void check_code(int got, int wanted, const char *what, const char *file, int line)
{
    if (got != wanted) {
        fprintf(stderr, "%s:%d: %s is %d (%s), not %d (%s): %s\n", file, line, what, got, hf_error_name(got),
                wanted, hf_error_name(wanted), hf_last_error());
        _exit(1);
    }
    if (wanted != 0) {
        check(strlen(hf_last_error()) > 20 && strchr(hf_last_error(), '\n') == NULL, what, file, line);
        check(hf_last_errno() > 0, what, file, line);
    }
}

static inline hf_pool *pool_of(size_t capacity)
{
    hf_pool_options options = HF_POOL_OPTIONS_INIT;
    hf_pool *pool;
    options.name = "test";
    options.capacity = capacity;
    options.exports = 1;
    WELL(hf_pool_create(&options, &pool));
    return pool;
}

/* A pool whose regions children of fork(2) have. */
static inline hf_pool *inherited_pool(size_t capacity)
{
    hf_pool_options options = HF_POOL_OPTIONS_INIT;
    hf_pool *pool;
    options.name = "inherited";
    options.capacity = capacity;
    options.children = HF_CHILDREN_INHERIT;
    WELL(hf_pool_create(&options, &pool));
    return pool;
}

static inline hf_region *region_of(hf_pool *pool, size_t len)
{
    hf_region *region;
    WELL(hf_region_create(pool, len, NULL, &region));
    return region;
}

static inline hf_pool_stats stats_of(const hf_pool *pool)
{
    hf_pool_stats stats = HF_POOL_STATS_INIT;
    WELL(hf_pool_get_stats(pool, &stats));
    return stats;
}

static inline unsigned char *bytes_of(const hf_region *region)
{
    return (unsigned char *)hf_region_address(region);
}

/* Waits for a child that must end well. */
static inline void wait_for(pid_t child)
{
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

#endif
