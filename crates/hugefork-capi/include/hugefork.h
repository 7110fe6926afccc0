/*
 * hugefork: memory regions of gigabytes on huge pages. A fork or snapshot of a region takes a
 * fraction of a millisecond, and all threads go on writing meanwhile.
 *
 * Linux 5.14 or newer (6.1 for huge pages without any setting, 6.7 for copies of
 * single pages) on x86-64, or on aarch64, which was tried in an emulator only; with pages
 * of 4 KiB. C99 or newer, C++11 or newer.
 *
 *     hf_pool_options options = HF_POOL_OPTIONS_INIT;
 *     hf_pool *pool;
 *     hf_region *live;
 *     hf_snapshot *saved;
 *     options.capacity = (size_t)256 << 20;
 *     if (hf_pool_create(&options, &pool) != 0 ||
 *         hf_region_create(pool, (size_t)64 << 20, NULL, &live) != 0 ||
 *         hf_region_snapshot(live, NULL, &saved) != 0) {
 *         fprintf(stderr, "%s\n", hf_last_error());
 *         exit(1);
 *     }
 *     memcpy(hf_region_address(live), "hello", 5);
 *
 * The snapshot took microseconds. It still has the zeros with which the region began.
 *
 * These rules hold for every function; the comment at a function adds its own.
 *
 * UNITS. Sizes, lengths and offsets are in bytes. A range is an offset and a length, and must
 * lie inside its region or snapshot; it needs no alignment. Lengths of regions and pools are
 * multiples of the pool's block size (by default 2 MiB), and regions and snapshots are aligned
 * to it, too. Times are in nanoseconds.
 *
 * RESULTS. A function that returns `int` returns 0 for success or a negative code HF_E_... for
 * failure; a function that answers a question returns the answer, which is not negative.
 * Functions that return an address or a size return NULL or 0 for failure. After a failure,
 * hf_last_error() says what happened and what to do. A failed call changes nothing, unless its
 * comment says otherwise, and sets a parameter `out` to NULL. Parameters may be NULL where
 * their comment says so, and arrays and buffers may be NULL if their length is 0. Any other
 * NULL gives HF_E_NULL, or HF_E_BAD_HANDLE for a handle.
 *
 * HANDLES are opaque. The program owns each handle and closes it once; closing NULL does
 * nothing. Handles may be closed in any order, since each keeps its dependencies alive: a
 * region its pool; a pin the memory of its region; changes the objects that they compare; a
 * snapshot, a fork and an export the blocks that they share. A closed handle, a handle of
 * another type, and a pointer that never was a handle give HF_E_BAD_HANDLE, whatever memory
 * they point to; closing one of these changes nothing, and hf_last_error() says why. Only after
 * a thousand other handles were closed may a closed handle be mistaken for a new one. Closing a
 * handle while another thread is in a call with it is undefined, as with free(3). So is the use
 * of addresses of a closed region, snapshot, pin or import.
 *
 * STRUCTS begin with their size, so that later releases can add fields. Each has a macro
 * HF_..._INIT, also those that hugefork fills in; or set `size` to sizeof. A program built
 * against an older header works with a newer library. Options of a newer header that the library
 * does not know give HF_E_BAD_STRUCT, unless they are zero.
 *
 * STRINGS that functions return belong to the library. The library copies strings and structs
 * that the program passes; the program may free them after the call.
 *
 * THREADS. Any thread may call any function, and several threads may use one handle at once. As
 * with any memory, the program must prevent two threads from writing to the same bytes at once.
 *
 * SIGNALS. A signal handler may call hf_errno and hf_error_name, and no other function of
 * hugefork. It may read regions, and write to pinned ranges. It must not write elsewhere in a
 * region, because it may have interrupted a thread inside hugefork. A thread that blocks
 * SIGSEGV (threads of many servers block all signals) ends the process without a message at
 * its first write to a block. Such a thread must unblock it before it writes:
 *     sigemptyset(&set); sigaddset(&set, SIGSEGV);
 *     pthread_sigmask(SIG_UNBLOCK, &set, NULL);
 * Creating a region or fork unblocks it in the calling thread. The first pool installs a
 * SIGSEGV handler, which passes foreign faults to the previous handler. If another handler is
 * installed later, see hf_reinstall_handler. Alternate signal stacks need 5 KiB for the
 * handler, besides the kernel's own data.
 *
 * SNAPSHOTS capture all threads' WRITES at one moment. If an operation makes several writes,
 * such as a put of a key and a value, a snapshot may contain the first write without the
 * second; hf_operations prevent that.
 *
 * FORK(2). A child of fork(2) has the regions of pools with HF_CHILDREN_INHERIT, as plain memory
 * at the same addresses; the comment there says what it may do. It has no other regions, and no
 * snapshots: no memory is at their addresses. In a child, functions return HF_E_FORKED_CHILD,
 * and closing a handle does not affect the parent. After exec a child is like any other process.
 * Exports and imports work in children, too: the descriptor of an export is open there, and an
 * import is like other memory, of which a child has a copy.
 *
 * SYSTEM CALLS that read from a region always work. A call that writes to a block which is not
 * writable yet fails with EFAULT. Use hf_region_read_from instead, or pin the range;
 * hf_region_prepare_write suffices while no thread forks, snapshots or resets the region. The
 * comment at HF_COPY_GRAIN_PAGE says when such calls do not fail. Transfers past the page table
 * (O_DIRECT, io_uring with registered buffers, RDMA, process_vm_writev) may not fail, but their
 * data can be lost in a range that forks and snapshots share: pin the range.
 *
 * A WRITE WITHOUT MEMORY (the pool is full, or the machine's memory is used up) raises SIGBUS
 * at its address, after one line on standard error with the reason. When a SIGBUS handler
 * returns, the write is tried again; another thread may have freed memory by then.
 *
 * MAPPINGS at the addresses of regions and snapshots belong to hugefork: read and write there,
 * but do not change them with madvise, mprotect, mremap, munmap or mmap with MAP_FIXED. The
 * kernel allows most of these calls. MADV_DONTNEED and MADV_GUARD_INSTALL lose data written
 * after a snapshot. MADV_REMOVE zeroes snapshots and forks. MADV_DOFORK gives children memory
 * that changes. A changed protection is lost at the next snapshot or first write. An allocator
 * frees memory by hf_region_discard instead of MADV_DONTNEED or MADV_REMOVE, and by
 * hf_region_lazy_free instead of MADV_FREE. mlock, MADV_WILLNEED, MADV_COLD, MADV_PAGEOUT and
 * MADV_POPULATE_READ are harmless.
 *
 * MALLOC. The library allocates handles and parts of some texts by malloc(3), and the data of its
 * fault handler in memory of its own. So the memory of malloc(3) may lie in a region.
 *
 * C++. hugefork.hpp has classes for C++17. Callbacks that the library calls must neither throw
 * nor leave by longjmp.
 */
#ifndef HUGEFORK_H
#define HUGEFORK_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this header. hf_version() returns the library's version. */
#define HF_VERSION "0.1.0"
#define HF_VERSION_MAJOR 0
#define HF_VERSION_MINOR 1
#define HF_VERSION_PATCH 0

/* A size that means "none", or in statistics "the kernel does not report it". */
#define HF_NONE SIZE_MAX
/* A duration without end. */
#define HF_FOREVER UINT64_MAX

/* Memory in blocks of one size, from which regions are made. */
typedef struct hf_pool hf_pool;
/* Memory that is zero at first. hugefork handles its write faults. */
typedef struct hf_region hf_region;
/* The contents of a region at one moment, read-only. */
typedef struct hf_snapshot hf_snapshot;
/* A range of a region whose memory does not move. */
typedef struct hf_pin hf_pin;
/* Ranges in which a region or snapshot differs from an older snapshot. */
typedef struct hf_changes hf_changes;
/* A snapshot that other processes can map. */
typedef struct hf_export hf_export;
/* Memory of this process that maps another process's export. */
typedef struct hf_import hf_import;
/* Groups of writes: a fork, snapshot or reset contains all writes of an operation or none. */
typedef struct hf_operations hf_operations;
/* A region with an allocator whose whole state lies in the region. */
typedef struct hf_heap hf_heap;

/* ------------------------------------------------------------------- Errors */

/*
 * Error codes. Numbers and names never change. The hundreds digit is 0 for bad requests, 1 for
 * used-up resources, 2 for the state of a region, 3 for the machine; codes from -2001 down
 * occur only in C.
 */
