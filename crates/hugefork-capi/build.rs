//! Sets the link options of the shared library.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // The number changes with the first release that breaks programs linked to this one.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libhugefork.so.0");
    // The library contains the fault handler, so `dlclose` must not unload it.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
