//! Runs the example.

#[path = "../examples/tokio_saves.rs"]
#[allow(dead_code, reason = "its `main`")]
mod tokio_saves;

#[test]
fn a_server_of_tokio_saves() {
    let folder = std::env::temp_dir().join(format!("hugefork-tokio-{}", std::process::id()));
    tokio_saves::run(&folder).unwrap();
    std::fs::remove_dir_all(folder).unwrap();
}
