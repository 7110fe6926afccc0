//! What `clear` and `copy` run with `--sweep`: blocks from 4 KiB to 1 GiB, and every primitive in every order with
//! every window.
//!
//! A block size gets only the variants that differ on it, by the rules of `differs`. 2 MiB get some sixty variants. A
//! gigantic block goes straight through whatever the order, and gets a dozen.

use hugefork::BlockSize;
use hugefork_kernels::{GIGANTIC, Kernel, Order, SUBPAGE, every_kernel};

use crate::subject::{Subject, linux_order};

/// The blocks of a sweep.
pub(super) const BLOCKS: [BlockSize; 4] = [BlockSize::KIB_4, BlockSize::KIB_64, BlockSize::MIB_2, BlockSize::GIB_1];

/// The windows of a sweep, for the hybrid order.
pub(super) const WINDOWS: [usize; 4] = [64 << 10, 128 << 10, 256 << 10, 512 << 10];

/// Every primitive in every order, and the hybrid order with every window.
pub(super) fn kernels() -> impl Iterator<Item = Kernel> {
    every_kernel().flat_map(|kernel| {
        // Other orders have no window, so any one will do.
        let windows = if kernel.order() == Order::Hybrid { WINDOWS.as_slice() } else { &WINDOWS[..1] };
        windows.iter().filter_map(move |window| kernel.with_window(*window).ok())
    })
}

/// Whether `subject` does something on blocks of this size that no other variant does.
pub(super) fn differs(subject: &Subject, block: BlockSize) -> bool {
    let block = block.bytes();
    // Blocks of several subpages that do not go straight through: their order matters.
    let ordered = block > SUBPAGE && block <= GIGANTIC;
    match subject {
        // What Linux does keeps its own name even where another variant does the same.
        Subject::Kernel(kernel) if *kernel == linux_order() => block <= GIGANTIC,
        Subject::Kernel(kernel) => match kernel.order() {
            Order::Straight => true,
            // A window as large as the block leaves nothing outside.
            Order::Hybrid => ordered && kernel.window() < block,
            _ => ordered,
        },
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use hugefork_kernels::Primitive;

    use super::*;

    fn on(block: BlockSize) -> Vec<Kernel> {
        kernels().filter(|kernel| differs(&Subject::Kernel(*kernel), block)).collect()
    }

    #[test]
    fn a_huge_page_gets_every_primitive_order_and_window_once() {
        let primitives = Primitive::all().count();
        let kernels = on(BlockSize::MIB_2);
        assert_eq!(kernels.len(), primitives * (Order::ALL.len() - 1 + WINDOWS.len()));
        for (index, kernel) in kernels.iter().enumerate() {
            assert!(!kernels[..index].contains(kernel), "{kernel}");
        }
    }

    #[test]
    fn what_comes_to_the_same_is_left_out() {
        // One subpage has no order, and a window of 64 KiB leaves nothing of 64 KiB outside.
        assert!(on(BlockSize::KIB_4).iter().all(|k| k.order() == Order::Straight || *k == linux_order()));
        assert!(on(BlockSize::KIB_64).iter().all(|k| k.order() != Order::Hybrid));
        assert!(on(BlockSize::KIB_64).iter().any(|k| k.order() == Order::TargetLast));
        assert!(on(BlockSize::GIB_1).iter().all(|k| k.order() == Order::Straight));
        for block in BLOCKS {
            assert!(differs(&Subject::Hugefork, block) && differs(&Subject::Memset, block));
        }
    }
}
