//! Clears blocks around the byte that the program uses next, with several kernels, and prints the
//! cost of clearing and use together.
//!
//! Run it with `cargo run --release -p hugefork-kernels --example around_the_target`.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::error::Error;
use std::time::Instant;

use hugefork_kernels::{Kernel, SUBPAGE, Target};

const BLOCK: usize = 2 << 20;
const USED: usize = 64 << 10;

/// The tests call this too.
pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    // More than the caches hold.
    const BLOCKS: usize = 64;
    let layout = Layout::from_size_align(BLOCKS * BLOCK, BLOCK)?;
    // SAFETY: the layout is not empty.
    let memory = unsafe { alloc(layout) };
    if memory.is_null() {
        handle_alloc_error(layout);
    }
    // SAFETY: just allocated, of this length. It is touched here, so that no page fault is timed below.
    unsafe { memory.write_bytes(1, BLOCKS * BLOCK) };

    let names = ["straight/rep", "target-last/rep", "hybrid/avx2-nt", "hybrid/avx512-nt"];
    // The kernels that this processor can run, and its default.
    let named = names.iter().filter_map(|name| name.parse::<Kernel>().ok());
    for kernel in named.chain([Kernel::for_clear()]) {
        let (mut clear, mut usage) = (0.0, 0.0);
        for number in 0..BLOCKS {
            // Any byte of the block, unrounded like the address of a page fault.
            let target = number * 777_777 % (BLOCK - USED);
            // SAFETY: the block lies in `memory`, which only this function uses, and is aligned to 2 MiB.
            let block = unsafe { memory.add(number * BLOCK) };
            let start = Instant::now();
            // SAFETY: as above.
            unsafe { kernel.clear(block, BLOCK, Target::At(target)) };
            clear += start.elapsed().as_secs_f64();
            // SAFETY: as above; the used part ends inside the block.
            let used = unsafe { std::slice::from_raw_parts_mut(block.add(target), USED) };
            let start = Instant::now();
            used.iter_mut().for_each(|byte| *byte += 1);
            usage += start.elapsed().as_secs_f64();
            assert!(used.iter().all(|&byte| byte == 1));
        }
        let micros = |seconds: f64| seconds * 1e6 / BLOCKS as f64;
        println!(
            "{:<32} {:6.1} µs to clear 2 MiB, {:6.1} µs to use 64 KiB of it",
            kernel.to_string(),
            micros(clear),
            micros(usage)
        );
    }
    // The order as a list: the target's subpage comes last.
    println!("a block of 8 subpages, the third is next: {:?}", hugefork_kernels::target_last(8, 2).collect::<Vec<_>>());
    assert_eq!(BLOCK % SUBPAGE, 0);
    // SAFETY: allocated above with this layout.
    unsafe { dealloc(memory, layout) };
    Ok(())
}
