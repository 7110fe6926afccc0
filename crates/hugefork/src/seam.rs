//! The interface for `hugefork-program`, which moves the big memory of programs that know nothing of hugefork into a
//! pool. Only that crate uses it: nothing here is stable, and none of it belongs to the engine's public interface.
//!
//! An entry is a block of 2 MiB, named by its position in [`ProgramRegion::addresses`]. region/program.rs implements
//! the methods and describes the states of an entry; this file blocks the program's signals around them and turns
//! refusals into plain answers.

use std::ops::Range;
use std::sync::atomic::Ordering;

use crate::api::builder::PoolBuilder;
use crate::mapping::addresses::Addresses;
use crate::mem::EngineArc;
use crate::mem::pinned::PinnedBox;
use crate::pool::core::PoolCore;
use crate::pool::frames::Content;
use crate::pool::holders::CowMappingHolder;
use crate::pool::stock::Stock;
pub use crate::ranges::Ranges;
use crate::region::state::RegionCore;
use crate::sync::SignalsBlocked;
use crate::sys::Shows;
use crate::sys::linux::arena;
pub use crate::sys::linux::forks::Forks;
use crate::sys::linux::memory::Descriptor;
pub use crate::sys::linux::memory::Linux;
use crate::sys::linux::owner;
use crate::sys::program::ProgramSys;
pub use crate::sys::program::Zeros;
#[cfg(any(test, fuzzing, feature = "model"))]
pub use crate::sys::soft::SoftMmu;
use crate::types::backing::{Backing, CoreDump};
use crate::types::error::BuildError;
use crate::types::options::{CopyGrain, RegionOptions, Writers};
use crate::units::{BlockId, BlockSize, EntryIndex};

/// The system behind the memory: [`Linux`], except in tests.
#[expect(private_bounds, reason = "what the engine asks of the system is the engine's affair")]
pub trait Machine: ProgramSys {}

impl Machine for Linux {}

#[cfg(any(test, fuzzing, feature = "model"))]
impl Machine for SoftMmu {}

/// A region whose writers never fault, in a pool without a fault handler and without threads.
pub struct ProgramRegion<S: Machine>(PinnedBox<RegionCore<S>>);

/// Blocks held for the children of one fork, until this is dropped.
pub struct HeldBlocks<S: Machine> {
    pool: EngineArc<PoolCore<S>>,
    blocks: Vec<BlockId>,
}

/// A block that has memory for each of its pages.
pub struct FullBlock<S: Machine> {
    pool: EngineArc<PoolCore<S>>,
    entry: usize,
    block: BlockId,
}

/// Counts, and bytes of memory.
pub struct Figures {
    /// Pages that the kernel had copied at writes and that were written back into their blocks.
    pub pages_written_back: u64,
    /// Bytes of memory that all blocks take.
    pub memory: usize,
    /// Bytes of the blocks that nobody holds but that still have memory, at least in part.
    pub kept: usize,
}

impl ProgramRegion<Linux> {
    /// A region of at most `capacity` bytes of memory, with `addresses` times as many addresses.
    ///
    /// # Errors
    /// Any [`BuildError`].
    pub fn new(capacity: usize, addresses: usize) -> Result<Self, BuildError> {
        if owner::is_forked_child() {
            return Err(BuildError::ForkedChild);
        }
        let builder = PoolBuilder::default().name("program").capacity(capacity).block_size(BlockSize::MIB_2);
        let memory = builder.core_dump(CoreDump::Included).find_dense_memory()?;
        if let Some(why) = memory.no_page_grain() {
            return Err(unavailable(why.to_string()));
        }
        let region = Self::on(memory.with_children()?, capacity, addresses)?;
        arena::leave_holes();
        Ok(region)
    }

    /// The descriptors that the engine has opened; the program knows none of them.
    pub fn descriptors(&self) -> impl Iterator<Item = &Descriptor> + '_ {
        self.0.pool().sys.descriptors()
    }

    /// Opens the descriptors again that the program has closed, except for the pool's own.
    pub fn reopen(&self) {
        self.0.pool().sys.reopen();
    }

    /// Gives up all addresses of the engine and returns them, so that the caller can unmap the unused ones. The region
    /// must not be used any more.
    pub fn leave(&self) -> Range<usize> {
        let sys = &self.0.pool().sys;
        sys.leave();
        sys.reserved()
    }
}

