//! The keeper's loop: finds the processes, checks each process from time to time, and collapses the
//! blocks of the processes one by one.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use hugefork_linux::pagemap_scan::{PageRun, Scan, scan};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, capabilities};
use syscalls::{Sysno, syscall5};
use thiserror::Error;

use crate::proc::{self, Image};
use crate::process::Kept;
use crate::report::Report;
use crate::targets::Targets;
use crate::units::BASE_PAGE;
use crate::warm::WarmPage;

/// Time between searches for processes by name or control group, and for children of processes that have ended.
const FIND_INTERVAL: Duration = Duration::from_secs(1);

/// `KCMP_VM` of linux/kcmp.h: compares the address spaces of two processes.
const KCMP_VM: usize = 1;

/// The reason why the keeper cannot work on this machine, or for this caller.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum KeepError {
    /// The caller may not collapse memory of other processes.
    #[error(
        "this user may not give other processes huge pages: type `sudo setcap cap_sys_nice+ep \"$(command -v hugefork)\"` \
         once, run it as root, or start the container with --cap-add SYS_NICE"
    )]
    NoCapability,
    /// The kernel cannot report the kinds of a process's pages.
    #[error("this kernel cannot report huge pages (PAGEMAP_SCAN); use Linux 6.7 or newer")]
    NoScan,
    /// The mounted `/proc` belongs to another process namespace than the caller.
    #[error("/proc belongs to another process namespace; mount the /proc of this one (`unshare --mount-proc`)")]
    ProcOfOthers,
    /// `/proc` cannot be read.
    #[error("/proc/self/pagemap cannot be opened ({source}); mount /proc")]
    NoProc {
        /// The cause.
        source: io::Error,
    },
}

/// Keeps processes in huge pages. A keeper runs on its caller's thread and starts no threads.
#[derive(Debug)]
pub struct Keeper {
    targets: Targets,
    processes: BTreeMap<u32, Kept>,
    /// Programs of ended processes that may have left a running child.
    ended: BTreeSet<Image>,
    next_find: Instant,
    /// The prepared huge page; `None` if the kernel had no memory for the mapping.
    warm: Option<WarmPage>,
}

