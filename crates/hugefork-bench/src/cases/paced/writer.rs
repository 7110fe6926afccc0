//! The thread that puts: it wakes every tick, does what is due, and notes how late each put was.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use rustix::thread::{ClockId, NanosleepRelativeResult, clock_nanosleep_relative};

use super::puts::{SLOT, Shared, value};
use crate::measure::clock::{self, now};

/// A put that took this long itself is looked into.
const SLOW: u64 = 50_000;

/// A thread wakes so long before puts are due, and waits awake for the rest: to wake takes some time.
const AWAKE: u64 = 100_000;

/// The most slow puts that are noted.
const NOTED: usize = 20_000;

/// When puts are due.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// The first tick, as the clock tells it.
    pub(super) start: u64,
    /// Nanoseconds from tick to tick.
    pub(super) tick: u64,
    /// Puts of each.
    pub(super) puts: usize,
}

/// The first byte of the area.
#[derive(Clone, Copy)]
pub(super) struct AreaStart(pub(super) *mut u8);

// SAFETY: who makes one says who may write to the area, and when.
unsafe impl Send for AreaStart {}

/// A put that took long.
#[derive(Clone, Copy, Debug)]
struct Slow {
    /// The number of the put.
    nth: usize,
    /// Nanoseconds that it took.
    took: u64,
    /// Nanoseconds for which the thread waited for a CPU since its last slow put, or since the tick began.
    waited: u64,
}

/// A thread had the CPU all the while if it waited for no more than this, in nanoseconds.
const OWN: u64 = 5_000;

/// What a thread noted.
pub(super) struct Noted {
    slow: Vec<Slow>,
    /// Nanoseconds of the longest put that was not slow.
    longest: u64,
}

impl Noted {
    /// Nanoseconds of the longest put from number `first` on that had the CPU all the while.
    pub(super) fn own_max(&self, first: usize) -> u64 {
        let own = self.slow.iter().filter(|slow| slow.nth >= first && slow.waited <= OWN);
        own.map(|slow| slow.took).max().unwrap_or(0).max(self.longest)
    }
}

/// Sleeps until the clock says `time`.
pub(super) fn sleep_until(time: u64) {
    loop {
        let left = Duration::from_nanos(time.saturating_sub(now()));
        if left.is_zero() {
            return;
        }
        let (tv_sec, tv_nsec) = (left.as_secs() as i64, left.subsec_nanos().into());
        let NanosleepRelativeResult::Ok =
            clock_nanosleep_relative(ClockId::Monotonic, &rustix::time::Timespec { tv_sec, tv_nsec })
        else {
            continue;
        };
    }
}

/// Puts until there is nothing left, or it is told to stop. What is due last is left until there is a snapshot, however
/// late that is: some puts are to come after it.
///
/// # Safety
/// The lists that `puts` is of live; nobody else has it. `area` holds every slot, aligned to 8, and nobody else writes
/// to these; every write to it finds memory.
pub(super) unsafe fn run(area: AreaStart, puts: Shared, pace: Pace) -> Noted {
    let waits = Waits::open();
    let mut noted = Noted { slow: Vec::with_capacity(NOTED), longest: 0 };
    let mut nth = 0;
    for tick in 0.. {
        let due = pace.start + tick * pace.tick;
        // SAFETY: by contract.
        if unsafe { puts.is_stopped() } || nth == puts.count() {
            break;
        }
        // SAFETY: by contract.
        if nth + pace.puts >= puts.count() && !unsafe { puts.is_cut() } {
            sleep_until(now() + pace.tick);
            continue;
        }
        sleep_until(due.saturating_sub(AWAKE));
        let mut before = waits.read();
        while now() < due {
            std::hint::spin_loop();
        }
        let mut last = clock::now_fenced();
        for _ in 0..pace.puts.min(puts.count() - nth) {
            // SAFETY: by contract; `nth` is below the count.
            let slot = unsafe { area.0.add(puts.offset(nth)) }.cast::<u64>();
            for word in 0..SLOT / 8 {
                // SAFETY: within the slot, which is this thread's alone.
                unsafe { slot.add(word).write_volatile(value(nth + 1)) };
            }
            let ended = clock::now_fenced();
            // SAFETY: by contract.
            unsafe { puts.done(nth, ended - due) };
            let took = ended - last;
            last = ended;
            if took < SLOW {
                noted.longest = noted.longest.max(took);
            } else if noted.slow.len() < NOTED {
                let now = waits.read();
                noted.slow.push(Slow { nth, took, waited: now - before });
                before = now;
                last = clock::now_fenced();
            }
            nth += 1;
        }
    }
    noted
}

/// How long this thread has waited for a CPU, as the kernel counts it.
struct Waits(Option<File>);

impl Waits {
    /// Of the calling thread.
    fn open() -> Waits {
        Waits(File::open("/proc/thread-self/schedstat").ok())
    }

    /// Nanoseconds so far; 0 if the kernel does not say.
    fn read(&self) -> u64 {
        let mut text = [0; 80];
        let len = self.0.as_ref().and_then(|file| file.read_at(&mut text, 0).ok()).unwrap_or(0);
        let fields = std::str::from_utf8(&text[..len]).unwrap_or("");
        fields.split_whitespace().nth(1).and_then(|field| field.parse().ok()).unwrap_or(0)
    }
}
