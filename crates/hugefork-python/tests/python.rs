//! Runs the tests in Python.

fn main() {}
