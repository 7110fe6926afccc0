/*
 * hugefork: memory regions of gigabytes on huge pages, which fork and snapshot
 * within a fraction of a millisecond while all threads go on writing.
 *
 * Linux 5.14 or newer (6.1 for huge pages without any setting, 6.7 for copies of
 * single pages) on x86-64. C99 or newer, C++11 or newer.
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
 * The snapshot took microseconds, and still has the zeros that the region began with.
 *
 * These rules hold for every function; what is special stands at the function.
 *
 * UNITS. Sizes, lengths and offsets are bytes. A range is an offset and a length,
 * and has to lie inside of its region or snapshot. Lengths of regions and pools are
 * multiples of the pool's block size (by default 2 MiB), to which regions and
 * snapshots are aligned, too. Ranges need no alignment. Times are nanoseconds.
 *
 * RESULTS. A function that returns `int` returns 0 for success, or a negative code
 * HF_E_... for failure; those that answer a question return the answer, which is not
 * negative. Functions that return an address or a size return NULL or 0 for failure.
 * After a failure hf_last_error() says what happened and what to do about it.
 * Nothing has changed then, except where the function says so. A parameter `out`
 * gets NULL if the call fails. What may be NULL says so, and so may be an array or a
 * buffer of length 0; anything else that is NULL is HF_E_NULL, or HF_E_BAD_HANDLE if
 * it is a handle.
 *
 * HANDLES are opaque. Each is the program's until it closes it, once; to close
 * NULL does nothing. They may be closed in any order, since each keeps alive what
 * it needs: a region its pool, a pin the memory of its region, changes what they
 * compare, a snapshot, a fork and an export the blocks that they share. A handle
 * that is closed, one of another type, and a pointer that never was one are
 * HF_E_BAD_HANDLE, whatever they point to; to close such a one changes nothing, and
 * hf_last_error() says why. Only when a thousand other handles were closed since may
 * a closed one be taken for a new one. To close a handle while another thread is in a
 * call with it is undefined, as with free(3), and so is the use of addresses that
 * belonged to a closed one.
 *
 * STRUCTS begin with their size, so that they can grow in later releases: set
 * `size` to sizeof, and use the macro HF_..._INIT where there is one. Programs that
 * were built against an older header go on working. Options of a newer header that
 * the library does not know are HF_E_BAD_STRUCT, unless they are zero.
 *
 * STRINGS that functions return belong to the library. Strings and structs that a
 * program hands in are copied and may go away after the call.
 *
 * THREADS. Any function may be called from any thread, and several threads may use
 * one handle at once. As with any memory, the program sees to it that no two
 * threads write to the same bytes at once.
 *
 * SIGNALS. A signal handler may call hf_errno and hf_error_name, and nothing else
 * of hugefork. It may read regions, and write to what is pinned. It must not write
 * elsewhere in a region: it may have interrupted a thread inside of hugefork. A
 * thread that blocks SIGSEGV, as threads of many servers block all signals, ends the
 * process at its first write to a block, and nobody can say why. Before it writes:
 *     sigemptyset(&set); sigaddset(&set, SIGSEGV);
 *     pthread_sigmask(SIG_UNBLOCK, &set, NULL);
 * A thread that makes a region or fork has it unblocked from then on. The first pool
 * installs a SIGSEGV handler, which passes on to the one before it what is not
 * hugefork's; hf_reinstall_handler is for the other order. Alternate signal stacks
 * have to have room for the handler: 5 KiB besides what the kernel puts there.
 *
 * SNAPSHOTS are one moment of every thread's WRITES. Of an operation that takes several,
 * such as a put of a key and a value, a snapshot may have the first and lack the second:
 * hf_operations keep that away.
 *
 * FORK(2). Regions and snapshots stay with their process: in a child of fork(2)
 * nothing is at their addresses, functions return HF_E_FORKED_CHILD, and closing a
 * handle does nothing to the parent. A child that calls exec is like any other.
 * Exports and imports are for children, too: the descriptor of an export is open
 * there, and an import is as other memory, of which a child has a copy.
 *
 * SYSTEM CALLS that read from a region always work. One that writes to a block
 * which is not writable yet fails with EFAULT: use hf_region_read_from, pin the
 * range, or, while nobody forks, snapshots or resets the region, call
 * hf_region_prepare_write. HF_COPY_GRAIN_PAGE says where it does not fail. Where
 * something writes past the page table (O_DIRECT, io_uring with registered buffers,
 * RDMA, process_vm_writev), nothing may fail, and what it writes to a range that forks
 * and snapshots share can be lost: pin the range.
 *
 * A WRITE THAT CANNOT BE GIVEN MEMORY (the pool is full, the machine's memory is
 * used up) gets SIGBUS at its address, after one line on standard error that says
 * why. When a SIGBUS handler returns, the write is tried again; another thread may
 * have made room by then.
 *
 * MAPPINGS at the addresses of regions and snapshots are hugefork's: read and write
 * there, and change nothing by madvise, mprotect, mremap, munmap or mmap with
 * MAP_FIXED. The kernel refuses little of it. MADV_DONTNEED and MADV_GUARD_INSTALL
 * lose what was written after a snapshot, MADV_REMOVE makes zeros of snapshots and
 * forks, MADV_DOFORK gives children memory that changes, and a protection is gone with
 * the next snapshot or first write. An allocator gives memory back by
 * hf_region_discard in place of MADV_DONTNEED or MADV_REMOVE, and by
 * hf_region_lazy_free in place of MADV_FREE. mlock, MADV_WILLNEED, MADV_COLD,
 * MADV_PAGEOUT and MADV_POPULATE_READ harm nothing.
 *
 * MALLOC. The library keeps handles and texts in memory of malloc(3), and what the
 * fault handler uses in memory of its own. So the program's heap may lie in a
 * region.
 *
 * C++. Functions of the program that the library calls must not throw, and no such
 * function may leave by longjmp.
 */
#ifndef HUGEFORK_H
#define HUGEFORK_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this header. hf_version() is that of the library. */
#define HF_VERSION "0.1.0"
#define HF_VERSION_MAJOR 0
#define HF_VERSION_MINOR 1
#define HF_VERSION_PATCH 0

/* A size that says "none", or in statistics "the kernel does not tell". */
#define HF_NONE SIZE_MAX
/* A time that never ends. */
#define HF_FOREVER UINT64_MAX

/* Memory in blocks of one size, of which regions are made. */
typedef struct hf_pool hf_pool;
/* Memory that is zero at first, and whose write faults hugefork resolves. */
typedef struct hf_region hf_region;
/* A region as it was at one moment, which nobody can write to. */
typedef struct hf_snapshot hf_snapshot;
/* A range of a region that stays where it is. */
typedef struct hf_pin hf_pin;
/* Ranges in which a region or snapshot differs from an older snapshot. */
typedef struct hf_changes hf_changes;
/* A snapshot that other processes can map. */
typedef struct hf_export hf_export;
/* Memory of this process that shows what another has exported. */
typedef struct hf_import hf_import;
/* Several writes each, of which a fork, snapshot or reset has all or none. */
typedef struct hf_operations hf_operations;

/* ------------------------------------------------------------------- Errors */

/*
 * What went wrong. Numbers and names never change. The hundreds are 0 for what was
 * asked, 1 for what is used up, 2 for the state of a region, 3 for the machine;
 * -2001 and below are for what only goes wrong in C.
 */
