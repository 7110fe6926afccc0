//! Ways to take snapshots of an area that is written to afterwards, by the writer itself or by others.

pub(super) mod fork;
pub(super) mod hugefork;

use ::hugefork::Pool;
use hugefork_kernels::Kernel;

use super::footprint::Footprint;
use crate::error::BenchError;

/// Reads the word at an offset.
pub(super) type Read<'a> = &'a dyn Fn(usize) -> u64;

/// A way to take snapshots.
pub(super) trait Rival {
    /// A snapshot.
    type Snapshot;

    /// Makes the area, or writes it again, so that each word holds its number and `bias`. Not timed.
    fn populate(&mut self, size: usize, bias: u64) -> Result<(), BenchError>;

    /// Warms the memory that copies go to, on the CPUs that may write. Not timed.
    fn warm(&self, _size: usize, _cpus: &[usize]) -> Result<(), BenchError> {
        Ok(())
    }

    /// The first byte of the area.
    fn start(&self) -> *mut u8;

    /// What a program does once, long before it takes a snapshot. Not timed.
    fn ready(&mut self) -> Result<(), BenchError> {
        Ok(())
    }

    /// Takes a snapshot. `is_kept` says whether what it reads is what the snapshot must hold, and neither allocates nor
    /// locks.
    fn take(&mut self, is_kept: impl Fn(Read<'_>) -> bool) -> Result<Self::Snapshot, BenchError>;

    /// Milliseconds for which the last [`take`](Rival::take), which took `call`, kept writers waiting.
    fn pause(&self, call: f64) -> f64 {
        call
    }

    /// Bytes copied for a snapshot, where the writer took so many minor faults and `distinct` says how many pieces of a
    /// length it wrote to; none if nobody can say.
    fn copied(&self, distinct: &dyn Fn(usize) -> usize, minor_faults: usize) -> Option<usize>;

    /// Bytes held now, with these snapshots; none if nobody can say.
    fn memory(&self, _: &[Self::Snapshot]) -> Option<usize> {
        Footprint::by_this().map(Footprint::alone)
    }

    /// Reads a word of each 2 MiB of a snapshot of an area of so many bytes by address, for the first time. False if
    /// nobody in this process can.
    fn first_read(&self, _: &Self::Snapshot, _size: usize) -> Result<bool, BenchError> {
        Ok(false)
    }

    /// Lets go of a snapshot without a look at it.
    fn discard(&mut self, held: Self::Snapshot) -> Result<(), BenchError> {
        drop(held);
        Ok(())
    }

    /// Has `check` look at what a snapshot holds, and lets go of it.
    fn let_go(
        &mut self,
        held: Self::Snapshot,
        check: impl FnOnce(Read<'_>) -> Result<(), BenchError>,
    ) -> Result<(), BenchError>;

    /// Gives the memory back.
    fn release(&mut self);

    /// Gives back what the next sample must have new.
    fn end_sample(&mut self) {
        self.release();
    }

    /// As [`Work::pool`](crate::run::sample::Work::pool).
    fn pool(&self) -> Option<(&Pool, Option<Kernel>)> {
        None
    }

    /// What a reader must know of its figures.
    fn caveat(&self) -> Option<String> {
        None
    }
}
