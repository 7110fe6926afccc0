//! Runs the examples; each checks itself.

#[path = "../examples/branch_and_rewind.rs"]
mod branch_and_rewind;
#[path = "../examples/child_reads_snapshot.rs"]
#[allow(dead_code)] // It looks at its arguments.
mod child_reads_snapshot;
#[path = "../examples/full_pool.rs"]
#[allow(dead_code)] // It asks for sizes.
mod full_pool;
#[path = "../examples/fuzz_in_process.rs"]
#[allow(dead_code)] // It takes more state.
mod fuzz_in_process;
#[path = "../examples/incremental_checkpoint.rs"]
#[allow(dead_code)] // It asks for the name of a folder.
mod incremental_checkpoint;
#[path = "../examples/offsets.rs"]
mod offsets;
#[path = "../examples/reset_cost.rs"]
#[allow(dead_code)] // It asks for a size.
mod reset_cost;
#[path = "../examples/save_while_writing.rs"]
#[allow(dead_code)] // It asks for the name of a file.
mod save_while_writing;
#[path = "../examples/scrub/main.rs"]
#[allow(dead_code)] // It draws if there is a terminal.
mod scrub;
#[path = "../examples/store/main.rs"]
#[allow(dead_code)] // It asks for the name of a file.
mod store;
#[path = "../examples/string_cache.rs"]
#[allow(dead_code)] // It asks for a number.
mod string_cache;

#[test]
fn no_file_has_half_an_entry_and_a_slow_save_has_one_moment_while_a_history_is_kept() {
    let file = std::env::temp_dir().join(format!("hugefork-store-{}", std::process::id()));
    store::run(&file, 20_000, std::time::Duration::from_millis(300)).unwrap();
    std::fs::remove_file(&file).unwrap();
}

#[test]
fn a_jump_to_any_frame_of_a_simulation_finds_what_was_recorded() {
    scrub::script(60).unwrap();
}

#[test]
fn a_child_saves_a_cache_at_one_moment_while_a_thread_writes() {
    let file = std::env::temp_dir().join(format!("hugefork-cache-{}", std::process::id()));
    string_cache::run(3_000, 3, &file).unwrap();
    std::fs::remove_file(&file).unwrap();
}

#[test]
fn a_table_with_offsets_is_forked_and_read_at_another_address() {
    offsets::main().unwrap();
}

#[test]
fn a_region_is_saved_while_it_is_written_to() {
    let file = rustix::fs::memfd_create("saved", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    save_while_writing::save(file.into()).unwrap();
}

#[test]
fn a_write_that_finds_nothing_to_drop_is_refused_and_goes_through_afterwards() {
    full_pool::measure(&[hugefork::ByteSize(32 << 20)]).unwrap();
}

#[test]
fn a_child_reads_a_snapshot_of_its_parent() {
    // The child is this program, running this test; the text of the extents comes last.
    if let Some(extents) = std::env::args().next_back().filter(|last| last.starts_with("hugefork-extents")) {
        return child_reads_snapshot::child(&extents).unwrap();
    }
    let arguments = ["a_child_reads_a_snapshot_of_its_parent", "--exact", "--nocapture"].map(Into::into);
    child_reads_snapshot::parent(&arguments).unwrap();
}

#[test]
fn checkpoints_of_what_has_changed_restore_it_all() {
    let folder = std::env::temp_dir().join(format!("hugefork-checkpoints-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    incremental_checkpoint::run(&folder).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_search_that_goes_back_finds_a_way() {
    branch_and_rewind::main().unwrap();
}

#[test]
fn a_fuzzer_that_puts_its_state_back_finds_the_input() {
    fuzz_in_process::fuzz(8 << 20, 20_000).unwrap();
}

#[test]
fn what_resets_cost_is_measured() {
    let plain = reset_cost::Work::default();
    let older = reset_cost::Work { is_older_held: true, are_others: true, is_by_page: true, ..plain };
    for work in [plain, older, reset_cost::Work { is_fresh: true, ..plain }] {
        reset_cost::measure(8 << 20, &[10, 100], 20, work).unwrap();
    }
}
