//! hugefork's side of the cases: pools whose blocks have all been used before, and pools with all defaults, whose
//! blocks are new.
//!
//! A stock of zeroed blocks is filled before a sample begins *and* before the next subject's turn, so that its thread
//! does not run while another subject is timed.

use std::time::{Duration, Instant};

use hugefork::{ByteSize, Commit, CopyGrain, Pool, Region, RegionOptions, ZeroedStock};
use hugefork_kernels::Kernel;

use crate::error::BenchError;
use crate::measure::work;
use crate::plan::job::EngineChoice;
use crate::results::metric::{Measure, Metric};
use crate::results::result::{Param, Params, params};
use crate::subject::Stock;

/// A stock that has not grown for so long does not work. Clearing a block takes some 40 us of a CPU, and a busy machine
/// gives the zeroing thread little time.
const STANDSTILL: Duration = Duration::from_secs(60);

/// A pool of `capacity` bytes, built as the plan says, every block of it written and given back once.
///
/// A program that has run for a while has used blocks, and they are the harder case: a fresh block is zero already, and
/// its fault would cost nothing but the mapping. Writing them also gets the host's first touch out of the way.
pub(crate) fn warm_pool(choice: EngineChoice, capacity: usize) -> Result<Pool, BenchError> {
    let mut builder = Pool::builder()
        .name("bench")
        .capacity(capacity)
        .block_size(choice.block_size)
        .backing(choice.backing)
        .fallback(choice.fallback)
        .commit(Commit::Upfront);
    if keeps_stock(choice) {
        // The thread clears whenever a block is not zero, so that the stock is full or fills as fast as it can.
        builder = builder.zeroed_stock(ZeroedStock::keep(capacity, capacity).cpu_percent(100));
    }
    let pool = builder.build()?;
    if keeps_stock(choice) && !pool.stats().stock.running {
        return Err(BenchError::CannotRun("the pool's zeroing thread could not be started".to_owned()));
    }
    use_blocks(&pool, capacity)?;
    Ok(pool)
}

/// Writes `len` bytes of the pool's free blocks and gives them back, as
/// [`warm`](crate::measure::warm::warm) does with the kernel's pages before each of its samples.
///
/// Some hosts look now and then which memory of a virtual machine is in use, and the first write to each 2 MiB
/// afterwards takes 60 us (docs/measurements.md). Blocks that lay there meanwhile would meet that in their faults.
pub(crate) fn use_blocks(pool: &Pool, len: usize) -> Result<(), BenchError> {
    written(pool, len, 0).map(drop)
}

/// A new pool of `capacity` bytes with every default but the sizes and what the plan says of its backing.
pub(crate) fn new_pool(choice: EngineChoice, capacity: usize) -> Result<Pool, BenchError> {
    let builder = Pool::builder().name("bench").capacity(capacity).block_size(choice.block_size);
    Ok(builder.backing(choice.backing).fallback(choice.fallback).build()?)
}

fn keeps_stock(choice: EngineChoice) -> bool {
    match choice.stock {
        Stock::Unused | Stock::Without => false,
        Stock::Filled | Stock::Refilling => true,
    }
}

/// Waits until `len` bytes of free blocks are zero, if the pool keeps a stock. Not timed.
pub(crate) fn fill_stock(pool: &Pool, choice: EngineChoice, len: usize) -> Result<(), BenchError> {
    if !keeps_stock(choice) {
        return Ok(());
    }
    let mut last = (0, Instant::now());
    loop {
        let zeroed = pool.stats().blocks_zeroed_free * choice.block_size.bytes();
        if zeroed >= len {
            return Ok(());
        }
        if zeroed > last.0 {
            last = (zeroed, Instant::now());
        }
        if last.1.elapsed() > STANDSTILL {
            return Err(BenchError::StockNotFilled {
                zeroed: ByteSize(zeroed),
                wanted: ByteSize(len),
                after: STANDSTILL,
            });
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The time that the zeroing thread has spent so far.
pub(crate) fn zeroing_so_far(pool: &Pool) -> Duration {
    pool.stats().stock.time
}

/// The time that the zeroing thread has spent since `before`, if the pool has one.
pub(crate) fn zeroing_since(pool: &Pool, choice: EngineChoice, before: Duration) -> Option<Measure> {
    let spent = zeroing_so_far(pool).saturating_sub(before);
    keeps_stock(choice).then(|| Measure::new(Metric::ZEROING, spent.as_secs_f64() * 1e3))
}

/// A region of `len` bytes in which every word has been written, `p[i] = i + bias`.
pub(crate) fn written(pool: &Pool, len: usize, bias: u64) -> Result<Region, BenchError> {
    Ok(filled(pool.region(len)?, bias))
}

fn filled(region: Region, bias: u64) -> Region {
    // SAFETY: the region is new and ours alone.
    unsafe { work::write_words(region.as_mut_ptr().cast(), region.len() / 8, bias) };
    region
}

/// A region in which every word has been written, with its pool.
pub(crate) struct Populated {
    // The region before its pool: fields drop in order.
    pub(crate) region: Region,
    pub(crate) pool: Pool,
}

impl Populated {
    /// As [`written`], in `pool`, with copies of this grain.
    pub(crate) fn new(pool: Pool, grain: CopyGrain, len: usize, bias: u64) -> Result<Populated, BenchError> {
        let region =
            pool.region_with(len, RegionOptions::new().copy_grain(grain).calls_wait(grain == CopyGrain::Page))?;
        Ok(Populated { region: filled(region, bias), pool })
    }
}

/// What every entry of hugefork says of itself before its pool exists.
pub(crate) fn asked(choice: EngineChoice) -> Params {
    params([("block_size", Param::text(choice.block_size)), ("backing", Param::text(choice.backing))])
}

/// What the pool turned out to be. It replaces what was asked for.
pub(crate) fn granted(pool: &Pool, kernel: Option<Kernel>) -> Params {
    let mut params = params([("backing", Param::text(pool.backing()))]);
    params.extend(kernel.map(|kernel| ("kernel".to_owned(), Param::text(kernel))));
    params
}

/// What a reader must know of a pool that is not on the backing that was asked for.
pub(crate) fn caveat(pool: &Pool) -> Option<String> {
    let reason = pool.fallback_reason()?;
    Some(format!("hugefork ran on {}: {reason}", pool.backing()))
}
