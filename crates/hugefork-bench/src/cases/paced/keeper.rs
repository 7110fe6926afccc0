//! Who takes snapshots of the area: hugefork, and `fork(2)` whose child holds them.

use hugefork::{Pool, Snapshot};
use hugefork_kernels::Kernel;

use super::puts::{BIAS, Puts, reader};
use crate::cases::footprint::Footprint;
use crate::error::BenchError;
use crate::measure::affinity::allowed_cpus;
use crate::measure::warm::{warm, warm_page_tables};
use crate::memory::engine::{self, Populated};
use crate::memory::holder::Holder;
use crate::memory::kernel_memory::{HUGE_PAGE, Inherit, KernelMemory, PageKind};
use crate::plan::job::EngineChoice;
use crate::subject::Stock;

/// A way to take snapshots of an area that others write to.
pub(super) trait Keeper {
    /// A snapshot.
    type Snapshot;

    /// Makes the area, or writes it again, so that each word holds its number and [`BIAS`]. Not timed.
    fn populate(&mut self, size: usize) -> Result<(), BenchError>;

    /// Warms the memory that copies go to. Not timed.
    fn warm(&self, size: usize) -> Result<(), BenchError>;

    /// The first byte of the area.
    fn start(&self) -> *mut u8;

    /// Takes a snapshot while others put.
    fn take(&self, puts: &[Puts]) -> Result<Self::Snapshot, BenchError>;

    /// Bytes held now, with a snapshot or without; none if nobody can say.
    fn memory(&self, held: Option<&Self::Snapshot>) -> Option<usize>;

    /// Checks what the last snapshot holds, and drops it.
    fn let_go(&self, held: Self::Snapshot, puts: &[Puts]) -> Result<(), BenchError>;

    /// Gives the memory back.
    fn release(&mut self);

    /// hugefork's pool and its copy kernel.
    fn pool(&self) -> Option<(&Pool, Option<Kernel>)> {
        None
    }
}

/// hugefork: a region, and snapshots of it.
pub(super) struct Hugefork {
    choice: EngineChoice,
    held: Option<Populated>,
}

impl Hugefork {
    pub(super) fn new(choice: EngineChoice) -> Hugefork {
        Hugefork { choice, held: None }
    }

    fn held(&self) -> &Populated {
        self.held.as_ref().expect("populated before used")
    }
}

impl Keeper for Hugefork {
    type Snapshot = Snapshot;

    fn populate(&mut self, size: usize) -> Result<(), BenchError> {
        // The old pool's memory is freed before the new pool gets any.
        self.held = None;
        let pool = match self.choice.stock {
            Stock::Unused => engine::new_pool(self.choice, 2 * size)?,
            _ => engine::warm_pool(self.choice, 2 * size)?,
        };
        self.held = Some(Populated::new(pool, self.choice.grain, size, BIAS)?);
        Ok(())
    }

    /// The pool has been used, or is to be new.
    fn warm(&self, _: usize) -> Result<(), BenchError> {
        Ok(())
    }

    fn start(&self) -> *mut u8 {
        self.held().region.as_mut_ptr()
    }

    fn take(&self, _: &[Puts]) -> Result<Snapshot, BenchError> {
        Ok(self.held().region.snapshot()?)
    }

    /// The blocks in use, whether their memory was there before or not, and private pages.
    fn memory(&self, _: Option<&Snapshot>) -> Option<usize> {
        let stats = self.held().pool.stats();
        let blocks = (stats.blocks - stats.blocks_free) * self.choice.block_size.bytes();
        Footprint::by_this().map(|held| held.anonymous + blocks)
    }

    fn let_go(&self, snapshot: Snapshot, puts: &[Puts]) -> Result<(), BenchError> {
        let view = snapshot.map()?;
        // SAFETY: the snapshot is as long as the region.
        puts.iter().try_for_each(|puts| puts.check_kept(unsafe { reader(view.as_ptr()) }))
    }

    fn release(&mut self) {
        self.held = None;
    }

    fn pool(&self) -> Option<(&Pool, Option<Kernel>)> {
        self.held.as_ref().map(|held| (&held.pool, Some(held.pool.copy_kernel())))
    }
}

/// `fork(2)`: the child sleeps until it is asked what it holds.
pub(super) struct Fork {
    kind: PageKind,
    area: Option<KernelMemory>,
}

impl Fork {
    pub(super) fn new(kind: PageKind) -> Fork {
        Fork { kind, area: None }
    }

    fn area(&self) -> &KernelMemory {
        self.area.as_ref().expect("populated before used")
    }
}

impl Keeper for Fork {
    type Snapshot = Holder;

    fn populate(&mut self, size: usize) -> Result<(), BenchError> {
        self.area = None;
        let area = KernelMemory::written(self.kind, size, BIAS)?;
        area.check_huge()?;
        area.inherit(Inherit::Yes)?;
        self.area = Some(area);
        Ok(())
    }

    fn warm(&self, size: usize) -> Result<(), BenchError> {
        let copies = if self.kind == PageKind::Hugetlb { PageKind::Hugetlb } else { PageKind::Base };
        let cpus = allowed_cpus();
        let each = (size / cpus.len()).next_multiple_of(HUGE_PAGE);
        warm(copies, each, cpus.len(), &cpus)?;
        cpus.into_iter().try_for_each(warm_page_tables)
    }

    fn start(&self) -> *mut u8 {
        self.area().as_ptr()
    }

    fn take(&self, puts: &[Puts]) -> Result<Holder, BenchError> {
        let start: *const u8 = self.start();
        // SAFETY: the child's own copy of the area, which it reads; it neither allocates nor locks.
        unsafe { Holder::fork(|| puts.iter().all(|puts| !puts.is_asked() || puts.check_kept(reader(start)).is_ok())) }
    }

    fn memory(&self, held: Option<&Holder>) -> Option<usize> {
        let own = Footprint::by_this()?;
        match held {
            Some(child) => Some(own.with_child(Footprint::by(child.pid()?)?)),
            None => Some(own.alone()),
        }
    }

    fn let_go(&self, child: Holder, puts: &[Puts]) -> Result<(), BenchError> {
        puts.iter().for_each(Puts::ask);
        child.let_go()
    }

    fn release(&mut self) {
        self.area = None;
    }
}