enum hf_error {
    HF_E_NOT_A_BLOCK_SIZE = -1001,    /* no power of two from 4 KiB to 1 GiB */
    HF_E_ZERO_SIZE = -1002,           /* a size of zero bytes */
    HF_E_NOT_A_MULTIPLE = -1003,      /* no whole number of blocks */
    HF_E_UNREADABLE_SIZE = -1004,     /* text that is no size */
    HF_E_UNKNOWN_BACKING = -1005,     /* text that names no backing */
    HF_E_TOO_MANY_BLOCKS = -1006,     /* more blocks than a pool can have */
    HF_E_LARGER_THAN_POOL = -1007,    /* a region that is larger than its pool */
    HF_E_OUT_OF_RANGE = -1008,        /* a range that does not lie inside */
    HF_E_NOT_A_VIEW = -1009,          /* not used in C */
    HF_E_LIMIT_ON_SNAPSHOT = -1010,   /* a limit on copies for a snapshot, which has none */
    HF_E_BAD_SETTING = -1011,         /* an environment variable with an impossible value */
    HF_E_BAD_KERNEL = -1012,          /* HUGEFORK_KERNEL names what this machine lacks */
    HF_E_ANOTHER_POOL = -1013,        /* a snapshot of another pool */
    HF_E_ANOTHER_LENGTH = -1014,      /* a snapshot of another length */
    HF_E_BAD_EXTENTS = -1015,         /* text that lists no extents of a snapshot */
    HF_E_NOT_AN_EXPORT = -1016,       /* a descriptor that is not of an export, or of another */
    HF_E_ANOTHER_OPERATIONS = -1017,  /* not those of the region, or of others in its cut */
    HF_E_BEYOND_THE_MACHINE = -1101,  /* more memory than the machine or container has */
    HF_E_OUT_OF_MEMORY = -1102,       /* the machine has no memory left */
    HF_E_OUT_OF_ADDRESSES = -1103,    /* no addresses are left */
    HF_E_TOO_MANY_MAPPINGS = -1104,   /* more mappings than vm.max_map_count allows */
    HF_E_POOL_FULL = -1105,           /* the pool has no free block */
    HF_E_NOT_RESERVABLE = -1106,      /* the pool has too few blocks to reserve */
    HF_E_TOO_MANY_PINS = -1108,       /* a block has 255 pins already */
    HF_E_REVOKED = -1201,             /* part of a fork or snapshot was taken away */
    HF_E_ALREADY_OBSERVED = -1202,    /* the region has an observer */
    HF_E_FORKED_CHILD = -1203,        /* a fork(2) child, which has no regions */
    HF_E_INSIDE_OPERATION = -1205,    /* a cut inside an operation, which it would wait for */
    HF_E_OPERATION_GOES_ON = -1206,   /* an operation took longer than a cut waits */
    HF_E_BACKING_UNAVAILABLE = -1301, /* the machine lacks the backing asked for */
    HF_E_PRESSURE_UNWATCHED = -1302,  /* memory pressure cannot be watched */
    HF_E_SYSTEM = -1303,              /* the kernel refused a call: hf_last_errno() */
    HF_E_NOT_EXPORTABLE = -1304,      /* the pool's memory cannot be opened for reading only */
    HF_E_BAD_HANDLE = -2001,          /* NULL, closed, of another type, or no handle */
    HF_E_NULL = -2002,                /* a null pointer where there has to be something */
    HF_E_BAD_STRUCT = -2003,          /* a size that cannot be, or options not known */
    HF_E_BAD_VALUE = -2004,           /* a number that is no constant, options that disagree */
    HF_E_PANIC = -2005                /* a defect of hugefork: report the text and stderr */
};

/*
 * What the last failure on this thread was, and what to do about it: one line, no
 * newline; "" before the first. A success leaves it as it is. Never NULL. The text
 * stays until the next failure on this thread, or the end of the thread.
 */
const char *hf_last_error(void);

/*
 * The errno of the last failure on this thread. For HF_E_SYSTEM it is the kernel's
 * own answer, such as EAGAIN, EBADF or ENOSPC; for others it is hf_errno of the
 * code. 0 before the first failure.
 */
int hf_last_errno(void);

/*
 * The name of a code, such as "pool_full"; "ok" for 0, "unknown" for what is no
 * code. Static. May be called from signal handlers and children of fork(2).
 */
const char *hf_error_name(int code);

/*
 * The errno that comes closest to a code; 0 for 0, EIO for what is no code. May be
 * called from signal handlers and children of fork(2).
 */
int hf_errno(int code);

/* The version of the library: "0.1.0". Static. */
const char *hf_version(void);

/*
 * Puts hugefork's SIGSEGV handler on top again. Call it after something has
 * installed one that does not pass on faults that it does not know. That handler
 * still gets the faults that are not hugefork's. Does nothing if hugefork's is on
 * top already, or in a child of fork(2).
 *
 * HF_E_SYSTEM: the answer of sigaction(2), or ENOSPC if other handlers have come on
 * top more than sixty times.
 */
int hf_reinstall_handler(void);

/* -------------------------------------------------------------------- Pools */

/* What a pool's memory should be made of. */
enum hf_backing {
    HF_BACKING_AUTO = 0,       /* the best that the machine allows now */
    HF_BACKING_HUGETLB = 1,    /* pages reserved by the administrator (vm.nr_hugepages) */
    HF_BACKING_SHMEM_HUGE = 2, /* shmem huge pages, which need no setting */
    HF_BACKING_SHMEM_BASE = 3  /* shmem pages of 4 KiB */
};

/* What a pool's memory is made of. */
enum hf_granted {
    HF_GRANTED_HUGETLB = 1,         /* reserved huge pages */
    HF_GRANTED_SHMEM_HUGE = 2,      /* huge pages that the kernel makes at first touch */
    HF_GRANTED_SHMEM_COLLAPSED = 3, /* huge pages by MADV_COLLAPSE, 0.2 ms each */
    HF_GRANTED_SHMEM_BASE = 4,      /* pages of 4 KiB */
    HF_GRANTED_SHMEM_OWN_TMPFS = 5  /* as 2, in a tmpfs of the pool's own: no setting allows them */
};

/* Whether a pool may be built of something else than was asked for. */
enum hf_fallback {
    HF_FALLBACK_ALLOWED = 0, /* take the next best; hf_pool_fallback_reason says why */
    HF_FALLBACK_REFUSED = 1  /* fail with HF_E_BACKING_UNAVAILABLE */
};

/* When a pool gets its memory from the system. */
enum hf_commit {
    HF_COMMIT_ON_DEMAND = 0, /* when a block is first used, or shortly before */
    HF_COMMIT_UPFRONT = 1    /* all of it at once, 240 to 300 ms for each GiB */
};

/*
 * Whether a core dump has the contents of regions. Where it has not, gdb may show zeros in
 * their place: to look at regions in dumps, include them.
 */
enum hf_core_dump {
    HF_CORE_DUMP_LEFT_OUT = 0,
    HF_CORE_DUMP_INCLUDED = 1 /* 1 us more for each fault */
};

/* Whether the system may swap a pool's memory out. hugetlb pages never are. */
enum hf_swap {
    HF_SWAP_ALLOWED = 0,
    HF_SWAP_REFUSED = 1 /* a tmpfs mounted noswap (CAP_SYS_ADMIN, Linux 6.4) or hugetlb;
                         * else as HF_FALLBACK_... says. Pages that a write has copied
                         * may be swapped until they are written back into blocks */
};

/* What a pool is to be. Zero is the default of every field but `capacity`. */
typedef struct hf_pool_options {
    /* sizeof(hf_pool_options). */
    size_t size;
    /* The name in messages; control characters become `?`. NULL: "unnamed". */
    const char *name;
    /* The most bytes that the pool may have: a multiple of the block size. */
    size_t capacity;
    /* The unit in which memory is given, cleared and copied: a power of two from
     * 4 KiB to 1 GiB. 0: 2 MiB. */
    size_t block_size;
    /* HF_BACKING_... */
    int backing;
    /* HF_FALLBACK_... */
    int fallback;
    /* HF_COMMIT_... */
    int commit;
    /* HF_CORE_DUMP_... */
    int core_dump;
    /* How many bytes of free blocks at most get their memory before a snapshot uses
     * them, by a thread of the pool, while pages are written that the next snapshot may
     * have to hold. It gives them back when nothing was written for a second. 0:
     * 128 MiB, and none in pools below 128 MiB. HF_NONE: none. Without effect with
     * HF_COMMIT_UPFRONT. */
    size_t obtain_ahead;
    /* A thread clears used blocks in the background when less than `zeroed_low`
     * bytes of free blocks are zero, until `zeroed_high` bytes are, with at most so
     * many per cent of one CPU (1 to 100; 0: 25). All three 0: no such thread. */
    size_t zeroed_low;
    size_t zeroed_high;
    int zeroed_cpu_percent;
    /* 1: memory goes back to the system when the system is short of it, first that
     * of free blocks, then what was lazily freed. Pages that writes copied go back
     * into blocks that nobody else holds any more, and no block is copied because
     * many of its pages are. 0: it does not, and the four fields below have to be 0.
     * Where pressure cannot be watched, and for hugetlb, the pool says so on standard
     * error and works without. */
    int reclaim_under_pressure;
    /* The PSI file to watch. NULL: that of the process's control group or, if that
     * is not possible, /proc/pressure/memory. */
    const char *pressure_file;
    /* Memory is short if a task waited for it for so many microseconds within so
     * many. Both 0: 150 000 within 2 000 000. The kernel takes windows of 0.5 to
     * 10 s, but only 2, 4, 6, 8 and 10 s without CAP_SYS_RESOURCE. */
    uint64_t pressure_stall_us;
    uint64_t pressure_window_us;
    /* How many bytes go back before it looks again. 0: 64 MiB. */
    size_t pressure_step;
    /* HF_SWAP_... */
    int swap;
    /* 1: hf_snapshot_export works, and the pool keeps a descriptor of its memory, for
     * reading. 0: it keeps none (but of hugetlb, for reading and writing). */
    int exports;
} hf_pool_options;

