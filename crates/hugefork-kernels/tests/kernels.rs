//! One runner over every kernel: it checks that a clear or copy writes all of the block and nothing
//! outside it.

mod guarded;

use std::{
    io::Write,
    ptr::null_mut,
    sync::{
        Once,
        atomic::{AtomicPtr, AtomicUsize, Ordering::Relaxed},
    },
};

use guarded::{At, Guarded};
use hugefork_kernels::{
    GIGANTIC, Kernel, Order, Primitive, PrimitiveName, RESCHEDULE_EVERY, SUBPAGE, Target, every_kernel,
};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// The byte that fills a block before it is cleared or copied to.
const DIRTY: u8 = 0xa5;

/// A subpage, sizes around the default window, the default block, and both sides of the gigantic boundary.
const LENGTHS: [usize; 11] = [
    SUBPAGE,
    2 * SUBPAGE,
    3 * SUBPAGE,
    64 * KIB,
    124 * KIB,
    128 * KIB,
    132 * KIB,
    2 * MIB,
    GIGANTIC,
    GIGANTIC + SUBPAGE,
    8 * MIB,
];

/// Every subpage of a small block; in a large one the ends, the middle, and the edges of the default window.
fn targets(len: usize) -> Vec<Target> {
    let at: Vec<usize> = match len {
        _ if len <= 64 * KIB => (0..len).step_by(SUBPAGE).chain([1, len - 1]).collect(),
        _ if len <= 132 * KIB => vec![0, SUBPAGE - 1, len / 2, len / 2 + 12345, len - 1],
        _ if len <= 2 * MIB => {
            vec![0, 68 * KIB + 3, len / 2 - 1, len / 2, len - 68 * KIB, len - 1]
        }
        _ => vec![len / 3],
    };
    at.into_iter().map(Target::At).chain([Target::Unknown]).collect()
}

/// Bytes that differ from place to place, so a misplaced run of any length is detected.
fn pattern(len: usize) -> Vec<u8> {
    let word = |i: usize| (i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_ne_bytes();
    (0..len / 8).flat_map(word).collect()
}

/// Reports once the primitives that this machine cannot run.
#[expect(clippy::explicit_write, reason = "libtest hides what `eprintln` prints in passing tests")]
fn report_skipped() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        for name in PrimitiveName::ALL.iter().filter(|name| Primitive::new(**name).is_none()) {
            writeln!(std::io::stderr(), "skipped: {name}: needs {}", name.needs()).unwrap();
        }
    });
}

/// Runs the kernels of `pick` over every target and guard position, for every length that `wanted` accepts.
fn run<I: Iterator<Item = Kernel>>(
    wanted: impl Fn(usize) -> bool,
    pick: impl Fn() -> I,
    check: impl Fn(Kernel, Target, &mut Guarded, &mut Guarded, &[u8]),
) {
    report_skipped();
    for len in LENGTHS.into_iter().filter(|len| wanted(*len)) {
        let content = pattern(len);
        for at in [At::Low, At::High] {
            let mut to = Guarded::new(len, at);
            let mut from = Guarded::new(len, at);
            from.write(&content);
            for kernel in pick() {
                for target in targets(len) {
                    to.fill(DIRTY);
                    check(kernel, target, &mut to, &mut from, &content);
                    let what = format!("{kernel} {len} {target:?} {at:?}");
                    assert!(to.sentinel_is_intact(), "wrote outside: {what}");
                    assert!(from.sentinel_is_intact(), "wrote beside the source: {what}");
                    // `assert_eq` would print megabytes.
                    assert!(from.bytes() == content, "changed the source: {what}");
                }
            }
        }
    }
}

fn check_clear(kernel: Kernel, target: Target, to: &mut Guarded, _: &mut Guarded, _: &[u8]) {
    let len = to.bytes().len();
    // SAFETY: the whole of a page-aligned block that only this thread uses.
    unsafe { kernel.clear(to.block(), len, target) };
    let dirty = to.bytes().iter().position(|byte| *byte != 0);
    assert_eq!(dirty, None, "not cleared: {kernel} {len} {target:?}");
}

