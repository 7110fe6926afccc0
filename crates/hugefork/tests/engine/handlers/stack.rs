//! The stack use of the fault handler. It begins on the alternate signal stack, which has 8 KiB in a Rust thread. The
//! kernel uses up to 4 KiB of this for the registers, and 8 KiB more if a thread uses AMX. Then the handler switches to
//! a stack of its own.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::common::alone::alone;
use crate::common::by_block;
use crate::common::refusals::{Kind, Refusals};
use crate::common::seccomp::{refuse, with};
use hugefork::{Advice, Backing, BlockSize, Observer, Pool, Region, Reserve};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const STACK: usize = 256 << 10;
const PAINT: u8 = 0xa5;
/// The block size of the pools in tests that refuse calls.
const BLOCK: usize = 2 << 20;

/// The number of bytes used of each stack.
#[derive(Clone, Copy, Debug, Default)]
struct Used {
    /// Of the alternate stack.
    alternate: usize,
    /// Of the handler's own.
    own: usize,
}

impl Used {
    fn most(self, other: Used) -> Used {
        Used { alternate: self.alternate.max(other.alternate), own: self.own.max(other.own) }
    }

    /// Checks that the handler used no more than it may.
    #[track_caller]
    fn check(self, registers: usize) {
        println!("{self:?}, {registers} for registers");
        assert!(self.own > 1000, "nothing ran on the handler's own stack");
        assert!(
            self.alternate - registers <= NEEDED,
            "the handler needs {} bytes beside {registers} for registers",
            self.alternate - registers
        );
        assert!(self.own <= OWN / 4, "the handler needs {} bytes of its own stack", self.own);
    }
}

/// Runs `faults` on a thread with a painted alternate stack, and paints the stack that the handler takes there.
fn used_by(faults: impl FnOnce() + Send) -> Used {
    used_of(STACK, faults)
}

/// As [`used_by`], with an alternate stack of `size` bytes.
fn used_of(size: usize, faults: impl FnOnce() + Send) -> Used {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let memory: &'static mut [u8] = Box::leak(vec![PAINT; STACK].into_boxed_slice());
            let stack = &mut memory[STACK - size..];
            let new = libc::stack_t { ss_sp: stack.as_mut_ptr().cast(), ss_flags: 0, ss_size: size };
            // SAFETY: the stack is leaked, so it outlives the thread.
            assert_eq!(unsafe { libc::sigaltstack(&new, std::ptr::null_mut()) }, 0);
            let own = own_stack();
            memory.fill(PAINT);
            // SAFETY: this is the stack of the handler, and no thread is in the handler.
            own.clone().for_each(|at| unsafe { std::ptr::without_provenance_mut::<u8>(at).write_volatile(PAINT) });
            faults();
            let disable = libc::stack_t { ss_sp: std::ptr::null_mut(), ss_flags: libc::SS_DISABLE, ss_size: 0 };
            // SAFETY: no handler is running.
            assert_eq!(unsafe { libc::sigaltstack(&disable, std::ptr::null_mut()) }, 0);
            // SAFETY: as above.
            let is_paint = |at: &usize| unsafe { std::ptr::without_provenance::<u8>(*at).read_volatile() } == PAINT;
            Used {
                alternate: STACK - memory.iter().take_while(|&&byte| byte == PAINT).count(),
                own: own.len() - own.clone().take_while(is_paint).count(),
            }
        });
        thread.join().unwrap()
    })
}

/// The size of a stack of the handler's own, and its alignment.
const OWN: usize = 64 << 10;

