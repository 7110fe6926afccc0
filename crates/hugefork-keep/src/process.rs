//! One process: its forks, the blocks to collapse, and the results of the collapses.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use hugefork_linux::advice;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use syscalls::{Sysno, syscall4};

use crate::blocks::{Pages, Survey, Worth};
use crate::pace::Pace;
use crate::proc::{self, Image, Sample};
use crate::report::{ProcessReport, Trouble};
use crate::room;
use crate::units::HUGE_PAGE;
use crate::warm::WarmPage;

/// Delay before the second check of a new process: a process that becomes a daemon forks, and its parent exits at once.
const FIRST_INTERVAL: Duration = Duration::from_millis(4);

/// Longest time between checks of a process that has page faults.
const MAX_BUSY_INTERVAL: Duration = Duration::from_millis(100);

/// Longest time between checks of an idle process; the second value is for a process so small that its forks are short.
const MAX_IDLE_INTERVAL: Duration = Duration::from_millis(500);
const MAX_SMALL_INTERVAL: Duration = Duration::from_secs(4);

/// Forks of a process with less memory are short, whatever the size of its pages.
const SMALL_BYTES: u64 = 32 << 20;

/// Time between scans of a process that shares memory with no other. A scan takes 5 to 10 ms for each GiB of base
/// pages, and delays a fork by at most 0.3 ms.
const SCAN_ALONE: Duration = Duration::from_secs(5);

/// Time between scans while a child lives, because most pages are then shared.
const SCAN_SHARED: Duration = Duration::from_secs(10);

/// Pause after the kernel has refused a collapse.
const REST: Duration = Duration::from_secs(5);

/// Most blocks to skip in one step because they are huge already or shared: the check of a block takes 60 us.
const MAX_SKIPPED: usize = 16;

/// Number of collapses after which the keeper checks again whether memory is short.
const MEMORY_CHECK_EVERY: u64 = 32;

/// A process that the keeper watches.
#[derive(Debug)]
pub(crate) struct Kept {
    pub(crate) pid: u32,
    /// Distinguishes this process from a later one with the same number.
    handle: OwnedFd,
    /// Whether the handle reports an exit although only the first thread of the process has exited (Linux before 6.15).
    handle_is_wrong: bool,
    pub(crate) sample: Sample,
    forks: u64,
    /// Time of the next check, and the time between checks.
    pub(crate) next_check: Instant,
    interval: Duration,
    pace: Pace,
    /// Time of the last scan, and the number of faults at that time.
    scanned: Option<(Instant, u64)>,
    /// Whether a page of a block was in use at its collapse, so that the next scan finds the block again.
    missed: bool,
    survey: Survey,
    /// Number of lazily freed pages of all processes ([`lazy_frees`](proc::lazy_frees)) at the last scan.
    lazy_frees: Option<u64>,
    pages: Option<Pages>,
    /// Blocks of the last scan that are not collapsed yet; the next block to collapse is the last element.
    pending: Vec<usize>,
    trouble: Option<Trouble>,
    rests_until: Option<Instant>,
    collapsed: u64,
    refused: u64,
    in_calls: Duration,
    longest_call: Duration,
}

