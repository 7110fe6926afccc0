//! Reports the path of this package to the build script of `hugefork-cli`, which builds the library
//! from it.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Set only where the library is built: see src/interposed/.
    println!("cargo::rustc-check-cfg=cfg(hugefork_interposed)");
    let package = std::env::var("CARGO_MANIFEST_DIR").expect("cargo says where the package is");
    println!("cargo::metadata=package={package}");
}
