//! hugefork's side of the cases: pools whose blocks have all been used before.

use hugefork::{BlockSize, Commit, Pool, Region};

use crate::error::BenchError;
use crate::plan::{CasePlan, EngineChoice};
use crate::result::{Param, Params};
use crate::work;

/// A pool of `capacity` bytes, built as the plan says, every block of it written and given back once.
///
/// Used blocks are what a program that runs for a while has, and the harder case: a fresh block is zero already, and its
/// fault would cost nothing but the mapping. Writing them also gets the host's first touch out of the way.
pub(crate) fn warm_pool(choice: EngineChoice, block: BlockSize, capacity: usize) -> Result<Pool, BenchError> {
    let pool = Pool::builder()
        .name("bench")
        .capacity(capacity)
        .block_size(block)
        .backing(choice.backing)
        .fallback(choice.fallback)
        .commit(Commit::Upfront)
        .build()?;
    drop(written(&pool, capacity, 0)?);
    Ok(pool)
}

/// A region of `len` bytes in which every word has been written, `p[i] = i + bias`.
pub(crate) fn written(pool: &Pool, len: usize, bias: u64) -> Result<Region, BenchError> {
    let region = pool.region(len)?;
    // SAFETY: the region is new, ours alone, and `len` bytes long.
    unsafe { work::write_words(region.as_mut_ptr().cast(), len / 8, bias) };
    Ok(region)
}

/// What every entry of hugefork says of itself before its pool exists.
pub(crate) fn asked(plan: &CasePlan, choice: EngineChoice) -> Params {
    Params::from([
        ("block_size".to_owned(), Param::text(plan.block_size)),
        ("backing".to_owned(), Param::text(choice.backing)),
    ])
}

/// What the pool turned out to be; takes the place of what was asked for.
pub(crate) fn granted(pool: &Pool) -> Params {
    Params::from([("backing".to_owned(), Param::text(pool.backing()))])
}

/// What a reader must know of a pool that is not what was hoped for.
pub(crate) fn caveat(pool: &Pool) -> Option<String> {
    let reason = pool.fallback_reason()?;
    Some(format!("hugefork ran on {}: {reason}", pool.backing()))
}
