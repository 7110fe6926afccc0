//! The memory of hugefork's subjects: pools with all defaults except the capacity, and regions in
//! these pools.

use hugefork::{BlockSize, Pool, PoolBuilder, Region};

use crate::error::BenchError;
use crate::measure::work;

/// The description of a pool of `capacity` bytes, with all defaults.
pub(crate) fn builder(capacity: usize) -> PoolBuilder {
    Pool::builder().name("bench").capacity(capacity)
}

/// A pool of `capacity` bytes, with all defaults.
pub(crate) fn new(capacity: usize) -> Result<Pool, BenchError> {
    Ok(builder(capacity).build()?)
}

/// A pool with blocks of this size and otherwise all defaults, whose blocks were all written and given back once.
///
/// Used blocks are those of a program that has run for a while, and the harder case: a fresh block is zero already, and
/// a used block must be cleared.
pub(crate) fn used(capacity: usize, block_size: BlockSize) -> Result<Pool, BenchError> {
    let pool = builder(capacity).block_size(block_size).build()?;
    drop(written(&pool, capacity, 0)?);
    Ok(pool)
}

/// A region of `len` bytes in which every word has been written, `p[i] = i + bias`.
pub(crate) fn written(pool: &Pool, len: usize, bias: u64) -> Result<Region, BenchError> {
    let region = pool.region(len)?;
    // SAFETY: the region is new and ours alone.
    unsafe { work::write_words(region.as_mut_ptr().cast(), len / 8, bias) };
    Ok(region)
}
