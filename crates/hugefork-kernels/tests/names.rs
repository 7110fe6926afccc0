//! Names round-trip, and every refusal names good values.

use hugefork_kernels::{Kernel, KernelError, NamePart, Order, Primitive, PrimitiveName, SUBPAGE, every_kernel};

fn refused(name: &str) -> (KernelError, String) {
    let error = name.parse::<Kernel>().expect_err(name);
    (error, error.to_string())
}

#[test]
fn every_kernel_reads_back() {
    for kernel in every_kernel() {
        assert_eq!(kernel.to_string().parse(), Ok(kernel), "{kernel}");
    }
    for kernel in [Kernel::for_clear(), Kernel::for_copy()] {
        assert_eq!(kernel.to_string().parse(), Ok(kernel), "{kernel}");
        assert!(kernel.order() == Order::Hybrid || !cfg!(target_arch = "x86_64"));
    }
    Kernel::for_copy().check_copy().unwrap();
}

#[test]
fn every_near_primitive_and_window_reads_back() {
    for near in Primitive::all().filter(|primitive| !primitive.is_non_temporal()) {
        for window in [SUBPAGE, 64 << 10, 132 << 10, 1 << 20, 3 << 20, (1 << 20) + SUBPAGE] {
            let kernel = Kernel::new(Order::Hybrid, Primitive::PORTABLE);
            let kernel = kernel.with_near(near).unwrap().with_window(window).unwrap();
            let read: Kernel = kernel.to_string().parse().unwrap();
            assert_eq!(read, kernel);
            assert_eq!((read.near(), read.window()), (near, window));
        }
    }
}

#[test]
fn prints_the_full_form() {
    let kernel = |name: &str| name.parse::<Kernel>().unwrap();
    assert_eq!(kernel("straight/portable").to_string(), "straight/portable");
    assert_eq!(kernel("target-last/portable").to_string(), "target-last/portable");
    let near = kernel("hybrid/portable").near();
    assert_eq!(kernel("hybrid/portable").to_string(), format!("hybrid/portable+{near}@128KiB"));
    assert_eq!(kernel("hybrid/portable+portable@1024KiB").to_string(), "hybrid/portable+portable@1MiB");
    assert_eq!(kernel("hybrid/portable@8KiB").window(), 8192);
    assert_eq!(kernel("hybrid/portable@8192"), kernel("hybrid/portable@8KiB"));
}

#[test]
fn orders_and_primitives_read_back() {
    for order in Order::ALL {
        assert_eq!(order.to_string().parse(), Ok(*order));
    }
    for name in PrimitiveName::ALL {
        assert_eq!(name.to_string().parse(), Ok(*name));
        assert_eq!(name.as_str().parse(), Primitive::new(*name).ok_or(KernelError::Unavailable(*name)));
    }
    assert_eq!(format!("{:<10}|", Order::Straight), "straight  |");
}

#[test]
fn near_and_window_make_a_difference_in_hybrid_only() {
    let new = |order| Kernel::new(order, Primitive::PORTABLE);
    let hybrid = new(Order::Hybrid);
    assert_ne!(hybrid.with_window(SUBPAGE).unwrap(), hybrid);
    let straight = new(Order::Straight);
    assert_eq!(straight.with_window(SUBPAGE).unwrap(), straight);
    assert_ne!(straight, hybrid);
    assert_eq!(hybrid.with_reschedule(|| ()), hybrid);
}

#[test]
fn unknown_names_list_the_known_ones() {
    let (error, message) = refused("sideways/rep");
    assert!(matches!(error, KernelError::Unknown { part: NamePart::Order, given, .. } if given.as_str() == "sideways"));
    assert_eq!(message, "unknown order \"sideways\": use target-last, straight, neighbourhood-last, hybrid");

    let (error, message) = refused("hybrid/avx1024");
    assert!(
        matches!(error, KernelError::Unknown { part: NamePart::Primitive, given, .. } if given.as_str() == "avx1024")
    );
    assert!(message.starts_with("unknown primitive \"avx1024\": this machine has portable"), "{message}");

    for window in ["", "128kb", "-4KiB", "+4KiB", "KiB", "4.5KiB", "99999999999999999999MiB"] {
        let (error, message) = refused(&format!("hybrid/portable@{window}"));
        assert!(matches!(error, KernelError::Unknown { part: NamePart::Window, .. }), "{window}: {error:?}");
        assert_eq!(
            message,
            format!("\"{window}\" is no window size: write a multiple of 4KiB as in 128KiB, 1MiB or 131072")
        );
    }
}