#[cfg(any(test, fuzzing, feature = "model"))]
impl ProgramRegion<SoftMmu> {
    /// The software MMU behind the region.
    pub fn mmu(&self) -> &SoftMmu {
        &self.0.pool().sys
    }
}

impl<S: Machine> ProgramRegion<S> {
    /// As [`ProgramRegion::new`], on `memory`.
    ///
    /// # Errors
    /// Any [`BuildError`].
    pub fn on(memory: S, capacity: usize, addresses: usize) -> Result<Self, BuildError> {
        let size = BlockSize::MIB_2;
        let kernels = hugefork_kernels::Kernels::default_for_this_cpu();
        let blocks = size.count(capacity);
        let stock = Stock::new(None, size, blocks);
        let pool = EngineArc::new(PoolCore::new(memory, "program".to_owned(), size, blocks, kernels, stock));
        let options = RegionOptions {
            writers: Writers::NeverFault,
            ..RegionOptions::new().copy_grain(CopyGrain::Page).calls_wait(true)
        };
        let claimed = Addresses::claim(&pool, addresses * capacity, 1);
        let core = RegionCore::at(claimed.map_err(|error| unavailable(error.to_string()))?, options, None);
        if !core.addresses.can_hold() {
            return Err(unavailable("the process may not handle the page faults of system calls".to_owned()));
        }
        // The search for a backing has touched the first block. If the kernel keeps its memory, that block keeps it
        // too.
        // SAFETY: nobody has a block yet.
        let _ = unsafe { pool.sys.retire(0, capacity.min(size.bytes())) };
        let hidden = pool.sys.show(core.addresses.part(&(0..core.len())), Shows::Hidden);
        hidden.map_err(|failure| BuildError::System(failure.error))?;
        Ok(ProgramRegion(core))
    }

    /// All addresses of the region.
    pub fn addresses(&self) -> Range<usize> {
        let base = self.0.addresses.base();
        base..base + self.0.len()
    }

    /// Whether the entry has a block.
    pub fn has(&self, entry: usize) -> bool {
        self.0.has(entry)
    }

    /// Gives blocks to entries that have none. After a failure, some of the first may have theirs.
    pub fn open(&self, entries: Range<usize>) -> bool {
        self.0.open(entries).is_ok()
    }

    /// Takes the blocks of entries away, with their memory, and hides the addresses. False if they stay.
    pub fn close(&self, entries: &Range<usize>) -> bool {
        self.0.close(entries).is_ok()
    }

    /// Makes a block read as zeros and gives its memory back. False if that fails.
    pub fn empty(&self, entry: usize) -> bool {
        self.0.empty_blocks(entry..entry + 1).is_ok()
    }

    /// As [`ProgramRegion::empty`], for whole pages of a block. False if the caller must fill them with zeros instead,
    /// since others hold the block.
    pub fn empty_part(&self, entry: usize, part: &Range<usize>) -> bool {
        self.0.drop_part(EntryIndex(entry), part)
    }

    /// Fills mapped addresses with zeros.
    pub fn fill_with_zeros(&self, range: &Range<usize>) {
        let (_signals, base) = (SignalsBlocked::new(), self.0.addresses.base());
        let part = self.0.addresses.part(&(range.start - base..range.end - base));
        // SAFETY: mapped here, and writable; the program wants zeros there.
        unsafe { self.0.pool().sys.fill_with_zeros(part) };
    }

    /// Turns entries that all have blocks into plain memory with the same contents. `zeros` decides whether pages of
    /// zeros are copied or left out. The kernel reports pages that were left out as missing. False if nothing has
    /// changed.
    pub fn hand_over(&self, entries: &Range<usize>, zeros: Zeros) -> bool {
        self.0.hand_over(entries, zeros).is_ok()
    }

    /// Unmaps plain addresses that nobody uses. If the kernel refuses, it keeps a mapping there that nobody uses.
    pub fn unmap_plain(&self, range: Range<usize>) {
        if !range.is_empty() {
            let _ = self.0.pool().sys.unmap_plain(range);
        }
    }

