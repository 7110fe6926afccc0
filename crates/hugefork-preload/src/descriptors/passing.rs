//! Descriptors that the library has for a while: files that it reads or asks, and has read. They are the business of
//! nobody else, so a child of a fork closes them.
//!
//! The kernel gives the lowest number that is free, and programs count on those. So a file is given a high number at
//! once, and for as long as these calls take, no fork copies the table, and no `dup2` puts another file in the place
//! of the low number.

use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};

use hugefork_linux::Descriptor;
use hugefork_linux::pagemap_scan::Pagemap;
use hugefork_linux::procmap_query::Maps;
use hugefork_linux::userfaultfd::Userfaultfd;
use rustix::io::Errno;

use super::{COUNT, HIGH, forget, note};
use crate::fork::origin::{self, Who};
use crate::sandbox::withdrawn;
use crate::threads::lock::{Guarded, Taken};
use crate::threads::signals;

/// Held while numbers change. Who holds it waits for nobody.
static NUMBERS: Guarded<()> = Guarded::new(());

/// The numbers of those that are open, and noted as the library's.
static OPEN: [AtomicU64; COUNT / 64] = [const { AtomicU64::new(0) }; COUNT / 64];

fn place(number: RawFd) -> Option<(&'static AtomicU64, u64)> {
    let at = usize::try_from(number).ok()?;
    Some((OPEN.get(at / 64)?, 1 << (at % 64)))
}

/// What `F` asks, through a descriptor that is closed at the end.
pub(crate) struct Passing<F: AsDescriptor>(ManuallyDrop<F>);

/// Has a descriptor.
pub(crate) trait AsDescriptor {
    fn descriptor(&self) -> &Descriptor;
}

impl AsDescriptor for Descriptor {
    fn descriptor(&self) -> &Descriptor {
        self
    }
}

impl AsDescriptor for Maps {
    fn descriptor(&self) -> &Descriptor {
        &self.0
    }
}

impl AsDescriptor for Pagemap {
    fn descriptor(&self) -> &Descriptor {
        &self.0
    }
}

impl AsDescriptor for Userfaultfd {
    fn descriptor(&self) -> &Descriptor {
        &self.0
    }
}

impl<F: AsDescriptor> Passing<F> {
    /// What `open` opens, which has a high number if there is one ([`Descriptor::keep`]).
    ///
    /// # Errors
    /// Those of `open`; the library makes no calls any more.
    pub(crate) fn open(open: impl FnOnce() -> Result<F, Errno>) -> Result<Passing<F>, Errno> {
        withdrawn::allows_calls()?;
        undisturbed(|| {
            let file = open()?;
            let (descriptor, number) = (file.descriptor(), file.descriptor().as_raw_fd());
            // A low one is only read, and closed soon: the program is not to miss it.
            if number >= HIGH
                && let Some((word, bit)) = place(number)
                && let Ok(known) = descriptor.stat()
            {
                note(number, &known);
                word.fetch_or(bit, Ordering::Relaxed);
            }
            Ok(Passing(ManuallyDrop::new(file)))
        })
    }
}

impl<F: AsDescriptor> Deref for Passing<F> {
    type Target = F;

    fn deref(&self) -> &F {
        &self.0
    }
}

impl<F: AsDescriptor> Drop for Passing<F> {
    fn drop(&mut self) {
        let number = self.0.descriptor().as_raw_fd();
        undisturbed(|| {
            if let Some((word, bit)) = place(number)
                && word.fetch_and(!bit, Ordering::Relaxed) & bit != 0
            {
                forget(number);
            }
            // SAFETY: not used again.
            unsafe { ManuallyDrop::drop(&mut self.0) };
        });
    }
}

/// Does what changes numbers while nobody else of the library or the program does, and nobody forks. A borrower of the
/// memory has numbers of its own, and may be killed at any moment.
pub(crate) fn undisturbed<R>(change: impl FnOnce() -> R) -> R {
    if withdrawn::is_withdrawn() || origin::who() != Who::Known {
        return change();
    }
    let mask = signals::block();
    let is_taken = NUMBERS.take() == Taken::Now;
    let changed = change();
    if is_taken {
        NUMBERS.give_back();
    }
    mask.restore();
    changed
}

/// Before a fork, when nothing else is waited for. The thread's signals are blocked.
pub(crate) fn prepare() {
    NUMBERS.take();
}

/// After it, in the process that forked.
pub(crate) fn parent() {
    NUMBERS.give_back();
}

/// After it, in the child, and in a copy of which no handler was told: closes what others had open.
pub(crate) fn in_child() {
    NUMBERS.reset();
    for (nth, word) in OPEN.iter().enumerate() {
        let mut left = word.swap(0, Ordering::Relaxed);
        while left != 0 {
            let number = (nth * 64) as RawFd + left.trailing_zeros() as RawFd;
            left &= left - 1;
            // One that leads elsewhere is the program's.
            if super::is_ours(number) {
                // SAFETY: its owner is a thread that is not in this process.
                unsafe { rustix::io::close(number) };
            }
            forget(number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{Mode, OFlags, open};

    fn a_file() -> Result<Descriptor, Errno> {
        Descriptor::keep(|| open(c"/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()))
    }

    /// That children and `dup2` are kept from it, the command's tests show (`descriptors.c`).
    #[test]
    fn a_file_gets_a_high_number_and_can_be_read() {
        let file = Passing::open(a_file).unwrap();
        assert!(file.as_raw_fd() >= HIGH);
        assert_eq!(rustix::io::read(file.get().unwrap(), &mut [0_u8; 8]), Ok(0));
    }
}