enum hf_error {
    HF_E_NOT_A_BLOCK_SIZE = -1001,    /* not a power of two from 4 KiB to 1 GiB */
    HF_E_ZERO_SIZE = -1002,           /* a size of zero bytes */
    HF_E_NOT_A_MULTIPLE = -1003,      /* not a whole number of blocks */
    HF_E_UNREADABLE_SIZE = -1004,     /* the text is not a size */
    HF_E_UNKNOWN_BACKING = -1005,     /* the text names no backing */
    HF_E_TOO_MANY_BLOCKS = -1006,     /* more blocks than a pool can have */
    HF_E_LARGER_THAN_POOL = -1007,    /* a region that is larger than its pool */
    HF_E_OUT_OF_RANGE = -1008,        /* a range that does not lie inside */
    HF_E_NOT_A_VIEW = -1009,          /* not used in C */
    HF_E_LIMIT_ON_SNAPSHOT = -1010,   /* a snapshot cannot have a limit on copies */
    HF_E_BAD_SETTING = -1011,         /* an environment variable with an impossible value */
    HF_E_BAD_KERNEL = -1012,          /* this machine lacks the kernel in HUGEFORK_KERNEL */
    HF_E_ANOTHER_POOL = -1013,        /* a snapshot of another pool */
    HF_E_ANOTHER_LENGTH = -1014,      /* a snapshot of another length */
    HF_E_BAD_EXTENTS = -1015,         /* the text is not a list of extents */
    HF_E_NOT_AN_EXPORT = -1016,       /* the descriptor is not that of this export */
    HF_E_ANOTHER_OPERATIONS = -1017,  /* the region, or its cut, has other operations */
    HF_E_BEYOND_THE_MACHINE = -1101,  /* more memory than the machine or container has */
    HF_E_OUT_OF_MEMORY = -1102,       /* the machine has no memory left */
    HF_E_OUT_OF_ADDRESSES = -1103,    /* no addresses are left */
    HF_E_TOO_MANY_MAPPINGS = -1104,   /* more mappings than vm.max_map_count allows */
    HF_E_POOL_FULL = -1105,           /* the pool has no free block */
    HF_E_NOT_RESERVABLE = -1106,      /* the pool has too few blocks to reserve */
    HF_E_TOO_MANY_PINS = -1108,       /* a block has 255 pins already */
    HF_E_REVOKED = -1201,             /* a part of a fork or snapshot was revoked */
    HF_E_ALREADY_OBSERVED = -1202,    /* the region has an observer */
    HF_E_FORKED_CHILD = -1203,        /* a fork(2) child, which cannot call this */
    HF_E_INSIDE_OPERATION = -1205,    /* a cut inside an operation would wait for itself */
    HF_E_OPERATION_GOES_ON = -1206,   /* an operation lasted longer than the cut's patience */
    HF_E_BACKING_UNAVAILABLE = -1301, /* the machine lacks the backing asked for */
    HF_E_PRESSURE_UNWATCHED = -1302,  /* memory pressure cannot be watched */
    HF_E_SYSTEM = -1303,              /* the kernel refused a call: hf_last_errno() */
    HF_E_NOT_EXPORTABLE = -1304,      /* the pool's memory cannot be opened read-only */
    HF_E_BAD_HANDLE = -2001,          /* NULL, closed, of another type, or not a handle */
    HF_E_NULL = -2002,                /* a null pointer that is not allowed */
    HF_E_BAD_STRUCT = -2003,          /* an impossible `size`, or unknown options */
    HF_E_BAD_VALUE = -2004,           /* an unknown constant, or contradicting options */
    HF_E_PANIC = -2005                /* a defect of hugefork: report the text and stderr */
};

/*
 * The last failure on this thread, and what to do about it: one line without newline, of at most
 * 1023 bytes; "" before the first failure. A success does not change it. Never NULL. The text
 * lies in a buffer of the thread: the next failure on this thread overwrites it, and it is valid
 * until the thread ends.
 */
const char *hf_last_error(void);

/*
 * The errno of the last failure on this thread. For HF_E_SYSTEM it is the kernel's error, such
 * as EAGAIN, EBADF or ENOSPC; for other codes it is hf_errno of the code. 0 before the first
 * failure.
 */
int hf_last_errno(void);

/*
 * The name of a code, such as "pool_full"; "ok" for 0, "unknown" for other numbers. Static.
 * Signal handlers and children of fork(2) may call it.
 */
const char *hf_error_name(int code);

/*
 * The errno that is closest to a code; 0 for 0, EIO for an unknown number. Signal handlers and
 * children of fork(2) may call it.
 */
int hf_errno(int code);

/* The version of the library: "0.1.0". Static. */
const char *hf_version(void);

/*
 * Puts hugefork's SIGSEGV handler on top again. Call it after another handler was installed
 * that does not pass on unknown faults. That handler still gets the faults that are not
 * hugefork's. Does nothing if hugefork's handler is on top already, and in a child of fork(2).
 *
 * HF_E_SYSTEM: the error of sigaction(2), or ENOSPC if other handlers were put on top more than
 * sixty times.
 */
int hf_reinstall_handler(void);

/* -------------------------------------------------------------------- Pools */

/* The requested kind of a pool's memory. */
enum hf_backing {
    HF_BACKING_AUTO = 0,       /* the best that the machine allows now */
    HF_BACKING_HUGETLB = 1,    /* pages reserved by the administrator (vm.nr_hugepages) */
    HF_BACKING_SHMEM_HUGE = 2, /* shmem huge pages, which need no setting */
    HF_BACKING_SHMEM_BASE = 3  /* shmem pages of 4 KiB */
};

/* The actual kind of a pool's memory. */
enum hf_granted {
    HF_GRANTED_HUGETLB = 1,         /* reserved huge pages */
    HF_GRANTED_SHMEM_HUGE = 2,      /* huge pages that the kernel makes at first touch */
    HF_GRANTED_SHMEM_COLLAPSED = 3, /* huge pages by MADV_COLLAPSE, 0.2 ms each */
    HF_GRANTED_SHMEM_BASE = 4,      /* pages of 4 KiB */
    HF_GRANTED_SHMEM_OWN_TMPFS = 5  /* as 2, in a private tmpfs: needs no system setting */
};

/* Whether a pool may be built of another kind of memory than requested. */
enum hf_fallback {
    HF_FALLBACK_ALLOWED = 0, /* use the next best; hf_pool_fallback_reason says why */
    HF_FALLBACK_REFUSED = 1  /* fail with HF_E_BACKING_UNAVAILABLE */
};

/* The time when a pool gets its memory from the system. */
enum hf_commit {
    HF_COMMIT_ON_DEMAND = 0, /* when a block is first used, or shortly before */
    HF_COMMIT_UPFRONT = 1    /* all of it at once, 240 to 300 ms for each GiB */
};

/*
 * Whether core dumps contain the contents of regions. For regions that are left out, gdb may
 * show zeros.
 */
enum hf_core_dump {
    HF_CORE_DUMP_LEFT_OUT = 0,
    HF_CORE_DUMP_INCLUDED = 1 /* 1 us more for each fault */
};

/* Whether the system may swap a pool's memory out. hugetlb pages are never swapped. */
enum hf_swap {
    HF_SWAP_ALLOWED = 0,
    HF_SWAP_REFUSED = 1 /* a tmpfs mounted noswap (CAP_SYS_ADMIN, Linux 6.4) or hugetlb;
                         * else as HF_FALLBACK_... says. Pages that a write has copied
                         * may be swapped until they are written back into blocks */
};

/*
 * The regions of a pool that a child of fork(2) has.
 *
 * HF_CHILDREN_INHERIT: all of them, at their addresses, as they were at one moment of the call
 * of fork(2). So pointers into them are valid in the child.
 *
 * The child reads and writes the memory as plain memory of its own: the kernel copies each page
 * of 4 KiB that it writes. No write of the parent reaches it, and none of its writes reaches the
 * parent. Its own children inherit the memory, too. hf_region_address works in the child;
 * functions that do more return HF_E_FORKED_CHILD. Closing a region there leaves the memory
 * mapped; munmap is allowed. If the pool has hugetlb pages, a write copies a whole hugetlb page,
 * and raises SIGBUS if the machine has none left. As in any child of a process with threads,
 * only the thread that has forked exists. All memory outside of regions is that of a later
 * moment in the call of fork(2): other threads may have written in between. So a thread that
 * forks should hold the locks of data that lie partly in a region and partly outside.
 *
 * For the parent, fork(2) takes a snapshot of all such regions, whatever their pool, which
 * costs as much as hf_region_snapshot; later writes copy pages. The parent holds the snapshot
 * until the child and all that it has forked have ended, called exec, or unmapped the memory. A
 * thread of the pool sleeps until then. The blocks of this snapshot are never revoked, just as
 * those of an export are not: see hf_snapshot_export.
 *
 * The snapshot lies between the operations (hf_operations) of regions that have some, unless
 * the thread that forks is inside one: then the snapshot is taken at once, and the child goes on
 * inside that operation.
 *
 * posix_spawn, vfork and raw clone take no snapshot, and cost nothing. If exec follows fork, the
 * parent closes the snapshot at the exec.
 *
 * The child has none of the regions if the snapshot fails, for example in a full pool or because
 * an operation goes on for too long, and if the program has closed the pool's descriptor. One
 * line on standard error says why. The same holds for a fork in a signal handler that has
 * interrupted a snapshot or reset of the same thread, and for a fork in a handler of
 * pthread_atfork.
 *
 * The child maps the pool's file, so it can reach ALL memory of the pool, and also what the
 * parent writes later: mremap can make a mapping longer. If a child gives up rights, memory that
 * it must not see belongs in another pool.
 */
enum hf_children {
    HF_CHILDREN_HAVE_NOTHING = 0, /* an access raises SIGSEGV, after a line on standard error */
    HF_CHILDREN_INHERIT = 1       /* implies `exports` = 1 */
};

