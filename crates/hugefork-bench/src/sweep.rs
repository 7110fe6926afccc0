//! What `clear` and `copy` go over with `--sweep`: blocks from 4 KiB to 1 GiB, and every primitive in every order with every
//! window.
//!
//! A block size gets only variants that differ on it: `differs` has the rules. On 2 MiB that is some sixty of them, on a
//! gigantic block, which goes straight through whatever the order, a dozen.

use hugefork::BlockSize;
use hugefork_kernels::{GIGANTIC, Kernel, Order, SUBPAGE, every_kernel};

use crate::cases::linux_order;
use crate::subject::Subject;

/// The blocks of a sweep.
pub const BLOCKS: [BlockSize; 4] = [BlockSize::KIB_4, BlockSize::KIB_64, BlockSize::MIB_2, BlockSize::GIB_1];

/// The windows of a sweep, for the hybrid order.
pub const WINDOWS: [usize; 4] = [64 << 10, 128 << 10, 256 << 10, 512 << 10];

/// Every primitive in every order, the hybrid ones with every window.
pub(crate) fn kernels() -> impl Iterator<Item = Kernel> {
    every_kernel().flat_map(|kernel| {
        // Other orders have no window, so that any will do.
        let windows = if kernel.order() == Order::Hybrid { WINDOWS.as_slice() } else { &WINDOWS[..1] };
        windows.iter().filter_map(move |window| kernel.with_window(*window).ok())
    })
}

/// Whether `subject` does anything on blocks of this size that no other variant does.
pub(crate) fn differs(subject: &Subject, block: BlockSize) -> bool {
    let block = block.bytes();
    // Several subpages, in an order that can be told.
    let ordered = block > SUBPAGE && block <= GIGANTIC;
    match subject {
        Subject::Reversed => block <= GIGANTIC,
        // What Linux does is worth its name also where it comes to the same as another.
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
        // One subpage has no order, and a window of 64 KiB nothing outside of 64 KiB.
        assert!(on(BlockSize::KIB_4).iter().all(|k| k.order() == Order::Straight || *k == linux_order()));
        assert!(on(BlockSize::KIB_64).iter().all(|k| k.order() != Order::Hybrid));
        assert!(on(BlockSize::KIB_64).iter().any(|k| k.order() == Order::TargetLast));
        assert!(on(BlockSize::GIB_1).iter().all(|k| k.order() == Order::Straight));
        assert!(!differs(&Subject::Reversed, BlockSize::GIB_1) && differs(&Subject::Reversed, BlockSize::MIB_2));
        for block in BLOCKS {
            assert!(differs(&Subject::Hugefork, block) && differs(&Subject::Memset, block));
        }
    }
}
