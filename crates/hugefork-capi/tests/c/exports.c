/* Exports: another program's view of a snapshot, by hugefork and by mmap(2), and refused
 * requests. */
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "check.h"

#define LEN (3 * BLOCK)

/* This program in its second role: its standard input is the descriptor, its argument the list
 * of extents. */
static int child(const char *extents)
{
    hf_import *imported;
    unsigned char *bytes;
    WELL(hf_import_map(STDIN_FILENO, extents, &imported));
    close(STDIN_FILENO);
    bytes = hf_import_address(imported);
    CHECK(hf_import_len(imported) == LEN && (size_t)bytes % BLOCK == 0);
    CHECK(bytes[0] == 1 && bytes[BLOCK - 1] == 1 && bytes[BLOCK] == 0 && bytes[2 * BLOCK] == 3 && bytes[LEN - 1] == 3);
    /* A write copies the page, and only this process sees it. */
    bytes[0] = 9;
    CHECK(bytes[0] == 9 && bytes[1] == 1);
    hf_import_close(imported);
    return 0;
}

/* Starts the other program on an export. */
static void another_program_sees(const hf_export *exported)
{
    int status;
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        CHECK(dup2(hf_export_fd(exported), STDIN_FILENO) == STDIN_FILENO);
        execl("/proc/self/exe", "exports", hf_export_extents(exported), (char *)NULL);
        _exit(1);
    }
    CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* Maps the export like a program without hugefork. */
static void mmap_sees(const hf_export *exported)
{
    size_t nth, offset, file_offset, len, sum = 0;
    for (nth = 0; hf_export_extent(exported, nth, &offset, &file_offset, &len) == 1; nth++) {
        unsigned char *bytes = mmap(NULL, len, PROT_READ, MAP_PRIVATE, hf_export_fd(exported), (off_t)file_offset);
        CHECK(bytes != MAP_FAILED && bytes[0] == (offset == 0 ? 1 : 3) && bytes[len - 1] == bytes[0]);
        CHECK(offset % hf_export_page_size(exported) == 0 && len % hf_export_page_size(exported) == 0);
        sum += len;
        munmap(bytes, len);
    }
    CHECK(nth == 2 && sum == 2 * BLOCK && offset == 0 && file_offset == 0 && len == 0);
}

/* A child of fork(2) maps its parent's export, and has a copy of its parent's import. */
static void a_forked_child_sees(const hf_export *exported)
{
    hf_import *before, *own;
    unsigned char *bytes;
    int status;
    pid_t pid;
    WELL(hf_import_map(hf_export_fd(exported), hf_export_extents(exported), &before));
    bytes = hf_import_address(before);
    pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        CHECK(bytes[2 * BLOCK] == 3);
        bytes[0] = 9;
        WELL(hf_import_map(hf_export_fd(exported), hf_export_extents(exported), &own));
        CHECK(*(unsigned char *)hf_import_address(own) == 1);
        hf_import_close(own);
        hf_import_close(before);
        _exit(0);
    }
    CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK(bytes[0] == 1);
    hf_import_close(before);
}