#define HF_POOL_OPTIONS_INIT \
    { sizeof(hf_pool_options), NULL, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, NULL, 0, 0, 0, 0, 0 }

/*
 * Builds a pool. The first one of a process also installs the SIGSEGV handler, and
 * measures for some 7 ms how blocks are cleared and copied fastest. Takes 240 to 300 ms
 * for each GiB with HF_COMMIT_UPFRONT.
 *
 * HF_E_ZERO_SIZE, HF_E_NOT_A_MULTIPLE, HF_E_NOT_A_BLOCK_SIZE, HF_E_TOO_MANY_BLOCKS:
 * the sizes cannot be. HF_E_BEYOND_THE_MACHINE: the machine or container has less.
 * HF_E_BACKING_UNAVAILABLE: with HF_FALLBACK_REFUSED, or if nothing is to be had.
 * HF_E_OUT_OF_ADDRESSES: RLIMIT_AS is too low. HF_E_OUT_OF_MEMORY: with
 * HF_COMMIT_UPFRONT. HF_E_BAD_SETTING: of HUGEFORK_KERNEL or HUGEFORK_WINDOW.
 * HF_E_SYSTEM. HF_E_FORKED_CHILD: the process is a child of one that has pools.
 * HF_E_NULL, HF_E_BAD_STRUCT, HF_E_BAD_VALUE: the options.
 */
int hf_pool_create(const hf_pool_options *options, hf_pool **out);

/*
 * Closes a handle; NULL is allowed. The pool's memory goes back to the system when
 * its last handle, region, snapshot and pin is closed; that waits for its threads.
 */
void hf_pool_close(hf_pool *pool);

/* The name in messages. Stays until the handle is closed. */
const char *hf_pool_name(const hf_pool *pool);

/* The size of its blocks. */
size_t hf_pool_block_size(const hf_pool *pool);

/* The bytes of all of its blocks together. */
size_t hf_pool_capacity(const hf_pool *pool);

/*
 * What the machine granted: HF_GRANTED_... It was verified in /proc/self/smaps when
 * the pool was built.
 */
int hf_pool_backing(const hf_pool *pool);

/* HF_GRANTED_... in words, such as "shmem-thp"; "unknown" for anything else. Static. */
const char *hf_granted_name(int granted);

/*
 * Why the machine refused a better backing, and what would change that; NULL if it
 * did not. Stays until the handle is closed.
 */
const char *hf_pool_fallback_reason(const hf_pool *pool);

/*
 * 1 if writes to what forks and snapshots share can copy single pages, 0 if they
 * copy blocks: in pools of hugetlb pages, before Linux 6.7, if /proc/self/pagemap
 * cannot be read, or where a private mapping as large as the pool would be more than
 * RLIMIT_DATA or vm.overcommit_memory=2 allow.
 */
int hf_pool_has_page_grain(const hf_pool *pool);

/*
 * Why writes cannot copy single pages; NULL if they can. Stays until the handle is
 * closed.
 */
const char *hf_pool_no_page_grain(const hf_pool *pool);

/* How the pool clears a block, for people. Stays until the handle is closed. */
const char *hf_pool_clear_kernel(const hf_pool *pool);

/* How the pool copies a block, for people. Stays until the handle is closed. */
const char *hf_pool_copy_kernel(const hf_pool *pool);

/*
 * Drops what was lazily freed, oldest first, until it has dropped `bytes` or nothing
 * is left. What is pinned or shared stays. The blocks are free then, and still have
 * their memory, which hf_pool_trim gives back. Takes time in proportion to what it
 * drops. `reclaimed` gets the bytes that were dropped; it may be NULL.
 *
 * HF_E_FORKED_CHILD.
 */
int hf_pool_reclaim(hf_pool *pool, size_t bytes, size_t *reclaimed);

/*
 * Gives the memory of free blocks back to the system. A pool of huge pages gives
 * back whole ones only; hugetlb pages stay. `trimmed` gets the bytes; it may be NULL.
 *
 * HF_E_SYSTEM: some memory may have been given back by then. HF_E_FORKED_CHILD.
 */
int hf_pool_trim(hf_pool *pool, size_t *trimmed);

/* What a pool has, and what its threads did. New fields come at the end. */
typedef struct hf_pool_stats {
    /* Set it to sizeof(hf_pool_stats) before the call. */
    size_t size;
    /* Blocks of the pool. */
    size_t blocks;
    /* Blocks that nobody holds and that are set aside for nobody. */
    size_t blocks_free;
    /* Blocks that nobody holds and that are set aside (HF_RESERVE_FULL). */
    size_t blocks_reserved;
    /* Free blocks that are zero and have memory. */
    size_t blocks_zeroed_free;
    /* Bytes of memory in huge pages now. HF_NONE before Linux 6.7. */
    size_t bytes_huge;
    /* All other bytes of memory, in pages of 4 KiB. HF_NONE before Linux 6.7. */
    size_t bytes_base;
    /* 2 MiB that the kernel refused to make one page of (HF_GRANTED_SHMEM_COLLAPSED). */
    uint64_t not_collapsed;
    /* The thread that gets memory ahead: whether it runs (1 or 0), blocks that it got
     * memory for, its CPU time, blocks that got theirs only when they were used, and
     * how often it stopped for want of memory. */
    size_t supply_running;
    uint64_t supply_blocks_ahead;
    uint64_t supply_time_ns;
    uint64_t supply_blocks_late;
    uint64_t supply_stopped;
    /* The thread that clears used blocks: whether it runs, blocks that it cleared, its
     * CPU time. */
    size_t stock_running;
    uint64_t stock_blocks;
    uint64_t stock_time_ns;
    /* The thread that watches for memory pressure: whether it runs, how often memory
     * was short, bytes of lazily freed contents that it dropped, bytes that it gave
     * back to the system. */
    size_t pressure_running;
    uint64_t pressure_events;
    uint64_t pressure_bytes_reclaimed;
    uint64_t pressure_bytes_trimmed;
    /* Blocks whose release the kernel refused: out of use until the process ends. */
    size_t blocks_leaked;
    /* Regions that live, those that only a pin keeps among them. */
    size_t regions;
    /* Bytes of metadata for the pool's blocks. */
    size_t metadata_bytes;
    /* Mappings that the regions of all pools take, and how many the process may have. */
    size_t mappings;
    size_t mappings_limit;
    /* Blocks whose memory the thread that gets it ahead gave back, because nobody had
     * used any for a second. */
    uint64_t supply_blocks_given_back;
    /* Pages of 4 KiB that snapshots hold over blocks that others hold too, each counted
     * once, and the blocks in use that have these pages. */
    size_t pages_held;
    size_t blocks_of_pages;
    /* Copies of such pages in the process's own memory, made for reads by address. */
    size_t pages_in_views;
} hf_pool_stats;

/*
 * What the faults of a region, or of all regions of a pool, have done. Counts only
 * grow. They are read one after another while faults go on. New fields come at the
 * end.
 */
