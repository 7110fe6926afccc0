//! Stacks of the fault handler's own. The kernel calls the handler on the stack of the interrupted thread, which may
//! have little left: 8 KiB for a thread of Rust's, of which the registers take three and more. So the handler goes on
//! elsewhere as soon as it knows that a fault is hugefork's.
//!
//! ```text
//! interrupted thread  … registers ─ ours? ─ signals off ─ take ┐                  ┌ give back ─ signals on ─ return
//! own stack                                                    └ the fault's work ┘
//! chunk               [guard|stack 0][guard|stack 1]…[guard|stack 31]   32 x 64 KiB, of which few are touched
//! ```
//!
//! # Why nobody is left without one
//! Whoever finds all stacks taken maps another chunk; no thread waits for a stack while the kernel has memory. Where it
//! has none, the fault waits for a moment, holding nothing, and is repeated. What runs on such a stack waits for no
//! program: a writer that is to wait for a snapshot's end returns and faults again.
//!
//! # Why nothing else runs meanwhile
//! A signal on the alternate stack begins at the *end* of that stack, if the kernel does not find the thread on it: it
//! looks at the stack pointer. A thread that has gone elsewhere would have its own registers written over there
//! (`tests/handler_switch.rs` shows it). So all signals are blocked meanwhile: those too that the C library keeps for
//! itself, and those of faults, of which a thread dies that faults here. Nothing runs here but hugefork's own code and
//! the program's [`Observer`](crate::Observer). Handlers of the program that get what is foreign, and may never return,
//! run where they always did.

use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use hugefork_linux::stack::run_on;
use syscalls::{Sysno, syscall3};

use super::memory;
use crate::units::BASE_PAGE;

/// Four times of what a fault needs without optimisation (`tests/handler_stack.rs`).
const STACK_BYTES: usize = 64 << 10;

/// One for each bit of a word.
const STACKS_A_CHUNK: usize = u32::BITS as usize;

/// So many times as many threads may be in the handler at once.
const CHUNKS: usize = 256;

/// Stacks that were mapped together. Each has its own line of the cache, as threads of many processors look here.
#[repr(align(64))]
struct Chunk {
    /// Where the first begins; null before they are mapped. They stay.
    start: AtomicPtr<u8>,
    /// Bit *n* is set while somebody has stack *n*.
    taken: AtomicU32,
}

static ALL: [Chunk; CHUNKS] =
    [const { Chunk { start: AtomicPtr::new(ptr::null_mut()), taken: AtomicU32::new(0) } }; CHUNKS];

/// Maps the first stacks. False if there is no memory.
pub(super) fn prepare() -> bool {
    ALL[0].is_mapped()
}

/// A stack that is the caller's until it is dropped.
pub(super) struct Stack {
    chunk: &'static Chunk,
    bit: usize,
}

/// Takes a stack that nobody has. `None` if all are taken and there is no memory for more.
pub(super) fn take() -> Option<Stack> {
    let here = 0_u8;
    // A thread is likely to get the one that it had before, whose memory is in its cache: it comes from the same place.
    let page = (&raw const here).addr() / BASE_PAGE;
    let wish = page.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (usize::BITS - STACKS_A_CHUNK.ilog2());
    ALL.iter().take_while(|chunk| chunk.is_mapped()).find_map(|chunk| chunk.take(wish))
}

impl Chunk {
    /// Takes the first that is free from `wish` on.
    fn take(&'static self, wish: usize) -> Option<Stack> {
        loop {
            let free = !self.taken.load(Ordering::Relaxed);
            if free == 0 {
                return None;
            }
            let bit = (wish + free.rotate_right(wish as u32).trailing_zeros() as usize) % STACKS_A_CHUNK;
            // Whoever had it has done with it.
            if self.taken.fetch_or(1 << bit, Ordering::Acquire) & 1 << bit == 0 {
                return Some(Stack { chunk: self, bit });
            }
        }
    }

    /// Maps the stacks unless they are there. False if there is no memory.
    fn is_mapped(&self) -> bool {
        !self.start.load(Ordering::Acquire).is_null() || self.map()
    }

    #[cold]
    fn map(&self) -> bool {
        // Stacks begin at multiples of their size.
        let len = (STACKS_A_CHUNK + 1) * STACK_BYTES;
        let Some(memory) = memory::map_anonymous(len) else { return false };
        let start = memory.as_ptr().map_addr(|at| at.next_multiple_of(STACK_BYTES));
        // Of a huge page little would be used.
        advise(start, STACKS_A_CHUNK * STACK_BYTES, libc::MADV_NOHUGEPAGE);
        (0..STACKS_A_CHUNK)
            .for_each(|stack| advise(start.wrapping_add(stack * STACK_BYTES), BASE_PAGE, MADV_GUARD_INSTALL));
        let (none, order) = (ptr::null_mut(), Ordering::AcqRel);
        if self.start.compare_exchange(none, start, order, Ordering::Acquire).is_err() {
            // Another thread was faster.
            // SAFETY: all of what was mapped above, which nobody else knows.
            unsafe { memory::unmap_anonymous(memory.as_ptr(), len) };
        }
        true
    }
}

/// Linux 6.13. It takes no mapping of its own, as a page without rights would.
const MADV_GUARD_INSTALL: i32 = 102;

/// Says something of new memory; where the kernel knows nothing of the kind, the memory stays as it is.
fn advise(start: *mut u8, len: usize, advice: i32) {
    // SAFETY: the memory is new and nobody uses it.
    let _ = unsafe { syscall3(Sysno::madvise, start.addr(), len, advice as usize) };
}

impl Stack {
    /// Does some work there. All signals are blocked.
    pub(super) fn run<R>(self, work: impl FnOnce() -> R) -> R {
        let start = self.chunk.start.load(Ordering::Relaxed);
        let end = start.wrapping_add((self.bit + 1) * STACK_BYTES).cast();
        // SAFETY: nobody else has it until `self` is dropped.
        unsafe { run_on(end, work) }
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        self.chunk.taken.fetch_and(!(1 << self.bit), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_done_elsewhere_and_gives_what_it_gives() {
        let (stack, text) = (take().unwrap(), String::from("text"));
        let end = stack.chunk.start.load(Ordering::Relaxed).addr() + (stack.bit + 1) * STACK_BYTES;
        let here = 0_u8;
        let (there, longer) = stack.run(|| {
            let deep = core::hint::black_box([1_u8; STACK_BYTES / 8]);
            (deep.as_ptr().addr(), text + " and more")
        });
        assert_eq!(longer, "text and more");
        assert!(
            (end - STACK_BYTES..end).contains(&there) && !(end - STACK_BYTES..end).contains(&(&raw const here).addr())
        );
    }

    #[test]
    fn whoever_finds_all_taken_gets_one_of_another_chunk_and_no_two_get_the_same() {
        let held: Vec<Stack> = (0..3 * STACKS_A_CHUNK).map(|_| take().unwrap()).collect();
        let start = |stack: &Stack| stack.chunk.start.load(Ordering::Relaxed).addr() + stack.bit * STACK_BYTES;
        let mut starts: Vec<usize> = held.iter().map(start).collect();
        starts.sort_unstable();
        starts.dedup();
        assert_eq!(starts.len(), held.len());
        assert!(starts.windows(2).all(|two| two[1] - two[0] >= STACK_BYTES));
    }
}
