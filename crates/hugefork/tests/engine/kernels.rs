//! The kernels that a pool uses, measured or named by the environment. This is a single test, since the environment
//! belongs to the process.

use std::env;

use crate::common::alone::alone;
use hugefork::{BuildError, Pool, machine};

fn build() -> Result<Pool, BuildError> {
    Pool::builder().name("pinned").capacity(16 << 20).build()
}

#[test]
fn the_environment_pins_the_kernel_and_bad_values_are_errors_that_list_the_good_ones() {
    alone(|| {
        let set = |name, value: &str| {
            // SAFETY: this is the only test of this binary, and no other thread reads the environment.
            unsafe { env::set_var(name, value) }
        };
        let pinned = if cfg!(target_arch = "x86_64") { "straight/rep" } else { "straight/portable" };
        set("HUGEFORK_KERNEL", pinned);
        assert_eq!(build().unwrap().clear_kernel().to_string(), pinned);

        set("HUGEFORK_KERNEL", "straight/quantum");
        let error = build().unwrap_err().to_string();
        assert!(
            error.contains("HUGEFORK_KERNEL") && error.contains("quantum") && error.contains("portable"),
            "{error}"
        );

        // SAFETY: as above.
        unsafe { env::remove_var("HUGEFORK_KERNEL") };
        set("HUGEFORK_WINDOW", "64KiB");
        let pool = build().unwrap();
        let kernel = pool.clear_kernel().to_string();
        assert!(!kernel.starts_with("hybrid") || kernel.ends_with("@64KiB"), "{kernel}");
        set("HUGEFORK_WINDOW", "5000");
        let error = build().unwrap_err().to_string();
        assert!(error.contains("HUGEFORK_WINDOW") && error.contains("5000"), "{error}");

        // SAFETY: as above.
        unsafe { env::remove_var("HUGEFORK_WINDOW") };
        // The region must not show what the calibration has left in the pool's memory.
        let mut region = pool.region(16 << 20).unwrap();
        region.as_mut_slice().iter_mut().step_by(4096).for_each(|byte| *byte += 1);
        assert!(
            region
                .as_mut_slice()
                .iter()
                .enumerate()
                .all(|(at, &byte)| usize::from(byte) == usize::from(at % 4096 == 0))
        );

        let calibration = machine::calibration();
        let chosen: Vec<_> = calibration.iter().filter(|candidate| candidate.chosen).collect();
        assert!(calibration.is_empty() || chosen.len() == 4, "clear and copy, near and whole: {chosen:?}");
    })
    .well();
}
