//! Refuses system calls of the engine at random, by call and argument, while other threads work.
//!
//! ```text
//!   a thread of the engine ─ mmap, mremap, … ─▶ seccomp ─▶ supervisor: goes on, or ENOMEM  (the same process,
//!                          ◀──────────────────────────────────┘                          without the filter)
//! ```
//! The filter tells the engine's calls from those of the C library by their code address: rustix makes them in the
//! program itself. The supervisor shares the memory of the process, so it can also do the first half of a call before
//! it refuses the rest, as the kernel may.
//!
//! # Mercy
//! If the kernel also refuses the calls that repair a failed one, the engine prints a line and aborts (docs/safety.md).
//! So after a refusal, the supervisor grants the thread all calls of the repair.

use core::ffi::{c_int, c_long, c_ulong};
use std::collections::HashMap;
use std::fs;
use std::ops::Range;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc;

use super::random::Random;
use hugefork_linux::pagemap_scan::PAGEMAP_SCAN;
use hugefork_linux::userfaultfd::UFFDIO_REGISTER;

const PAGE: u64 = 4096;

/// The kinds of calls that the engine makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Kind {
    /// Makes addresses inaccessible: for a block that is hidden, or a region that ends.
    Hide,
    /// Any other mapping at an address.
    Map,
    Remap,
    Protect,
    /// Asks whether anything is mapped (`msync`).
    Look,
    Populate,
    DropPrivate,
    /// Any other advice.
    Advise,
    Punch,
    /// `PAGEMAP_SCAN`.
    Scan,
    /// Makes threads that touch some addresses wait.
    Register,
    UserFault,
}

pub(crate) const KINDS: [Kind; 12] = [
    Kind::Hide,
    Kind::Map,
    Kind::Remap,
    Kind::Protect,
    Kind::Look,
    Kind::Populate,
    Kind::DropPrivate,
    Kind::Advise,
    Kind::Punch,
    Kind::Scan,
    Kind::Register,
    Kind::UserFault,
];

/// The calls to refuse, and the counts.
#[derive(Default)]
struct Shared {
    is_armed: AtomicBool,
    one_in: AtomicU32,
    /// Refuses `mremap` only if it shows a block.
    only_blocks: AtomicBool,
    /// One bit for each [`Kind`] to refuse.
    kinds: AtomicU64,
    asked: [AtomicU64; KINDS.len()],
    refused: [AtomicU64; KINDS.len()],
    /// The number of calls refused after their first half was done.
    halved: AtomicU64,
}

/// Refuses calls of the thread that has started it, and of all threads that this one starts.
pub(crate) struct Refusals(Arc<Shared>);

impl Refusals {
    /// Refuses nothing, even when armed.
    pub(crate) fn none() -> Refusals {
        Refusals(Arc::default())
    }

    /// Installs the filter; nothing is refused yet. An error if the kernel has no such filters or the process may not
    /// install one.
    pub(crate) fn start(seed: u64) -> Result<Refusals, std::io::Error> {
        let shared = Arc::new(Shared::default());
        let (sender, receiver) = mpsc::channel::<RawFd>();
        let supervisor = Supervisor {
            shared: shared.clone(),
            random: Random::new(seed),
            spared: HashMap::new(),
            program: program(),
        };
        // The supervisor starts before the filter is installed, so it has none.
        std::thread::spawn(move || {
            if let Ok(listener) = receiver.recv() {
                supervisor.run(listener);
            }
        });
        sender.send(install()?).expect("the supervisor waits");
        Ok(Refusals(shared))
    }

    /// From now on refuses one in `one_in` of these calls.
    pub(crate) fn arm(&self, one_in: u32, kinds: &[Kind]) {
        self.0.one_in.store(one_in, Ordering::Relaxed);
        self.0.kinds.store(kinds.iter().map(|&kind| 1 << kind as usize).sum(), Ordering::Relaxed);
        self.0.is_armed.store(true, Ordering::Release);
    }