/// The stack that the handler takes when this thread faults, without its guard page. An observer runs there.
fn own_stack() -> Range<usize> {
    struct Stands(AtomicUsize);
    impl Observer for Stands {
        fn invalidate_start(&self, _: Range<usize>) {
            let here = 0_u8;
            self.0.store((&raw const here).addr(), Ordering::Relaxed);
        }
        fn invalidate_end(&self, _: Range<usize>) {}
    }
    let builder = Pool::builder().capacity(64 << 10).block_size(BlockSize::KIB_4).backing(Backing::ShmemBase);
    let mut region = builder.build().unwrap().region(4096).unwrap();
    let stands = Arc::new(Stands(AtomicUsize::new(0)));
    region.observe(stands.clone()).unwrap();
    region.as_mut_slice()[0] = 1;
    let start = stands.0.load(Ordering::Relaxed) / OWN * OWN;
    start + 4096..start + OWN
}

/// A region that fills the pool until the `SIGBUS` handler drops it.
static IN_THE_WAY: Mutex<Option<Region>> = Mutex::new(None);

extern "C" fn make_room(_signal: libc::c_int) {
    // A program should not do this in a handler, but here nothing else runs.
    drop(IN_THE_WAY.lock().unwrap().take());
}

/// A write that finds the pool full and prints its line. It then succeeds, because the `SIGBUS` handler makes room.
fn full_pool() {
    // SAFETY: the handler takes only what this test left for it.
    unsafe { libc::signal(libc::SIGBUS, make_room as *const () as libc::sighandler_t) };
    let pool = Pool::builder().name("full").capacity(2 << 20).build().unwrap();
    let mut region = pool.region(2 << 20).unwrap();
    region.as_mut_slice()[0] = 1;
    let mut fork = region.fork_with(by_block()).unwrap();
    *IN_THE_WAY.lock().unwrap() = Some(region);
    fork.as_mut_slice()[0] += 1;
    assert_eq!(fork.as_mut_slice()[0], 2);
    assert_eq!(fork.stats().faults.failed, 1);
    assert_eq!(fork.stats().faults.reused, 1, "the block was the fork's alone when the write was tried again");
    // SAFETY: restores the default.
    unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
}

/// A write that finds the pool full and takes a block away from a snapshot, and another that drops lazily freed blocks.
fn short_pool() {
    let pool = Pool::builder().name("short").capacity(4 << 20).build().unwrap();
    let mut region = pool.region_with(4 << 20, by_block()).unwrap();
    region.as_mut_slice().fill(1);
    let snapshot = region.snapshot().unwrap();
    assert_eq!(snapshot[0], 1);
    region.as_mut_slice()[0] = 2;
    assert!(snapshot.is_revoked());
    drop(snapshot);
    region.lazy_free(2 << 20..4 << 20).unwrap();
    let mut other = pool.region(2 << 20).unwrap();
    other.as_mut_slice()[0] = 3;
    assert_eq!((region.as_mut_slice()[0], region.as_mut_slice()[2 << 20]), (2, 0));
    other.lazy_free(4096..8192).unwrap();
    other.as_mut_slice()[5000] = 1;
}

/// A fork that copies into the block reserved for it.
fn reserving_pool() {
    let pool = Pool::builder().name("reserved").capacity(4 << 20).build().unwrap();
    let mut region = pool.region_with(2 << 20, by_block()).unwrap();
    region.as_mut_slice().fill(1);
    let mut fork = region.fork_with(by_block().reserve(Reserve::Full)).unwrap();
    fork.as_mut_slice()[0] = 2;
    assert_eq!((region.as_mut_slice()[0], fork.as_mut_slice()[0], pool.stats().blocks_reserved), (1, 2, 0));
}

