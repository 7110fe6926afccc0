//! Standard output.

use std::io::{self, ErrorKind, Write};

use anyhow::Context;

/// Prints to standard output; a closed pipe (`| head`) is not an error.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    print_bytes(text.as_bytes())
}

/// Like [`print()`], for bytes.
pub(super) fn print_bytes(bytes: &[u8]) -> anyhow::Result<()> {
    written(io::stdout().lock().write_all(bytes))
}

/// Ignores a closed pipe.
fn written(result: io::Result<()>) -> anyhow::Result<()> {
    match result.and_then(|()| io::stdout().flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error).context("writing to standard output"),
        _ => Ok(()),
    }
}
