//! The example does what it says: it checks itself.

#[path = "../examples/own_table.rs"]
mod own_table;

#[test]
fn a_program_runs_a_case_of_the_bench() {
    own_table::main().unwrap();
}