/* The options of a pool. Zero is the default of every field except `capacity`. */
typedef struct hf_pool_options {
    /* sizeof(hf_pool_options). */
    size_t size;
    /* The name in messages; control characters become `?`. NULL: "unnamed". */
    const char *name;
    /* The maximum size of the pool in bytes: a multiple of the block size. */
    size_t capacity;
    /* The unit in which memory is handed out, cleared and copied: a power of two from 4 KiB to
     * 1 GiB. 0: 2 MiB. */
    size_t block_size;
    /* HF_BACKING_... */
    int backing;
    /* HF_FALLBACK_... */
    int fallback;
    /* HF_COMMIT_... */
    int commit;
    /* HF_CORE_DUMP_... */
    int core_dump;
    /* The maximum number of bytes of free blocks for which a thread of the pool gets memory
     * before a snapshot needs them. It works while pages are written that the next snapshot may
     * have to hold, and frees the memory when nothing was written for a second. 0: 128 MiB, and
     * none in pools below 128 MiB. HF_NONE: none. No effect with HF_COMMIT_UPFRONT. */
    size_t obtain_ahead;
    /* A thread clears used blocks in the background when less than `zeroed_low` bytes of free
     * blocks are zero, until `zeroed_high` bytes are. It uses at most this percentage of one
     * CPU (1 to 100; 0: 25). All three 0: no such thread. */
    size_t zeroed_low;
    size_t zeroed_high;
    int zeroed_cpu_percent;
    /* 1: when the system is short of memory, the pool returns some: first that of free blocks,
     * then lazily freed contents. While memory is short, copied pages go back into blocks that
     * have no other holder, and blocks are not copied because of many copied pages. 0: the pool
     * does not react, and the four fields below must be 0. If pressure cannot be watched, and
     * for hugetlb, the pool prints that on standard error and works without. */
    int reclaim_under_pressure;
    /* The PSI file to watch. NULL: that of the process's control group or, if that is not
     * possible, /proc/pressure/memory. */
    const char *pressure_file;
    /* Memory is short if a task waited for it for this many microseconds within a window of
     * this many. Both 0: 150 000 within 2 000 000. The kernel accepts windows of 0.5 to 10 s,
     * but only 2, 4, 6, 8 and 10 s without CAP_SYS_RESOURCE. */
    uint64_t pressure_stall_us;
    uint64_t pressure_window_us;
    /* The number of bytes to return before the pressure is checked again. 0: 64 MiB. */
    size_t pressure_step;
    /* HF_SWAP_... */
    int swap;
    /* 1: hf_snapshot_export works, and the pool holds a read-only descriptor of its memory. 0:
     * it holds none (except for hugetlb, readable and writable). */
    int exports;
    /* HF_CHILDREN_... */
    int children;
    /* Must be 0. */
    int unused;
} hf_pool_options;

#define HF_POOL_OPTIONS_INIT \
    { sizeof(hf_pool_options), NULL, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, NULL, 0, 0, 0, 0, 0, 0, 0 }

/*
 * Builds a pool. The first pool of a process also installs the SIGSEGV handler, and measures
 * for some 7 ms the fastest way to clear and copy blocks. Takes 240 to 300 ms for each GiB with
 * HF_COMMIT_UPFRONT.
 *
 * HF_E_ZERO_SIZE, HF_E_NOT_A_MULTIPLE, HF_E_NOT_A_BLOCK_SIZE, HF_E_TOO_MANY_BLOCKS: bad sizes.
 * HF_E_BEYOND_THE_MACHINE: the machine or container has less memory. HF_E_BACKING_UNAVAILABLE:
 * with HF_FALLBACK_REFUSED, or if no backing is available. HF_E_OUT_OF_ADDRESSES: RLIMIT_AS is
 * too low. HF_E_OUT_OF_MEMORY: with HF_COMMIT_UPFRONT. HF_E_BAD_SETTING: a bad HUGEFORK_KERNEL
 * or HUGEFORK_WINDOW. HF_E_SYSTEM. HF_E_FORKED_CHILD: the process is a child of one that has
 * pools. HF_E_NULL, HF_E_BAD_STRUCT, HF_E_BAD_VALUE: bad options.
 */
int hf_pool_create(const hf_pool_options *options, hf_pool **out);

/*
 * Closes a handle; NULL is allowed. When the last handle, region, snapshot and pin of a pool is
 * closed, its memory goes back to the system; that call waits for the pool's threads.
 */
void hf_pool_close(hf_pool *pool);

/* The name in messages. Valid until the handle is closed. */
const char *hf_pool_name(const hf_pool *pool);

/* The size of its blocks, in bytes. */
size_t hf_pool_block_size(const hf_pool *pool);

/* The size of all of its blocks together, in bytes. */
size_t hf_pool_capacity(const hf_pool *pool);

/*
 * The actual kind of the pool's memory: HF_GRANTED_... It was verified in /proc/self/smaps when
 * the pool was built.
 */
int hf_pool_backing(const hf_pool *pool);

/* HF_GRANTED_... in words, such as "shmem-thp"; "unknown" for other numbers. Static. */
const char *hf_granted_name(int granted);

/*
 * The reason why the machine refused a better backing, and a remedy; NULL if it did not refuse
 * one. Valid until the handle is closed.
 */
const char *hf_pool_fallback_reason(const hf_pool *pool);

/*
 * 1 if writes to shared blocks can copy single pages, 0 if they copy whole blocks. It is 0 in
 * pools of hugetlb pages, before Linux 6.7, if /proc/self/pagemap cannot be read, and if
 * RLIMIT_DATA or vm.overcommit_memory=2 forbid a private mapping as large as the pool.
 */
int hf_pool_has_page_grain(const hf_pool *pool);

/*
 * The reason why writes cannot copy single pages; NULL if they can. Valid until the handle is
 * closed.
 */
const char *hf_pool_no_page_grain(const hf_pool *pool);

/* The method of clearing blocks, in words. Valid until the handle is closed. */
const char *hf_pool_clear_kernel(const hf_pool *pool);

/* The method of copying blocks, in words. Valid until the handle is closed. */
const char *hf_pool_copy_kernel(const hf_pool *pool);

/*
 * Drops lazily freed contents, oldest first, until `bytes` are dropped or nothing is left.
 * Skips pinned and shared blocks. The blocks are free afterwards but still have their memory;
 * hf_pool_trim returns that to the system. The time is proportional to the dropped bytes.
 * `reclaimed` gets the number of dropped bytes; it may be NULL.
 *
 * HF_E_FORKED_CHILD.
 */
int hf_pool_reclaim(hf_pool *pool, size_t bytes, size_t *reclaimed);

/*
 * Returns the memory of free blocks to the system. A pool of huge pages returns whole huge
 * pages only, and hugetlb pages are not returned. `trimmed` gets the number of bytes; it may be
 * NULL.
 *
 * HF_E_SYSTEM: some memory may have been returned by then. HF_E_FORKED_CHILD.
 */
int hf_pool_trim(hf_pool *pool, size_t *trimmed);

/* Statistics of a pool and its threads. New fields are added at the end. */
typedef struct hf_pool_stats {
    /* sizeof(hf_pool_stats). */
    size_t size;
    /* Blocks of the pool. */
    size_t blocks;
    /* Blocks that have no holder and are not reserved. */
    size_t blocks_free;
    /* Blocks that have no holder and are reserved (HF_RESERVE_FULL). */
    size_t blocks_reserved;
    /* Free blocks that are zero and have memory. */
    size_t blocks_zeroed_free;
    /* Bytes of memory in huge pages now. HF_NONE before Linux 6.7. */
    size_t bytes_huge;
    /* All other bytes of memory, in pages of 4 KiB. HF_NONE before Linux 6.7. */
    size_t bytes_base;
    /* Blocks of 2 MiB that the kernel refused to collapse (HF_GRANTED_SHMEM_COLLAPSED). */
    uint64_t not_collapsed;
    /* The thread that gets memory ahead: whether it runs (1 or 0), the blocks that it got
     * memory for, its CPU time, the blocks that got memory only at their use, and how often it
     * stopped for lack of memory. */
    size_t supply_running;
    uint64_t supply_blocks_ahead;
    uint64_t supply_time_ns;
    uint64_t supply_blocks_late;
    uint64_t supply_stopped;
    /* The thread that clears used blocks: whether it runs, the blocks that it cleared, its CPU
     * time. */
    size_t stock_running;
    uint64_t stock_blocks;
    uint64_t stock_time_ns;
    /* The thread that watches memory pressure: whether it runs, how often memory was short,
     * bytes of lazily freed contents that it dropped, bytes that it returned to the system. */
    size_t pressure_running;
    uint64_t pressure_events;
    uint64_t pressure_bytes_reclaimed;
    uint64_t pressure_bytes_trimmed;
    /* Blocks whose release the kernel refused: out of use until the process ends. */
    size_t blocks_leaked;
    /* Living regions, including closed ones with open pins. */
    size_t regions;
    /* Bytes of metadata for the pool's blocks. */
    size_t metadata_bytes;
    /* Mappings that the regions of all pools use, and the process's limit. */
    size_t mappings;
    size_t mappings_limit;
    /* Blocks whose memory the ahead thread returned, because none was used for a second. */
    uint64_t supply_blocks_given_back;
    /* Pages of 4 KiB that snapshots hold in place of pages of shared blocks, each counted once,
     * and the used blocks that contain these pages. */
    size_t pages_held;
    size_t blocks_of_pages;
    /* Copies of such pages in the process's own memory, made for reads by address. */
    size_t pages_in_views;
} hf_pool_stats;

#define HF_POOL_STATS_INIT \
    { sizeof(hf_pool_stats), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, \
      0, 0, 0, 0, 0, 0, 0 }

/*
 * Statistics of the faults of a region, or of all regions of a pool. Counts only grow. They are
 * read one after another while faults continue. New fields are added at the end.
 */