impl Keeper {
    /// Checks whether this machine and this caller allow the keeper to work.
    ///
    /// # Errors
    /// The reason why this machine or this caller does not allow it.
    pub fn check() -> Result<(), KeepError> {
        let own = std::fs::read_link("/proc/self").ok();
        if own.is_some_and(|own| own.to_str() != Some(&std::process::id().to_string())) {
            return Err(KeepError::ProcOfOthers);
        }
        match std::fs::File::open("/proc/self/pagemap") {
            Ok(own) => {
                let mut runs = [PageRun::default(); 1];
                let here = std::ptr::from_ref(&runs).addr() / BASE_PAGE * BASE_PAGE;
                let range = here..here + BASE_PAGE;
                scan(own.as_fd(), &range, Scan::PRESENT, &mut runs).map_err(|_| KeepError::NoScan)?;
            }
            // A process with a file capability may not read its own pagemap, but may read the pagemap of other
            // processes.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
            Err(source) => return Err(KeepError::NoProc { source }),
        }
        let has = capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_NICE));
        if has { Ok(()) } else { Err(KeepError::NoCapability) }
    }

    /// Creates a keeper of `targets` and of the processes that the targets start.
    ///
    /// # Errors
    /// As [`Keeper::check`].
    pub fn new(targets: Targets) -> Result<Keeper, KeepError> {
        Keeper::check()?;
        // The keeper needs a descriptor for each process.
        let limit = getrlimit(Resource::Nofile);
        let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
        let now = Instant::now();
        let processes = targets.pids().iter().filter_map(|pid| Some((*pid, Kept::new(*pid, now)?))).collect();
        Ok(Keeper { targets, processes, ended: BTreeSet::new(), next_find: now, warm: WarmPage::new().ok() })
    }

    /// Does all work that is due. Returns the time until more work is due; `None` if no process is left to keep.
    pub fn step(&mut self) -> Option<Duration> {
        let now = Instant::now();
        if now >= self.next_find {
            self.find(now);
            self.next_find = now + FIND_INTERVAL;
        }
        self.check_due(now);
        for process in self.processes.values_mut() {
            process.collapse_one(self.warm.as_ref(), now);
        }
        if self.processes.is_empty() && self.ended.is_empty() && !self.targets.may_grow() {
            return None;
        }
        let of = |kept: &Kept| kept.next_collapse().map_or(kept.next_check, |collapse| collapse.min(kept.next_check));
        let next = self.processes.values().map(of).chain([self.next_find]).min();
        Some(next.unwrap_or(now).saturating_duration_since(Instant::now()))
    }

    /// Waits until a process ends, a signal arrives, or `time` has passed.
    pub fn wait(&self, time: Duration) {
        self.ended(time);
    }

    /// Waits until a process ends or `time` has passed; returns the numbers of the processes that have ended.
    fn ended(&self, time: Duration) -> BTreeSet<u32> {
        let (pids, mut waited): (Vec<u32>, Vec<PollFd<'_>>) = self
            .processes
            .values()
            .filter_map(|kept| Some((kept.pid, PollFd::new(kept.handle()?, PollFlags::IN))))
            .unzip();
        let time = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() };
        if !poll(&mut waited, Some(&time)).is_ok_and(|ready| ready > 0) {
            return BTreeSet::new();
        }
        pids.into_iter().zip(waited).filter(|(_, waited)| !waited.revents().is_empty()).map(|(pid, _)| pid).collect()
    }

    /// A report on the living processes.
    pub fn report(&self) -> Report {
        Report { schema: 1, processes: self.processes.values().map(Kept::report).collect() }
    }

    /// Finds processes that are targets, and children of processes that ended before the keeper saw the children.
    fn find(&mut self, now: Instant) {
        for pid in self.targets.found(|pid| self.processes.contains_key(&pid)) {
            self.add(pid, now);
        }
        if !self.ended.is_empty() {
            let ended = std::mem::take(&mut self.ended);
            for pid in proc::all().collect::<Vec<_>>() {
                let is_new = !self.processes.contains_key(&pid);
                if is_new && proc::sample(pid).is_some_and(|sample| ended.contains(&sample.image)) {
                    self.add(pid, now);
                }
            }
        }
    }

    /// Starts to watch a process. If the process has a copy of its parent's memory, notes a fork of the parent.
    fn add(&mut self, pid: u32, now: Instant) {
        if self.processes.contains_key(&pid) || pid == std::process::id() {
            return;
        }
        let Some(kept) = Kept::new(pid, now) else { return };
        let (parent, image) = (kept.sample.parent, kept.image());
        if let Some(parent) =
            self.processes.get_mut(&parent).filter(|parent| parent.image() == image && image.is_known())
        {
            if have_one_address_space(parent.pid, pid) {
                // This is a `vfork` child about to call `exec`. The keeper adds it after the `exec`.
                return;
            }
            parent.note_fork(now);
        }
        self.processes.insert(pid, kept);
    }

    /// Checks each process that is due, and its children.
    fn check_due(&mut self, now: Instant) {
        let ended = self.ended(Duration::ZERO);
        let is_due = |kept: &&Kept| kept.next_check <= now || ended.contains(&kept.pid);
        let due: Vec<u32> = self.processes.values().filter(is_due).map(|kept| kept.pid).collect();
        for pid in due {
            let Some(kept) = self.processes.get_mut(&pid) else { continue };
            let image = kept.image();
            if !kept.update(ended.contains(&pid), now) {
                self.processes.remove(&pid);
                if image.is_known() {
                    self.ended.insert(image);
                }
                self.note_if_alone(image, now);
                continue;
            }
            if kept.image() != image {
                self.note_if_alone(image, now);
            }
            for child in proc::children(pid) {
                self.add(child, now);
            }
            let is_shared = self.processes.values().filter(|other| other.image() == image).nth(1).is_some();
            if let Some(kept) = self.processes.get_mut(&pid) {
                kept.scan_if_due(is_shared, now);
            }
        }
    }

    /// If only one process of a program is left, notes that this process shares its memory with no child any more.
    fn note_if_alone(&mut self, image: Image, now: Instant) {
        let mut family = self.processes.values_mut().filter(|kept| kept.image() == image);
        if let (Some(last), None) = (family.next(), family.next()) {
            last.note_alone(now);
            last.next_check = now;
        }
    }
}

/// Whether two processes have one address space, as after `vfork(2)`. Returns false if the kernel refuses the
/// comparison.
fn have_one_address_space(one: u32, other: u32) -> bool {
    // SAFETY: the arguments are numbers, and the call reads and writes no memory.
    let compared: Result<usize, Errno> = unsafe { syscall5(Sysno::kcmp, one as usize, other as usize, KCMP_VM, 0, 0) }
        .map_err(|errno| Errno::from_raw_os_error(errno.into_raw()));
    compared == Ok(0)
}
