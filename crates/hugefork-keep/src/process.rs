//! One process: what it has forked, which of its blocks are to be collapsed, and what that came to.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use hugefork_linux::advice;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use syscalls::{Sysno, syscall4};

use crate::blocks::{Pages, Survey, Worth};
use crate::pace::Pace;
use crate::proc::{self, Image, Look};
use crate::report::{ProcessReport, Trouble};
use crate::room;
use crate::units::HUGE_PAGE;
use crate::warm::WarmPage;

/// When a process is looked at again that was just found: it may be a step to a daemon, which ends at once.
const FIRST: Duration = Duration::from_millis(4);

/// How often a process is looked at that has page faults.
const BUSY: Duration = Duration::from_millis(100);

/// How often at least: one that may fork, and one that is too small for that to matter.
const IDLE: Duration = Duration::from_millis(500);
const IDLE_AND_SMALL: Duration = Duration::from_secs(4);

/// The fork of a smaller process is short, whatever its pages.
const SMALL_BYTES: u64 = 32 << 20;

/// The time from one scan of a process that nobody shares memory with to the next: 5 to 10 ms for each GiB of base
/// pages, in which a fork waits for 0.3 ms at most.
const SCAN_ALONE: Duration = Duration::from_secs(5);

/// The same while a child lives, of which most pages are shared.
const SCAN_SHARED: Duration = Duration::from_secs(10);

/// After the kernel has refused, nothing is tried for so long.
const REST: Duration = Duration::from_secs(5);

/// Blocks that are passed over at once, since they are huge already or shared: 60 us each.
const MAX_SKIPPED: usize = 16;

/// After so many collapses it is asked again whether memory is short.
const ASK_AGAIN_AFTER: u64 = 32;

/// A process that is looked at.
#[derive(Debug)]
pub(crate) struct Kept {
    pub(crate) pid: u32,
    /// Tells this process from a later one of the same number.
    handle: OwnedFd,
    /// The handle has said that the process has ended, and it had not: its first thread has, before Linux 6.15.
    handle_is_wrong: bool,
    pub(crate) look: Look,
    forks: u64,
    /// When it is to be looked at, and how long after the last time.
    pub(crate) next_look: Instant,
    interval: Duration,
    pace: Pace,
    /// When it was last scanned, and how many faults it had had.
    scanned: Option<(Instant, u64)>,
    survey: Survey,
    /// How many pages of all processes had been freed lazily by the last scan.
    lazy_frees: Option<u64>,
    pages: Option<Pages>,
    /// Blocks of the last scan that are still to be collapsed, the next one last.
    pending: Vec<usize>,
    trouble: Option<Trouble>,
    rests_until: Option<Instant>,
    collapsed: u64,
    refused: u64,
    in_calls: Duration,
    longest_call: Duration,
}

impl Kept {
    /// A process that is there; `None` if it has ended.
    pub(crate) fn new(pid: u32, now: Instant) -> Option<Kept> {
        let number = Pid::from_raw(i32::try_from(pid).ok()?)?;
        let handle = pidfd_open(number, PidfdFlags::empty()).ok()?;
        let look = proc::look(pid)?;
        Some(Kept {
            pid,
            handle,
            handle_is_wrong: false,
            look,
            forks: 0,
            next_look: now,
            interval: FIRST,
            pace: Pace::new(now),
            scanned: None,
            survey: Survey::default(),
            lazy_frees: None,
            pages: None,
            pending: Vec::new(),
            trouble: None,
            rests_until: None,
            collapsed: 0,
            refused: 0,
            in_calls: Duration::ZERO,
            longest_call: Duration::ZERO,
        })
    }

    /// A descriptor that becomes readable when the process ends.
    pub(crate) fn handle(&self) -> Option<&OwnedFd> {
        (!self.handle_is_wrong).then_some(&self.handle)
    }

    pub(crate) fn image(&self) -> Image {
        self.look.image
    }

