//! Detects valgrind, which simulates the CPU. There, a first write to a region would end the process by `SIGBUS`, so
//! `build` refuses to make a pool.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::sys::SystemError;

const UNDER_VALGRIND: &str =
    "resolving write faults under valgrind, which cannot run them (run without it, or with AddressSanitizer instead),";

/// Whether the process was examined, and does not run under valgrind.
static IS_ABSENT: AtomicBool = AtomicBool::new(false);

/// Returns an error under valgrind. A process without it is examined once, because valgrind cannot attach later.
///
/// Threads that call this at the same time each examine it, and none waits for another: a child that is forked
/// meanwhile would wait for a thread that it does not have.
pub(crate) fn refuse() -> Result<(), SystemError> {
    if !IS_ABSENT.load(Ordering::Relaxed) {
        let maps = fs::read_to_string("/proc/thread-self/maps");
        if maps.is_ok_and(|maps| maps.lines().any(is_of_valgrind)) {
            return Err(SystemError::new(UNDER_VALGRIND, rustix::io::Errno::OPNOTSUPP));
        }
        IS_ABSENT.store(true, Ordering::Relaxed);
    }
    Ok(())
}

/// Whether a line of `maps` shows a file that valgrind has loaded: its tool, or the library that it preloads into
/// dynamically linked programs.
fn is_of_valgrind(line: &str) -> bool {
    let file = line.rsplit('/').next().unwrap_or_default();
    let is_tool = file.ends_with("-amd64-linux") && line.contains("/valgrind/");
    is_tool || file.starts_with("vgpreload_core-")
}

#[cfg(test)]
mod tests {
    use super::is_of_valgrind;

    #[test]
    fn valgrind_is_distinguished_from_programs_with_similar_names() {
        for (path, is_it) in [
            ("/usr/libexec/valgrind/memcheck-amd64-linux", true),
            ("/usr/lib/valgrind/none-amd64-linux", true),
            ("/opt/v/lib/valgrind/vgpreload_core-amd64-linux.so", true),
            ("/home/me/valgrind/program", false),
            ("/opt/program-amd64-linux", false),
            ("", false),
        ] {
            assert_eq!(
                is_of_valgrind(&format!("58000000-58001000 r--p 00000000 fe:00 328506    {path}")),
                is_it,
                "{path}"
            );
        }
    }
}
