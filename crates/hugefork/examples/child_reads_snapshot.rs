//! A child process maps a snapshot of its parent without a copy, and verifies a checksum of it, while the parent goes
//! on writing.
//!
//! Run it with `cargo run --release -p hugefork --example child_reads_snapshot`. The child is the same program: the
//! descriptor is its standard input, and the list of extents its argument.

use std::error::Error;
use std::ffi::OsString;
use std::os::fd::AsFd;
use std::process::{Command, Stdio};

use hugefork::{Extents, Imported, Pool};

const LEN: usize = 64 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    match std::env::args().nth(1) {
        Some(extents) => child(&extents),
        None => parent(&[]),
    }
}

/// The tests run this, too, with `arguments` that make the child process run [`child`].
pub(crate) fn parent(arguments: &[OsString]) -> Result<(), Box<dyn Error>> {
    let pool = Pool::builder().name("state").capacity(2 * LEN).exports(true).build()?;
    let mut state = pool.region(LEN)?;
    for (nth, word) in state.as_mut_slice().chunks_exact_mut(8).enumerate().step_by(3) {
        word.copy_from_slice(&(nth as u64).to_ne_bytes());
    }
    let saved = state.snapshot()?;
    let expected = checksum(&saved);

    let export = saved.export()?;
    let child = Command::new(std::env::current_exe()?)
        .args(arguments)
        .arg(export.extents().to_string())
        .stdin(export.as_fd().try_clone_to_owned()?)
        .stdout(Stdio::piped())
        .spawn()?;
    state.as_mut_slice().fill(0); // the child does not see this
    let output = child.wait_with_output()?;
    // The export was kept until here, so the bytes did not change while the child read them.
    drop(export);

    let told = String::from_utf8(output.stdout)?;
    let told = told.lines().find_map(|line| line.strip_prefix("checksum ")).ok_or("the child says nothing")?;
    assert_eq!(told, expected.to_string());
    println!("the child has read {LEN} bytes of its parent: checksum {told}");
    Ok(())
}

/// Run by the tests, too.
pub(crate) fn child(extents: &str) -> Result<(), Box<dyn Error>> {
    let extents: Extents = extents.parse()?;
    let mut imported = Imported::map(std::io::stdin(), &extents)?;
    // SAFETY: the parent keeps its export until this process has ended, and no other code here uses the mapping.
    let bytes = unsafe { imported.bytes_mut() };
    println!("\nchecksum {}", checksum(bytes));
    bytes[..8].fill(7); // a page of the child's own; the parent does not see it
    Ok(())
}

fn checksum(bytes: &[u8]) -> u64 {
    let words = bytes.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().expect("eight bytes")));
    words.fold(0, |sum: u64, word| sum.rotate_left(5).wrapping_add(word))
}
