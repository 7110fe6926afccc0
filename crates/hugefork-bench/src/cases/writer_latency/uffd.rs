//! `userfaultfd(2)`, as snapshotters of microVMs use it: all of the area is write-protected at the snapshot. A write
//! waits until a thread has copied what is there to a side copy, and lets writes to it pass again: 4 KiB or 2 MiB at a
//! time.
//!
//! The thread runs on the CPU of the writer, which waits anyway. That is its best case: in a virtual machine, to wake
//! another CPU takes 30 us each way, 70 us a write. The memory of the side copy is present, as that of hugefork's pool
//! is; of it, what was copied counts as extra memory.
//!
//! The area is anonymous memory with transparent huge pages. To let 4 KiB of one pass, the kernel splits it.

use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::{AsFd, AsRawFd};
use std::ptr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};

use super::rival::{Ground, Rival};
use super::userfault::{OnWrite, Userfault};
use super::words::{BIAS, Words, reader};
use crate::cases::footprint::Footprint;
use crate::error::BenchError;
use crate::measure::affinity;
use crate::measure::clock::CpuTime;
use crate::memory::kernel_memory::{KernelMemory, PageKind};

/// Protects, and has a thread that copies.
pub(super) struct UffdWp {
    /// Bytes that are copied at once.
    grain: usize,
    kind: PageKind,
    held: Option<ProtectedArea>,
    /// What is copied to.
    side: Option<Rc<KernelMemory>>,
    /// Makes copies for the next snapshot.
    next: Option<Monitor>,
}

struct ProtectedArea {
    // The descriptor before the memory: fields drop in order, and a write that waits goes on when it closes.
    userfault: Arc<Userfault>,
    area: KernelMemory,
}

impl UffdWp {
    /// Copies `grain` bytes at once, to pages of this kind.
    pub(super) fn new(grain: usize, kind: PageKind) -> UffdWp {
        UffdWp { grain, kind, held: None, side: None, next: None }
    }

    fn held(&self) -> &ProtectedArea {
        self.held.as_ref().expect("populated before used")
    }
}

impl Rival for UffdWp {
    type Snapshot = Monitor;

    fn populate(&mut self, ground: &Ground) -> Result<(), BenchError> {
        self.held = None;
        if self.side.is_none() {
            self.side = Some(Rc::new(KernelMemory::populated(self.kind, ground.size)?));
        }
        let area = KernelMemory::written(PageKind::Thp, ground.size, BIAS)?;
        area.check_huge()?;
        let userfault = Arc::new(Userfault::of(area.as_ptr(), area.len())?);
        self.held = Some(ProtectedArea { userfault, area });
        Ok(())
    }

    fn start(&self) -> *mut u8 {
        self.held().area.as_ptr()
    }

    fn ready(&mut self, ground: &Ground) -> Result<(), BenchError> {
        let (held, side) = (self.held(), self.side.as_ref().expect("populated before used"));
        self.next = Some(Monitor::start(&held.userfault, &held.area, side, self.grain, ground.cpu)?);
        Ok(())
    }

    fn take(&mut self, _: &Words) -> Result<Monitor, BenchError> {
        self.held().userfault.set_all(OnWrite::Fault).map_err(|error| BenchError::system("write-protecting", error))?;
        Ok(self.next.take().expect("readied before taken"))
    }

    fn copied(&self, monitor: &Monitor, _: &Words, _: usize) -> Option<usize> {
        Some(monitor.bytes())
    }

    fn memory(&self, monitor: Option<&Monitor>) -> Option<usize> {
        Footprint::by_this().map(|held| held.alone() + monitor.map_or(0, Monitor::bytes))
    }

    fn let_go(&mut self, monitor: Monitor, words: &Words) -> Result<CpuTime, BenchError> {
        let held = self.held();
        held.userfault.set_all(OnWrite::Pass).map_err(|error| BenchError::system("letting writes pass", error))?;
        monitor.end(&held.area, words)
    }

    fn release(&mut self) {
        self.next = None;
        self.held = None;
        self.side = None;
    }

    /// The side copy stays.
    fn end_sample(&mut self) {
        self.held = None;
    }
}

/// The thread that copies, and the side copy.
pub(super) struct Monitor {
    /// The thread ends when this closes.
    stop: Option<PipeWriter>,
    thread: Option<JoinHandle<io::Result<CpuTime>>>,
    side: Rc<KernelMemory>,
    notes: Arc<Notes>,
}

/// What has been copied.
struct Notes {
    grain: usize,
    /// A bit for each piece of the area.
    copied: Box<[AtomicU64]>,
    bytes: AtomicUsize,
}

