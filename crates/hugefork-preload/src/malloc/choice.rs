//! Whose `malloc` this process has. Decided at the first call, which comes before the program's constructors, and never
//! again: memory goes back to where it came from.

use std::ffi::{CStr, c_int, c_void};
use std::sync::atomic::{AtomicU8, Ordering};

use super::theirs;
use crate::config;
use crate::environment::{ALLOCATORS, MALLOC, Malloc};

/// Who answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Choice {
    Undecided = 0,
    /// The first call is being decided, and what it calls has called back.
    Deciding = 1,
    Mimalloc = 2,
    Theirs = 3,
}

static CHOICE: AtomicU8 = AtomicU8::new(Choice::Undecided as u8);

/// Who answers in this process.
#[inline]
pub(super) fn made() -> Choice {
    match CHOICE.load(Ordering::Acquire) {
        2 => Choice::Mimalloc,
        3 => Choice::Theirs,
        1 => Choice::Deciding,
        _ => make(),
    }
}

/// Before any thread is started.
#[cold]
fn make() -> Choice {
    CHOICE.store(Choice::Deciding as u8, Ordering::Release);
    let choice = if is_wanted() && config::is_meant() { Choice::Mimalloc } else { Choice::Theirs };
    match choice {
        Choice::Mimalloc => set_up(),
        _ => theirs::find(),
    }
    CHOICE.store(choice as u8, Ordering::Release);
    choice
}

fn is_wanted() -> bool {
    match config::variable(MALLOC) {
        Some(text) if text == Malloc::Mimalloc.name().as_bytes() => true,
        Some(text) if text == Malloc::Auto.name().as_bytes() => !has_another(),
        Some(_) | None => false,
    }
}

/// What mimalloc takes at once, in KiB: what a small program never passes.
const ARENA_KIB: i64 = 32 << 10;

/// After so many milliseconds mimalloc gives back what is free, as in its version 3. What comes back takes page faults.
const PURGE_AFTER: i64 = 1000;

/// The numbers of `mi_option_arena_reserve` and `mi_option_purge_delay` in mimalloc 2.
const ARENA_RESERVE: c_int = 23;
const PURGE_DELAY: c_int = 15;

unsafe extern "C" {
    /// What mimalloc's own constructor would call. It is built without one (the build script of `hugefork-cli`), since
    /// most programs end before they have used anything big, and some before they have allocated anything.
    fn _mi_auto_process_init();
}

fn set_up() {
    // SAFETY: this is the process's only thread. libc has its environment, in which the choice was found, and so its
    // thread keys. If mimalloc has a constructor after all, since another variable than `CFLAGS` was read for it, this
    // is called twice, which changes nothing: each part of it looks whether it was done.
    unsafe { _mi_auto_process_init() };
    // SAFETY: options that mimalloc 2 has. What the user has set, by `MIMALLOC_PURGE_DELAY` and so on, stays.
    unsafe {
        libmimalloc_sys::mi_option_set_default(ARENA_RESERVE, ARENA_KIB);
        libmimalloc_sys::mi_option_set_default(PURGE_DELAY, PURGE_AFTER);
    }
}

/// Whether the program brings an allocator of its own, as a library. One that is linked into the program itself comes
/// before all libraries anyhow.
fn has_another() -> bool {
    unsafe extern "C" fn look(library: *mut libc::dl_phdr_info, _: usize, found: *mut c_void) -> c_int {
        // SAFETY: the loader's, for the time of the call.
        let name = unsafe { (*library).dlpi_name };
        if name.is_null() {
            return 0;
        }
        // SAFETY: as above, a string that ends.
        let path = unsafe { CStr::from_ptr(name) }.to_bytes();
        let file = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
        let is_one = ALLOCATORS.iter().any(|known| file.starts_with(known.as_bytes()));
        if is_one {
            // SAFETY: the caller's own, below.
            unsafe { *found.cast::<bool>() = true };
        }
        is_one.into()
    }
    let mut found = false;
    // SAFETY: a function that does what such functions may, and a value that outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut found).cast()) };
    found
}