typedef struct hf_fault_stats {
    /* Set it to sizeof(hf_fault_stats) before the call. */
    size_t size;
    /* First writes: the block was given, zeroed. */
    uint64_t demand_zero;
    /* Writes to a shared block: it was copied. */
    uint64_t copied;
    /* Writes to a block that nobody else held any more: no copy. */
    uint64_t reused;
    /* Writes to a shared block from which on the kernel copies single pages. */
    uint64_t cow_mapped;
    /* Faults whose work another thread had done. */
    uint64_t raced;
    /* Faults that could not be resolved. */
    uint64_t failed;
    /* Blocks that were zero already when they were given. */
    uint64_t blocks_zeroed_before;
    /* Blocks and bytes that hugefork cleared and copied. */
    uint64_t blocks_cleared;
    uint64_t blocks_copied;
    uint64_t bytes_cleared;
    uint64_t bytes_copied;
    /* Forks and snapshots taken. */
    uint64_t snapshots;
    /* Bytes that were lazily freed and then written to or kept. */
    uint64_t bytes_cancelled;
    /* Lazily freed blocks that were dropped. */
    uint64_t blocks_reclaimed;
    /* Blocks taken away from forks and snapshots. */
    uint64_t blocks_revoked;
    /* The longest time, and all time, for which forks and snapshots kept writers
     * waiting. */
    uint64_t longest_pause_ns;
    uint64_t paused_ns;
    /* Pages that the kernel had copied at writes and that went back into blocks, without
     * those that a discard or the end of the region dropped; the blocks that they went
     * into; blocks that were copied in the background because so many of their pages had
     * been. */
    uint64_t pages_written_back;
    uint64_t blocks_written_back;
    uint64_t blocks_promoted;
    /* The time that faults spent in the handler: how many, and what 50, 90, 99, 99.9 and
     * 100 per cent of them do not exceed (at most 25 % too high). */
    uint64_t handler_count;
    uint64_t handler_p50_ns;
    uint64_t handler_p90_ns;
    uint64_t handler_p99_ns;
    uint64_t handler_p99_9_ns;
    uint64_t handler_p100_ns;
    /* How often a region was reset; pages of 4 KiB that had been written since the
     * snapshot and that a reset gave their old bytes back, or dropped where other threads
     * were held meanwhile; blocks in whose place it has shown those of the snapshot. */
    uint64_t resets;
    uint64_t pages_put_back;
    uint64_t blocks_exchanged;
    /* For how long blocks were held that were copied in the background, or into which
     * pages went back: whoever used one waited meanwhile. How often, and what 99 and 100
     * per cent do not exceed (at most 25 % too high). 0 where nobody may be made to wait. */
    uint64_t held_by_promotion_count;
    uint64_t held_by_promotion_p99_ns;
    uint64_t held_by_promotion_p100_ns;
    uint64_t held_by_write_back_count;
    uint64_t held_by_write_back_p99_ns;
    uint64_t held_by_write_back_p100_ns;
} hf_fault_stats;

/*
 * Fills in counts, and bytes of memory. The kernel counts `bytes_huge`
 * for it: 0.04 ms for each GiB in huge pages, 1.6 ms in pages of 4 KiB, and no mapping
 * changes meanwhile.
 *
 * HF_E_BAD_STRUCT: `size` was not set.
 */
int hf_pool_get_stats(const hf_pool *pool, hf_pool_stats *stats);

/*
 * Fills in the faults of all regions that the pool ever had. Takes as long as
 * hf_pool_get_stats.
 *
 * HF_E_BAD_STRUCT: `size` was not set.
 */
int hf_pool_get_fault_stats(const hf_pool *pool, hf_fault_stats *stats);

/* ------------------------------------------------------------------ Regions */

/*
 * Whether blocks are set aside, so that writes cannot find the pool full. FULL sets one aside
 * for each block of a region or fork, and none for a snapshot. Nothing of a fork or snapshot
 * is revoked then.
 */
enum hf_reserve {
    HF_RESERVE_NONE = 0,
    HF_RESERVE_FULL = 1
};

/*
 * What a write copies that finds its block held by a fork or snapshot too.
 *
 * With HF_COPY_GRAIN_PAGE no write to what is shared raises a signal, and system calls
 * that write to what was written before do not fail with EFAULT, but at a moment when
 * pages go back into blocks or a snapshot is taken: see `calls_wait`. A write to what
 * was never written, was discarded or lazily freed is EFAULT as ever. In a region with
 * `max_cow_bytes` or an observer, and where hf_pool_has_page_grain is 0, the first write
 * to what is shared is a fault, too.
 */
enum hf_copy_grain {
    HF_COPY_GRAIN_AUTO = 0, /* what is cheaper, as far as the writes so far tell */
    HF_COPY_GRAIN_PAGE = 1, /* 4 KiB, by the kernel, without a signal: for sparse writes */
    HF_COPY_GRAIN_BLOCK = 2 /* the block: for dense writes */
};

/* How the program will use each block after its first write. */
enum hf_advice {
    HF_ADVICE_UNKNOWN = 0, /* hugefork judges by the recent faults of the region */
    HF_ADVICE_NEAR = 1,    /* what lies near the byte that was written */
    HF_ADVICE_WHOLE = 2    /* all of the block, soon */
};

/* What a region, fork or snapshot is promised and may cost. Zero is the default. */
typedef struct hf_region_options {
    /* sizeof(hf_region_options). */
    size_t size;
    /* HF_RESERVE_... */
    int reserve;
    /* HF_COPY_GRAIN_...; means nothing to a snapshot. */
    int copy_grain;
    /* 1: system calls that write wait while pages that the kernel has copied go back into
     * blocks and while a snapshot is taken, and do not fail with EFAULT. Readers wait,
     * too, for some 0.25 ms. The process has to be allowed to handle the faults of calls:
     * CAP_SYS_PTRACE, vm.unprivileged_userfaultfd=1, or access to /dev/userfaultfd.
     * Without that right they may fail all the same. */
    int calls_wait;
    /* 0. */
    int unused;
    /* The most bytes that forks and snapshots of the region may hold beside it, rounded
     * up to blocks; 0: no limit. A write that would exceed it takes its block away from
     * those without a reservation. Discards, resets and snapshots of pinned blocks may
     * exceed it. */
    size_t max_cow_bytes;
} hf_region_options;

#define HF_REGION_OPTIONS_INIT { sizeof(hf_region_options), 0, 0, 0, 0, 0 }

/*
 * Makes a region of `len` bytes, a multiple of the block size, which reads as zeros.
 * It takes a block from the pool when that is first written to. Regions may together
 * be larger than the pool. `options` may be NULL.
 *
 * HF_E_ZERO_SIZE, HF_E_NOT_A_MULTIPLE, HF_E_LARGER_THAN_POOL: the length.
 * HF_E_NOT_RESERVABLE: with HF_RESERVE_FULL. HF_E_TOO_MANY_MAPPINGS,
 * HF_E_OUT_OF_ADDRESSES: a limit of the process. HF_E_SYSTEM, HF_E_FORKED_CHILD,
 * HF_E_BAD_STRUCT, HF_E_BAD_VALUE.
 */
int hf_region_create(hf_pool *pool, size_t len, const hf_region_options *options, hf_region **out);

/*
 * Closes a region; NULL is allowed. Its memory goes back to the pool, unless pins or
 * changes keep it: then when the last of them is closed. Forks and snapshots keep theirs.
 * Nobody may use its addresses any more, nor be told by its observer.
 */
void hf_region_close(hf_region *region);

/*
 * The first byte, aligned to the block size. Good for reads and writes of
 * hf_region_len bytes until the region is closed, in this process only.
 */
void *hf_region_address(const hf_region *region);

/* Its length. */
size_t hf_region_len(const hf_region *region);

/* Gives a new handle of its pool, which the program closes. */
int hf_region_pool(const hf_region *region, hf_pool **out);

/*
 * Gives every block its memory now, so that no first write faults later. A block that
 * has none takes as long as its first write would.
 *
 * HF_E_POOL_FULL, HF_E_OUT_OF_MEMORY, HF_E_TOO_MANY_MAPPINGS, HF_E_SYSTEM; HF_E_REVOKED
 * if a block of this fork was taken away. What has been done by then stays.
 * HF_E_FORKED_CHILD.
 */
int hf_region_populate(hf_region *region);

/*
 * As hf_region_populate, on up to `threads` threads, at least one. After each 64 MiB, or each
 * block if blocks are larger, one of them calls `progress` with the bytes that are done
 * and with `user`; several may call at once. `progress` may be NULL.
 *
 * As hf_region_populate; the first error ends the work of all threads.
 */