    /// Gives up the entries at whose addresses the program has made other mappings, and returns them. Those mappings
    /// stay.
    pub fn give_up_what_others_use(&self, entries: Range<usize>) -> Vec<usize> {
        let found = self.0.not_shown(entries);
        found.iter().for_each(|&entry| self.0.give_up(entry));
        found.into_iter().map(|entry| entry.0).collect()
    }

    /// Shows all blocks among `entries` through private mappings, which children inherit, and holds the blocks. Also
    /// returns the number of blocks that children will not see, because the kernel refused.
    pub fn share(&self, entries: Range<usize>) -> (HeldBlocks<S>, usize) {
        let mut blocks = Vec::with_capacity(entries.len());
        let unseen = self.0.share(entries, &mut blocks);
        (HeldBlocks { pool: self.0.pool().clone(), blocks }, unseen)
    }

    /// How many entries are shown through private mappings.
    pub fn cow_mappings(&self) -> usize {
        self.0.accounts.cow_mappings.load(Ordering::Relaxed)
    }

    /// Maintains some of the private mappings, from the entry `from` on. Returns the entry to continue with.
    pub fn maintain(&self, from: usize) -> Option<usize> {
        let _signals = SignalsBlocked::new();
        self.0.maintain(from)
    }

    /// Gives the memory of unused blocks back to the system, for at most `most` blocks. True if there may be more.
    pub fn trim(&self, most: usize) -> bool {
        let (pool, _signals) = (self.0.pool(), SignalsBlocked::new());
        (0..most).all(|_| {
            let Some(block) = pool.frames.take_used(0) else { return false };
            // SAFETY: taken just now; nobody holds it, and it is shown nowhere any more.
            let punched = unsafe { pool.sys.retire(pool.offset(block), pool.block_size.bytes()) };
            pool.frames.put_back(block, if punched.is_ok() { Content::Fresh } else { Content::Used });
            punched.is_ok()
        })
    }

    /// Whether the kernel makes huge pages only on request ([`FullBlock::collapse`]).
    pub fn needs_collapse(&self) -> bool {
        self.0.pool().sys.collapses()
    }

    /// The block of an entry, if the region alone holds it and all of its pages have memory.
    pub fn full(&self, entry: usize) -> Option<FullBlock<S>> {
        let block = self.0.full_block(EntryIndex(entry))?;
        Some(FullBlock { pool: self.0.pool().clone(), entry, block })
    }

    /// Whether the entry still has this block.
    pub fn has_block(&self, full: &FullBlock<S>) -> bool {
        self.0.table.get(EntryIndex(full.entry)).block() == Some(full.block)
    }

    /// The counts, and the memory. The kernel counts the memory page by page, which takes some milliseconds for each
    /// GiB.
    pub fn figures(&self) -> Figures {
        let (counters, pool) = (&self.0.counters, self.0.pool());
        Figures {
            pages_written_back: counters.pages_written_back.load(Ordering::Relaxed),
            memory: pool.sys.bytes().unwrap_or(0),
            kept: pool.block_size.len_of(pool.frames.used_and_free()),
        }
    }
}

fn unavailable(reason: String) -> BuildError {
    BuildError::BackingUnavailable { backing: Backing::ShmemHuge, reason }
}

impl<S: Machine> FullBlock<S> {
    /// The entry that had the block.
    pub fn entry(&self) -> usize {
        self.entry
    }

    /// Collapses the block into a huge page. Returns false if the kernel refuses. The collapse takes a quarter of a
    /// millisecond, and tens of milliseconds on busy processors, because the kernel waits until a thread of its own has
    /// run on each processor. So this function holds no lock, and the program may use the block during the collapse. If
    /// the program frees the block during the collapse, the freed block holds memory that reads as zeros until the next
    /// use of the block.
    pub fn collapse(&self) -> bool {
        self.pool.sys.collapse_full(self.pool.offset(self.block))
    }
}

impl<S: Machine> Drop for HeldBlocks<S> {
    fn drop(&mut self) {
        let _signals = SignalsBlocked::new();
        // Their memory goes back to the system a few blocks at a time ([`ProgramRegion::trim`]): a fork may be waiting
        // here.
        self.blocks.iter().for_each(|&block| _ = self.pool.release(block));
    }
}
