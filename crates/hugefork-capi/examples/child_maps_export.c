/*
 * A child process reads a snapshot of its parent without a copy, while the parent continues to
 * write. The child runs the same program: the export's descriptor is its standard input, and
 * the list of extents its argument.
 *
 *     cc -O2 child_maps_export.c $(pkg-config --cflags --libs hugefork)
 */
#include <hugefork.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define LEN ((size_t)64 << 20)
#define WORDS (LEN / sizeof(uint64_t))

static void or_end(int code)
{
    if (code != 0) {
        fprintf(stderr, "%s: %s\n", hf_error_name(code), hf_last_error());
        exit(1);
    }
}

static uint64_t sum(const uint64_t *words)
{
    uint64_t sum = 0;
    size_t nth;
    for (nth = 0; nth < WORDS; nth++)
        sum = (sum << 5 | sum >> 59) + words[nth];
    return sum;
}

static int child(const char *extents)
{
    hf_import *imported;
    uint64_t *words;
    or_end(hf_import_map(STDIN_FILENO, extents, &imported));
    words = hf_import_address(imported);
    printf("the child has read %zu MiB of its parent: checksum %016llx\n", hf_import_len(imported) >> 20,
           (unsigned long long)sum(words));
    words[0] = 7; /* a page of the child's own; the parent does not see it */
    hf_import_close(imported);
    return 0;
}

int main(int count, char **arguments)
{
    hf_pool_options options = HF_POOL_OPTIONS_INIT;
    hf_pool *pool;
    hf_region *live;
    hf_snapshot *saved;
    hf_export *exported;
    uint64_t *words, before;
    size_t nth;
    int status;
    pid_t pid;
    if (count > 1)
        return child(arguments[1]);
    options.name = "state";
    options.capacity = 2 * LEN;
    options.exports = 1;
    or_end(hf_pool_create(&options, &pool));
    or_end(hf_region_create(pool, LEN, NULL, &live));
    words = hf_region_address(live);
    for (nth = 0; nth < WORDS; nth += 3)
        words[nth] = nth;
    before = sum(words);

    or_end(hf_region_snapshot(live, NULL, &saved));
    or_end(hf_snapshot_export(saved, &exported));
    hf_snapshot_close(saved); /* the export holds the memory */
    pid = fork();
    if (pid == 0) {
        dup2(hf_export_fd(exported), STDIN_FILENO);
        execl("/proc/self/exe", arguments[0], hf_export_extents(exported), (char *)NULL);
        _exit(1);
    }
    memset(words, 0, LEN); /* the child does not see this */
    if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0)
        return 1;
    /* The export was open until here, so the child's mapping has not changed. */
    hf_export_close(exported);
    printf("its checksum was %016llx, and now is %016llx\n", (unsigned long long)before, (unsigned long long)sum(words));
    hf_region_close(live);
    hf_pool_close(pool);
    return 0;
}