int hf_region_populate_with(hf_region *region, size_t threads,
                            void (*progress)(size_t done, void *user), void *user);

/*
 * Makes all blocks that the range touches writable now, so that a system call can
 * write there. Until the next fork, snapshot or reset of the region no write there fails
 * or comes to hugefork, except for what a full pool takes away from a fork
 * (hf_region_is_revoked). Where single pages can be copied (hf_pool_has_page_grain), what
 * forks and snapshots share is copied by the kernel as it is written: this takes some
 * 0.3 ms for each GiB. Otherwise it is copied here, 0.1 ms for each 2 MiB. Never written
 * blocks get their memory.
 *
 * HF_E_OUT_OF_RANGE, and those of hf_region_populate.
 */
int hf_region_prepare_write(hf_region *region, size_t offset, size_t len);

/*
 * Does now what the next fork or snapshot would do before its pause: pages that were copied
 * since the last one (HF_COPY_GRAIN_PAGE) go into blocks, at about 2 us a page, or 150 us a
 * block that others still hold. Call it right before a lock is taken under which the snapshot
 * is. Others go on writing meanwhile; forks, snapshots and resets of the region wait.
 * Nothing changes but where bytes lie, and it need not be called.
 *
 * HF_E_POOL_FULL, HF_E_OUT_OF_MEMORY, HF_E_TOO_MANY_MAPPINGS, HF_E_SYSTEM,
 * HF_E_FORKED_CHILD: then some pages are left to the next fork or snapshot.
 * HF_E_INSIDE_OPERATION: if the region has operations.
 */
int hf_region_prepare_snapshot(hf_region *region);

/*
 * Drops the contents of a range, which reads as zeros from then on. Blocks that lie
 * wholly inside go back to the pool, unless they are pinned. Forks and snapshots keep
 * what they have. Nobody else may use the range meanwhile. One system call for each
 * 2 GiB.
 *
 * HF_E_OUT_OF_RANGE. Where a block that lies partly inside is shared, it is copied
 * first, with the errors of hf_region_populate; some of the range may be zero by then.
 * HF_E_NOT_RESERVABLE: the range is zero, but blocks could not be set aside again.
 */
int hf_region_discard(hf_region *region, size_t offset, size_t len);

/* What hf_region_lazy_free did. The fields add up to the range. */
typedef struct hf_lazy_freed {
    /* Set it to sizeof(hf_lazy_freed) before the call. */
    size_t size;
    /* Bytes that were lazily freed now. */
    size_t freed;
    /* Nothing to do: never written, dropped, or lazily freed already. */
    size_t already;
    /* Skipped: a fork or snapshot holds the block too. */
    size_t shared;
    /* Skipped: pinned. */
    size_t pinned;
    /* Skipped: part of a block on hugetlb, which cannot be split. */
    size_t indivisible;
    /* Skipped: taken away from this fork. */
    size_t revoked;
    /* Skipped: the ends of the range that do not fill a page of 4 KiB. */
    size_t unaligned;
} hf_lazy_freed;

/*
 * Allows hugefork to drop the contents of a range when memory is short. Until then it
 * reads as before. A write to a block takes the permission back for that block, or for
 * that page of a block that was freed in part, and keeps its contents. What was dropped
 * reads as zeros. Others may use the range meanwhile. Some nanoseconds a block, and
 * one system call for each 2 GiB. `freed` may be NULL.
 *
 * HF_E_OUT_OF_RANGE, HF_E_TOO_MANY_MAPPINGS, HF_E_SYSTEM, HF_E_FORKED_CHILD: some of the
 * range may have been lazily freed by then; nothing is lost. HF_E_BAD_STRUCT: `size` of
 * `freed` was not set; nothing was freed.
 */
int hf_region_lazy_free(hf_region *region, size_t offset, size_t len, hf_lazy_freed *freed);

/*
 * Takes back what hf_region_lazy_free allowed for what is not dropped yet, as a write
 * would. `cancelled` gets the bytes; it may be NULL.
 *
 * HF_E_OUT_OF_RANGE, HF_E_FORKED_CHILD.
 */
int hf_region_cancel_lazy_free(hf_region *region, size_t offset, size_t len, size_t *cancelled);

/*
 * Makes the blocks that the range touches writable and keeps them where they are until
 * the pin is closed: for DMA, for io_uring's fixed buffers, for system calls that write.
 * What is written to pinned pages (4 KiB; of hugetlb, blocks) while a fork, a snapshot or
 * a reset is made may be in it or not, word by word; with writes elsewhere, also to other
 * pages of these blocks, it is of one moment. Only the pinned pages stay writable at
 * every moment: a system call that writes beside them meanwhile fails with EFAULT.
 * A fork or snapshot copies a pinned block at once, 0.1 ms for each 2 MiB. A pin keeps
 * the memory of its region, even if the region is closed before.
 *
 * HF_E_OUT_OF_RANGE, HF_E_TOO_MANY_PINS, and those of hf_region_prepare_write. Nothing
 * is pinned then.
 */
int hf_region_pin(hf_region *region, size_t offset, size_t len, hf_pin **out);

/*
 * Tells how the program will use each block after its first write: HF_ADVICE_... Takes
 * effect at the next fault, in all threads.
 *
 * HF_E_BAD_VALUE.
 */
int hf_region_advise(hf_region *region, int advice);

/*
 * Who is told around every change of the memory behind a region: first write, copy,
 * discard, reclaim, revocation. For programs that hand physical memory to others and
 * must withdraw it before it changes. Any function may be NULL.
 */
typedef struct hf_observer {
    /* sizeof(hf_observer). */
    size_t size;
    /* What the functions are called with. Any thread may call them. */
    void *user;
    /* The memory behind this range is about to change: stop using it. */
    void (*invalidate_start)(size_t offset, size_t len, void *user);
    /* It has changed, or not. Follows every start, on the same thread. */
    void (*invalidate_end)(size_t offset, size_t len, void *user);
    /* The region is gone; nobody is told any more. Called once, on the thread that
     * closed the region or the last that kept it; not in a child of fork(2). */
    void (*release)(void *user);
} hf_observer;

#define HF_OBSERVER_INIT { sizeof(hf_observer), NULL, NULL, NULL, NULL }

/*
 * Has an observer told. A region has one, for good; its forks have none.
 *
 * `invalidate_start` and `invalidate_end` run mostly INSIDE THE SIGSEGV HANDLER, and
 * under locks of hugefork. They may use atomics and write to an eventfd. They must not
 * allocate, lock, call hugefork, or touch a region in a way that faults.
 *
 * HF_E_ALREADY_OBSERVED, HF_E_FORKED_CHILD, HF_E_NULL, HF_E_BAD_STRUCT: the observer was
 * not taken, and is not released. Those of hf_region_prepare_write: what forks and
 * snapshots share by page could not be copied as blocks; the region has its observer all
 * the same, and should be closed.
 */
int hf_region_observe(hf_region *region, const hf_observer *observer);

/* --------------------------------------------------------------- Operations */

/*
 * Makes operations: each is several writes of a thread, between hf_operations_enter and
 * hf_operations_leave. Forks, snapshots and resets ("cuts") of regions that have been given
 * them (hf_region_set_operations) wait until no thread is inside, and have threads that
 * want to enter wait meanwhile, for some microseconds. So a cut has all that an operation
 * writes, or nothing of it. Give one to all regions that an operation writes to.
 *
 * A cut waits `patience_ns` nanoseconds for threads that are inside, 0: ten seconds. Then it
 * fails with HF_E_OPERATION_GOES_ON and has changed nothing; hf_last_error() names the
 * thread. HF_FOREVER: it waits. Cuts that wait for the same thread wait side by side.
 *
 * HF_E_NULL.
 */
int hf_operations_create(uint64_t patience_ns, hf_operations **out);

/* Closes the handle. Regions that have them keep them. No thread may be inside. */
void hf_operations_close(hf_operations *operations);

/*
 * Has forks, snapshots and resets of the region wait for operations. A region has one
 * hf_operations, for good; forks have none at first. To give them again changes nothing.
 * Waits for a cut of the region that is being made, and for no operation.
 *
 * HF_E_ANOTHER_OPERATIONS: the region has others. HF_E_FORKED_CHILD.
 */
int hf_region_set_operations(hf_region *region, hf_operations *operations);

