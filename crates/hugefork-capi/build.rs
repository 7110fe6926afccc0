//! How the shared library is linked.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Another number with the first release that programs built against this one cannot use.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libhugefork.so.0");
    // The fault handler lives in it, so `dlclose` must leave it where it is.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
