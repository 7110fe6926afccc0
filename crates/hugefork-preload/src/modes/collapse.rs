//! Mode `collapse`: plain anonymous memory, for which transparent huge pages are asked.
//!
//! A fork over huge pages copies little. But while a child lives, the parent's first write to a huge page makes the
//! kernel split it, and copy 4 KiB pages from then on; the next fork has all of them to copy. So once nobody shares the
//! memory any more, blocks that lie in base pages are put together again. Nothing of it is moved within the program's
//! addresses, and what the program sees is what it had without hugefork.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::mm::{Advice, madvise};

use super::types::Mapping;
use crate::config;
use crate::proc::{mappings, pages, usage};
use crate::stats::own as stats;
use crate::stats::own::Word;

/// A process that has never had more memory than this is not followed: its forks copy few page tables, and what
/// following costs would show.
const WORTH_FOLLOWING: i64 = 32 << 20;

/// Whether a mapping was big.
static IS_BIG: AtomicBool = AtomicBool::new(false);

/// Asks for huge pages.
pub(super) fn mapped(mapping: &Mapping) {
    if mapping.len < config::min_size() || !is_plain(mapping) {
        return;
    }
    // SAFETY: the program's new mapping; contents stay.
    let advised = unsafe { madvise(mapping.start as *mut c_void, mapping.len, Advice::LinuxHugepage) };
    // A kernel without transparent huge pages refuses.
    if advised.is_ok() {
        note_big(mapping.len);
        stats::publish();
    }
}

/// Counts a mapping that is looked after.
pub(super) fn note_big(len: usize) {
    IS_BIG.store(true, Ordering::Relaxed);
    stats::add(Word::Mappings, 1);
    stats::add(Word::MappedBytes, len as u64);
}

/// Whether a mapping is the program's own memory, and of no kind that has its own pages.
fn is_plain(mapping: &Mapping) -> bool {
    let own = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let special = libc::MAP_HUGETLB | libc::MAP_STACK | libc::MAP_GROWSDOWN;
    mapping.flags & own == own && mapping.flags & special == 0 && mapping.rights & libc::PROT_EXEC == 0
}

/// Whether a fork may have copied much.
pub(super) fn is_worth_following() -> bool {
    IS_BIG.load(Ordering::Relaxed) || usage::peak() >= WORTH_FOLLOWING
}

/// Puts blocks together that lie in base pages. False if it was broken off.
pub(super) fn pass(is_shared: &mut dyn FnMut() -> bool) -> bool {
    stats::add(Word::Passes, 1);
    let Ok(pagemap) = pages::Pagemap::open() else { return true };
    let mut goes_on = true;
    // What cannot be read any more, or was unmapped meanwhile, is left as it is.
    let _ = mappings::big(config::min_size(), |range| {
        let _ = pagemap.blocks(&range, |block| {
            collapse(block);
            goes_on = !is_shared();
            goes_on
        });
        goes_on
    });
    goes_on
}

/// Puts one block together.
fn collapse(block: usize) {
    match hugefork::collapse(block as *mut c_void) {
        Ok(()) => stats::add(Word::Collapsed, 1),
        // The block is no longer the program's memory, or the program wants no huge pages there. Before Linux 6.1, the
        // kernel does not know the call.
        Err(refused) if refused.raw_os_error() == libc::EINVAL => {}
        Err(_) => stats::add(Word::NotCollapsed, 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_memory_is_meant() {
        let plain = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let mapping = |rights, flags| Mapping { start: 0, len: 1 << 20, rights, flags };
        let write = libc::PROT_READ | libc::PROT_WRITE;
        assert!(is_plain(&mapping(write, plain)));
        assert!(is_plain(&mapping(libc::PROT_NONE, plain | libc::MAP_NORESERVE)), "memory that is reserved for later");
        for other in [
            mapping(write | libc::PROT_EXEC, plain),
            mapping(write, libc::MAP_SHARED | libc::MAP_ANONYMOUS),
            mapping(write, libc::MAP_PRIVATE),
            mapping(write, plain | libc::MAP_HUGETLB),
            mapping(write, plain | libc::MAP_STACK),
        ] {
            assert!(!is_plain(&other), "{other:?}");
        }
    }
}
