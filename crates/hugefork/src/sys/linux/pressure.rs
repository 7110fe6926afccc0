//! Pressure files (PSI; `Documentation/accounting/psi.rst` of the kernel): a watcher sleeps on one until tasks wait for
//! memory.
//!
//! ```text
//!   write "some STALL WINDOW" ─▶ poll(POLLPRI) ─▶ tasks stalled for STALL within WINDOW; at most once a WINDOW
//!   read                      ─▶ "some avg10=… total=T"   T: microseconds stalled since the file is there
//! ```
//! The kernel checks a trigger only while tasks stall. It allows one trigger for each open file, and windows of 0.5 to
//! 10 s. A process without `CAP_SYS_RESOURCE` may set only multiples of 2 s from Linux 6.4 on, and before that none in
//! `/proc/pressure`.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hugefork_linux::Descriptor;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::{Errno, pread, write};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socketpair};
use rustix::time::Timespec;

use thiserror::Error;

use super::{kept, memory, named, settings};
use crate::sys::SystemError;

/// The machine's pressure file.
const SYSTEM: &str = "/proc/pressure/memory";

const SOCKETPAIR: &str = "socketpair";

/// How long [`Ask::StillShort`] measures. A shorter time is too short: the kernel weighs the CPUs by whole jiffies of
/// up to 10 ms, and does not count times that are read sooner.
const LOOK_NS: i64 = 50_000_000;

/// A request of a watcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ask {
    /// Sleep until memory is short.
    WhenShort,
    /// Check whether memory is still short.
    StillShort,
}

/// The answer to a watcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signal {
    /// Tasks wait for memory.
    Short,
    /// Tasks no longer wait for memory.
    Enough,
    /// The watcher has to end.
    Stop,
    /// The file will never report again, or the program has closed it.
    Gone,
}

/// Why memory pressure cannot be watched: the files that were tried, and the problem with each.
///
/// ```
/// match hugefork::PressureWatch::new().try_out() {
///     Ok(file) => println!("pools can watch {}", file.display()),
///     Err(error) => println!("{error} ({})", error.code()), // … (pressure_unwatched)
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub struct PressureError {
    tried: Vec<(PathBuf, Unwatchable)>,
}

impl fmt::Display for PressureError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (nth, (path, reason)) in self.tried.iter().enumerate() {
            let between = if nth == 0 { "" } else { "; " };
            write!(f, "{between}{}: {reason}", path.display())?;
        }
        Ok(())
    }
}

/// The problem with one file.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
enum Unwatchable {
    #[error("no pressure file")]
    OtherFile,
    #[error(
        "{stall:?} in {window:?} is refused: windows are 0.5 to 10 s, without CAP_SYS_RESOURCE 2, 4, 6, 8 or 10 s (Linux 6.4), \
         and stalls not longer"
    )]
    Trigger { stall: Duration, window: Duration },
    #[error(transparent)]
    System(#[from] SystemError),
}

/// An open pressure file with a trigger.
#[derive(Debug)]
pub(crate) struct PressureFile {
    pub(crate) path: PathBuf,
    file: Descriptor,
    /// A pair of connected sockets; a write to the second wakes the watcher at the first. Sockets have an identity, by
    /// which a replaced descriptor is detected; an eventfd has none. If the program closes the second, the watcher
    /// wakes. If it closes the first, a write returns an error and raises no `SIGPIPE`, which a pipe would.
    stop: [Descriptor; 2],
    stall: Duration,
    window: Duration,
}

impl PressureFile {
    /// Opens `path`. Without one, opens the file of this process's control group, or else that of the machine.
    pub(crate) fn open(path: Option<&Path>, stall: Duration, window: Duration) -> Result<PressureFile, PressureError> {
        let of_group = settings::group_file("memory.pressure");
        let candidates = match path {
            Some(path) => vec![path],
            None => of_group.as_deref().into_iter().chain([Path::new(SYSTEM)]).collect(),
        };
        let mut tried = Vec::new();
        for path in candidates {
            match PressureFile::open_one(path, stall, window) {
                Ok(file) => return Ok(file),
                Err(reason) => tried.push((path.to_owned(), reason)),
            }
        }
        Err(PressureError { tried })
    }