impl Notes {
    fn has(&self, offset: usize) -> bool {
        let piece = offset / self.grain;
        self.copied[piece / 64].load(Ordering::Acquire) >> (piece % 64) & 1 == 1
    }

    fn note(&self, offset: usize) {
        let piece = offset / self.grain;
        self.copied[piece / 64].fetch_or(1 << (piece % 64), Ordering::Release);
        self.bytes.fetch_add(self.grain, Ordering::Relaxed);
    }
}

impl Monitor {
    fn start(
        userfault: &Arc<Userfault>,
        area: &KernelMemory,
        side: &Rc<KernelMemory>,
        grain: usize,
        cpu: usize,
    ) -> Result<Monitor, BenchError> {
        let words = (area.len() / grain).div_ceil(64);
        let copied = (0..words).map(|_| AtomicU64::new(0)).collect();
        let notes = Arc::new(Notes { grain, copied, bytes: AtomicUsize::new(0) });
        let (stopped, stop) = io::pipe().map_err(|error| BenchError::system("making a pipe", error))?;
        let copier = Copier {
            userfault: Arc::clone(userfault),
            notes: Arc::clone(&notes),
            from: area.as_ptr() as usize,
            to: side.as_ptr() as usize,
        };
        let thread = thread::Builder::new()
            .name("uffd monitor".to_owned())
            .spawn(move || copier.live(&stopped, cpu))
            .map_err(|error| BenchError::system("starting a thread", error))?;
        Ok(Monitor { stop: Some(stop), thread: Some(thread), side: Rc::clone(side), notes })
    }

    /// Bytes copied so far.
    fn bytes(&self) -> usize {
        self.notes.bytes.load(Ordering::Relaxed)
    }

    /// Ends the thread, and checks that what was copied of `area` and what was not are together the snapshot.
    fn end(mut self, area: &KernelMemory, words: &Words) -> Result<CpuTime, BenchError> {
        let used = self.join().map_err(|error| BenchError::system("copying at a write fault", error))?;
        // SAFETY: two mappings of our own, that nobody writes now.
        let (side, live) = unsafe { (reader(self.side.as_ptr()), reader(area.as_ptr())) };
        words.check_kept(|offset| if self.notes.has(offset) { side(offset) } else { live(offset) })?;
        Ok(used)
    }

    fn join(&mut self) -> io::Result<CpuTime> {
        drop(self.stop.take());
        let ended = self.thread.take().map(JoinHandle::join);
        ended.unwrap_or(Ok(Ok(CpuTime::default()))).unwrap_or_else(|_| Err(io::Error::other("the thread panicked")))
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        // The side copy may go with it.
        let _ = self.join();
    }
}

/// What the thread has.
struct Copier {
    userfault: Arc<Userfault>,
    notes: Arc<Notes>,
    from: usize,
    to: usize,
}

impl Copier {
    /// Copies until the other end of `stopped` closes. Gives the CPU time that this took.
    fn live(&self, stopped: &PipeReader, cpu: usize) -> io::Result<CpuTime> {
        let ended = affinity::pin(cpu).map_err(io::Error::from).and_then(|()| self.copy_until(stopped));
        if ended.is_err() {
            // Nobody copies any more, so the writer must not wait. The snapshot is lost, and the error says so.
            self.userfault.end()?;
        }
        ended.map(|()| CpuTime::of_this_thread())
    }

    fn copy_until(&self, stopped: &PipeReader) -> io::Result<()> {
        loop {
            let mut polled = [self.userfault.as_fd().as_raw_fd(), stopped.as_raw_fd()].map(|fd| libc::pollfd {
                fd,
                events: libc::POLLIN,
                revents: 0,
            });
            // SAFETY: a live array of two, and its length.
            if unsafe { libc::poll(polled.as_mut_ptr(), 2, -1) } < 0 {
                let error = io::Error::last_os_error();
                if error.kind() == io::ErrorKind::Interrupted {
                    continue;
                }
                return Err(error);
            }
            if polled[0].revents != 0 {
                self.userfault.each_fault(|offset| self.copy(offset))?;
            }
            if polled[1].revents != 0 {
                return Ok(());
            }
        }
    }

    fn copy(&self, offset: usize) -> io::Result<()> {
        let grain = self.notes.grain;
        let offset = offset / grain * grain;
        // SAFETY: a whole piece of both mappings, which do not overlap, and outlive this thread. Writes to it wait.
        unsafe { ptr::copy_nonoverlapping((self.from + offset) as *const u8, (self.to + offset) as *mut u8, grain) };
        self.notes.note(offset);
        self.userfault.set(offset, grain, OnWrite::Pass)
    }
}