typedef struct hf_fault_stats {
    /* sizeof(hf_fault_stats). */
    size_t size;
    /* First writes: the write got a zeroed block. */
    uint64_t demand_zero;
    /* Writes to a shared block: the block was copied. */
    uint64_t copied;
    /* Writes to a block without another holder any more: no copy. */
    uint64_t reused;
    /* Writes to a shared block after which the kernel copies single pages. */
    uint64_t cow_mapped;
    /* Faults that another thread had resolved already. */
    uint64_t raced;
    /* Faults that could not be resolved. */
    uint64_t failed;
    /* Blocks that were zero already when a write got them. */
    uint64_t blocks_zeroed_before;
    /* Blocks and bytes that hugefork cleared and copied. */
    uint64_t blocks_cleared;
    uint64_t blocks_copied;
    uint64_t bytes_cleared;
    uint64_t bytes_copied;
    /* Forks and snapshots taken. */
    uint64_t snapshots;
    /* Bytes that were lazily freed and then written to or kept by a cancellation. */
    uint64_t bytes_cancelled;
    /* Lazily freed blocks that were dropped. */
    uint64_t blocks_reclaimed;
    /* Blocks revoked from forks and snapshots. */
    uint64_t blocks_revoked;
    /* The longest time, and the total time, for which forks and snapshots stopped writers. */
    uint64_t longest_pause_ns;
    uint64_t paused_ns;
    /* Pages that the kernel had copied at writes and that were written back into blocks,
     * without those that a discard or the end of the region dropped; the blocks that received
     * them; blocks that were copied in the background because many of their pages had been. */
    uint64_t pages_written_back;
    uint64_t blocks_written_back;
    uint64_t blocks_promoted;
    /* The time of faults in the handler: their number, and the times that 50, 90, 99, 99.9 and
     * 100 percent of them do not exceed (at most 25 % too high). */
    uint64_t handler_count;
    uint64_t handler_p50_ns;
    uint64_t handler_p90_ns;
    uint64_t handler_p99_ns;
    uint64_t handler_p99_9_ns;
    uint64_t handler_p100_ns;
    /* Resets of the region; pages of 4 KiB written since the snapshot whose old bytes a reset
     * restored, or which it dropped with other threads suspended; blocks that it replaced by
     * the snapshot's. */
    uint64_t resets;
    uint64_t pages_put_back;
    uint64_t blocks_exchanged;
    /* How long threads that used a block had to wait while it was copied in the background
     * ("promotion") or pages were written back into it: the number of waits, and the times that
     * 99 and 100 percent do not exceed (at most 25 % too high). 0 if the process may not
     * suspend threads. */
    uint64_t held_by_promotion_count;
    uint64_t held_by_promotion_p99_ns;
    uint64_t held_by_promotion_p100_ns;
    uint64_t held_by_write_back_count;
    uint64_t held_by_write_back_p99_ns;
    uint64_t held_by_write_back_p100_ns;
} hf_fault_stats;

