//! Runs the example, which checks its own results.

#[path = "../examples/around_the_target.rs"]
mod around_the_target;

#[test]
fn blocks_are_cleared_around_the_target() {
    around_the_target::main().unwrap();
}
