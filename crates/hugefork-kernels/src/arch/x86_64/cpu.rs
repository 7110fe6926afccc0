//! Detects the extensions that this x86-64 CPU has and that the system lets programs use.
//!
//! This crate does without std, and so without `is_x86_feature_detected!`. CPUID alone is not enough: a CPU may have
//! AVX-512 although the system does not save its registers, and only XCR0 shows that. `has` queries the CPU at the
//! first check; later checks are one relaxed load. A running kernel checks nothing, since the constructor of its
//! primitive has checked the CPU.

use core::{
    arch::x86_64::_xgetbv,
    sync::atomic::{AtomicU8, Ordering},
};

use raw_cpuid::CpuId;

/// Bits of the features that `has` checks.
#[derive(Clone, Copy)]
#[repr(u8)]
pub(super) enum Feature {
    /// `rep stosb` and `rep movsb` whose microcode moves whole lines (Intel since Ivy Bridge, AMD since Zen 3).
    FastRep = 1 << 0,
    Avx2 = 1 << 1,
    Avx512f = 1 << 2,
    Clzero = 1 << 3,
}

const DETECTED: u8 = 1 << 7;

/// XCR0 bits: the system saves the SSE and AVX registers.
const XCR0_AVX: u64 = 0b110;
/// XCR0 bits: the system also saves the mask registers, the upper halves of ZMM0–15, and ZMM16–31.
const XCR0_AVX512: u64 = 0b1110_0110;

/// The values that CPUID and XGETBV report.
#[derive(Clone, Copy)]
struct Reported {
    fast_rep: bool,
    avx2: bool,
    avx512f: bool,
    clzero: bool,
    /// 0 if the system does not let programs read it.
    xcr0: u64,
}

pub(super) fn has(feature: Feature) -> bool {
    /// 0 until the first check. Relaxed suffices, since two threads that check at once compute the same value.
    static FEATURES: AtomicU8 = AtomicU8::new(0);
    let mut features = FEATURES.load(Ordering::Relaxed);
    if features == 0 {
        features = usable(report()) | DETECTED;
        FEATURES.store(features, Ordering::Relaxed);
    }
    features & feature as u8 != 0
}

fn usable(reported: Reported) -> u8 {
    let saves = |bits| reported.xcr0 & bits == bits;
    let mut features = 0;
    for (feature, present) in [
        (Feature::FastRep, reported.fast_rep),
        (Feature::Avx2, reported.avx2 && saves(XCR0_AVX)),
        (Feature::Avx512f, reported.avx512f && saves(XCR0_AVX512)),
        (Feature::Clzero, reported.clzero),
    ] {
        features |= if present { feature as u8 } else { 0 };
    }
    features
}

fn report() -> Reported {
    let cpuid = CpuId::new();
    let basic = cpuid.get_feature_info();
    let extended = cpuid.get_extended_feature_info();
    let capacity = cpuid.get_processor_capacity_feature_info();
    let os_saves = basic.as_ref().is_some_and(|basic| basic.has_oxsave());
    Reported {
        fast_rep: extended.as_ref().is_some_and(|leaf| leaf.has_rep_movsb_stosb()),
        avx2: extended.as_ref().is_some_and(|leaf| leaf.has_avx2()),
        avx512f: extended.as_ref().is_some_and(|leaf| leaf.has_avx512f()),
        clzero: capacity.as_ref().is_some_and(|leaf| leaf.has_cl_zero()),
        // SAFETY: OSXSAVE is set, so the CPU has XGETBV and the system lets programs execute it.
        xcr0: if os_saves { unsafe { xcr0() } } else { 0 },
    }
}

/// # Safety
///
/// CPUID must report OSXSAVE.
#[target_feature(enable = "xsave")]
unsafe fn xcr0() -> u64 {
    // SAFETY: OSXSAVE is set, and XCR0 exists wherever XGETBV does.
    unsafe { _xgetbv(0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVERYTHING: Reported =
        Reported { fast_rep: true, avx2: true, avx512f: true, clzero: true, xcr0: XCR0_AVX512 };

    fn offers(reported: Reported, feature: Feature) -> bool {
        usable(reported) & feature as u8 != 0
    }

    #[test]
    fn vectors_need_a_system_that_saves_their_registers() {
        assert!(offers(EVERYTHING, Feature::Avx512f));
        assert!(offers(EVERYTHING, Feature::Avx2));

        // Linux booted with `clearcpuid=avx512f`, or a hypervisor that masks the register state but not the CPUID bit.
        let avx_only = Reported { xcr0: 0b111, ..EVERYTHING };
        assert!(!offers(avx_only, Feature::Avx512f));
        assert!(offers(avx_only, Feature::Avx2));

        // Each of the three AVX-512 components is needed.
        for missing in [5, 6, 7] {
            let partial = Reported { xcr0: XCR0_AVX512 & !(1 << missing), ..EVERYTHING };
            assert!(!offers(partial, Feature::Avx512f), "without XCR0 bit {missing}");
        }

        let no_xsave = Reported { xcr0: 0, ..EVERYTHING };
        assert!(!offers(no_xsave, Feature::Avx2));
        assert!(offers(no_xsave, Feature::FastRep) && offers(no_xsave, Feature::Clzero));
    }

    #[test]
    fn the_cpu_must_have_the_extension_too() {
        let bare = Reported { fast_rep: false, avx2: false, avx512f: false, clzero: false, ..EVERYTHING };
        assert_eq!(usable(bare), 0);
    }

    #[test]
    fn detection_agrees_with_std() {
        extern crate std;
        assert_eq!(has(Feature::Avx2), std::is_x86_feature_detected!("avx2"));
        assert_eq!(has(Feature::Avx512f), std::is_x86_feature_detected!("avx512f"));
    }
}