/*
 * Enters an operation: some nanoseconds, and what a cut takes if one is under way. A thread that is
 * inside enters again without waiting, and is outside when it has left as often.
 *
 *  - Leave on the same thread. A thread that ends has left, and so has one that is cancelled.
 *  - Cuts of regions with operations, and hf_region_prepare_snapshot, are called outside:
 *    inside they are HF_E_INSIDE_OPERATION.
 *  - Enter first, then lock: a thread that waits to enter with a mutex held, which others
 *    take inside, waits for ever. Take no cut with such a mutex held.
 *  - Do not block inside: cuts wait, and with them all who want to enter.
 *
 * In a child of fork(2), where there is nothing to be cut, it does not wait.
 */
int hf_operations_enter(hf_operations *operations);

/*
 * Leaves the operation that this thread has entered last.
 *
 * HF_E_BAD_VALUE: it is inside of none.
 */
int hf_operations_leave(hf_operations *operations);

/*
 * 1 if the parent of this fork has taken a part of it away, 0 if not. That happens when
 * the pool is empty and the parent writes to what both share, unless the fork was made
 * with HF_RESERVE_FULL. Any access to that part is SIGBUS, never zeros.
 * hf_region_discard makes it new memory.
 */
int hf_region_is_revoked(const hf_region *region);

/*
 * Makes a copy of the region as it is now, which can be written to. Both share each
 * block until one of them writes to it. Threads that write meanwhile wait: some
 * nanoseconds for each block and one system call. If a write is in the copy, so is every
 * write that happened before it; but it may come between two writes of one operation
 * (hf_region_set_operations keeps it from that). `options` may be NULL.
 *
 * The call itself takes longer where pages were copied since the last one: 2 us a page,
 * while others go on writing. Over a block that other forks or snapshots still hold, a
 * snapshot copies out the pages that were written since the last one; a fork, and a
 * snapshot where a quarter of the block's pages are private, takes 150 us a block.
 *
 * HF_E_TOO_MANY_MAPPINGS, HF_E_OUT_OF_ADDRESSES. HF_E_REVOKED: this region is a fork that
 * has lost a part. HF_E_POOL_FULL, HF_E_OUT_OF_MEMORY: for pinned blocks, or pages to be
 * put back into blocks. HF_E_NOT_RESERVABLE: a fork with HF_RESERVE_FULL. HF_E_SYSTEM,
 * HF_E_FORKED_CHILD, HF_E_BAD_STRUCT, HF_E_BAD_VALUE. HF_E_INSIDE_OPERATION,
 * HF_E_OPERATION_GOES_ON: if the region has operations.
 */
int hf_region_fork(hf_region *region, const hf_region_options *options, hf_region **out);

/*
 * Makes a copy of the region as it is now, which nobody can write to. Like
 * hf_region_fork, but takes no mappings until hf_snapshot_map. `options` may be NULL.
 *
 * It is one moment of every thread's writes, not of what they mean: hf_operations are for
 * those that belong together.
 *
 * Those of hf_region_fork. HF_E_LIMIT_ON_SNAPSHOT: the options have a limit on copies.
 */
int hf_region_snapshot(hf_region *region, const hf_region_options *options, hf_snapshot **out);

/*
 * Gives the region the bytes of a snapshot: all that was written since is gone. It takes
 * time in proportion to what was written: for loops that begin from the same state each
 * time, and for searches that go back to where they have branched. The snapshot stays as it
 * is, and may be any of the same pool and length: a later or an earlier one of this region,
 * or one of its parent or of its forks. What comes from another region's snapshot that
 * region may take back when the pool is full (hf_region_is_revoked), unless this one was
 * made with HF_RESERVE_FULL.
 *
 * Others may write meanwhile. A write either comes before the reset and is gone, or after
 * it and stays; if a write is gone, so is every write that happened before it. For several
 * regions there is hf_region_reset_all. What is pinned stays where it is and gets the old
 * bytes. What was lazily freed is taken back.
 *
 * Pages that were written (HF_COPY_GRAIN_PAGE) get their old bytes back in 0.2 to 0.8 us
 * each if they were written before the last reset, too, and 11 to 19 us if not; the next
 * writes to them take no fault. If the process has other threads, hugefork's own not
 * counted, these are held: 50 us, and 3 to 4 us for each page. Blocks that were copied, discarded
 * or written for the first time take some microseconds for each run of neighbours. Besides, some
 * nanoseconds for each block of the region, and 10 to 50 us for each GiB if pages were copied
 * since the last reset.
 *
 * `done` gets the bytes at the start of the region that are as the snapshot, also if the
 * call fails; it may be NULL.
 *
 * HF_E_ANOTHER_POOL, HF_E_ANOTHER_LENGTH, HF_E_FORKED_CHILD; HF_E_REVOKED if a part of the
 * snapshot was taken away: nothing has changed. HF_E_TOO_MANY_MAPPINGS, HF_E_SYSTEM: each
 * page of 4 KiB is as before or as the snapshot, and another call goes on there.
 * HF_E_NOT_RESERVABLE: all is as the snapshot, but in a region with HF_RESERVE_FULL blocks
 * could not be set aside again.
 */
int hf_region_reset_to(hf_region *region, const hf_snapshot *snapshot, size_t *done);

/*
 * As hf_region_reset_to, of `count` regions at one moment, each to the snapshot at its place
 * in `snapshots`: if a write is gone, so is every write that happened before it, whichever of
 * the regions it went to. Threads that write to any of them wait until all are back. Threads
 * that only read may see one region back before the other. The regions may be of different
 * pools, and several may go to the same snapshot.
 *
 * `done` counts through the regions in their order. Behind it each page of 4 KiB is as before
 * or as the snapshot, but for what others write meanwhile, and another call goes on there.
 *
 * Those of hf_region_reset_to; after HF_E_ANOTHER_POOL, HF_E_ANOTHER_LENGTH and HF_E_REVOKED
 * nothing has changed in any of them. HF_E_NULL. HF_E_BAD_VALUE if a region is named twice.
 */
int hf_region_reset_all(hf_region *const *regions, const hf_snapshot *const *snapshots,
                        size_t count, size_t *done);

/*
 * The id of the snapshot that the region is at: the last that was taken of it, or the one
 * that it was forked from or reset to, whichever came last. A region that was forked from another
 * region is where that was. What was written since makes no difference. 0 for a region
 * that began as zeros and has had no snapshot yet.
 */
uint64_t hf_region_origin(const hf_region *region);

/*
 * Makes snapshots of `count` regions as they are at one moment: if a write is in one of
 * them, so is every write that happened before it, whichever of the regions it went to.
 * `out` has room for `count` handles, which come in the order of `regions`, and are null if
 * the call fails. `options`, which may be NULL, are those of each snapshot.
 *
 * Those of hf_region_snapshot. HF_E_BAD_VALUE also if a region is named twice.
 */
int hf_region_snapshot_all(hf_region *const *regions, size_t count,
                           const hf_region_options *options, hf_snapshot **out);

/* What a region has. New fields come at the end. */
typedef struct hf_region_stats {
    /* Set it to sizeof(hf_region_stats) before the call. */
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
    /* Blocks of which the kernel copies the pages that are written. */
    size_t blocks_cow_mapped;
    /* Pages that the kernel has copied so and that are not back in blocks, of 4 KiB each:
     * memory of the process, not of the pool. 0 if the kernel does not tell. */
    size_t pages_private;
    /* Blocks that are set aside for it. */
    size_t blocks_reserved;
    /* Blocks that were taken away from it. */
    size_t blocks_revoked;
    /* Bytes that were lazily freed and not dropped yet. */
    size_t bytes_lazy;
    /* Bytes that its forks and snapshots alone hold: what `max_cow_bytes` limits. */
    size_t cow_bytes;
    /* Mappings that it takes. */
    size_t mappings;
    /* Bytes of its page table. */
    size_t metadata_bytes;
} hf_region_stats;

/*
 * Fills in what the region has. Some nanoseconds a block.
 *
 * HF_E_BAD_STRUCT: `size` was not set.
 */
int hf_region_get_stats(const hf_region *region, hf_region_stats *stats);

/*
 * Fills in the region's faults.
 *
 * HF_E_BAD_STRUCT: `size` was not set.
 */
int hf_region_get_fault_stats(const hf_region *region, hf_fault_stats *stats);