/// The stack use of four writes to blocks whose pages the kernel copies: the first shows a block through a private
/// mapping; the second makes such a mapping writable again after a snapshot; the third copies the block after all; the
/// fourth writes the pages back into a block that nobody else holds any more.
fn by_page(pool: &Pool) -> [Used; 4] {
    let size = pool.block_size().bytes();
    let mut region = pool.region(8 << 20).unwrap();
    region.as_mut_slice().fill(1);
    let first = region.snapshot().unwrap();
    let cow_mapping = used_by(|| region.as_mut_slice()[size / 2] = 2);
    // The neighbours are CoW-mapped too, and have no private pages.
    let second = region.snapshot().unwrap();
    let allow_writes = used_by(|| region.as_mut_slice()[3 * size / 2] = 2);
    let third = region.snapshot().unwrap();
    region.advise(Advice::Whole);
    let copy = used_by(|| region.as_mut_slice()[5 * size / 2] = 2);
    drop((first, second, third));
    let write_back = used_by(|| region.as_mut_slice()[7 * size / 2] = 2);
    [cow_mapping, allow_writes, copy, write_back]
}

#[test]
fn the_handler_fits_the_stack_that_rust_gives_a_thread() {
    alone(|| {
        let mut most = Used::default();
        for (block_size, backing) in [
            (BlockSize::MIB_2, Backing::ShmemHuge),
            (BlockSize::MIB_2, Backing::Hugetlb),
            (BlockSize::MIB_2, Backing::ShmemBase),
            (BlockSize::KIB_4, Backing::ShmemBase),
        ] {
            let Some(pool) = crate::common::pool(backing, 16 << 20, block_size) else { continue };
            let mut region = pool.region(8 << 20).unwrap();
            region.as_mut_slice().fill(1);
            drop(region);
            let mut region = pool.region_with(8 << 20, by_block()).unwrap();
            let zero = used_by(|| region.as_mut_slice()[5_000_000] = 1);
            region.populate().unwrap();
            let snapshot = region.snapshot().unwrap();
            let copy = used_by(|| region.as_mut_slice()[5_000_000] = 2);
            drop(snapshot);
            let reuse = used_by(|| region.as_mut_slice()[7] = 2);
            println!("{block_size} on {}: zero {zero:?}, copy {copy:?}, reuse {reuse:?}", pool.backing());
            most = most.most(zero).most(copy).most(reuse);
            let by_page = by_page(&pool);
            println!("  by page: cow_mapping, allow_writes, copy, write back {by_page:?}");
            most = by_page.into_iter().fold(most, Used::most);
        }
        let (full, short, reserved) = (used_by(full_pool), used_by(short_pool), used_by(reserving_pool));
        println!("full pool: {full:?}, short pool: {short:?}, reserved blocks: {reserved:?}");
        most = most.most(full).most(short).most(reserved);
        // Both the kernel's part and the size that Rust gives depend on the processor.
        most.check(registers());
        let given = 8192.max(largest_frame());
        assert!(most.alternate <= given - 128, "the handler used {most:?} of a stack of {given}");
    })
    .well();
}

/// The bytes that the handler may use of the alternate stack, as in sys/linux/handlers.rs.
const NEEDED: usize = if cfg!(debug_assertions) { 2048 } else { 1024 };

/// The bytes that the kernel puts on the stack for a handler that does nothing.
fn registers() -> usize {
    extern "C" fn nothing(_: libc::c_int) {}
    crate::common::signals::handle(libc::SIGUSR1, nothing as *const () as usize, libc::SA_ONSTACK, &[]);
    // SAFETY: sends a signal to this thread.
    used_by(|| assert_eq!(unsafe { libc::raise(libc::SIGUSR1) }, 0)).alternate
}

/// The most bytes that registers may take, whatever features a thread uses.
fn largest_frame() -> usize {
    // SAFETY: the call only looks something up.
    unsafe { libc::getauxval(libc::AT_MINSIGSTKSZ) as usize }
}

/// Replaces the memory below the write, so that its repetition succeeds. It replaces a whole block, since hugetlb
/// allows only whole pages; if that failed, the thread would repeat the write for ever.
extern "C" fn give_other_memory(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    let block = crate::common::signals::address_of(info) / BLOCK * BLOCK;
    let (access, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED);
    // SAFETY: the test does not use the region any more.
    let given = unsafe { libc::mmap(std::ptr::without_provenance_mut(block), BLOCK, access, flags, -1, 0) };
    if given == libc::MAP_FAILED {
        // SAFETY: ends the process.
        unsafe { libc::abort() };
    }
}