    /// Whether the process has not been waited for yet. A later one of its number is another.
    fn is_there(&self) -> bool {
        let handle = self.handle.as_raw_fd() as usize;
        // SAFETY: signal 0 is none: the kernel only looks whether it could be sent.
        let sent = unsafe { syscall4(Sysno::pidfd_send_signal, handle, 0, 0, 0) };
        !matches!(sent, Err(errno) if errno == syscalls::Errno::ESRCH)
    }

    /// Looks at the process again. False if it has ended. `is_readable`: its handle says so.
    pub(crate) fn look_again(&mut self, is_readable: bool, now: Instant) -> bool {
        self.handle_is_wrong |= is_readable;
        let look = proc::look(self.pid);
        // In this order: if the process is there now, no other one of its number was looked at.
        let Some(look) = look.filter(|_| self.is_there()) else { return false };
        if look.image != self.look.image && look.image.is_known() {
            // It has called exec, and is another program.
            let Some(fresh) = Kept::new(self.pid, now) else { return false };
            *self = fresh;
            return true;
        }
        let look = Look { image: self.look.image, ..look };
        let is_busy = look.faults != self.look.faults;
        let most = if look.resident_bytes < SMALL_BYTES { IDLE_AND_SMALL } else { IDLE };
        self.interval = (2 * self.interval).min(if is_busy { BUSY } else { most });
        self.next_look = now + self.interval;
        self.look = look;
        true
    }

    /// A child with a copy of its memory was seen for the first time.
    pub(crate) fn note_fork(&mut self, now: Instant) {
        self.forks += 1;
        self.pace.note_fork(now);
    }

    /// Scans the memory if that is due, so that its blocks can be collapsed. `is_shared`: another process has copies of
    /// it.
    pub(crate) fn scan_if_due(&mut self, is_shared: bool, now: Instant) {
        if !is_shared {
            self.pace.note_alone(now);
        }
        if self.forks == 0 || self.rests_until.is_some_and(|until| now < until) {
            return;
        }
        let interval = if is_shared { SCAN_SHARED } else { SCAN_ALONE };
        let is_due = self.scanned.is_none_or(|(at, faults)| {
            // What was shared at the last scan may be the process's own by now.
            let may_differ = faults != self.look.faults || !self.pending.is_empty();
            may_differ && now.saturating_duration_since(at) >= interval
        });
        if is_due {
            self.scan(now);
        }
    }

    /// The children that shared its memory are gone: there is something to do.
    pub(crate) fn note_alone(&mut self, now: Instant) {
        self.pace.note_alone(now);
        // The last scan was of shared pages, and the program may have freed some since.
        self.pending.clear();
        self.scanned = None;
    }

    fn scan(&mut self, now: Instant) {
        self.scanned = Some((now, self.look.faults));
        let lazy_frees = proc::lazy_frees();
        let may_be_lazy =
            lazy_frees > 0 && (self.lazy_frees != Some(lazy_frees) || self.trouble == Some(Trouble::FreedLazily));
        self.lazy_frees = Some(lazy_frees);
        self.trouble = None;
        let scanned = Pages::open(self.pid).and_then(|pages| {
            let mappings = proc::mappings(self.pid, may_be_lazy)?;
            let survey = pages.survey(&mappings.plain)?;
            Ok((pages, survey, mappings.some_are_lazy))
        });
        match scanned {
            Ok((pages, survey, some_are_lazy)) => {
                self.trouble = some_are_lazy.then_some(Trouble::FreedLazily);
                self.pending.clone_from(&survey.dense);
                self.pending.reverse();
                (self.pages, self.survey) = (Some(pages), survey);
            }
            Err(error) => self.give_up(trouble_of(&error), now),
        }
        if !self.pending.is_empty() && !proc::may_have_huge_pages(self.pid) {
            self.give_up(Some(Trouble::SwitchedOff), now);
        }
        if !self.pending.is_empty() && room::is_memory_short(self.pid) {
            self.give_up(Some(Trouble::ShortOfMemory), now);
        }
    }