    /// From now on refuses the calls that show a block, and the calls with which the engine inspects the result of a
    /// refused one.
    pub(crate) fn arm_blocks(&self) {
        self.0.only_blocks.store(true, Ordering::Relaxed);
        self.arm(1, &[Kind::Remap, Kind::Look]);
    }

    pub(crate) fn disarm(&self) {
        self.0.is_armed.store(false, Ordering::Release);
    }

    pub(crate) fn refused(&self, kind: Kind) -> u64 {
        self.0.refused[kind as usize].load(Ordering::Relaxed)
    }

    /// The counts of calls and refusals, in words.
    pub(crate) fn table(&self) -> String {
        let row = |&kind: &Kind| {
            let asked = self.0.asked[kind as usize].load(Ordering::Relaxed);
            format!("{kind:?} {} of {asked}", self.refused(kind))
        };
        let halved = self.0.halved.load(Ordering::Relaxed);
        format!("{}; {halved} after the first half", KINDS.iter().map(row).collect::<Vec<_>>().join(", "))
    }
}

/// The addresses of this program's code.
fn program() -> Range<u64> {
    let here = program as *const () as u64;
    let maps = fs::read_to_string("/proc/self/maps").expect("/proc is there");
    let range = |line: &str| -> Option<Range<u64>> {
        let (start, end) = line.split(' ').next()?.split_once('-')?;
        Some(u64::from_str_radix(start, 16).ok()?..u64::from_str_radix(end, 16).ok()?)
    };
    maps.lines().filter_map(range).find(|range| range.contains(&here)).expect("this function is mapped")
}

/// Has the kernel ask a supervisor about the calls that the engine makes. Returns the descriptor through which it asks.
fn install() -> Result<RawFd, std::io::Error> {
    /// Offsets in `struct seccomp_data`.
    const NUMBER: u32 = 0;
    const POINTER_HIGH: u32 = 12;
    const SECOND_ARGUMENT: u32 = 24;
    let load = |at: u32| step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, at);
    let end = |result: u32| step(libc::BPF_RET | libc::BPF_K, 0, 0, result);
    let code = program();
    let by_place: [c_long; 6] =
        [libc::SYS_mmap, libc::SYS_mremap, libc::SYS_mprotect, libc::SYS_madvise, libc::SYS_munmap, libc::SYS_msync];
    // The numbers of the steps at which the parts of the filter begin.
    const PLACE: usize = 10;
    const IOCTL: usize = 13;
    const ALLOW: usize = 16;
    const ASK: usize = 17;
    let mut steps = vec![load(NUMBER)];
    // Compares with `value`, and continues at step `yes` or `no`.
    let compare = |steps: &mut Vec<libc::sock_filter>, how: u32, value: u32, yes: usize, no: usize| {
        let next = steps.len() + 1;
        steps.push(step(libc::BPF_JMP | how | libc::BPF_K, (yes - next) as u8, (no - next) as u8, value));
    };
    for call in by_place {
        let next = steps.len() + 1;
        compare(&mut steps, libc::BPF_JEQ, call as u32, PLACE, next);
    }
    for call in [libc::SYS_fallocate, libc::SYS_userfaultfd] {
        let next = steps.len() + 1;
        compare(&mut steps, libc::BPF_JEQ, call as u32, ASK, next);
    }
    compare(&mut steps, libc::BPF_JEQ, libc::SYS_ioctl as u32, IOCTL, ALLOW);
    assert_eq!(steps.len(), PLACE);
    // Within the 4 GiB around the program's code. The supervisor checks the exact range.
    steps.push(load(POINTER_HIGH));
    compare(&mut steps, libc::BPF_JGE, (code.start >> 32) as u32, PLACE + 2, ALLOW);
    compare(&mut steps, libc::BPF_JGE, (code.end >> 32) as u32 + 1, ALLOW, ASK);
    assert_eq!(steps.len(), IOCTL);
    steps.push(load(SECOND_ARGUMENT));
    compare(&mut steps, libc::BPF_JEQ, PAGEMAP_SCAN, ASK, IOCTL + 2);
    compare(&mut steps, libc::BPF_JEQ, UFFDIO_REGISTER, ASK, ALLOW);
    steps.extend([end(libc::SECCOMP_RET_ALLOW), end(libc::SECCOMP_RET_USER_NOTIF)]);
    assert_eq!(steps.len(), ASK + 1);
    let filter = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    // SAFETY: no memory is involved.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }, 0);
    let (set, listens) = (libc::SECCOMP_SET_MODE_FILTER, libc::SECCOMP_FILTER_FLAG_NEW_LISTENER);
    // SAFETY: the call reads the program.
    let listener = unsafe { libc::syscall(libc::SYS_seccomp, set, listens, &raw const filter) };
    if listener < 0 { Err(std::io::Error::last_os_error()) } else { Ok(listener as RawFd) }
}