fn check_copy(kernel: Kernel, target: Target, to: &mut Guarded, from: &mut Guarded, content: &[u8]) {
    let len = content.len();
    // SAFETY: two whole page-aligned blocks of their own mappings that only this thread uses.
    unsafe { kernel.copy(to.block(), from.block(), len, target) };
    assert!(to.bytes() == content, "not copied: {kernel} {len} {target:?}");
}

/// Hybrid kernels with each window primitive and with windows of several sizes.
fn windows() -> impl Iterator<Item = Kernel> {
    let hybrid = |kernel: &Kernel| kernel.order() == Order::Hybrid;
    every_kernel().filter(hybrid).flat_map(move |kernel| {
        let near = Primitive::all().filter(|primitive| !primitive.is_non_temporal());
        near.flat_map(move |near| {
            let kernel = kernel.with_near(near).unwrap();
            [SUBPAGE, 3 * SUBPAGE, 2 * MIB].map(|window| kernel.with_window(window).unwrap())
        })
    })
}

#[test]
fn every_kernel_clears() {
    run(|_| true, every_kernel, check_clear);
}

#[test]
fn every_kernel_copies() {
    // Includes kernels whose far primitive only clears: they copy with the near primitive.
    run(|_| true, every_kernel, check_copy);
}

#[test]
fn every_window_clears_and_copies() {
    let wanted = |len| [SUBPAGE, 3 * SUBPAGE, 132 * KIB].contains(&len);
    run(wanted, windows, check_clear);
    run(wanted, windows, check_copy);
}

#[test]
fn the_default_kernels_clear_and_copy() {
    run(|len| len <= 2 * MIB, || [Kernel::for_clear()].into_iter(), check_clear);
    run(|len| len <= 2 * MIB, || [Kernel::for_copy()].into_iter(), check_copy);
}

#[test]
fn every_available_primitive_is_run_in_every_order() {
    let mut kernels = every_kernel();
    for primitive in Primitive::all() {
        for order in Order::ALL {
            let kernel = kernels.next().expect("one kernel each");
            assert_eq!((kernel.far(), kernel.order()), (primitive, *order));
        }
    }
    assert_eq!(kernels.next(), None);
}

#[test]
fn gigantic_blocks_reschedule_between_steps() {
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    for (len, expected) in [(2 * MIB, 0), (GIGANTIC, 0), (GIGANTIC + SUBPAGE, 2), (8 * MIB, 3)] {
        let mut to = Guarded::new(len, At::High);
        let mut from = Guarded::new(len, At::High);
        let content = pattern(len);
        from.write(&content);
        for kernel in every_kernel() {
            let kernel = kernel.with_reschedule(|| {
                CALLS.fetch_add(1, Relaxed);
            });
            check_clear(kernel, Target::At(5 * KIB), &mut to, &mut from, &content);
            assert_eq!(CALLS.swap(0, Relaxed), expected, "clear {kernel} {len}");
            check_copy(kernel, Target::At(5 * KIB), &mut to, &mut from, &content);
            assert_eq!(CALLS.swap(0, Relaxed), expected, "copy {kernel} {len}");
        }
    }
}

#[test]
fn gigantic_blocks_reschedule_after_every_2_mib() {
    static BLOCK: AtomicPtr<u8> = AtomicPtr::new(null_mut());
    static STEPS: AtomicUsize = AtomicUsize::new(0);

    fn check_boundary() {
        let steps = STEPS.fetch_add(1, Relaxed) + 1;
        let boundary = BLOCK.load(Relaxed).wrapping_add(steps * RESCHEDULE_EVERY);
        // SAFETY: inside the block below; this thread made all its stores, through the cache.
        let around = unsafe { [boundary.sub(1).read(), boundary.read()] };
        assert_eq!(around, [0, DIRTY], "straight through, {steps} steps of 2 MiB so far");
    }

    let mut block = Guarded::new(7 * MIB, At::Low);
    for order in Order::ALL {
        let kernel = Kernel::new(*order, Primitive::PORTABLE);
        block.fill(DIRTY);
        BLOCK.store(block.block(), Relaxed);
        STEPS.store(0, Relaxed);
        // SAFETY: the whole of a page-aligned block; `check_boundary` reads it only during this call.
        unsafe { kernel.with_reschedule(check_boundary).clear(block.block(), 7 * MIB, Target::Unknown) };
        assert_eq!(STEPS.load(Relaxed), 3, "{order}");
    }
}