#[test]
fn malformed_names_are_refused_with_examples() {
    for name in ["", "rep", "straight", "straight/portable+portable", "target-last/portable@4KiB"] {
        let (error, message) = refused(name);
        assert!(matches!(error, KernelError::Unknown { part: NamePart::Form, .. }), "{name}: {error:?}");
        assert!(message.contains("write order/primitive") && message.contains("straight/rep"), "{message}");
    }
    for name in ["/", "hybrid/", "hybrid/+", "hybrid/portable+", "hybrid/portable@4KiB+rep", "straight/portable/rep"] {
        refused(name);
    }
}

#[test]
fn bad_windows_say_what_a_window_is() {
    let kernel = Kernel::new(Order::Hybrid, Primitive::PORTABLE);
    for bytes in [0, 1, SUBPAGE - 1, SUBPAGE + 1, usize::MAX] {
        let error = kernel.with_window(bytes).unwrap_err();
        assert_eq!(error, KernelError::BadWindow(bytes));
        let unit = if bytes == 1 { "byte" } else { "bytes" };
        assert_eq!(
            error.to_string(),
            format!("a window of {bytes} {unit} is not a positive multiple of 4KiB: use for example 128KiB")
        );
    }
    assert_eq!(refused("hybrid/portable@5KiB").0, KernelError::BadWindow(5 << 10));
    assert_eq!(refused("hybrid/portable@128").0, KernelError::BadWindow(128));
    assert_eq!(refused("hybrid/portable@0KiB").0, KernelError::BadWindow(0));
}

#[test]
fn a_window_refuses_primitives_that_bypass_the_cache() {
    let kernel = Kernel::new(Order::Hybrid, Primitive::PORTABLE);
    for near in Primitive::all().filter(|primitive| primitive.is_non_temporal()) {
        let error = kernel.with_near(near).unwrap_err();
        assert_eq!(error, KernelError::NearNotCached(near.name()));
        assert_eq!(refused(&format!("hybrid/portable+{near}")).0, error);
        let message = error.to_string();
        assert!(message.contains("for the window use portable"), "{message}");
        assert!(!message.contains("-nt,"), "{message}");
    }
}

#[test]
fn a_missing_primitive_is_refused_with_a_list_of_available_ones() {
    for name in PrimitiveName::ALL {
        let read = format!("straight/{name}").parse::<Kernel>();
        match Primitive::new(*name) {
            Some(primitive) => assert_eq!(read, Ok(Kernel::new(Order::Straight, primitive))),
            None => assert_eq!(read, Err(KernelError::Unavailable(*name))),
        }
    }
    let lacking = PrimitiveName::ALL.iter().filter(|name| Primitive::new(**name).is_none()).count();
    assert_eq!(Primitive::all().count() + lacking, PrimitiveName::ALL.len());
    assert!(lacking > 0, "no machine has all");
    // This message is the same whether or not this machine has AVX-512.
    let message = KernelError::Unavailable(PrimitiveName::Avx512Nt).to_string();
    assert!(
        message.starts_with(
            "avx512-nt needs a CPU with AVX-512F and a system that saves its registers, \
             which this machine does not offer: use portable"
        ),
        "{message}"
    );
}

#[test]
fn kernels_that_only_clear_say_so() {
    let message = KernelError::CannotCopy(PrimitiveName::Clzero).to_string();
    assert!(message.starts_with("clzero only clears: to copy use portable"), "{message}");
    for kernel in every_kernel() {
        let expected =
            if kernel.far().can_copy() { Ok(kernel) } else { Err(KernelError::CannotCopy(kernel.far().name())) };
        assert_eq!(kernel.check_copy(), expected, "{kernel}");
    }
}

#[test]
fn long_and_foreign_texts_are_cut_at_a_character() {
    let long = "ä".repeat(100);
    let (error, message) = refused(&format!("{long}/rep"));
    let KernelError::Unknown { given, .. } = error else { panic!("{error:?}") };
    assert!(long.starts_with(given.as_str()) && !given.as_str().is_empty());
    assert!(message.contains(&format!("\"{given}\"")) && message.contains('…'), "{message}");
    assert!(size_of::<KernelError>() <= 48);
}