static void exports(hf_pool *pool)
{
    hf_region *live = region_of(pool, LEN);
    hf_snapshot *saved;
    hf_export *exported, *copy;
    hf_import *imported;
    hf_pool *again;
    size_t none;
    unsigned char last;
    memset(bytes_of(live), 1, BLOCK);
    memset(bytes_of(live) + 2 * BLOCK, 3, BLOCK);
    WELL(hf_region_snapshot(live, NULL, &saved));
    WELL(hf_snapshot_export(saved, &exported));
    WELL(hf_snapshot_export_copy(saved, &copy));
    /* The import needs neither the descriptor nor the export. */
    hf_snapshot_close(saved);
    memset(bytes_of(live), 7, LEN);
    hf_region_close(live);
    CHECK(stats_of(pool).blocks_free == stats_of(pool).blocks - 2);
    CHECK(hf_export_len(exported) == LEN && hf_export_len(copy) == LEN);
    CHECK(hf_export_page_size(copy) == 4096 && strncmp(hf_export_extents(copy), "hugefork-extents 1\n", 19) == 0);
    another_program_sees(exported);
    another_program_sees(copy);
    mmap_sees(exported);
    mmap_sees(copy);
    a_forked_child_sees(exported);
    a_forked_child_sees(copy);

    /* The descriptor is read-only, and exec closes it. */
    CHECK(write(hf_export_fd(exported), "x", 1) == -1 && pwrite(hf_export_fd(copy), "x", 1, 0) == -1);
    CHECK(mmap(NULL, 1, PROT_READ | PROT_WRITE, MAP_SHARED, hf_export_fd(exported), 0) == MAP_FAILED);
    CHECK(fcntl(hf_export_fd(exported), F_GETFD) == FD_CLOEXEC && fcntl(hf_export_fd(copy), F_GETFD) == FD_CLOEXEC);
    WELL(hf_import_map(hf_export_fd(exported), hf_export_extents(exported), &imported));
    CHECK(hf_import_is_sealed(imported) == 0);
    hf_import_close(imported);
    WELL(hf_import_map(hf_export_fd(copy), hf_export_extents(copy), &imported));
    CHECK(hf_import_is_sealed(imported) == 1);
    WELL(hf_import_read_at(imported, LEN - 1, &last, 1));
    CHECK(last == 3);
    WELL(hf_import_read_at(imported, LEN, NULL, 0));
    FAILS(HF_E_NULL, hf_import_read_at(imported, 0, NULL, 1));
    FAILS(HF_E_OUT_OF_RANGE, hf_import_read_at(imported, LEN, &last, 1));
    FAILS(HF_E_OUT_OF_RANGE, hf_import_read_at(imported, (size_t)-1, &last, 2));

    WELL(hf_export_pool(exported, &again));
    CHECK(strcmp(hf_pool_name(again), hf_pool_name(pool)) == 0);
    hf_pool_close(again);
    FAILS(HF_E_NULL, hf_export_pool(exported, NULL));
    FAILS(HF_E_NULL, hf_export_extent(exported, 0, NULL, &none, &none));
    FAILS(HF_E_NULL, hf_export_extent(exported, 0, &none, NULL, &none));
    FAILS(HF_E_NULL, hf_export_extent(exported, 0, &none, &none, NULL));
    FAILS(HF_E_BAD_HANDLE, hf_export_extent(NULL, 0, &none, &none, &none));
    FAILS(HF_E_BAD_HANDLE, hf_export_pool(NULL, &again));
    FAILS(HF_E_BAD_HANDLE, hf_export_fd(NULL));
    CHECK(hf_export_extents(NULL) == NULL && hf_export_len(NULL) == 0 && hf_export_page_size(NULL) == 0);
    hf_export_close(NULL);
    hf_export_close(copy);
    hf_export_close(exported);
    CHECK(stats_of(pool).blocks_free == stats_of(pool).blocks);
    /* The sealed copy exists as long as it is mapped. */
    CHECK(((unsigned char *)hf_import_address(imported))[LEN - 1] == 3);
    hf_import_close(imported);
}

/* A page that a snapshot holds in place of an older one's page is exported in place. */
static void history(hf_pool *pool)
{
    hf_region *live = region_of(pool, BLOCK);
    hf_snapshot *older, *newer;
    hf_export *exported;
    hf_import *imported;
    const unsigned char *bytes;
    uint64_t before;
    memset(bytes_of(live), 1, BLOCK);
    WELL(hf_region_snapshot(live, NULL, &older));
    bytes_of(live)[5 * 4096] = 2;
    WELL(hf_region_snapshot(live, NULL, &newer));
    before = stats_of(pool).blocks_free;
    WELL(hf_snapshot_export(newer, &exported));
    CHECK(stats_of(pool).blocks_free == before);
    hf_snapshot_close(newer);
    hf_snapshot_close(older);
    memset(bytes_of(live), 7, BLOCK);
    WELL(hf_import_map(hf_export_fd(exported), hf_export_extents(exported), &imported));
    bytes = hf_import_address(imported);
    CHECK(bytes[0] == 1 && bytes[5 * 4096] == 2 && bytes[5 * 4096 + 1] == 1 && bytes[6 * 4096] == 1);
    hf_import_close(imported);
    hf_export_close(exported);
    hf_region_close(live);
    CHECK(stats_of(pool).blocks_free == stats_of(pool).blocks);
}