impl Kept {
    /// Starts to watch a process; `None` if it has ended.
    pub(crate) fn new(pid: u32, now: Instant) -> Option<Kept> {
        let number = Pid::from_raw(i32::try_from(pid).ok()?)?;
        let handle = pidfd_open(number, PidfdFlags::empty()).ok()?;
        let sample = proc::sample(pid)?;
        Some(Kept {
            pid,
            handle,
            handle_is_wrong: false,
            sample,
            forks: 0,
            next_check: now,
            interval: FIRST_INTERVAL,
            pace: Pace::new(now),
            scanned: None,
            missed: false,
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
        self.sample.image
    }

    /// Whether the process still exists, at least as a zombie. A new process with the same number does not count.
    fn is_there(&self) -> bool {
        let handle = self.handle.as_raw_fd() as usize;
        // SAFETY: signal 0 sends nothing: the kernel only checks the permission.
        let sent = unsafe { syscall4(Sysno::pidfd_send_signal, handle, 0, 0, 0) };
        !matches!(sent, Err(errno) if errno == syscalls::Errno::ESRCH)
    }

    /// Reads the state of the process again. Returns false if it has ended. `is_readable` is true if the process's
    /// handle reports an exit.
    pub(crate) fn update(&mut self, is_readable: bool, now: Instant) -> bool {
        self.handle_is_wrong |= is_readable;
        let sample = proc::sample(self.pid);
        // The order matters: the process exists after the reading, so the state is not that of a later process with the
        // same number.
        let Some(sample) = sample.filter(|_| self.is_there()) else { return false };
        if sample.image != self.sample.image && sample.image.is_known() {
            // The process has called `exec` and is another program now.
            let Some(fresh) = Kept::new(self.pid, now) else { return false };
            *self = fresh;
            return true;
        }
        let sample = Sample { image: self.sample.image, ..sample };
        let is_busy = sample.faults != self.sample.faults;
        let most = if sample.resident_bytes < SMALL_BYTES { MAX_SMALL_INTERVAL } else { MAX_IDLE_INTERVAL };
        self.interval = (2 * self.interval).min(if is_busy { MAX_BUSY_INTERVAL } else { most });
        self.next_check = now + self.interval;
        self.sample = sample;
        true
    }

    /// Notes that the keeper has seen a new child with a copy of the process's memory.
    pub(crate) fn note_fork(&mut self, now: Instant) {
        self.forks += 1;
        self.pace.note_fork(now);
    }

    /// Scans the memory for blocks to collapse, if a scan is due. `is_shared` is true if another process shares pages
    /// with this process.
    pub(crate) fn scan_if_due(&mut self, is_shared: bool, now: Instant) {
        if !is_shared {
            self.pace.note_alone(now);
        }
        if self.forks == 0 || self.rests_until.is_some_and(|until| now < until) {
            return;
        }
        let interval = if is_shared { SCAN_SHARED } else { SCAN_ALONE };
        let is_due = self.scanned.is_none_or(|(at, faults)| {
            // Pages that were shared at the last scan may belong to the process alone by now.
            let may_differ = faults != self.sample.faults || !self.pending.is_empty() || self.missed;
            may_differ && now.saturating_duration_since(at) >= interval
        });
        if is_due {
            self.scan(now);
        }
    }

    /// Notes that the children that shared the memory have ended, so a new scan is due.
    pub(crate) fn note_alone(&mut self, now: Instant) {
        self.pace.note_alone(now);
        // The list of blocks to collapse is outdated: the last scan saw pages as shared, and the program may have freed
        // blocks since.
        self.pending.clear();
        self.scanned = None;
    }

    fn scan(&mut self, now: Instant) {
        self.scanned = Some((now, self.sample.faults));
        self.missed = false;
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

    /// Stops the collapses of this process for a while.
    fn give_up(&mut self, trouble: Option<Trouble>, now: Instant) {
        self.trouble = trouble;
        self.rests_until = Some(now + REST);
        self.pending.clear();
        self.pages = None;
    }

    /// Time when the next block may be collapsed, if there is one.
    pub(crate) fn next_collapse(&self) -> Option<Instant> {
        (!self.pending.is_empty()).then(|| self.pace.due(self.pending.len()))
    }

    /// Collapses the next block, if the pace allows a collapse now.
    pub(crate) fn collapse_one(&mut self, warm: Option<&WarmPage>, now: Instant) {
        if self.pending.is_empty() || !self.pace.take(self.pending.len(), now) {
            return;
        }
        if self.collapsed.is_multiple_of(MEMORY_CHECK_EVERY) && room::is_memory_short(self.pid) {
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
                // The preparation of the huge page may have taken milliseconds, and the process may have forked during
                // that time.
                worth = pages.worth(block);
            }
            match worth {
                Ok(Worth::Dense) => {
                    self.collapse(block, now);
                    break;
                }
                Ok(Worth::Huge) => self.survey.note_huge(),
                Ok(Worth::NotDense | Worth::Shared) => {}
                // The process has ended.
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
                self.survey.note_huge();
            }
            Err(errno) => {
                self.refused += 1;
                match errno {
                    Errno::PERM | Errno::ACCESS => self.give_up(Some(Trouble::NotAllowed), now),
                    Errno::NOMEM => self.give_up(Some(Trouble::ShortOfMemory), now),
                    Errno::AGAIN | Errno::BUSY => self.missed = true,
                    // The process has ended, or the block may have no huge page.
                    _ => {}
                }
            }
        }
    }

    fn trouble(&self) -> Option<Trouble> {
        if !self.sample.image.is_known() && self.sample.resident_bytes > 0 {
            return Some(Trouble::NotReadable);
        }
        if self.forks == 0 { Some(Trouble::NeverForked) } else { self.trouble }
    }

    pub(crate) fn report(&self) -> ProcessReport {
        ProcessReport {
            pid: self.pid,
            name: self.sample.name.clone(),
            resident_bytes: self.sample.resident_bytes,
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

/// Translates an error of a scan; `None` if the process has ended.
fn trouble_of(error: &io::Error) -> Option<Trouble> {
    match error.kind() {
        io::ErrorKind::PermissionDenied => Some(Trouble::NotReadable),
        _ if error.raw_os_error() == Some(Errno::NOTTY.raw_os_error()) => Some(Trouble::OldKernel),
        _ => None,
    }
}
