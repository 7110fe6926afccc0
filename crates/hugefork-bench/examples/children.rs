//! What a program's children get: two children of one parent write at once, to what it has, or to memory of their own.
//!
//! ```sh
//! cargo build --release -p hugefork-bench --example children
//! target/release/examples/children 2048                                       # as it is
//! target/release/examples/children 2048 thp                                   # the program asks for huge pages
//! hugefork run --pool -- target/release/examples/children 2048
//! ```
//! The argument is in MiB. Each round forks anew. It prints what all children together have written, in GiB/s: to all
//! that the parent has, word by word in order; and to new memory of the same size, the same way.

use std::error::Error;
use std::ffi::c_void;
use std::ptr;
use std::time::{Duration, Instant};

const CHILDREN: usize = 2;
const ROUNDS: usize = 3;

fn main() -> Result<(), Box<dyn Error>> {
    let mut words = std::env::args().skip(1);
    let len = words.next().ok_or("how much, in MiB?")?.parse::<usize>()? << 20;
    let advice = match words.next().as_deref() {
        Some("thp") => Some(libc::MADV_HUGEPAGE),
        Some(_) => return Err("the second argument is thp, or nothing".into()),
        None => None,
    };
    let memory = Memory::new(len, advice)?;
    memory.write(1);
    for round in 1..=ROUNDS {
        let inherited = at_once(|| memory.write(2))?;
        let new = at_once(|| Memory::new(len, advice).is_ok_and(|new| new.write(3)))?;
        // The parent goes on writing, a little.
        memory.touch(1);
        let total = (CHILDREN * len) as f64 / f64::from(1 << 30);
        let (inherited, new) = (total / inherited.as_secs_f64(), total / new.as_secs_f64());
        println!("round {round}: {inherited:.2} GiB/s to what was inherited, {new:.2} GiB/s to new memory");
        std::thread::sleep(Duration::from_secs(1));
    }
    Ok(())
}

/// Lets all children do this at once. Gives how long it took until the last was done.
fn at_once(work: impl Fn() -> bool) -> Result<Duration, Box<dyn Error>> {
    let (began, mut children) = (Instant::now(), [0; CHILDREN]);
    for child in &mut children {
        // SAFETY: this program has one thread.
        match unsafe { libc::fork() } {
            -1 => return Err(std::io::Error::last_os_error().into()),
            // SAFETY: leaves without destructors.
            0 => unsafe { libc::_exit(i32::from(!work())) },
            forked => *child = forked,
        }
    }
    for child in children {
        let mut status = 0;
        // SAFETY: a child of ours, and a place for its status.
        if unsafe { libc::waitpid(child, &mut status, 0) } != child || status != 0 {
            return Err(format!("a child ended with {status}").into());
        }
    }
    Ok(began.elapsed())
}

/// Private anonymous memory.
struct Memory {
    start: *mut u64,
    words: usize,
}

impl Memory {
    fn new(len: usize, advice: Option<i32>) -> Result<Memory, Box<dyn Error>> {
        let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping where the kernel likes.
        let start: *mut c_void = unsafe { libc::mmap(ptr::null_mut(), len, rights, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error().into());
        }
        if let Some(advice) = advice {
            // SAFETY: the mapping is ours.
            unsafe { libc::madvise(start, len, advice) };
        }
        Ok(Memory { start: start.cast(), words: len / 8 })
    }

    /// Writes all words in order. True if the last is there.
    fn write(&self, bias: usize) -> bool {
        // SAFETY: all within the mapping, which nobody else uses.
        unsafe {
            (0..self.words).for_each(|word| self.start.add(word).write_volatile((word + bias) as u64));
            self.start.add(self.words - 1).read() == (self.words - 1 + bias) as u64
        }
    }

    /// Writes a word of each 64 MiB.
    fn touch(&self, bias: usize) {
        // SAFETY: as above.
        (0..self.words).step_by(8 << 20).for_each(|word| unsafe { self.start.add(word).write((word + bias) as u64) });
    }
}
