//! A memory barrier on all threads of the process, at the request of one (`membarrier(2)`).

use rustix::io::Errno;
use rustix::thread::{MembarrierCommand, membarrier};

use super::named;
use crate::sys::SystemError;

const CALL: &str = "membarrier(PRIVATE_EXPEDITED)";

/// Whether the kernel has such barriers for this process (Linux 4.14). Containers may refuse the call.
pub(crate) fn is_offered() -> bool {
    register().is_ok() && on_all_threads().is_ok()
}

fn register() -> Result<(), SystemError> {
    named("membarrier(REGISTER_PRIVATE_EXPEDITED)", membarrier(MembarrierCommand::RegisterPrivateExpedited))
}

/// Makes each thread of the process pass a full memory barrier during this call. Takes some microseconds.
pub(crate) fn on_all_threads() -> Result<(), SystemError> {
    match membarrier(MembarrierCommand::PrivateExpedited) {
        // A child of fork(2) is another process, which has not registered yet.
        Err(Errno::PERM) => register().and_then(|()| named(CALL, membarrier(MembarrierCommand::PrivateExpedited))),
        came => named(CALL, came),
    }
}