/// A write to a block that can be shown but not made writable, so that the write fails.
fn refused_right(backing: Backing) {
    let Some(pool) = crate::common::pool(backing, 16 << 20, BlockSize::MIB_2) else { return };
    let mut region = pool.region(8 << 20).unwrap();
    // Block by block: musl's memset writes the end first, and the engine makes more writable ahead of ascending writes.
    region.as_mut_slice().chunks_mut(BLOCK).for_each(|block| block.fill(1));
    let snapshot = region.snapshot().unwrap();
    crate::common::signals::handle(libc::SIGBUS, give_other_memory as *const () as usize, libc::SA_SIGINFO, &[]);
    let registers = registers();
    let used = used_by(|| {
        // From here on no thread can be started.
        refuse(with(libc::SYS_mprotect, 2, libc::PROT_READ | libc::PROT_WRITE, libc::ENOMEM));
        region.as_mut_slice()[5_000_000] = 2;
    });
    // A private mapping that cannot be made writable gives way to a copy of the block.
    let failed = u64::from(backing == Backing::Hugetlb);
    assert_eq!((region.stats().faults.failed, snapshot[5_000_001]), (failed, 1));
    used.check(registers);
    // The memory there is not the region's any more.
    std::mem::forget(region);
}

#[test]
fn a_write_that_gets_no_right_to_write_fits_too() {
    alone(|| refused_right(Backing::ShmemBase)).well();
}

#[test]
fn a_write_that_gets_no_right_to_write_fits_too_where_each_block_is_a_mapping() {
    alone(|| refused_right(Backing::Hugetlb)).well();
}

/// A supervisor that refuses nothing yet; `None`, with a message, if calls cannot be refused here.
fn refusals() -> Option<Refusals> {
    Refusals::start(1).inspect_err(|error| println!("skipped: no supervised system calls: {error}")).ok()
}

/// A write that copies a block. The kernel refuses to exclude the copy from children, so the engine shows the old block
/// again.
fn block_shown_again(backing: Backing) {
    let Some(pool) = crate::common::pool(backing, 16 << 20, BlockSize::MIB_2) else { return };
    let mut region = pool.region_with(8 << 20, by_block()).unwrap();
    region.as_mut_slice().fill(1);
    let snapshot = region.snapshot().unwrap();
    let registers = registers();
    let Some(refusals) = refusals() else { return };
    crate::common::signals::handle(libc::SIGBUS, again as *const () as usize, 0, &[]);
    let used = used_by(|| {
        refusals.arm(1, &[Kind::Advise]);
        region.as_mut_slice()[5_000_000] = 2;
        refusals.disarm();
    });
    assert_eq!((refusals.refused(Kind::Advise), region.stats().faults.failed), (1, 1));
    assert_eq!((region.as_mut_slice()[5_000_000], region.as_mut_slice()[5_000_001], snapshot[5_000_000]), (2, 1, 1));
    used.check(registers);
}

#[test]
fn a_block_that_is_shown_again_fits_too_where_each_block_is_a_mapping() {
    alone(|| block_shown_again(Backing::Hugetlb)).well();
}

/// A fork that copies into the block reserved for it, which the kernel refuses to show.
fn reserved_block_shown_again(backing: Backing) {
    let builder = Pool::builder().name("reserved").capacity(4 << 20).block_size(BlockSize::MIB_2).backing(backing);
    let Some(pool) = crate::common::built(builder, backing) else { return };
    let mut region = pool.region_with(2 << 20, by_block()).unwrap();
    region.as_mut_slice().fill(1);
    let mut fork = region.fork_with(by_block().reserve(Reserve::Full)).unwrap();
    let registers = registers();
    let Some(refusals) = refusals() else { return };
    crate::common::signals::handle(libc::SIGBUS, again as *const () as usize, 0, &[]);
    let used = used_by(|| {
        match backing {
            Backing::Hugetlb => refusals.arm(1, &[Kind::Advise]),
            _ => refusals.arm_blocks(),
        }
        fork.as_mut_slice()[0] = 2;
        refusals.disarm();
    });
    assert!(refusals.refused(Kind::Advise) + refusals.refused(Kind::Remap) > 0);
    assert_eq!((region.as_mut_slice()[0], fork.as_mut_slice()[0]), (1, 2));
    used.check(registers);
}

