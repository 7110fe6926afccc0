//! Faults that a test build puts into the code, to check that a test finds each fault.
//! docs/safety/mutations.md lists these faults.

/// Whether the fault of this name is seeded. Always false, unless built with `--cfg seeded`.
#[cfg(not(seeded))]
#[doc(hidden)]
#[macro_export]
macro_rules! seeded {
    ($name:literal) => {
        false
    };
}

#[cfg(seeded)]
#[doc(hidden)]
#[macro_export]
macro_rules! seeded {
    ($name:literal) => {
        $crate::seeded::is($name)
    };
}

/// Whether the environment variable `HUGEFORK_SEEDED` is this name. The first call reads the variable, and allocates.
/// The engine makes that call when it makes a region, so the fault handler, which resolves faults of regions, does not
/// have to read the variable.
#[cfg(seeded)]
pub fn is(name: &str) -> bool {
    extern crate std;
    use std::{env, string::String, sync::LazyLock};

    static SEEDED: LazyLock<String> = LazyLock::new(|| env::var("HUGEFORK_SEEDED").unwrap_or_default());
    *SEEDED == *name
}