/*
 * Reads from a descriptor into a range until it is full or the file ends. Other threads
 * may fork and snapshot the region meanwhile: unlike read(2) into a region, this neither
 * fails nor returns early because of it. A call that a signal interrupts is made again.
 * A snapshot that is taken meanwhile has some of the bytes of the range; other pages (of
 * hugetlb, other blocks) are of one moment. `done` gets the bytes that were read, also
 * if the call fails; it may be NULL. Not for
 * descriptors that deliver messages (datagram sockets, eventfd, ...), which lose what
 * could not be copied.
 *
 * HF_E_SYSTEM: hf_last_errno() is the answer of read(2), such as EAGAIN. HF_E_BAD_VALUE:
 * a negative descriptor. HF_E_OUT_OF_RANGE, and those of hf_region_prepare_write.
 */
int hf_region_read_from(hf_region *region, int fd, size_t offset, size_t len, size_t *done);

/*
 * As hf_region_read_from, from byte `file_offset` of a file on, whose position stays
 * where it is (pread(2)).
 */
int hf_region_read_from_at(hf_region *region, int fd, size_t offset, size_t len,
                           uint64_t file_offset, size_t *done);

/*
 * Writes all of a range to a descriptor, without a copy. For the bytes of one moment
 * write a snapshot. `done` gets the bytes that were written, also if the call fails; it
 * may be NULL.
 *
 * HF_E_SYSTEM: hf_last_errno() is the answer of write(2), such as ENOSPC. HF_E_REVOKED:
 * a part that was taken away from this fork is among them. HF_E_BAD_VALUE: a negative
 * descriptor. HF_E_OUT_OF_RANGE; with O_DIRECT, FUSE, 9P and TLS those of hf_region_pin.
 */
int hf_region_write_to(hf_region *region, int fd, size_t offset, size_t len, size_t *done);

/*
 * As hf_region_write_to, to byte `file_offset` of a file on, whose position stays where
 * it is (pwrite(2)).
 */
int hf_region_write_to_at(hf_region *region, int fd, size_t offset, size_t len,
                          uint64_t file_offset, size_t *done);

/* --------------------------------------------------------------------- Pins */

/*
 * Takes the pin off; NULL is allowed. The last pin of a region that is closed gives its
 * memory back. Not in a signal handler.
 */
void hf_pin_close(hf_pin *pin);

/*
 * The first pinned byte. Good for reads, writes, system calls and devices until the pin
 * is closed, also while a fork or snapshot is taken.
 */
void *hf_pin_address(const hf_pin *pin);

/* The offset of the first pinned byte in its region. */
size_t hf_pin_offset(const hf_pin *pin);

/* How many bytes are pinned. The blocks that they touch are pinned as a whole. */
size_t hf_pin_len(const hf_pin *pin);

/* ---------------------------------------------------------------- Snapshots */

/*
 * Closes a snapshot; NULL is allowed. Nobody may use its addresses any more. Blocks that
 * it held alone go back to the pool, unless changes keep it: then when the last of them is
 * closed.
 */
void hf_snapshot_close(hf_snapshot *snapshot);

/* Its length, that of the region that it was made of. */
size_t hf_snapshot_len(const hf_snapshot *snapshot);

/*
 * Tells it from all other snapshots that this process ever takes; never 0. Of two snapshots
 * of one region the later has the greater id. Of two others too, if one was there before the
 * other was asked for. Ids mean nothing to other processes.
 */
uint64_t hf_snapshot_id(const hf_snapshot *snapshot);

/*
 * The id of the snapshot that its region was at when this one was taken (hf_region_origin),
 * which may be closed by now: the one taken before it or, for the first of a fork, the one
 * that the fork was made of. 0 for the first of a region that began as zeros.
 */
uint64_t hf_snapshot_parent(const hf_snapshot *snapshot);

/* Gives a new handle of its pool, which the program closes. */
int hf_snapshot_pool(const hf_snapshot *snapshot, hf_pool **out);

/*
 * Gives the address of its bytes, aligned to the block size and good for reads until the
 * snapshot is closed; a write is a fault. The first call maps them, with one system call
 * for each run of neighbouring blocks, and copies all pages that it holds over blocks of
 * others (pages_held of hf_pool_stats), some 2 us each; later ones give the same address.
 * hf_snapshot_read_at copies only what it is asked for.
 *
 * HF_E_TOO_MANY_MAPPINGS, HF_E_OUT_OF_ADDRESSES. HF_E_REVOKED: a part was taken away
 * before the first call. HF_E_SYSTEM, HF_E_FORKED_CHILD.
 */
int hf_snapshot_map(const hf_snapshot *snapshot, const void **out);

/*
 * Copies `len` bytes from `offset` on to `to`, and maps nothing.
 *
 * HF_E_OUT_OF_RANGE. HF_E_REVOKED: a part of that was taken away; `to` holds nothing of
 * use. HF_E_FORKED_CHILD.
 */
int hf_snapshot_read_at(const hf_snapshot *snapshot, size_t offset, void *to, size_t len);

/*
 * Writes a range to a descriptor, in pieces of up to 1 MiB that it copies out first; maps
 * nothing. A call that a signal interrupts is made again. `done` gets the bytes that were
 * written, also if the call fails; it may be NULL.
 *
 * HF_E_SYSTEM: hf_last_errno() is the answer of write(2). HF_E_BAD_VALUE: a negative
 * descriptor. HF_E_OUT_OF_RANGE, HF_E_REVOKED, HF_E_FORKED_CHILD.
 */
int hf_snapshot_write_to(const hf_snapshot *snapshot, int fd, size_t offset, size_t len,
                         size_t *done);

/*
 * 1 if the parent has taken a part of it away, 0 if not. That happens when the pool is
 * empty and the parent writes to what both share, unless the snapshot was made with
 * HF_RESERVE_FULL. A read of that part by address is SIGBUS, never zeros;
 * hf_snapshot_read_at returns HF_E_REVOKED. A program whose pool may run out asks this
 * AFTER it has used what it read by address.
 */
int hf_snapshot_is_revoked(const hf_snapshot *snapshot);

/*
 * Makes a region that starts as this snapshot. `options` may be NULL.
 *
 * Those of hf_region_fork.
 */
int hf_snapshot_fork(const hf_snapshot *snapshot, const hf_region_options *options,
                     hf_region **out);

/* ------------------------------------------------------------------ Changes */

/* How exactly changes are told. */
enum hf_changes_by {
    /* The blocks that are not the same. No byte is looked at: a block that was written to
     * is among them even if it got the bytes that it had. What is in none of them has not
     * changed. Some nanoseconds for each block of the region; where pages were copied
     * singly (HF_COPY_GRAIN_PAGE), 15 us for each 128 MiB and 0.2 us for each such page. */
    HF_CHANGES_BY_BLOCK = 0,
    /* The pages of 4 KiB whose bytes differ: all of them, and no others. What
     * HF_CHANGES_BY_BLOCK takes, and what it finds is compared, as fast as memcmp(3) does:
     * of a region and its last snapshot single pages where single pages were copied, of
     * two snapshots blocks. */
    HF_CHANGES_BY_PAGE = 1
};

/*
 * Gives what differs between a region as it is now and an older snapshot of the same pool
 * and length: mostly its last one, of which single pages are found without a look at
 * others, but it may be any. hf_changes_next finds the ranges, one by one:
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
 * Others may write to the region meanwhile. Each page is compared as it is at some moment
 * while hf_changes_next is called, not all at the same one. For what had changed at one
 * moment take a snapshot and compare that. A thread whose write faults in the 2 MiB (or
 * block, if that is smaller) that are just compared waits for that: 0.5 ms at most. What
 * was lazily freed counts as what it reads as.
 *
 * HF_E_ANOTHER_POOL, HF_E_ANOTHER_LENGTH: they do not go together. HF_E_BAD_VALUE: `by` is
 * no HF_CHANGES_BY_... HF_E_FORKED_CHILD.
 */
int hf_region_changed_since(const hf_region *region, const hf_snapshot *older, int by,
                            hf_changes **out);

/*
 * As hf_region_changed_since, between two snapshots of the same pool and length. They are
 * mostly two of one region, but need not be, and the order makes no difference. A write
 * that finds the pool full and has to take a block away from one of the two waits until
 * that is compared: 0.5 ms at most.
 *
 * Those of hf_region_changed_since.
 */