#[test]
fn a_reserved_block_that_is_shown_again_fits_too() {
    alone(|| reserved_block_shown_again(Backing::ShmemBase)).well();
}

#[test]
fn a_reserved_block_that_is_shown_again_fits_too_where_each_block_is_a_mapping() {
    alone(|| reserved_block_shown_again(Backing::Hugetlb)).well();
}

/// Printed by a process in which the pool's thread wrote the block back before the write could.
const THREAD_WAS_FIRST: &str = "the pool's thread was first";

/// The test fails if the thread is first in this many processes in a row.
const MAX_TRIES: usize = 100;

/// A write that writes back a block, which the kernel at first refuses to show.
fn write_back_shown_once_more(backing: Backing) {
    let pool = Pool::builder().name("written-back").capacity(8 << 20).backing(backing).build().unwrap();
    let mut region = pool.region(4 << 20).unwrap();
    region.as_mut_slice().fill(1);
    let first = region.snapshot().unwrap();
    // This many pages make the second snapshot copy the block. A block that it does not copy stays write-protected if
    // the kernel does not track writes; and without a free descriptor, the kernel does not track them.
    (128..384).for_each(|page| region.as_mut_slice()[page * 4096] = 2);
    let many = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(3), ..many }).unwrap();
    let second = region.snapshot().unwrap();
    setrlimit(Resource::Nofile, many).unwrap();
    let (registers, before) = (registers(), region.stats().faults);
    let Some(refusals) = refusals() else { return };
    let used = used_by(|| {
        drop((first, second));
        refusals.arm_blocks();
        // This block was CoW-mapped together with its neighbour.
        region.as_mut_slice()[3 << 20] = 3;
        refusals.disarm();
    });
    let (refused, faults) = ([Kind::Remap, Kind::Look].map(|kind| refusals.refused(kind)), region.stats().faults);
    if (refused, faults.blocks_written_back - before.blocks_written_back) == ([0, 0], 1) {
        return println!("{THREAD_WAS_FIRST}");
    }
    assert_eq!((refused, faults.blocks_written_back - before.blocks_written_back, faults.failed), ([1, 1], 1, 0));
    assert_eq!((region.as_mut_slice()[1 << 20], region.as_mut_slice()[3 << 20]), (2, 3));
    used.check(registers);
}

#[test]
fn a_written_back_block_that_is_shown_once_more_fits_too() {
    // On a busy machine, the pool's thread may write the block back before the write.
    let ended = (0..MAX_TRIES)
        .map(|_| alone(|| write_back_shown_once_more(Backing::ShmemBase)))
        .find(|ended| !ended.stdout.contains(THREAD_WAS_FIRST));
    ended.expect("a write comes first at some time").well();
}

/// A write to a dropped page of a block, which the kernel at first refuses to show.
fn page_of_a_block(backing: Backing) {
    let pool = Pool::builder().name("split").capacity(8 << 20).backing(backing).build().unwrap();
    let mut region = pool.region(4 << 20).unwrap();
    region.as_mut_slice().fill(1);
    region.lazy_free(4096..3 * 4096).unwrap();
    region.lazy_free(5 * 4096..6 * 4096).unwrap();
    pool.reclaim(1 << 20).unwrap();
    let registers = registers();
    let Some(refusals) = refusals() else { return };
    crate::common::signals::handle(libc::SIGBUS, again as *const () as usize, 0, &[]);
    let used = used_by(|| {
        refusals.arm_blocks();
        region.as_mut_slice()[2 * 4096] = 3;
        refusals.disarm();
    });
    let refused = [Kind::Remap, Kind::Look].map(|kind| refusals.refused(kind));
    assert_eq!((refused, region.stats().faults.failed), ([1, 1], 1));
    let seen = [0, 4096, 2 * 4096, 3 * 4096, 5 * 4096, 6 * 4096].map(|at| region.as_mut_slice()[at]);
    assert_eq!(seen, [1, 0, 3, 1, 0, 1]);
    used.check(registers);
}

