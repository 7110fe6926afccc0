//! Leaves a process hardly any mappings.

use hugefork::{Backing, BlockSize, Pool};

const PAGE: usize = 4096;
const BLOCK: usize = 2 << 20;

/// A pool of base pages.
pub(crate) fn build(capacity: usize, block_size: BlockSize) -> Pool {
    let builder = Pool::builder().name("test").capacity(capacity).block_size(block_size);
    builder.backing(Backing::ShmemBase).build().unwrap()
}

/// Makes `count` mappings that are not hugefork's. An error if the kernel refuses.
pub(crate) fn make_foreign_mappings(count: usize) -> std::io::Result<()> {
    let len = count * PAGE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), len, libc::PROT_NONE, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        return Err(std::io::Error::last_os_error());
    }
    for page in (PAGE..len).step_by(2 * PAGE) {
        // SAFETY: it is inside the new mapping, which nobody uses.
        if unsafe { libc::mprotect(start.wrapping_byte_add(page), PAGE, libc::PROT_READ) } != 0 {
            return Err(std::io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Makes so many mappings that a pool built afterwards has about `left` mappings for its regions.
pub(crate) fn leave(left: usize) {
    let limit = build(BLOCK, BlockSize::MIB_2).stats().mappings_limit;
    make_foreign_mappings(limit.checked_sub(left).unwrap()).unwrap();
    let limit = build(BLOCK, BlockSize::MIB_2).stats().mappings_limit;
    assert!((left.saturating_sub(10)..left + 10).contains(&limit), "{limit} are left, not {left}");
}
