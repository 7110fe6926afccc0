//! Clears or copies a block with a kernel of any parameters and checks that all of the block is
//! written and nothing outside it. The corpus test and the fuzzer in fuzz/ call it.

use hugefork_kernels::{Kernel, Order, Primitive, SUBPAGE, Side, Target};

/// Most subpages of a block; it has one more subpage on each side.
const MAX_SUBPAGES: usize = 600;

#[repr(C, align(4096))]
#[derive(Clone, Copy)]
struct Subpage([u8; SUBPAGE]);

/// Subpages with different bytes.
fn pattern(subpages: usize, seed: u8) -> Vec<Subpage> {
    let byte = |at: usize| (at as u32).wrapping_mul(0x9e37_79b9).rotate_left(11) as u8 ^ seed;
    let subpage = |nth: usize| Subpage(core::array::from_fn(|at| byte(nth * SUBPAGE + at)));
    (0..subpages).map(subpage).collect()
}

struct Numbers<'a>(&'a [u8]);

impl Numbers<'_> {
    fn next(&mut self, bytes: usize) -> usize {
        let (first, rest) = self.0.split_at(bytes.min(self.0.len()));
        self.0 = rest;
        first.iter().fold(0, |number, &byte| number << 8 | usize::from(byte))
    }
}

/// Decodes the bytes into kernel, target and block, and runs them. The constructors refuse impossible kernels.
pub(crate) fn check(bytes: &[u8]) {
    let mut numbers = Numbers(bytes);
    let primitives: Vec<Primitive> = Primitive::all().collect();
    let mut primitive = || primitives[numbers.next(1) % primitives.len()];
    let (far, near) = (primitive(), primitive());
    let kernel = Kernel::new(Order::ALL[numbers.next(1) % Order::ALL.len()], far);
    let kernel = kernel.with_side([Side::Around, Side::After, Side::Before][numbers.next(1) % 3]);
    let kernel = kernel.with_near(near).unwrap_or(kernel);
    let kernel = kernel.with_window(numbers.next(2) * SUBPAGE).unwrap_or(kernel);
    let subpages = 1 + numbers.next(2) % MAX_SUBPAGES;
    let len = subpages * SUBPAGE;
    let target = match numbers.next(3) {
        at if at < len => Target::At(at),
        at if at % 2 == 0 => Target::At(at % len),
        _ => Target::Unknown,
    };
    // The printed name parses into an equal kernel.
    assert_eq!(kernel.to_string().parse::<Kernel>().as_ref(), Ok(&kernel), "{kernel}");

    let before = pattern(subpages + 2, 1);
    let from = pattern(subpages, 77);
    let mut to = before.clone();
    let block = to[1..].as_mut_ptr().cast::<u8>();
    let does_copy = numbers.next(1) % 2 == 0 && kernel.check_copy().is_ok();
    // SAFETY: the block has this length, is aligned to a subpage, and only this thread uses it; the source too.
    unsafe {
        if does_copy {
            kernel.copy(block, from.as_ptr().cast(), len, target);
        } else {
            kernel.clear(block, len, target);
        }
    }
    let is_whole = |nth: usize| to[1 + nth].0 == if does_copy { from[nth].0 } else { [0; SUBPAGE] };
    assert!((0..subpages).all(is_whole), "{kernel} of {len} bytes at {target:?}: not all of it");
    let is_left = |nth: usize| to[nth].0 == before[nth].0;
    assert!(is_left(0) && is_left(subpages + 1), "{kernel} of {len} bytes at {target:?}: wrote outside");
}