#define HF_FAULT_STATS_INIT \
    { sizeof(hf_fault_stats), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, \
      0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/*
 * Fills in the statistics. The kernel counts `bytes_huge` for the call: 0.04 ms for each GiB in
 * huge pages, 1.6 ms in pages of 4 KiB. Meanwhile the process's mappings cannot change.
 *
 * HF_E_BAD_STRUCT: `size` was not set.
 */
int hf_pool_get_stats(const hf_pool *pool, hf_pool_stats *stats);

/*
 * Fills in the fault statistics of all present and past regions of the pool. Takes as long as
 * hf_pool_get_stats.
 *
 * HF_E_BAD_STRUCT: `size` was not set.
 */
int hf_pool_get_fault_stats(const hf_pool *pool, hf_fault_stats *stats);

/* ------------------------------------------------------------------ Regions */

/*
 * Whether blocks are reserved, so that writes never find the pool full. FULL reserves a block
 * for each block of a region or fork, but none for a snapshot. With it, no part of its forks
 * and snapshots is revoked.
 */
enum hf_reserve {
    HF_RESERVE_NONE = 0,
    HF_RESERVE_FULL = 1
};

/*
 * The amount that a write copies if a fork or snapshot also holds its block.
 *
 * With HF_COPY_GRAIN_PAGE, writes to shared blocks raise no signal, and system calls that write
 * to previously written memory do not fail with EFAULT, except at moments when pages are
 * written back into blocks or a snapshot is taken: see `calls_wait`. Writes to memory that was
 * never written, discarded or lazily freed still fail with EFAULT. In a region with
 * `max_cow_bytes` or an observer, and if hf_pool_has_page_grain is 0, the first write to a
 * shared block is a fault, too.
 */
enum hf_copy_grain {
    HF_COPY_GRAIN_AUTO = 0, /* the cheaper one, judged by the writes so far */
    HF_COPY_GRAIN_PAGE = 1, /* 4 KiB, by the kernel, without a signal: for sparse writes */
    HF_COPY_GRAIN_BLOCK = 2 /* the block: for dense writes */
};

/* The program's use of each block after its first write. */
enum hf_advice {
    HF_ADVICE_UNKNOWN = 0, /* hugefork judges by the recent faults of the region */
    HF_ADVICE_NEAR = 1,    /* the bytes near the first write */
    HF_ADVICE_WHOLE = 2    /* the whole block, soon */
};

/* The guarantees and limits of a region, fork or snapshot. Zero is the default. */
typedef struct hf_region_options {
    /* sizeof(hf_region_options). */
    size_t size;
    /* HF_RESERVE_... */
    int reserve;
    /* HF_COPY_GRAIN_...; no effect on a snapshot. */
    int copy_grain;
    /* 1: system calls that write wait while copied pages are written back into blocks and while
     * a snapshot is taken, instead of failing with EFAULT. Readers wait too, for some 0.25 ms.
     * The process needs the right to handle the faults of system calls: CAP_SYS_PTRACE,
     * vm.unprivileged_userfaultfd=1, or access to /dev/userfaultfd. Without that right the
     * calls may still fail. */
    int calls_wait;
    /* Must be 0. */
    int unused;
    /* The maximum number of bytes that forks and snapshots of the region may hold besides it,
     * rounded up to blocks; 0: no limit. A write that would exceed it revokes its block from
     * forks and snapshots without a reservation. Discards, resets and snapshots of pinned
     * blocks may exceed it. */
    size_t max_cow_bytes;
} hf_region_options;

#define HF_REGION_OPTIONS_INIT { sizeof(hf_region_options), 0, 0, 0, 0, 0 }

/*
 * Makes a region of `len` bytes, a multiple of the block size, which reads as zeros. The first
 * write to a block takes it from the pool. Regions may together be larger than the pool.
 * `options` may be NULL.
 *
 * HF_E_ZERO_SIZE, HF_E_NOT_A_MULTIPLE, HF_E_LARGER_THAN_POOL: a bad length.
 * HF_E_NOT_RESERVABLE: with HF_RESERVE_FULL. HF_E_TOO_MANY_MAPPINGS, HF_E_OUT_OF_ADDRESSES: a
 * limit of the process. HF_E_SYSTEM, HF_E_FORKED_CHILD, HF_E_BAD_STRUCT, HF_E_BAD_VALUE.
 */
int hf_region_create(hf_pool *pool, size_t len, const hf_region_options *options, hf_region **out);

/*
 * Closes a region; NULL is allowed. Its memory goes back to the pool at once, or when the last
 * pin and changes of the region are closed. Forks and snapshots are not affected. After the
 * call its addresses must not be used, and its observer is not called any more.
 */
void hf_region_close(hf_region *region);

/*
 * The address of the first byte, aligned to the block size. Valid for reads and writes of
 * hf_region_len bytes until the region is closed, in this process only.
 */
void *hf_region_address(const hf_region *region);

/* The length in bytes. */
size_t hf_region_len(const hf_region *region);

/* Stores a new handle of its pool, which the program must close. */
int hf_region_pool(const hf_region *region, hf_pool **out);

/*
 * Gets memory for every block now, so that no first write faults later. A block without memory
 * takes as long as its first write would.
 *
 * HF_E_POOL_FULL, HF_E_OUT_OF_MEMORY, HF_E_TOO_MANY_MAPPINGS, HF_E_SYSTEM; HF_E_REVOKED if a
 * block of this fork was revoked. The work done so far is not undone. HF_E_FORKED_CHILD.
 */
int hf_region_populate(hf_region *region);

/*
 * Like hf_region_populate, with up to `threads` threads, at least one. After each 64 MiB, or
 * each block if blocks are larger, one of them calls `progress` with the number of finished
 * bytes and with `user`; several threads may call it at once. `progress` may be NULL.
 *
 * Errors as for hf_region_populate; the first error ends the work of all threads.
 */
int hf_region_populate_with(hf_region *region, size_t threads,
                            void (*progress)(size_t done, void *user), void *user);

/*
 * Makes all blocks that the range touches writable now, so that a system call can write there.
 * Until the next fork, snapshot or reset of the region, writes there neither fail nor fault,
 * except in parts that a full pool revokes from a fork (hf_region_is_revoked). If single pages
 * can be copied (hf_pool_has_page_grain), the kernel later copies shared pages as they are
 * written, and the call takes some 0.3 ms for each GiB. Otherwise the call copies shared
 * blocks, 0.1 ms for each 2 MiB. Blocks that were never written get their memory.
 *
 * HF_E_OUT_OF_RANGE, and the errors of hf_region_populate.
 */
int hf_region_prepare_write(hf_region *region, size_t offset, size_t len);

/*
 * Does the work now that the next fork or snapshot would do before its pause: writes pages that
 * were copied since the last one (HF_COPY_GRAIN_PAGE) back into blocks, at about 2 us a page,
 * or 150 us a block with other holders. Call it right before taking a lock under which you take
 * the snapshot. Other threads go on writing meanwhile; forks, snapshots and resets of the
 * region wait. The contents do not change, and the call is optional.
 *
 * HF_E_POOL_FULL, HF_E_OUT_OF_MEMORY, HF_E_TOO_MANY_MAPPINGS, HF_E_SYSTEM, HF_E_FORKED_CHILD:
 * some pages are left for the next fork or snapshot. HF_E_INSIDE_OPERATION: if the region has
 * operations.
 */
int hf_region_prepare_snapshot(hf_region *region);

/*
 * Drops the contents of a range, which reads as zeros from then on. Blocks wholly inside the
 * range go back to the pool, unless they are pinned. Forks and snapshots are not affected. No
 * other thread may use the range meanwhile. One system call for each 2 GiB.
 *
 * HF_E_OUT_OF_RANGE. A shared block that lies partly inside the range is copied first, with the
 * errors of hf_region_populate; some of the range may be zero by then. HF_E_NOT_RESERVABLE: the
 * range is zero, but blocks could not be reserved again.
 */
int hf_region_discard(hf_region *region, size_t offset, size_t len);

/* The result of hf_region_lazy_free. The fields add up to the range. */
typedef struct hf_lazy_freed {
    /* sizeof(hf_lazy_freed). */
    size_t size;
    /* Bytes that this call lazily freed. */
    size_t freed;
    /* Unchanged: never written, dropped, or lazily freed before. */
    size_t already;
    /* Skipped: a fork or snapshot holds the block too. */
    size_t shared;
    /* Skipped: pinned. */
    size_t pinned;
    /* Skipped: part of a hugetlb block, which cannot be split. */
    size_t indivisible;
    /* Skipped: revoked from this fork. */
    size_t revoked;
    /* Skipped: the ends of the range that do not fill a page of 4 KiB. */
    size_t unaligned;
} hf_lazy_freed;

#define HF_LAZY_FREED_INIT { sizeof(hf_lazy_freed), 0, 0, 0, 0, 0, 0, 0 }

/*
 * Allows hugefork to drop the contents of a range when memory is short. Until then the range
 * reads as before. A write to a block cancels the permission for that block, or for the written
 * page if the block was freed in part, and preserves the contents. Dropped contents read as
 * zeros. Other threads may use the range meanwhile. Some nanoseconds a block, and one system
 * call for each 2 GiB. `freed` may be NULL.
 *
 * HF_E_OUT_OF_RANGE, HF_E_TOO_MANY_MAPPINGS, HF_E_SYSTEM, HF_E_FORKED_CHILD: some of the range
 * may have been lazily freed by then; nothing is lost. HF_E_BAD_STRUCT: `size` of `freed` was
 * not set; nothing was freed.
 */
int hf_region_lazy_free(hf_region *region, size_t offset, size_t len, hf_lazy_freed *freed);

/*
 * Cancels hf_region_lazy_free for contents that are not dropped yet, as a write would.
 * `cancelled` gets the number of bytes; it may be NULL.
 *
 * HF_E_OUT_OF_RANGE, HF_E_FORKED_CHILD.
 */
int hf_region_cancel_lazy_free(hf_region *region, size_t offset, size_t len, size_t *cancelled);

/*
 * Makes the blocks that the range touches writable, and does not move them until the pin is
 * closed: for DMA, for io_uring's fixed buffers, for system calls that write. Writes to pinned
 * pages (4 KiB; in hugetlb pools, blocks) during a fork, snapshot or reset may be in it or not,
 * word by word; all other writes, also to other pages of these blocks, are captured at one
 * moment. Only the pinned pages are writable at every moment: a system call that writes beside
 * them during a fork, snapshot or reset fails with EFAULT. A fork or snapshot copies a pinned
 * block at once, 0.1 ms for each 2 MiB. A pin keeps the memory of its region alive, even if the
 * region is closed first.
 *
 * HF_E_OUT_OF_RANGE, HF_E_TOO_MANY_PINS, and the errors of hf_region_prepare_write. No pin is
 * made then.
 */
int hf_region_pin(hf_region *region, size_t offset, size_t len, hf_pin **out);

/*
 * Announces the program's use of each block after its first write: HF_ADVICE_... It takes
 * effect at the next fault, in all threads.
 *
 * HF_E_BAD_VALUE.
 */
int hf_region_advise(hf_region *region, int advice);

/*
 * Callbacks around every change of the memory behind a region: first write, copy, discard,
 * reclaim, revocation. They serve programs that pass physical memory on and must withdraw it
 * before it changes. Any function may be NULL.
 */
typedef struct hf_observer {
    /* sizeof(hf_observer). */
    size_t size;
    /* The argument of all functions. Any thread may call them. */
    void *user;
    /* The memory behind this range is about to change: stop using it. */
    void (*invalidate_start)(size_t offset, size_t len, void *user);
    /* The change is over, or did not happen. Follows every start, on the same thread. */
    void (*invalidate_end)(size_t offset, size_t len, void *user);
    /* The region is gone; no other function is called any more. Called once, by the thread that
     * closed the region or its last pin or changes; not in a child of fork(2). */
    void (*release)(void *user);
} hf_observer;

#define HF_OBSERVER_INIT { sizeof(hf_observer), NULL, NULL, NULL, NULL }

/*
 * Sets the observer of a region. It cannot be changed later; forks of the region have none.
 *
 * `invalidate_start` and `invalidate_end` mostly run INSIDE THE SIGSEGV HANDLER, and under
 * locks of hugefork. They may use atomics and write to an eventfd. They must not allocate,
 * lock, call hugefork, or access a region in a way that faults.
 *
 * HF_E_ALREADY_OBSERVED, HF_E_FORKED_CHILD, HF_E_NULL, HF_E_BAD_STRUCT: the observer was not
 * set, and is not released. Errors of hf_region_prepare_write: blocks shared by page could not
 * be copied whole; the observer is set nevertheless, and the region should be closed.
 */
int hf_region_observe(hf_region *region, const hf_observer *observer);

/* --------------------------------------------------------------- Operations */

/*
 * Makes an hf_operations. An operation is a group of writes of one thread, between
 * hf_operations_enter and hf_operations_leave. Forks, snapshots and resets ("cuts") of regions
 * that use it (hf_region_set_operations) wait until no thread is inside an operation; threads
 * that enter meanwhile wait for some microseconds. So a cut contains all writes of an operation
 * or none. Set the same hf_operations for all regions that an operation writes to.
 *
 * A cut waits up to `patience_ns` nanoseconds for threads inside; 0: ten seconds. Then it fails
 * with HF_E_OPERATION_GOES_ON and changes nothing; hf_last_error() names the thread.
 * HF_FOREVER: no limit. Several cuts can wait for the same thread at once.
 *
 * HF_E_NULL.
 */
int hf_operations_create(uint64_t patience_ns, hf_operations **out);

/* Closes the handle. Regions that use it still do. No thread may be inside. */
void hf_operations_close(hf_operations *operations);

/*
 * Makes forks, snapshots and resets of the region wait for operations. A region has one
 * hf_operations, which cannot be changed; forks start with none. Setting the same one again
 * does nothing. The call waits for a cut of the region in progress, but not for operations.
 *
 * HF_E_ANOTHER_OPERATIONS: the region has another one. HF_E_FORKED_CHILD.
 */
int hf_region_set_operations(hf_region *region, hf_operations *operations);

/*
 * Enters an operation. Takes some nanoseconds, or until a cut in progress is done. A thread
 * that is inside may enter again without waiting; it is outside after as many calls of
 * hf_operations_leave.
 *
 * - Leave on the same thread. A thread that ends or is cancelled has left.
 * - Take cuts of regions with operations, and call hf_region_prepare_snapshot, only outside:
 *   inside they fail with HF_E_INSIDE_OPERATION.
 * - Enter first, then lock. A thread that waits to enter while it holds a mutex that other
 *   threads lock inside waits for ever. For the same reason take no cut while holding such a
 *   mutex.
 * - Do not block inside: cuts wait, and threads that want to enter wait with them.
 *
 * In a child of fork(2) the call does not wait.
 */
int hf_operations_enter(hf_operations *operations);

/*
 * Leaves the operation that this thread has entered last.
 *
 * HF_E_BAD_VALUE: the thread is not inside an operation.
 */
int hf_operations_leave(hf_operations *operations);

/*
 * 1 if a part of this fork was revoked, 0 if not. That happens when the pool is full and the
 * parent writes to a block that both share, unless the fork was made with HF_RESERVE_FULL. Any
 * access to that part raises SIGBUS and never reads zeros. hf_region_discard turns the part
 * into new memory.
 */
int hf_region_is_revoked(const hf_region *region);

/*
 * Makes a writable copy of the region as it is now. Both share each block until one of them
 * writes to it. Threads that write meanwhile wait: some nanoseconds for each block and one
 * system call. If the copy contains a write, it contains every write that happened before it.
 * But the copy may fall between two writes of one operation; hf_region_set_operations prevents
 * that. `options` may be NULL.
 *
 * The call takes longer if pages were copied since the last fork or snapshot: 2 us a page,
 * while other threads go on writing. For a block that other forks or snapshots still hold, a
 * snapshot copies out the pages that were written since the last one. A fork copies the block,
 * in 150 us, and so does a snapshot if a quarter of the block's pages are private.
 *
 * HF_E_TOO_MANY_MAPPINGS, HF_E_OUT_OF_ADDRESSES. HF_E_REVOKED: this region is a fork of which a
 * part was revoked. HF_E_POOL_FULL, HF_E_OUT_OF_MEMORY: for pinned blocks, or pages to be
 * written back into blocks. HF_E_NOT_RESERVABLE: a fork with HF_RESERVE_FULL. HF_E_SYSTEM,
 * HF_E_FORKED_CHILD, HF_E_BAD_STRUCT, HF_E_BAD_VALUE. HF_E_INSIDE_OPERATION,
 * HF_E_OPERATION_GOES_ON: if the region has operations.
 */
int hf_region_fork(hf_region *region, const hf_region_options *options, hf_region **out);

/*
 * Makes a read-only copy of the region as it is now. Like hf_region_fork, but uses no mappings
 * until hf_snapshot_map. `options` may be NULL.
 *
 * It captures all threads' writes at one moment, but may split a group of writes that belong
 * together; hf_operations prevent that.
 *
 * Errors as for hf_region_fork. HF_E_LIMIT_ON_SNAPSHOT: the options have a limit on copies.
 */
int hf_region_snapshot(hf_region *region, const hf_region_options *options, hf_snapshot **out);

/*
 * Resets the region to the bytes of a snapshot: all later writes are lost. The time is
 * proportional to the amount written since. It serves loops that start from the same state each
 * time, and searches that return to a branching point. The snapshot does not change. It may be
 * any of the same pool and length: a later or an earlier one of this region, or one of its
 * parent or of its forks. If it is another region's snapshot and the pool is full, that region
 * may revoke the shared blocks (hf_region_is_revoked), unless this region was made with
 * HF_RESERVE_FULL.
 *
 * Other threads may write meanwhile. A write comes either before the reset and is lost, or
 * after it and remains; if a write is lost, so is every write that happened before it. To reset
 * several regions at one moment, use hf_region_reset_all. Pinned ranges do not move and get the
 * old bytes. Lazy frees are cancelled.
 *
 * Costs: pages that were written (HF_COPY_GRAIN_PAGE) take 0.2 to 0.8 us each if they were also
 * written before the last reset, and 11 to 19 us if not; the next writes to them take no fault.
 * If the program has other threads, their writes wait: 50 us, and 3 to 4 us for each page. A
 * thread that reads meanwhile may find some pages reset and others not yet.
 * Blocks that were copied, discarded or written for the first time take some microseconds for
 * each run of neighbours. To this add some nanoseconds for each block of the region, and 10 to
 * 50 us for each GiB if pages were copied since the last reset.
 *
 * `done` gets the number of bytes at the start of the region that equal the snapshot, also if
 * the call fails; it may be NULL.
 *
 * HF_E_ANOTHER_POOL, HF_E_ANOTHER_LENGTH, HF_E_FORKED_CHILD; HF_E_REVOKED if a part of the
 * snapshot was revoked: nothing has changed. HF_E_TOO_MANY_MAPPINGS, HF_E_SYSTEM: each page of
 * 4 KiB behind `done` is as before, as in the snapshot, or, if the snapshot holds pages over a
 * block, as in an older snapshot. Another call completes the reset.
 * HF_E_NOT_RESERVABLE: the region equals the snapshot, but with HF_RESERVE_FULL its blocks
 * could not be reserved again.
 */
int hf_region_reset_to(hf_region *region, const hf_snapshot *snapshot, size_t *done);

/*
 * Like hf_region_reset_to, for `count` regions at one moment, each to the snapshot at the same
 * index of `snapshots`: if a write is lost, so is every write that happened before it, in
 * whichever region. Threads that write to any of the regions wait until all are reset. Threads
 * that only read may see one region reset before another. The regions may belong to different
 * pools, and several may be reset to the same snapshot.
 *
 * `done` counts through the regions in their order. After that offset, each page of 4 KiB is as
 * before or as in the snapshot, apart from other threads' writes, and another call continues
 * there.
 *
 * Errors as for hf_region_reset_to; after HF_E_ANOTHER_POOL, HF_E_ANOTHER_LENGTH and
 * HF_E_REVOKED no region has changed. HF_E_NULL. HF_E_BAD_VALUE if a region occurs twice.
 */
int hf_region_reset_all(hf_region *const *regions, const hf_snapshot *const *snapshots,
                        size_t count, size_t *done);

/*
 * Forks as fork(2) does, and so returns twice: once in the child, where it stores 0, and once in
 * this process, where it stores the number of the child, for waitpid(2). In the child, each
 * region of `regions` is as the snapshot at the same index of `snapshots`, at the addresses of
 * the region. So pointers into the region are valid there: a child can save yesterday's hash map
 * while this process goes on with today's. The other regions of pools with HF_CHILDREN_INHERIT
 * are as after fork(2), and the comment there says what the child may do. The snapshots may be
 * closed once the call returns.
 *
 * Memory outside of the regions is that of this moment, also pointers and counts that belong to
 * later contents of a region. The memory of malloc(3) must not lie in these regions.
 *
 * HF_E_NOT_EXPORTABLE: a pool without HF_CHILDREN_INHERIT, or the program has closed its
 * descriptor. HF_E_ANOTHER_POOL, HF_E_ANOTHER_LENGTH, HF_E_REVOKED, HF_E_SYSTEM: the kernel
 * refused fork(2). HF_E_FORKED_CHILD, HF_E_NULL. HF_E_BAD_VALUE: a region occurs twice. The
 * errors of hf_region_snapshot_all, for the other regions. There is no child then, and `child`
 * gets -1.
 */
int hf_fork_with(hf_region *const *regions, const hf_snapshot *const *snapshots, size_t count,
                 int *child);

/*
 * The id of the region's base: the last snapshot that was taken of it, or the snapshot that it
 * was forked from or reset to, whichever is latest. A region that was forked from another
 * region starts with that region's base. Later writes do not change it. 0 for a region that
 * began as zeros and has had no snapshot yet.
 */
uint64_t hf_region_origin(const hf_region *region);

/*
 * Makes snapshots of `count` regions at one moment: if one of them contains a write, they
 * contain every write that happened before it, in whichever region. `out` has room for `count`
 * handles, in the order of `regions`; they are null if the call fails. `options` apply to each
 * snapshot and may be NULL.
 *
 * Errors as for hf_region_snapshot. HF_E_BAD_VALUE also if a region occurs twice.
 */
int hf_region_snapshot_all(hf_region *const *regions, size_t count,
                           const hf_region_options *options, hf_snapshot **out);

/* Statistics of a region. New fields are added at the end. */
typedef struct hf_region_stats {
    /* sizeof(hf_region_stats). */
    size_t size;
    /* Blocks that the region spans. */
    size_t blocks;
    /* Blocks that it holds, alone or with others. */
    size_t blocks_present;
    /* Of those, blocks that a fork or snapshot may hold too. */
    size_t blocks_shared;
    /* Of those present, blocks that were lazily freed as a whole. */
    size_t blocks_lazy;
    /* Blocks that were lazily freed in part. */
    size_t blocks_split;
    /* Blocks in which the kernel copies the pages that are written. */
    size_t blocks_cow_mapped;
    /* Pages of 4 KiB that the kernel has copied in this way and that are not written back into
     * blocks: memory of the process, not of the pool. 0 if the kernel does not report it. */
    size_t pages_private;
    /* Blocks that are reserved for it. */
    size_t blocks_reserved;
    /* Blocks that were revoked from it. */
    size_t blocks_revoked;
    /* Bytes that were lazily freed and not dropped yet. */
    size_t bytes_lazy;
    /* Bytes that only its forks and snapshots hold; `max_cow_bytes` limits them. */
    size_t cow_bytes;
    /* Number of mappings that it uses. */
    size_t mappings;
    /* Bytes of its page table. */
    size_t metadata_bytes;
} hf_region_stats;

#define HF_REGION_STATS_INIT { sizeof(hf_region_stats), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/*
 * Fills in the region's statistics. Some nanoseconds a block.
 *
 * HF_E_BAD_STRUCT: `size` was not set.
 */
int hf_region_get_stats(const hf_region *region, hf_region_stats *stats);

/*
 * Fills in the region's fault statistics.
 *
 * HF_E_BAD_STRUCT: `size` was not set.
 */
int hf_region_get_fault_stats(const hf_region *region, hf_fault_stats *stats);

/*
 * Reads from a descriptor into a range until it is full or the file ends. Other threads may
 * fork and snapshot the region meanwhile: unlike read(2) into a region, the call neither fails
 * nor returns early because of that. It continues after signals. A snapshot that is taken
 * meanwhile contains some of the bytes of the range; all other pages (in hugetlb pools, blocks)
 * are captured at one moment. `done` gets the number of bytes read, also if the call fails; it
 * may be NULL. Do not use it for descriptors that deliver messages (datagram sockets, eventfd,
 * ...): a message that could not be copied is lost.
 *
 * HF_E_SYSTEM: hf_last_errno() is the error of read(2), such as EAGAIN. HF_E_BAD_VALUE: a
 * negative descriptor. HF_E_OUT_OF_RANGE, and the errors of hf_region_prepare_write.
 */
int hf_region_read_from(hf_region *region, int fd, size_t offset, size_t len, size_t *done);

/*
 * Like hf_region_read_from, from byte `file_offset` of a file on. The file's position does not
 * change (pread(2)).
 */
int hf_region_read_from_at(hf_region *region, int fd, size_t offset, size_t len,
                           uint64_t file_offset, size_t *done);

/*
 * Writes all of a range to a descriptor, without a copy. To write the bytes of one moment, use
 * a snapshot. `done` gets the number of bytes written, also if the call fails; it may be NULL.
 *
 * HF_E_SYSTEM: hf_last_errno() is the error of write(2), such as ENOSPC. HF_E_REVOKED: the
 * range contains a revoked part of this fork. HF_E_BAD_VALUE: a negative descriptor.
 * HF_E_OUT_OF_RANGE; with O_DIRECT, FUSE, 9P and TLS the errors of hf_region_pin.
 */
int hf_region_write_to(hf_region *region, int fd, size_t offset, size_t len, size_t *done);

/*
 * Like hf_region_write_to, to byte `file_offset` of a file on. The file's position does not
 * change (pwrite(2)).
 */
int hf_region_write_to_at(hf_region *region, int fd, size_t offset, size_t len,
                          uint64_t file_offset, size_t *done);

/* --------------------------------------------------------------------- Pins */

/*
 * Removes the pin; NULL is allowed. Closing the last pin of a closed region frees the region's
 * memory. Do not call it in a signal handler.
 */
void hf_pin_close(hf_pin *pin);

/*
 * The address of the first pinned byte. Valid for reads, writes, system calls and devices until
 * the pin is closed, also while a fork or snapshot is taken.
 */
void *hf_pin_address(const hf_pin *pin);

/* The offset of the first pinned byte in its region. */
size_t hf_pin_offset(const hf_pin *pin);

/* The number of pinned bytes. The blocks that they touch are pinned as a whole. */
size_t hf_pin_len(const hf_pin *pin);

/* ---------------------------------------------------------------- Snapshots */

/*
 * Closes a snapshot; NULL is allowed. Its addresses must not be used any more. Blocks that only
 * it held go back to the pool at once, or when the last changes of the snapshot are closed.
 */
void hf_snapshot_close(hf_snapshot *snapshot);

/* Its length, which is that of its region. */
size_t hf_snapshot_len(const hf_snapshot *snapshot);

/*
 * Identifies the snapshot among all snapshots of this process; never 0. Of two snapshots of one
 * region the later has the greater id. The same holds for any two snapshots if one was complete
 * before the other was requested. Ids mean nothing to other processes.
 */
uint64_t hf_snapshot_id(const hf_snapshot *snapshot);

/*
 * The id of its region's base when this snapshot was taken (hf_region_origin); that snapshot
 * may be closed by now. It is the previous snapshot of the region or, for the first one of a
 * fork, the snapshot that the fork was made of. 0 for the first snapshot of a region that began
 * as zeros.
 */
uint64_t hf_snapshot_parent(const hf_snapshot *snapshot);

/* Stores a new handle of its pool, which the program must close. */
int hf_snapshot_pool(const hf_snapshot *snapshot, hf_pool **out);

/*
 * Stores the address of its bytes, aligned to the block size and valid for reads until the
 * snapshot is closed; a write faults. The first call maps them, with one system call for each
 * run of neighbouring blocks. It also copies all pages that the snapshot holds in place of
 * pages of shared blocks (pages_held of hf_pool_stats), some 2 us each. Later calls store the
 * same address. hf_snapshot_read_at copies only the requested bytes.
 *
 * HF_E_TOO_MANY_MAPPINGS, HF_E_OUT_OF_ADDRESSES. HF_E_REVOKED: a part was revoked before the
 * first call. HF_E_SYSTEM, HF_E_FORKED_CHILD.
 */
int hf_snapshot_map(const hf_snapshot *snapshot, const void **out);

/*
 * Copies `len` bytes from `offset` on to `to`, without mapping the snapshot.
 *
 * HF_E_OUT_OF_RANGE. HF_E_REVOKED: a part of the range was revoked; the contents of `to` are
 * undefined. HF_E_FORKED_CHILD.
 */
int hf_snapshot_read_at(const hf_snapshot *snapshot, size_t offset, void *to, size_t len);

/*
 * Writes a range to a descriptor, in pieces of up to 1 MiB that it copies first, without
 * mapping the snapshot. It continues after signals. `done` gets the number of bytes written,
 * also if the call fails; it may be NULL.
 *
 * HF_E_SYSTEM: hf_last_errno() is the error of write(2). HF_E_BAD_VALUE: a negative descriptor.
 * HF_E_OUT_OF_RANGE, HF_E_REVOKED, HF_E_FORKED_CHILD.
 */
int hf_snapshot_write_to(const hf_snapshot *snapshot, int fd, size_t offset, size_t len,
                         size_t *done);

/*
 * 1 if a part of the snapshot was revoked, 0 if not. That happens when the pool is full and the
 * parent writes to a block that both share, unless the snapshot was made with HF_RESERVE_FULL.
 * A read of that part by address raises SIGBUS and never returns zeros; hf_snapshot_read_at
 * returns HF_E_REVOKED. If the pool may run out, call this function AFTER using bytes that were
 * read by address.
 */
int hf_snapshot_is_revoked(const hf_snapshot *snapshot);

/*
 * Makes a region with the contents of this snapshot. `options` may be NULL.
 *
 * Errors as for hf_region_fork.
 */
int hf_snapshot_fork(const hf_snapshot *snapshot, const hf_region_options *options,
                     hf_region **out);

/* -------------------------------------------------------------------- Heaps */

/*
 * Makes a heap of `len` bytes, or of 256 KiB if that is more: a region with an allocator, for
 * data that are full of pointers. All that the allocator knows lies in the region, too. So a
 * snapshot has the data and the allocator, a reset takes both back, and a child of fork(2) goes
 * on with both in memory of its own. `len` must be a multiple of the block size. The heap takes
 * memory from the pool as it is used, and keeps freed memory for its own later use. A write that
 * finds the pool full raises SIGBUS, as in any region: give the pool twice the memory that the
 * heap uses, and the memory that snapshots will hold.
 *
 *     hf_heap *heap;
 *     hf_region *region;
 *     hf_snapshot *saved;
 *     struct node *first;
 *     if (hf_heap_create(pool, (size_t)64 << 20, &heap) != 0 ||
 *         hf_heap_region(heap, &region) != 0 ||
 *         (first = hf_heap_alloc(heap, sizeof *first, _Alignof(struct node))) == NULL)
 *         exit(1);
 *     first->value = 1;
 *     hf_region_snapshot(region, NULL, &saved);
 *     first->value = 2;
 *     hf_region_reset_to(region, saved, NULL);
 *
 * The value is 1 again, and the allocator is as it was, too.
 *
 * Errors as for hf_region_create. HF_E_POOL_FULL.
 */
int hf_heap_create(hf_pool *pool, size_t len, hf_heap **out);

/*
 * Closes a heap; NULL is allowed. Its memory goes back to the pool at once, or when the last
 * handle of its region is closed. After the call nothing in the heap may be used: destroy the
 * objects in it before, or forget them.
 */
void hf_heap_close(hf_heap *heap);

/*
 * Stores a new handle of the heap's region, which the program must close. It serves for
 * hf_region_snapshot, hf_region_reset_to, hf_fork_with, hf_region_address, hf_region_get_stats
 * and so on. Do not discard or lazily free parts of the region, and do not read files into it,
 * except into allocated memory.
 *
 * A SNAPSHOT is mapped at other addresses than the heap. Do not follow pointers there: they
 * point to the live heap. Look at the past in a child (hf_fork_with), or after a reset.
 *
 * After a RESET, pointers into the heap are valid if the snapshot has memory allocated there;
 * the bytes are those of the snapshot. So allocate a root before the first snapshot, and reach
 * all else from there. No thread may use the heap's contents during the call, except inside an
 * operation (hf_heap_operations) in which it begins at the root. Memory
 * outside of the heap does not go back: an object there that owns memory in the heap must not be
 * used afterwards, nor freed, unless it has not changed since the snapshot. An object in the heap
 * that owns something outside, such as a file or memory of malloc(3), must have owned it at the
 * snapshot, too.
 */
int hf_heap_region(const hf_heap *heap, hf_region **out);

/*
 * Stores a new handle of the heap's operations, which the program must close. Each allocation
 * and each release is an operation. Enter it (hf_operations_enter) around several writes, so
 * that a snapshot, reset or fork on another thread has all of them or none. A thread inside
 * can allocate and free. It serves other regions that are written together with the heap
 * (hf_region_set_operations), too.
 */
int hf_heap_operations(const hf_heap *heap, hf_operations **out);

/*
 * Allocates `size` bytes at a multiple of `alignment`, which must be a power of two. The bytes
 * are undefined. Any thread may call it, but no signal handler. Up to 8 KiB take constant time;
 * one thread for each 8 MiB of the heap but the first, and at most 63, need no lock for them.
 * Works in a child that has the heap. For a `size` of 0 the result is not NULL, and is no memory.
 *
 * Returns NULL for a bad alignment or handle, and if the heap has no room: hf_last_errno() is
 * ENOMEM then. There may still be room for another size.
 */
void *hf_heap_alloc(hf_heap *heap, size_t size, size_t alignment);

/*
 * Frees memory of hf_heap_alloc, with the size and alignment of that call; NULL is allowed. Any
 * thread may free it. Anything else is undefined, as with free(3).
 */
void hf_heap_free(hf_heap *heap, void *at, size_t size, size_t alignment);

/* ------------------------------------------------------------------ Changes */

/* The granularity of changes. */
enum hf_changes_by {
    /* Blocks that may differ. No bytes are compared: a block that was written to is included
     * even if its bytes are the same. Everything outside these blocks is unchanged. Takes some
     * nanoseconds for each block of the region; if pages were copied singly
     * (HF_COPY_GRAIN_PAGE), 15 us for each 128 MiB and 0.2 us for each such page. */
    HF_CHANGES_BY_BLOCK = 0,
    /* Pages of 4 KiB whose bytes differ: all of them, and no others. It takes the time of
     * HF_CHANGES_BY_BLOCK, and that of comparing the found memory at the speed of memcmp(3).
     * For a region and its last snapshot it compares single pages where single pages were
     * copied; for two snapshots it compares blocks. */
    HF_CHANGES_BY_PAGE = 1,
    /* Pages of 4 KiB that may have been written, without comparing bytes. Pages that were
     * written with the bytes that they had are among them, and pages that were read for the
     * first time may be. 10 ns for each page of a region and its last snapshot where the
     * kernel tracks writes (Linux 6.14) and single pages were copied. */
    HF_CHANGES_WRITTEN = 2
};

/*
 * Finds the differences between a region as it is now and an older snapshot of the same pool
 * and length. The snapshot may be any, but for the region's last one, single pages are found
 * without reading others. hf_changes_next returns the ranges one by one:
 *
 *     hf_changes *changes;
 *     size_t offset, len;
 *     int code = hf_region_changed_since(live, saved, HF_CHANGES_BY_PAGE, &changes);
 *     if (code == 0) {
 *         while ((code = hf_changes_next(changes, &offset, &len)) > 0)
 *             printf("%zu bytes from %zu on\n", len, offset);
 *         hf_changes_close(changes);
 *     }
 *     if (code < 0)
 *         fprintf(stderr, "%s\n", hf_last_error());
 *
 * Other threads may write to the region meanwhile. Each page is compared as it is at some
 * moment during the calls of hf_changes_next, and different pages at different moments. For the
 * changes at one moment, take a snapshot and compare that. A thread whose write faults in the 2
 * MiB (or block, if smaller) under comparison waits, 0.5 ms at most. Lazily freed memory counts
 * with its current bytes.
 *
 * HF_E_ANOTHER_POOL, HF_E_ANOTHER_LENGTH: the two do not match. HF_E_BAD_VALUE: `by` is not an
 * HF_CHANGES_BY_... HF_E_FORKED_CHILD.
 */
int hf_region_changed_since(const hf_region *region, const hf_snapshot *older, int by,
                            hf_changes **out);

/*
 * Like hf_region_changed_since, between two snapshots of the same pool and length. They need
 * not belong to one region, and their order makes no difference. If the pool is full and a
 * write has to revoke a block of one of the two, the write waits until that block is compared,
 * 0.5 ms at most.
 *
 * Errors as for hf_region_changed_since.
 */
int hf_snapshot_changed_since(const hf_snapshot *snapshot, const hf_snapshot *older, int by,
                              hf_changes **out);

/*
 * Finds the next range that differs. Returns 1 and the range's offset and length in bytes; or
 * 0, and zeros, at the end. Ranges are returned by ascending offset, and neighbours are merged.
 * If several threads call it, each gets other ranges.
 *
 * HF_E_REVOKED: a part of either was revoked; the search ends there, and further calls return
 * 0. HF_E_FORKED_CHILD.
 */
int hf_changes_next(hf_changes *changes, size_t *offset, size_t *len);

/*
 * Closes changes, at the end or before; NULL is allowed. Until then they keep the compared
 * region and snapshots alive, even if those are closed first.
 */
void hf_changes_close(hf_changes *changes);

/* -------------------------------------------------------- For other processes */

/*
 * Exports a snapshot to other processes without copying it: makes a descriptor, and a list of
 * extents that maps the bytes of the snapshot to offsets of the descriptor's file. Another
 * process gets the descriptor like any other (inherited, or over a Unix socket) and the list as
 * text. It maps the snapshot by hf_import_map, or without hugefork by mmap(2), MAP_PRIVATE and
 * the offsets of each extent. So many processes share the memory of one snapshot, which may be
 * closed. Takes some 80 us, some nanoseconds for each block, and 0.2 us for each extent.
 *
 * A page that the snapshot holds in place of a page of a shared block is an extent of its own,
 * and splits its block into further extents, so it adds two. A mapping for each would soon
 * exceed the process's limit: hf_import_map maps the blocks, and copies single pages. A program
 * without hugefork can do the same, or read with pread(2).
 *
 * The export holds the blocks and pages of the snapshot until it is closed. After that they may
 * be overwritten, and processes that still map them see the new bytes; nothing worse happens to
 * them. If this process ends first, the memory does not change as long as any process has the
 * descriptor or maps it. An export is never revoked: if the pool is full and a write needs a
 * block that an export holds, the write fails. With HF_COPY_GRAIN_AUTO and single pages the
 * write succeeds by copying a page.
 *
 * The descriptor is read-only. No process can use it to write, to map writable and shared, to
 * punch holes, or to change the length; and it cannot be reopened for writing (mode 0444). But
 * it gives access to ALL memory of the pool: other regions, and old contents of free blocks. So
 * use one pool for each trust domain, or hf_snapshot_export_copy. Root, and processes of the
 * user who built the pool, can change the mode and then write.
 *
 * HF_E_NOT_EXPORTABLE: `exports` of the pool was 0, /proc is not mounted, or the process has no
 * descriptor left. HF_E_REVOKED: a part was revoked. HF_E_FORKED_CHILD.
 */
int hf_snapshot_export(const hf_snapshot *snapshot, hf_export **out);

/*
 * Like hf_snapshot_export, but of a copy. It gives access to nothing else, and no process can
 * ever change it, not even root (F_SEAL_WRITE, fcntl(2)). It takes memory of its own in pages
 * of 4 KiB (none for pages of zeros) and some 0.3 s for each GiB, and holds no block of the
 * pool.
 *
 * HF_E_REVOKED: a part was revoked. HF_E_SYSTEM: the machine has too little memory,
 * RLIMIT_FSIZE is too low, or no descriptor is left. HF_E_FORKED_CHILD.
 */
int hf_snapshot_export_copy(const hf_snapshot *snapshot, hf_export **out);

/*
 * Closes an export and its descriptor; NULL is allowed. Close it only when the other processes
 * are done, because the memory that they map may change afterwards.
 */
void hf_export_close(hf_export *exported);

/*
 * The descriptor. It belongs to the export and is closed with it, and by exec, too (O_CLOEXEC):
 * pass a dup2(2) of it to a child that calls exec.
 */
int hf_export_fd(const hf_export *exported);

/*
 * The list of extents as text, for hf_import_map. Valid until the export is closed. Lines end
 * in newlines; numbers are decimal, in bytes:
 *
 *     hugefork-extents 1
 *     length 4294967296
 *     page 4096
 *     extent 0 10485760 2097152
 *     extent 4194304 16777216 2147483648
 *     end 2
 *
 * `length` is that of the snapshot, and `page` divides all other numbers. Each `extent` has an
 * offset in the snapshot, an offset in the file, and a length. `end` has the number of extents.
 *
 * A page that the snapshot holds in place of a page of a shared block takes two lines of some
 * 30 bytes each. An argument of a command line, or an environment variable, can have 128 KiB:
 * pass longer texts in a file or a pipe.
 */
const char *hf_export_extents(const hf_export *exported);

/*
 * Stores the extent with this number, from 0 on: `len` bytes at `offset` of the snapshot lie at
 * `file_offset` of the descriptor's file. Returns 1; or 0, and zeros, for a number past the
 * last extent. Extents are sorted by offset, and bytes outside of all extents are zeros.
 */
int hf_export_extent(const hf_export *exported, size_t nth, size_t *offset,
                     size_t *file_offset, size_t *len);

/* The length of the snapshot. */
size_t hf_export_len(const hf_export *exported);

/*
 * The divisor of all numbers of extents, and of the addresses at which they can be mapped:
 * 4096, or the size of a hugetlb page.
 */
size_t hf_export_page_size(const hf_export *exported);

/* Stores a new handle of the snapshot's pool, which the program must close. */
int hf_export_pool(const hf_export *exported, hf_pool **out);

/*
 * Maps another process's export: `fd` is the export's descriptor, which may be closed
 * afterwards, and `extents` its list as text. Uses one mapping and some 2 us for each extent
 * and for each gap between two of them, and no memory. Single pages between parts of a block
 * are copied instead, each in some 6 us to 4 KiB of this process's memory. Needs no pool. Works
 * in children of fork(2).
 *
 * HF_E_BAD_EXTENTS: the text is not from hf_export_extents. HF_E_NOT_AN_EXPORT: the
 * descriptor's file is not sealed against shrinking, does not contain all extents, or has
 * larger pages. (A tmpfs file that cannot be sealed, such as that of a
 * HF_GRANTED_SHMEM_OWN_TMPFS pool, is mapped nevertheless: its owner can shrink it, and
 * hf_import_read_at returns an error then.) HF_E_OUT_OF_MEMORY: a hugetlb file has a missing
 * page, and none is left. HF_E_TOO_MANY_MAPPINGS: vm.max_map_count or RLIMIT_AS.
 * HF_E_BAD_VALUE: a negative descriptor. HF_E_SYSTEM.
 */
int hf_import_map(int fd, const char *extents, hf_import **out);

/* Closes an import; NULL is allowed. Its addresses must not be used any more. */
void hf_import_close(hf_import *imported);

/*
 * The address of the first byte, aligned to 2 MiB, or to hf_export_page_size if that is larger.
 * Valid for reads and writes of hf_import_len bytes until the import is closed. A written page
 * is copied, and only this process sees the write.
 *
 * The exporting process does not change the memory until it closes its export. From then on,
 * bytes that this process has not written to may change, unless hf_import_is_sealed. If the
 * exporter's pool has hugetlb pages, a write takes a whole reserved page of the system, and
 * raises SIGBUS if none is left. A read raises SIGBUS if the exporter has freed that memory
 * since, or if the owner of the file has shrunk it. hf_import_read_at never raises SIGBUS.
 */
void *hf_import_address(const hf_import *imported);

/* Its length, which is that of the snapshot. */
size_t hf_import_len(const hf_import *imported);

/*
 * Copies `len` bytes from `offset` on to `to`. If the exporter could take the memory away, the
 * call uses process_vm_readv(2), which reports that.
 *
 * HF_E_OUT_OF_RANGE. HF_E_OUT_OF_MEMORY: the memory was taken away; the contents of `to` are
 * undefined. HF_E_SYSTEM. HF_E_NULL: `to`, unless `len` is 0.
 */
int hf_import_read_at(const hf_import *imported, size_t offset, void *to, size_t len);

/* 1 if no process can ever change it, as with hf_snapshot_export_copy; otherwise 0. */
int hf_import_is_sealed(const hf_import *imported);

#ifdef __cplusplus
}
#endif

#endif
