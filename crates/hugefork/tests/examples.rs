//! The examples do what they say: each checks itself.

#[path = "../examples/full_pool.rs"]
#[allow(dead_code)] // It asks for sizes.
mod full_pool;
#[path = "../examples/offsets.rs"]
mod offsets;
#[path = "../examples/save_while_writing.rs"]
#[allow(dead_code)] // It asks for the name of a file.
mod save_while_writing;

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
