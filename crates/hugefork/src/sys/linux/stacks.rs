//! The fault handler's own stacks. The kernel calls the handler on the stack of the interrupted thread, which may have
//! little room: a thread of Rust has an alternate stack of 8 KiB, and the saved registers take 3 KiB or more of it. So
//! the handler changes to a stack of its own as soon as it knows that a fault is hugefork's.
//!
//! ```text
//! interrupted thread  … registers ─ ours? ─ signals off ─ take ┐                  ┌ give back ─ signals on ─ return
//! own stack                                                    └ the fault's work ┘
//! chunk               [guard|stack 0][guard|stack 1]…[guard|stack 31]   32 x 64 KiB, of which few are touched
//! ```
//!
//! # Why every fault gets a stack
//! A thread that finds all stacks taken maps another chunk, so no thread waits for a stack while the kernel has memory.
//! Without memory, the fault waits for a moment, holding nothing, and is repeated. Code on such a stack waits for no
//! code of the program: a writer that has to wait for the end of a snapshot returns and faults again.
//!
//! # Why no other code runs meanwhile
//! A signal handler on the alternate stack starts at the *end* of that stack, unless the kernel finds that the thread's
//! stack pointer lies in it. A thread that has changed to another stack would thus get its saved registers overwritten
//! (`tests/engine/handlers/switch.rs` shows it). So all signals are blocked meanwhile. This includes the signals that
//! the C library keeps for itself, and those of faults: a thread that faults here dies. Only hugefork's own code and
//! the program's [`Observer`](crate::Observer) run here. Handlers of the program, which get foreign faults and may
//! never return, run where they always did.

use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use hugefork_linux::stack::run_on;
use syscalls::{Sysno, syscall3};

use super::memory;
use crate::units::BASE_PAGE;

/// Four times as much as a fault needs in an unoptimised build (`tests/engine/handlers/stack.rs`).
const STACK_BYTES: usize = 64 << 10;

/// One stack for each bit of a word.
const STACKS_A_CHUNK: usize = u32::BITS as usize;

/// The number of chunks. This many times [`STACKS_A_CHUNK`] threads may be in the handler at once.
const CHUNKS: usize = 256;

/// Stacks that were mapped together. A chunk has its own cache line, because threads on many processors read it.
#[repr(align(64))]
struct Chunk {
    /// The address of the first stack; null before the stacks are mapped. They are never unmapped.
    start: AtomicPtr<u8>,
    /// Bit *n* is set while a thread has stack *n*.
    taken: AtomicU32,
}

static ALL: [Chunk; CHUNKS] =
    [const { Chunk { start: AtomicPtr::new(ptr::null_mut()), taken: AtomicU32::new(0) } }; CHUNKS];

/// Maps the first stacks. Returns false if there is no memory.
pub(super) fn prepare() -> bool {
    ALL[0].is_mapped()
}

/// A stack that is the caller's until this is dropped.
pub(super) struct Stack {
    chunk: &'static Chunk,
    bit: usize,
}

/// Takes a free stack. `None` if all are taken and there is no memory for more.
pub(super) fn take() -> Option<Stack> {
    let here = 0_u8;
    // A thread comes from the same place on its own stack each time, so the wish leads it to the stack that it had
    // before, whose memory is in its cache.
    let page = (&raw const here).addr() / BASE_PAGE;
    let wish = page.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (usize::BITS - STACKS_A_CHUNK.ilog2());
    ALL.iter().take_while(|chunk| chunk.is_mapped()).find_map(|chunk| chunk.take(wish))
}

impl Chunk {
    /// Takes the first free stack from `wish` on.
    fn take(&'static self, wish: usize) -> Option<Stack> {
        loop {
            let free = !self.taken.load(Ordering::Relaxed);
            if free == 0 {
                return None;
            }
            let bit = (wish + free.rotate_right(wish as u32).trailing_zeros() as usize) % STACKS_A_CHUNK;
            // This synchronises with the thread that had the stack before, which no longer uses it.
            if self.taken.fetch_or(1 << bit, Ordering::Acquire) & 1 << bit == 0 {
                return Some(Stack { chunk: self, bit });
            }
        }
    }

    /// Maps the stacks unless they are mapped. Returns false if there is no memory.
    fn is_mapped(&self) -> bool {
        !self.start.load(Ordering::Acquire).is_null() || self.map()
    }

    #[cold]
    fn map(&self) -> bool {
        // The memory has room for one stack more, so that the stacks can begin at multiples of their size.
        let len = (STACKS_A_CHUNK + 1) * STACK_BYTES;
        let Ok(memory) = memory::map_anonymous(len) else { return false };
        let start = memory.as_ptr().map_addr(|at| at.next_multiple_of(STACK_BYTES));
        // Huge pages would waste memory, because little of each stack is used.
        advise(start, STACKS_A_CHUNK * STACK_BYTES, libc::MADV_NOHUGEPAGE);
        (0..STACKS_A_CHUNK)
            .for_each(|stack| advise(start.wrapping_add(stack * STACK_BYTES), BASE_PAGE, MADV_GUARD_INSTALL));
        let (none, order) = (ptr::null_mut(), Ordering::AcqRel);
        if self.start.compare_exchange(none, start, order, Ordering::Acquire).is_err() {
            // Another thread has mapped this chunk first.
            // SAFETY: all of the memory mapped above, which no other code knows.
            unsafe { memory::unmap_anonymous(memory.as_ptr(), len) };
        }
        true
    }
}

/// A guard page (Linux 6.13). It is not a mapping of its own, as a page without rights would be.
const MADV_GUARD_INSTALL: i32 = 102;

/// Gives advice about new memory. If the kernel does not know the advice, the memory stays as it is.
fn advise(start: *mut u8, len: usize, advice: i32) {
    // SAFETY: the memory is new, and no code uses it.
    let _ = unsafe { syscall3(Sysno::madvise, start.addr(), len, advice as usize) };
}

impl Stack {
    /// Runs `work` on this stack. The caller has blocked all signals.
    pub(super) fn run<R>(self, work: impl FnOnce() -> R) -> R {
        let start = self.chunk.start.load(Ordering::Relaxed);
        let end = start.wrapping_add((self.bit + 1) * STACK_BYTES).cast();
        // SAFETY: no other code uses the stack until `self` is dropped.
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
    fn work_runs_on_the_stack_and_returns_its_result() {
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
    fn further_stacks_come_from_another_chunk_and_each_has_one_owner() {
        let held: Vec<Stack> = (0..3 * STACKS_A_CHUNK).map(|_| take().unwrap()).collect();
        let start = |stack: &Stack| stack.chunk.start.load(Ordering::Relaxed).addr() + stack.bit * STACK_BYTES;
        let mut starts: Vec<usize> = held.iter().map(start).collect();
        starts.sort_unstable();
        starts.dedup();
        assert_eq!(starts.len(), held.len());
        assert!(starts.windows(2).all(|two| two[1] - two[0] >= STACK_BYTES));
    }
}
