//! The loop: finds the processes, looks at each from time to time, and collapses their blocks one by one.

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

/// How often processes are looked for by name or control group, and children whose parents have ended.
const FIND: Duration = Duration::from_secs(1);

/// `KCMP_VM` of linux/kcmp.h: whether two processes have one address space.
const KCMP_VM: usize = 1;

/// Why nothing can be kept on this machine, or by this caller.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum KeepError {
    /// The caller may not collapse memory of other processes.
    #[error(
        "this user may not give other processes huge pages: type `sudo setcap cap_sys_nice+ep \"$(command -v hugefork)\"` \
         once, run it as root, or start the container with --cap-add SYS_NICE"
    )]
    NoCapability,
    /// The kernel cannot say which pages a process has.
    #[error("this kernel cannot say which pages are huge (PAGEMAP_SCAN); Linux 6.7 or newer can")]
    NoScan,
    /// `/proc` is that of another process namespace.
    #[error("/proc is that of another process namespace; mount that of this one (`unshare --mount-proc`)")]
    ProcOfOthers,
    /// `/proc` cannot be read.
    #[error("/proc/self/pagemap cannot be opened ({source}); mount /proc")]
    NoProc {
        /// Why.
        source: io::Error,
    },
}

/// Keeps processes in huge pages. One thread uses it; it makes none.
#[derive(Debug)]
pub struct Keeper {
    targets: Targets,
    processes: BTreeMap<u32, Kept>,
    /// Programs of which a process has ended: a child of it may live on.
    ended: BTreeSet<Image>,
    next_find: Instant,
    /// None where the kernel has no memory for it.
    warm: Option<WarmPage>,
}

impl Keeper {
    /// Whether this machine and this caller can keep anything.
    ///
    /// # Errors
    /// They cannot.
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
            // A process that has its capability from its file may not read its own, and may read others.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
            Err(source) => return Err(KeepError::NoProc { source }),
        }
        let has = capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_NICE));
        if has { Ok(()) } else { Err(KeepError::NoCapability) }
    }

    /// Keeps these, and what they start.
    ///
    /// # Errors
    /// As [`Keeper::check`].
    pub fn new(targets: Targets) -> Result<Keeper, KeepError> {
        Keeper::check()?;
        // A descriptor a process.
        let limit = getrlimit(Resource::Nofile);
        let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
        let now = Instant::now();
        let processes = targets.pids().iter().filter_map(|pid| Some((*pid, Kept::new(*pid, now)?))).collect();
        Ok(Keeper { targets, processes, ended: BTreeSet::new(), next_find: now, warm: WarmPage::new().ok() })
    }

    /// Does what is due. Gives the time until something else is; `None` once nothing is left to keep.
    pub fn step(&mut self) -> Option<Duration> {
        let now = Instant::now();
        if now >= self.next_find {
            self.find(now);
            self.next_find = now + FIND;
        }
        self.look(now);
        for process in self.processes.values_mut() {
            process.collapse_one(self.warm.as_ref(), now);
        }
        if self.processes.is_empty() && self.ended.is_empty() && !self.targets.may_grow() {
            return None;
        }
        let of = |kept: &Kept| kept.next_collapse().map_or(kept.next_look, |collapse| collapse.min(kept.next_look));
        let next = self.processes.values().map(of).chain([self.next_find]).min();
        Some(next.unwrap_or(now).saturating_duration_since(Instant::now()))
    }

    /// Waits until a process ends, a signal comes, or the time is over.
    pub fn wait(&self, time: Duration) {
        self.ended(time);
    }

    /// The processes that end until the time is over, once the first does.
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

    /// A report of the processes that live now.
    pub fn report(&self) -> Report {
        Report { schema: 1, processes: self.processes.values().map(Kept::report).collect() }
    }

    /// Finds processes that are targets, and children whose parents have ended before they were seen.
    fn find(&mut self, now: Instant) {
        for pid in self.targets.found(|pid| self.processes.contains_key(&pid)) {
            self.add(pid, now);
        }
        if !self.ended.is_empty() {
            let ended = std::mem::take(&mut self.ended);
            for pid in proc::all().collect::<Vec<_>>() {
                let is_new = !self.processes.contains_key(&pid);
                if is_new && proc::look(pid).is_some_and(|look| ended.contains(&look.image)) {
                    self.add(pid, now);
                }
            }
        }
    }

    /// Looks after a process from now on. If it has a copy of its parent's memory, the parent has forked.
    fn add(&mut self, pid: u32, now: Instant) {
        if self.processes.contains_key(&pid) || pid == std::process::id() {
            return;
        }
        let Some(kept) = Kept::new(pid, now) else { return };
        let (parent, image) = (kept.look.parent, kept.image());
        if let Some(parent) =
            self.processes.get_mut(&parent).filter(|parent| parent.image() == image && image.is_known())
        {
            if have_one_address_space(parent.pid, pid) {
                // vfork: it is about to call exec, and is met again then.
                return;
            }
            parent.note_fork(now);
        }
        self.processes.insert(pid, kept);
    }

    /// Looks at each process whose time has come, and at its children.
    fn look(&mut self, now: Instant) {
        let ended = self.ended(Duration::ZERO);
        let is_due = |kept: &&Kept| kept.next_look <= now || ended.contains(&kept.pid);
        let due: Vec<u32> = self.processes.values().filter(is_due).map(|kept| kept.pid).collect();
        for pid in due {
            let Some(kept) = self.processes.get_mut(&pid) else { continue };
            let image = kept.image();
            if !kept.look_again(ended.contains(&pid), now) {
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

    /// If one process alone is left of a program, nobody shares its memory any more.
    fn note_if_alone(&mut self, image: Image, now: Instant) {
        let mut family = self.processes.values_mut().filter(|kept| kept.image() == image);
        if let (Some(last), None) = (family.next(), family.next()) {
            last.note_alone(now);
            last.next_look = now;
        }
    }
}

/// Whether two processes have one address space, as after `vfork(2)`. If the kernel does not say, they have two.
fn have_one_address_space(one: u32, other: u32) -> bool {
    // SAFETY: two numbers; nothing is read or written.
    let compared: Result<usize, Errno> = unsafe { syscall5(Sysno::kcmp, one as usize, other as usize, KCMP_VM, 0, 0) }
        .map_err(|errno| Errno::from_raw_os_error(errno.into_raw()));
    compared == Ok(0)
}