fn step(code: u32, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt, jf, k }
}

/// Decides about each call.
struct Supervisor {
    shared: Arc<Shared>,
    random: Random,
    /// For each thread, the number of its next calls that are granted.
    spared: HashMap<u32, Spared>,
    program: Range<u64>,
}

/// The last call of a thread, and how many of its next calls are granted.
#[derive(Clone, Copy, Default)]
struct Spared {
    calls: u32,
    /// The start of the addresses that its last call has replaced.
    replaced: u64,
}

/// The number of calls that a repair takes if the refused call had changed nothing.
const MAKES_UP: u32 = 12;

/// The number of calls that a repair takes if an earlier call had replaced the old mapping: some for each block.
const MAKES_UP_FOR_ALL: u32 = 5000;

impl Supervisor {
    fn run(mut self, listener: RawFd) {
        // SAFETY: all zeroes is one.
        let mut first: libc::sched_param = unsafe { std::mem::zeroed() };
        first.sched_priority = 1;
        // With priority, nobody waits long for the supervisor. Without the right to it, the test works as well.
        // SAFETY: reads the parameter.
        unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const first) };
        loop {
            // SAFETY: all zeroes is a value of it, which the call demands.
            let mut asked: libc::seccomp_notif = unsafe { core::mem::zeroed() };
            // SAFETY: writes the request.
            if unsafe { libc::ioctl(listener, libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut asked) } != 0 {
                continue;
            }
            let refused = self.decide(&asked);
            let answer = libc::seccomp_notif_resp {
                id: asked.id,
                val: 0,
                error: -refused.unwrap_or(0),
                flags: if refused.is_some() { 0 } else { libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32 },
            };
            // This fails if a signal has come meanwhile; the thread then makes its call again.
            // SAFETY: reads the answer.
            unsafe { libc::ioctl(listener, libc::SECCOMP_IOCTL_NOTIF_SEND, &raw const answer) };
        }
    }

    /// The error of a call that is to be refused.
    fn decide(&mut self, asked: &libc::seccomp_notif) -> Option<c_int> {
        let kind = self.kind(&asked.data)?;
        let shared = self.shared.clone();
        shared.asked[kind as usize].fetch_add(1, Ordering::Relaxed);
        let Spared { calls, replaced } = self.spared.remove(&asked.pid).unwrap_or_default();
        let is_torn = kind == Kind::Protect && replaced == asked.data.args[0];
        // Looks are refused even while a repair is granted its calls: the engine can repair without them.
        let is_spared = calls > 0 && kind != Kind::Look;
        // An `mremap` that shows a block duplicates a mapping: its old size is zero.
        let is_other = kind == Kind::Remap && asked.data.args[1] != 0 && shared.only_blocks.load(Ordering::Relaxed);
        let is_meant = shared.kinds.load(Ordering::Relaxed) & 1 << kind as usize != 0 && !is_other;
        let one_in = shared.one_in.load(Ordering::Relaxed).max(1) as usize;
        let refused = shared.is_armed.load(Ordering::Acquire) && is_meant && !is_spared && self.random.one_in(one_in);
        let spared = match refused {
            true if is_torn || kind == Kind::Look => Spared { calls: MAKES_UP_FOR_ALL, replaced: 0 },
            true => Spared { calls: MAKES_UP.max(calls), replaced: 0 },
            false => Spared { calls: calls.saturating_sub(1), replaced: replaced_by(kind, &asked.data) },
        };
        self.spared.insert(asked.pid, spared);
        if !refused {
            return None;
        }
        shared.refused[kind as usize].fetch_add(1, Ordering::Relaxed);
        self.do_half(kind, &asked.data);
        Some(self.errno(kind))
    }

    /// The kind of a call. `None` if the engine does not make it, or for its own memory: like any program, the engine
    /// cannot do without that.
    fn kind(&self, data: &libc::seccomp_data) -> Option<Kind> {
        let is_ours = self.program.contains(&data.instruction_pointer);
        let (call, arguments) = (c_long::from(data.nr), data.args);
        Some(match call {
            libc::SYS_fallocate => Kind::Punch,
            libc::SYS_userfaultfd => Kind::UserFault,
            libc::SYS_ioctl if arguments[1] as u32 == PAGEMAP_SCAN => Kind::Scan,
            libc::SYS_ioctl => Kind::Register,
            _ if !is_ours => return None,
            libc::SYS_mmap if arguments[0] == 0 => return None,
            libc::SYS_mmap if arguments[2] == libc::PROT_NONE as u64 && arguments[4] as i32 == -1 => Kind::Hide,
            libc::SYS_mmap => Kind::Map,
            libc::SYS_mremap => Kind::Remap,
            libc::SYS_mprotect => Kind::Protect,
            libc::SYS_msync => Kind::Look,
            libc::SYS_madvise => match arguments[2] as c_int {
                libc::MADV_POPULATE_WRITE => Kind::Populate,
                libc::MADV_DONTNEED => Kind::DropPrivate,
                libc::MADV_REMOVE => Kind::Punch,
                _ => Kind::Advise,
            },
            _ => return None,
        })
    }

    fn errno(&mut self, kind: Kind) -> c_int {
        let possible: &[c_int] = match kind {
            Kind::Punch => &[libc::ENOMEM, libc::EINTR, libc::ENOSPC],
            Kind::Remap => &[libc::ENOMEM, libc::EAGAIN, libc::EFAULT],
            Kind::Populate => &[libc::ENOMEM, libc::EFAULT, libc::EAGAIN],
            Kind::Hide | Kind::Map | Kind::Protect | Kind::DropPrivate | Kind::Advise => &[libc::ENOMEM, libc::EAGAIN],
            Kind::Look | Kind::Scan | Kind::Register => &[libc::ENOMEM, libc::EINVAL, libc::EPERM],
            Kind::UserFault => &[libc::EPERM, libc::ENOSYS, libc::ENFILE],
        };
        possible[self.random.below(possible.len())]
    }

    /// Does the first half of a call that may be done in part.
    fn do_half(&mut self, kind: Kind, data: &libc::seccomp_data) {
        let half = data.args[1] / 2 / PAGE * PAGE;
        let may_be_half = matches!(kind, Kind::Protect | Kind::DropPrivate | Kind::Populate);
        if !may_be_half || half == 0 || self.random.one_in(2) {
            return;
        }
        let (nr, args): (c_long, [c_ulong; 6]) = (data.nr.into(), data.args);
        // SAFETY: the caller was about to make this call, and here it concerns only a part of its range.
        if unsafe { libc::syscall(nr, args[0], half, args[2]) } == 0 {
            self.shared.halved.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The start of the addresses that show something else after the call.
fn replaced_by(kind: Kind, data: &libc::seccomp_data) -> u64 {
    match kind {
        Kind::Map | Kind::Hide => data.args[0],
        Kind::Remap => data.args[4],
        // hugetlb memory is mapped, advised, then made writable.
        Kind::Advise => data.args[0],
        Kind::Protect
        | Kind::Look
        | Kind::Populate
        | Kind::DropPrivate
        | Kind::Punch
        | Kind::Scan
        | Kind::Register
        | Kind::UserFault => 0,
    }
}