static void refusals(hf_pool *pool)
{
    hf_region *live = region_of(pool, BLOCK);
    hf_snapshot *saved;
    hf_export *exported = (hf_export *)1;
    hf_import *imported = (hf_import *)1;
    struct rlimit limit, none;
    int file = open("/dev/zero", O_RDONLY), fd;
    const char *extents;
    bytes_of(live)[0] = 1;
    WELL(hf_region_snapshot(live, NULL, &saved));
    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    none = limit;
    none.rlim_cur = 0;
    CHECK(setrlimit(RLIMIT_NOFILE, &none) == 0);
    FAILS(HF_E_NOT_EXPORTABLE, hf_snapshot_export(saved, &exported));
    CHECK(exported == NULL && hf_last_errno() == EOPNOTSUPP);
    FAILS(HF_E_SYSTEM, hf_snapshot_export_copy(saved, &exported));
    CHECK(exported == NULL && hf_last_errno() == EMFILE);
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    FAILS(HF_E_NULL, hf_snapshot_export(saved, NULL));
    FAILS(HF_E_NULL, hf_snapshot_export_copy(saved, NULL));
    FAILS(HF_E_BAD_HANDLE, hf_snapshot_export(NULL, &exported));
    FAILS(HF_E_BAD_HANDLE, hf_snapshot_export_copy(NULL, &exported));

    WELL(hf_snapshot_export(saved, &exported));
    fd = hf_export_fd(exported), extents = hf_export_extents(exported);
    FAILS(HF_E_BAD_EXTENTS, hf_import_map(fd, "hugefork-extents 1\nlength 7\n", &imported));
    CHECK(imported == NULL && strstr(hf_last_error(), "line 3") != NULL);
    FAILS(HF_E_BAD_EXTENTS, hf_import_map(fd, "\xff", &imported));
    FAILS(HF_E_NOT_AN_EXPORT, hf_import_map(file, extents, &imported));
    FAILS(HF_E_NOT_AN_EXPORT, hf_import_map(fd, "hugefork-extents 1\nlength 1073741824\npage 4096\n"
                                                "extent 0 0 1073741824\nend 1\n", &imported));
    FAILS(HF_E_TOO_MANY_MAPPINGS, hf_import_map(fd, "hugefork-extents 1\nlength 1152921504606846976\npage 4096\n"
                                                    "end 0\n", &imported));
    FAILS(HF_E_BAD_VALUE, hf_import_map(-1, extents, &imported));
    FAILS(HF_E_SYSTEM, hf_import_map(1000000, extents, &imported));
    CHECK(hf_last_errno() == EBADF);
    FAILS(HF_E_NULL, hf_import_map(fd, NULL, &imported));
    FAILS(HF_E_NULL, hf_import_map(fd, extents, NULL));
    FAILS(HF_E_BAD_HANDLE, hf_import_is_sealed(NULL));
    CHECK(hf_import_address(NULL) == NULL && hf_import_len(NULL) == 0);
    hf_import_close(NULL);
    hf_export_close(exported);
    close(file);
    hf_snapshot_close(saved);
    hf_region_close(live);
}

/* A revoked snapshot cannot be exported, and an export is never revoked. */
static void revoked(void)
{
    hf_pool *pool = pool_of(2 * BLOCK);
    hf_region_options by_block = HF_REGION_OPTIONS_INIT;
    hf_region *live;
    hf_snapshot *saved;
    hf_export *exported;
    by_block.copy_grain = HF_COPY_GRAIN_BLOCK;
    WELL(hf_region_create(pool, 2 * BLOCK, &by_block, &live));
    memset(bytes_of(live), 1, 2 * BLOCK);
    WELL(hf_region_snapshot(live, NULL, &saved));
    WELL(hf_snapshot_export(saved, &exported));
    FAILS(HF_E_POOL_FULL, hf_region_prepare_write(live, 0, 1));
    hf_export_close(exported);
    WELL(hf_region_prepare_write(live, 0, 1));
    CHECK(hf_snapshot_is_revoked(saved) == 1);
    FAILS(HF_E_REVOKED, hf_snapshot_export(saved, &exported));
    FAILS(HF_E_REVOKED, hf_snapshot_export_copy(saved, &exported));
    CHECK(exported == NULL);
    hf_snapshot_close(saved);
    hf_region_close(live);
    hf_pool_close(pool);
}

int main(int count, char **arguments)
{
    hf_pool *pool;
    if (count > 1)
        return child(arguments[1]);
    pool = pool_of(16 * MIB);
    exports(pool);
    history(pool);
    refusals(pool);
    hf_pool_close(pool);
    revoked();
    return 0;
}
