//! Runs the examples; each checks itself.

#[path = "../examples/backtrack_by_reset.rs"]
#[allow(dead_code)] // It solves larger formulas.
mod backtrack_by_reset;
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
#[path = "../examples/offsets.rs"]
mod offsets;
#[path = "../examples/reset_cost.rs"]
#[allow(dead_code)] // It asks for a size.
mod reset_cost;
#[path = "../examples/resp_server/main.rs"]
#[allow(dead_code)] // It asks for a port.
mod resp_server;
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
fn a_server_of_strings_answers_clients_and_saves_while_they_write() {
    use resp_server::measure::{Client, check, key, value};
    let file = std::env::temp_dir().join(format!("hugefork-strings-{}", std::process::id()));
    let server = resp_server::Server::new(64 << 20, &file).unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || server.listen(&listener));
    let mut client = Client::new(port).unwrap();
    client.fill(3_000).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| Client::new(port).unwrap().fill(3_000).unwrap());
        client.save().unwrap();
    });
    check(&file, 3_000).unwrap();
    std::fs::remove_file(&file).unwrap();
    assert_eq!(client.call(&[b"get", &key(7)]).unwrap(), value(7));
    assert_eq!(client.call(&[b"DEL", &key(7), b"none"]).unwrap(), b":1");
    assert_eq!(client.call(&[b"GET", &key(7)]).unwrap(), b"$-1");
    assert_eq!(client.call(&[b"PING"]).unwrap(), b"+PONG");
    assert_eq!(client.call(&[b"SET", b"no value"]).unwrap(), b"-ERR unknown command");
}

#[test]
fn a_solver_that_resets_finds_the_same_as_solvers_that_clone_and_undo() {
    for hard in [55, 60] {
        let tried = backtrack_by_reset::run(hard, 10 * (hard - 55)).unwrap();
        assert!(tried.dead_ends > 20, "{tried:?}");
    }
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