    /// Tries nothing for a while.
    fn give_up(&mut self, trouble: Option<Trouble>, now: Instant) {
        self.trouble = trouble;
        self.rests_until = Some(now + REST);
        self.pending.clear();
        self.pages = None;
    }

    /// When the next block may be collapsed, if there is one.
    pub(crate) fn next_collapse(&self) -> Option<Instant> {
        (!self.pending.is_empty()).then(|| self.pace.due(self.pending.len()))
    }

    /// Collapses the next block, if its time has come.
    pub(crate) fn collapse_one(&mut self, warm: Option<&WarmPage>, now: Instant) {
        if self.pending.is_empty() || !self.pace.take(self.pending.len(), now) {
            return;
        }
        if self.collapsed.is_multiple_of(ASK_AGAIN_AFTER) && room::is_memory_short(self.pid) {
            return self.give_up(Some(Trouble::ShortOfMemory), now);
        }
        let Some(pages) = &self.pages else { return };
        for _ in 0..MAX_SKIPPED {
            let Some(block) = self.pending.pop() else { break };
            let mut worth = pages.worth(block);
            if worth == Ok(Worth::Dense) {
                advice::empty_batches();
                if let Some(warm) = warm {
                    warm.make_ready();
                }
                // That may have taken milliseconds, in which the process may have forked.
                worth = pages.worth(block);
            }
            match worth {
                Ok(Worth::Dense) => {
                    self.collapse(block, now);
                    break;
                }
                Ok(Worth::NotDense | Worth::Shared) => {}
                // It has ended.
                Err(_) => self.pending.clear(),
            }
        }
        self.pace.note_work(now.elapsed());
        if self.pending.is_empty() {
            self.pages = None;
        }
    }

    fn collapse(&mut self, block: usize, now: Instant) {
        let started = Instant::now();
        let collapsed = advice::collapse_of(self.handle.as_fd(), block, HUGE_PAGE);
        let took = started.elapsed();
        self.in_calls += took;
        self.longest_call = self.longest_call.max(took);
        match collapsed {
            Ok(()) => {
                self.collapsed += 1;
                self.survey.huge_bytes += HUGE_PAGE as u64;
                self.survey.base_bytes = self.survey.base_bytes.saturating_sub(HUGE_PAGE as u64);
            }
            Err(errno) => {
                self.refused += 1;
                match errno {
                    Errno::PERM | Errno::ACCESS => self.give_up(Some(Trouble::NotAllowed), now),
                    Errno::NOMEM => self.give_up(Some(Trouble::ShortOfMemory), now),
                    // It has ended, or somebody uses a page of the block, or the block may have no huge page.
                    _ => {}
                }
            }
        }
    }

    fn trouble(&self) -> Option<Trouble> {
        if !self.look.image.is_known() && self.look.resident_bytes > 0 {
            return Some(Trouble::NotReadable);
        }
        if self.forks == 0 { Some(Trouble::NeverForked) } else { self.trouble }
    }

    pub(crate) fn report(&self) -> ProcessReport {
        ProcessReport {
            pid: self.pid,
            name: self.look.name.clone(),
            resident_bytes: self.look.resident_bytes,
            forks: self.forks,
            huge_bytes: self.survey.huge_bytes,
            base_bytes: self.survey.base_bytes,
            blocks_pending: self.pending.len() as u64,
            blocks_collapsed: self.collapsed,
            blocks_refused: self.refused,
            collapse_usec: self.in_calls.as_micros() as u64,
            longest_collapse_usec: self.longest_call.as_micros() as u64,
            trouble: self.trouble(),
        }
    }
}

/// The trouble behind an error of a scan; `None` if the process has ended.
fn trouble_of(error: &io::Error) -> Option<Trouble> {
    match error.kind() {
        io::ErrorKind::PermissionDenied => Some(Trouble::NotReadable),
        _ if error.raw_os_error() == Some(Errno::NOTTY.raw_os_error()) => Some(Trouble::OldKernel),
        _ => None,
    }
}