    fn open_one(path: &Path, stall: Duration, window: Duration) -> Result<PressureFile, Unwatchable> {
        // `open` must not wait for a pipe, and nothing may be written to a file that is no pressure file.
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = named("open", Descriptor::keep(|| open(path, flags, Mode::empty())))?;
        let mut other = None;
        let reader = Descriptor::keep(|| {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let pair = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None);
            let (reader, writer) = named(SOCKETPAIR, pair)?;
            other = Some(writer);
            Ok::<_, SystemError>(reader)
        })?;
        let writer = Descriptor::keep(|| other.ok_or(SystemError::new(SOCKETPAIR, Errno::BADF)))?;
        let file = PressureFile { path: path.to_owned(), file, stop: [reader, writer], stall, window };
        file.stalled().ok_or(Unwatchable::OtherFile)?;
        // The kernel reads 32-bit numbers, and overwrites the last byte with a zero.
        let micros = |time: Duration| time.as_micros().min(u128::from(u32::MAX));
        let trigger = format!("some {} {}\0", micros(stall), micros(window));
        match write(kept(&file.file)?, trigger.as_bytes()) {
            Ok(_) => Ok(file),
            Err(Errno::INVAL) => Err(Unwatchable::Trigger { stall, window }),
            Err(errno) => Err(SystemError::new("write of a trigger", errno).into()),
        }
    }

    /// Answers a watcher's request.
    pub(crate) fn answer(&self, ask: Ask) -> Signal {
        match ask {
            Ask::WhenShort => self.sleep(),
            Ask::StillShort => self.look(),
        }
    }

    /// Makes all present and later answers [`Signal::Stop`]. Returns false if the program has closed one of the
    /// sockets: then the watcher may sleep on. The kernel wakes a sleeper by its file, but then looks at the number
    /// again, which may lead to another file by now.
    pub(crate) fn stop(&self) -> bool {
        // A full socket was written to before.
        let told = |writer| matches!(send(writer, &[0], SendFlags::NOSIGNAL), Ok(_) | Err(Errno::AGAIN));
        self.stop[1].get().is_ok_and(told) && self.stop[0].get().is_ok()
    }

    fn sleep(&self) -> Signal {
        loop {
            let (Ok(stop), Ok(file)) = (self.stop[0].get(), self.file.get()) else { return Signal::Gone };
            let mut wanted = [PollFd::new(&stop, PollFlags::IN), PollFd::new(&file, PollFlags::PRI)];
            match poll(&mut wanted, None) {
                Ok(_) => {}
                // ENOMEM means that memory is short, which passes.
                Err(Errno::INTR | Errno::NOMEM | Errno::AGAIN) => continue,
                Err(_) => return Signal::Gone,
            }
            let [stop, file] = wanted.map(|one| one.revents());
            if stop.contains(PollFlags::IN) {
                return Signal::Stop;
            }
            if !stop.is_empty() || file.intersects(PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL) {
                return Signal::Gone;
            }
            if file.contains(PollFlags::PRI) {
                return Signal::Short;
            }
        }
    }

    /// Measures the pressure: memory is short while tasks stall for as large a part of the time as the trigger says.
    fn look(&self) -> Signal {
        let (started, before) = (memory::now(), self.stalled());
        let time = Timespec { tv_sec: 0, tv_nsec: LOOK_NS };
        let Ok(stop) = self.stop[0].get() else { return Signal::Gone };
        if poll(&mut [PollFd::new(&stop, PollFlags::IN)], Some(&time)).is_ok_and(|ready| ready > 0) {
            return Signal::Stop;
        }
        let (Some(before), Some(after)) = (before, self.stalled()) else { return Signal::Enough };
        let stalled = Duration::from_micros(after.saturating_sub(before)).as_secs_f64();
        let looked = Duration::from_nanos(memory::now() - started).as_secs_f64();
        let is_short = stalled * self.window.as_secs_f64() >= looked * self.stall.as_secs_f64();
        if is_short { Signal::Short } else { Signal::Enough }
    }

    /// How many microseconds tasks have stalled so far. Allocates nothing, because memory may be short.
    fn stalled(&self) -> Option<u64> {
        let mut text = [0; 256];
        let len = pread(self.file.get().ok()?, &mut text, 0).ok()?;
        total(core::str::from_utf8(&text[..len]).ok()?)
    }
}

/// The total at the end of the first line; `None` if this is not the text of a pressure file.
fn total(text: &str) -> Option<u64> {
    let (_, total) = text.lines().next()?.strip_prefix("some avg10=")?.rsplit_once(" total=")?;
    total.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_total_is_that_of_some() {
        let text =
            "some avg10=0.00 avg60=0.10 avg300=0.02 total=1494880\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n";
        assert_eq!(total(text), Some(1_494_880));
        for other in ["", "full avg10=0.00 total=7", "some text", "low 0\nhigh 3\n", "some avg10=0.00 total=x"] {
            assert_eq!(total(other), None, "{other}");
        }
    }
}