int hf_snapshot_changed_since(const hf_snapshot *snapshot, const hf_snapshot *older, int by,
                              hf_changes **out);

/*
 * Finds the next range that differs. Returns 1 and its offset and length, in bytes; or 0,
 * and zeros, if there are no more. Ranges come in the order of their offsets, neighbours in
 * one. Of several threads that call it each gets other ranges.
 *
 * HF_E_REVOKED: a part of either was taken away; from there on nothing is told, and further
 * calls return 0. HF_E_FORKED_CHILD.
 */
int hf_changes_next(hf_changes *changes, size_t *offset, size_t *len);

/*
 * Closes changes, whether all were told or not; NULL is allowed. Until then they keep the
 * region and the snapshots that they compare, even if those are closed before.
 */
void hf_changes_close(hf_changes *changes);

/* -------------------------------------------------------- For other processes */

/*
 * Has other processes read the snapshot where it is: gives a descriptor, and a list of
 * extents that tells which bytes of the snapshot lie where in it. Another process gets the
 * descriptor as it gets any other (inherited, or over a Unix socket) and the list as text.
 * Then hf_import_map maps it there, or any program does with mmap(2), MAP_PRIVATE and each
 * extent's offsets. So many processes share the memory of one snapshot, which may be closed.
 * Nothing is copied: it takes some 80 us, some nanoseconds for each block, and 0.2 us for
 * each extent.
 *
 * Pages that the snapshot holds over a block that older snapshots hold too are extents of
 * their own, so two for each such page. A mapping for each would soon be more than a process
 * may have: hf_import_map maps the blocks, and copies single pages. A program that has no
 * hugefork can do likewise, or read with pread(2).
 *
 * The export holds the blocks and pages of the snapshot until it is closed. Then they may be
 * written to again, and processes that still map them see that; nothing worse happens to
 * them. If this process ends first, the memory stays as it is for as long as anybody has the
 * descriptor or maps it. Nothing of an export is ever revoked: a write that finds the pool
 * full, and would need a block that an export holds, fails. With HF_COPY_GRAIN_AUTO and
 * single pages it goes through all the same, by page.
 *
 * The descriptor is for reading only. Through it nobody can write, map writable and shared,
 * punch holes, or change the length; and it cannot be opened anew for writing (mode 0444).
 * But it reaches ALL of the pool: other regions, and what is left in free blocks. So have
 * one pool for each trust domain, or take hf_snapshot_export_copy. Root, and processes of
 * the user who built the pool, can change the mode and then write.
 *
 * HF_E_NOT_EXPORTABLE: `exports` of the pool was 0, /proc is not mounted, or the process has
 * all the descriptors that it may have. HF_E_REVOKED: a part was taken away. HF_E_FORKED_CHILD.
 */
int hf_snapshot_export(const hf_snapshot *snapshot, hf_export **out);

/*
 * As hf_snapshot_export, of a copy, which shows others nothing else and which nobody can
 * ever change, not even root (F_SEAL_WRITE, fcntl(2)). It is memory of its own in pages of
 * 4 KiB, takes some 0.3 s for each GiB, and holds no block of the pool. Pages of zeros take
 * none.
 *
 * HF_E_REVOKED: a part was taken away. HF_E_SYSTEM: the machine has not that much memory, or
 * the process may not have it (RLIMIT_FSIZE), or no more descriptors. HF_E_FORKED_CHILD.
 */
int hf_snapshot_export_copy(const hf_snapshot *snapshot, hf_export **out);

/*
 * Closes an export and its descriptor; NULL is allowed. Close it when the other processes
 * are done, or what they map may change.
 */
void hf_export_close(hf_export *exported);

/*
 * The descriptor. It stays the export's, and is open until that is closed. It is closed by
 * exec, too (O_CLOEXEC): hand dup2(2) of it to a child that calls exec.
 */
int hf_export_fd(const hf_export *exported);

/*
 * The list of extents as text, for hf_import_map. Stays until the export is closed. Lines
 * that end in newlines; numbers are decimal, and bytes:
 *
 *     hugefork-extents 1
 *     length 4294967296
 *     page 4096
 *     extent 0 10485760 2097152
 *     extent 4194304 16777216 2147483648
 *     end 2
 *
 * `length` is that of the snapshot, and `page` divides all other numbers. Each `extent` has
 * an offset in the snapshot, one in the file, and a length. `end` says how many there are.
 *
 * A page that a snapshot of a history holds over a block takes two lines, of some 30 bytes
 * each. An argument of a command line, and a variable of the environment, can have 128 KiB:
 * hand longer texts on in a file or a pipe.
 */
const char *hf_export_extents(const hf_export *exported);

/*
 * Gives the extent of this number, from 0 on: `len` bytes that begin at `offset` of the
 * snapshot lie at `file_offset` of the descriptor. Returns 1, or 0 and zeros if there are
 * not so many. Extents come in the order of their offsets, and what lies in none of them is
 * zeros.
 */
int hf_export_extent(const hf_export *exported, size_t nth, size_t *offset,
                     size_t *file_offset, size_t *len);

/* The length of the snapshot. */
size_t hf_export_len(const hf_export *exported);

/*
 * What divides all numbers of extents, and the addresses that they can be mapped at: 4096,
 * or the size of a page of hugetlb.
 */
size_t hf_export_page_size(const hf_export *exported);

/* Gives a new handle of the snapshot's pool, which the program closes. */
int hf_export_pool(const hf_export *exported, hf_pool **out);

/*
 * Maps what another process has exported: `fd` is the export's descriptor, which may be
 * closed afterwards, and `extents` its list as text. Takes one mapping and some 2 us for
 * each extent and for each hole between two of them, and no memory. Single pages between
 * parts of a block are copied, each in some 6 us to 4 KiB of this process's memory, and take
 * no mapping. Needs no pool. Works in children of fork(2).
 *
 * HF_E_BAD_EXTENTS: the text is not one of hf_export_extents. HF_E_NOT_AN_EXPORT: the
 * descriptor is of a file that was not sealed against becoming shorter, or that has not all
 * that the list names, or has larger pages. (A file in a tmpfs that cannot be sealed, such
 * as that of a HF_GRANTED_SHMEM_OWN_TMPFS pool, is mapped: who owns it can make it shorter,
 * and hf_import_read_at tells that as an error.) HF_E_OUT_OF_MEMORY: a file
 * of hugetlb pages has none there, and none is left. HF_E_TOO_MANY_MAPPINGS:
 * vm.max_map_count or RLIMIT_AS. HF_E_BAD_VALUE: a negative descriptor. HF_E_SYSTEM.
 */
int hf_import_map(int fd, const char *extents, hf_import **out);

/* Closes an import; NULL is allowed. Nobody may use its addresses any more. */
void hf_import_close(hf_import *imported);

/*
 * The first byte, aligned to 2 MiB, or to hf_export_page_size if that is larger. Good for
 * reads and writes of hf_import_len bytes until the import is closed. What is written is
 * copied, page by page, and stays with this process.
 *
 * The exporting process writes to none of it until it closes its export. From then on bytes
 * may change that were not written to here before, unless hf_import_is_sealed. Where the
 * exporter's pool has hugetlb pages, a write takes a whole one of those that the system has
 * set aside, and is SIGBUS if there is none left; so is a read of what the exporter has
 * given back since, or of a file that its owner has made shorter. hf_import_read_at does
 * not end in a SIGBUS.
 */
void *hf_import_address(const hf_import *imported);

/* Its length, that of the snapshot. */
size_t hf_import_len(const hf_import *imported);

/*
 * Copies `len` bytes from `offset` on to `to`. Where the exporter could take the memory
 * away, the kernel does so (process_vm_readv(2)).
 *
 * HF_E_OUT_OF_RANGE. HF_E_OUT_OF_MEMORY: it was taken away; `to` holds nothing of use.
 * HF_E_SYSTEM. HF_E_NULL: `to`, unless `len` is 0.
 */
int hf_import_read_at(const hf_import *imported, size_t offset, void *to, size_t len);

/* 1 if no other process can ever change it: it is of hf_snapshot_export_copy. 0 if not. */
int hf_import_is_sealed(const hf_import *imported);

#ifdef __cplusplus
}
#endif

#endif
