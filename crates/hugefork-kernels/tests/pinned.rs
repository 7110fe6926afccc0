//! Selection of kernels by block size and use, and the values that users may pin.

use hugefork_kernels::{GIGANTIC, Kernel, KernelError, Kernels, NamePart, Order, Primitive, PrimitiveName, Use, Work};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
const USES: [Use; 2] = [Use::Near, Use::Whole];

fn base() -> Kernels {
    Kernels::default_for_this_cpu()
}

fn pinned(kernel: Option<&str>, window: Option<&str>) -> Result<Kernels, KernelError> {
    Kernels::pinned(kernel, window, base())
}

#[test]
fn the_block_size_and_the_use_select_the_kernel() {
    let kernels = base();
    assert_eq!(kernels.clear(2 * MIB, Use::Near), Kernel::for_clear());
    assert_eq!(kernels.copy(2 * MIB, Use::Near), Kernel::for_copy());
    assert_eq!(kernels.clear(2 * MIB, Use::Whole).order(), Order::Straight);
    assert_eq!(kernels.clear(2 * MIB, Use::Whole).far(), Kernel::for_clear().far());
    assert!(!kernels.copy(2 * MIB, Use::Whole).far().is_non_temporal());
    for what in [Work::Clear, Work::Copy] {
        for used in USES {
            let small = kernels.pick(what, kernels.nt_from(what) - 4 * KIB, used);
            assert!(small.order() == Order::Straight && !small.far().is_non_temporal(), "{small}");
            let from = kernels.pick(what, kernels.nt_from(what), used);
            assert_eq!(from, kernels.pick(what, GIGANTIC, used));
            let gigantic = kernels.pick(what, GIGANTIC + 4 * KIB, used);
            assert_eq!(gigantic.order(), Order::Straight);
            assert_eq!(gigantic.far(), kernels.pick(what, MIB, Use::Near).far());
            assert!(what == Work::Clear || gigantic.check_copy().is_ok());
        }
    }
}

#[test]
fn without_pins_the_base_is_returned() {
    assert_eq!(pinned(None, None), Ok(base()));
}

#[test]
fn a_pinned_kernel_serves_every_size_and_use_it_can() {
    let kernels = pinned(Some("target-last/portable"), None).unwrap();
    for len in [4 * KIB, 2 * MIB, 1024 * MIB] {
        for used in USES {
            assert_eq!(kernels.clear(len, used).to_string(), "target-last/portable");
            assert_eq!(kernels.copy(len, used).to_string(), "target-last/portable");
        }
    }
    for primitive in Primitive::all().filter(|primitive| !primitive.can_copy()) {
        let kernels = pinned(Some(&format!("hybrid/{primitive}")), None).unwrap();
        assert_eq!(kernels.clear(4 * KIB, Use::Whole).far(), primitive);
        assert_eq!(kernels.copy(2 * MIB, Use::Near), base().copy(2 * MIB, Use::Near));
    }
}

#[test]
fn a_pinned_window_applies_to_all_hybrid_kernels() {
    for (text, bytes) in [("64KiB", 64 * KIB), ("131072", 128 * KIB), (" 1MiB ", MIB)] {
        let kernels = pinned(Some("hybrid/portable@256KiB"), Some(text)).unwrap();
        assert_eq!(kernels.clear(2 * MIB, Use::Near).window(), bytes);
        let kernels = pinned(None, Some(text)).unwrap();
        for what in [Work::Clear, Work::Copy] {
            let near = kernels.pick(what, 2 * MIB, Use::Near);
            assert!(near.order() != Order::Hybrid || near.window() == bytes, "{near}");
            assert_eq!(kernels.pick(what, 2 * MIB, Use::Whole), base().pick(what, 2 * MIB, Use::Whole));
        }
    }
}

#[test]
fn bad_values_are_refused_with_good_ones() {
    for window in ["0", "1000", "5KiB"] {
        assert!(matches!(pinned(None, Some(window)), Err(KernelError::BadWindow(_))), "{window}");
        // A bad window is refused even if no kernel has a window.
        assert!(pinned(Some("straight/portable"), Some(window)).is_err(), "{window}");
    }
    for window in ["", "big", "64kb", "-4096"] {
        let error = pinned(None, Some(window)).unwrap_err();
        assert!(matches!(error, KernelError::Unknown { part: NamePart::Window, .. }), "{window}: {error:?}");
        assert!(error.to_string().contains("as in 128KiB, 1MiB or 131072"), "{error}");
    }
    let message = pinned(Some("hybrid/avx1024"), None).unwrap_err().to_string();
    for name in PrimitiveName::ALL {
        let (here, not_here) = message.split_once("; not on this machine: ").expect("no machine has all");
        let side = if Primitive::new(*name).is_some() { here } else { not_here };
        assert!(side.split([' ', ',']).any(|word| word == name.as_str()), "{name}: {message}");
    }
    let missing = if cfg!(target_arch = "aarch64") { PrimitiveName::Clzero } else { PrimitiveName::Stnp };
    let error = pinned(Some(&format!("straight/{missing}")), None).unwrap_err();
    assert_eq!(error, KernelError::Unavailable(missing));
    assert!(error.to_string().contains("which this machine does not offer: use portable"), "{error}");
}

#[test]
fn the_reschedule_function_survives_pinning() {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    let base = base().with_reschedule(|| {
        CALLS.fetch_add(1, Relaxed);
    });
    let mut block = vec![0u128; 6 * MIB / 16 + 4096 / 16];
    let start = block.as_mut_ptr().cast::<u8>();
    let start = start.wrapping_add(start.align_offset(4096));
    for kernels in [base, Kernels::pinned(Some("straight/portable"), Some("64KiB"), base).unwrap()] {
        CALLS.store(0, Relaxed);
        let kernel = kernels.clear(6 * MIB, Use::Near);
        // SAFETY: 6 MiB of the vector, from a page boundary in its first 4 KiB on.
        unsafe { kernel.clear(start, 6 * MIB, hugefork_kernels::Target::Unknown) };
        assert_eq!(CALLS.load(Relaxed), 2, "{kernel}");
    }
}