/// A handler that returns, so that the thread repeats the write.
extern "C" fn again(_: libc::c_int) {}

#[test]
fn a_block_whose_pages_are_shown_again_fits_too() {
    alone(|| page_of_a_block(Backing::ShmemBase)).well();
}

#[test]
fn a_stack_that_is_too_small_ends_in_a_line_and_not_in_what_lies_below_it() {
    let ended = alone(|| {
        crate::common::signals::handle(libc::SIGABRT, libc::SIG_DFL, 0, &[]);
        let region =
            Pool::builder().capacity(2 << 20).backing(Backing::ShmemBase).build().unwrap().region(2 << 20).unwrap();
        let size = registers() + NEEDED / 2;
        // SAFETY: it is inside the region.
        used_of(size, || unsafe { region.as_mut_ptr().write_volatile(1) });
    });
    let said = ended.by(libc::SIGABRT);
    assert!(said.lines().count() == 1 && said.contains("alternate signal stack is too small"), "{said}");
}

/// Whether this process may use AMX from now on.
#[cfg(target_arch = "x86_64")]
fn may_use_tiles() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_int = 0x1023;
    const TILE_DATA: libc::c_int = 18;
    // SAFETY: no memory is involved.
    let may = unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA) } == 0;
    if !may {
        println!("skipped: this processor or kernel has no AMX");
    }
    may
}

/// Fills the tiles of this thread, so that the kernel has 8 KiB more to save for a signal.
#[cfg(target_arch = "x86_64")]
fn use_tiles() {
    let mut shape = [0_u8; 64];
    shape[0] = 1;
    // Eight tiles of 16 rows of 64 bytes.
    (0..8).for_each(|tile| (shape[16 + 2 * tile], shape[48 + tile]) = (64, 16));
    let rows = [0x5a_u8; 1024];
    // SAFETY: the process may use tiles; the shape is valid, and 16 rows are read from `rows`.
    unsafe {
        core::arch::asm!(
            "ldtilecfg [{shape}]",
            "tileloadd tmm0, [{rows} + {stride} * 1]",
            "tileloadd tmm7, [{rows} + {stride} * 1]",
            shape = in(reg) shape.as_ptr(), rows = in(reg) rows.as_ptr(), stride = in(reg) 64_usize,
        );
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn a_thread_that_uses_amx_writes_to_regions_on_a_stack_that_is_large_enough() {
    let ended = alone(|| {
        if !may_use_tiles() {
            return;
        }
        let pool = Pool::builder().capacity(4 << 20).backing(Backing::ShmemBase).build().unwrap();
        let mut region = pool.region(2 << 20).unwrap();
        let used = used_of(largest_frame() + NEEDED, || {
            use_tiles();
            region.as_mut_slice()[5] = 1;
            let _snapshot = region.snapshot().unwrap();
            use_tiles();
            region.as_mut_slice()[5] = 2;
        });
        assert!(used.alternate > 8192 + 2048, "{used:?}: no tiles were kept");
        eprintln!("with tiles: {used:?}");
    });
    if !ended.stdout.contains("skipped: ") {
        assert!(
            ended.stderr.contains("AMX") && ended.stderr.contains("sigaltstack"),
            "the pool says what is needed: {ended}"
        );
    }
    ended.well();
}
