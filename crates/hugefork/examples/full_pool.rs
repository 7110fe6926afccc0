//! Measures a write that finds the pool full in the worst case: every block was lazily freed by a call of its own, and
//! none can be dropped, because a snapshot holds them all.
//!
//! `cargo run --release -p hugefork --example full_pool -- 4GiB 8GiB 16GiB`. The example takes as much memory as the
//! largest size.

use std::time::Instant;

use hugefork::{BlockSize, ByteSize, Pool, RegionError};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let sizes: Vec<ByteSize> = std::env::args().skip(1).map(|size| size.parse()).collect::<Result<_, _>>()?;
    measure(&sizes)
}

/// Run by the tests, too.
pub(crate) fn measure(sizes: &[ByteSize]) -> Result<(), Box<dyn std::error::Error>> {
    for &size in sizes {
        let block = BlockSize::MIB_2.bytes();
        let pool = Pool::builder().name("full").capacity(size.0).build()?;
        let region = pool.region(size.0)?;
        region.populate_with(2, |_| {})?;
        for start in (0..size.0).step_by(block) {
            region.lazy_free(start..start + block)?;
        }
        let snapshot = region.snapshot()?;
        let other = pool.region(block)?;
        for turn in ["first", "second"] {
            let started = Instant::now();
            let refused = other.prepare_write(0..1);
            let took = started.elapsed();
            assert!(matches!(refused, Err(RegionError::PoolFull { .. })), "{refused:?}");
            println!("{size}: the {turn} write that finds nothing to drop takes {took:?}");
        }
        drop(snapshot);
        let started = Instant::now();
        other.prepare_write(0..1)?;
        println!("{size}: once the snapshot has gone, the write takes {:?}", started.elapsed());
    }
    Ok(())
}
