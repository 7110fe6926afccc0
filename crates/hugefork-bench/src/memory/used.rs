//! The machine's use of the kinds of memory that snapshots take: anonymous memory, shmem (which pools are made of),
//! page tables and hugetlb pages, by `/proc/meminfo`.
//!
//! Physical memory counts once, however many processes share it, and page tables count as well. The memory of other
//! programs counts too, so the figures are meaningful on a quiet machine only.

use std::fs;

/// The fields of `/proc/meminfo` that count in kB.
const KIB: [&str; 3] = ["AnonPages:", "Shmem:", "PageTables:"];

/// Bytes in use at present; `None` if the kernel does not report them.
pub(crate) fn now() -> Option<usize> {
    parse(&fs::read_to_string("/proc/meminfo").ok()?)
}

/// MiB by which the use has grown since the reading `before`.
pub(crate) fn grown_since(before: Option<usize>) -> Option<f64> {
    Some((now()? as f64 - before? as f64).max(0.0) / f64::from(1 << 20))
}

fn parse(meminfo: &str) -> Option<usize> {
    let field = |name: &str| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<usize>().ok()
    };
    let kib = KIB.iter().map(|name| field(name)).sum::<Option<usize>>()?;
    let pages = |name| field(name).unwrap_or(0);
    let hugetlb = pages("HugePages_Total:").saturating_sub(pages("HugePages_Free:")) * pages("Hugepagesize:");
    Some((kib + hugetlb) << 10)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::kernel_memory::{KernelMemory, PageKind};

    #[test]
    fn shared_out_memory_and_hugetlb_pages_are_added_up() {
        let text = "AnonPages:   100 kB\nShmem:   20 kB\nPageTables:   3 kB\nHugePages_Total:  5\nHugePages_Free:  3\n\
                    Hugepagesize:   2048 kB\n";
        assert_eq!(parse(text), Some((123 + 2 * 2048) << 10));
        assert_eq!(parse("AnonPages:   100 kB\n"), None);
    }

    #[test]
    fn new_memory_shows_unless_others_give_back_as_much() {
        let before = now();
        // Other tests run at the same time, but hold less memory than this, so they cannot free as much.
        let memory = KernelMemory::populated(PageKind::Base, 256 << 20).unwrap();
        assert!(grown_since(before).unwrap() > 0.0);
        drop(memory);
    }
}
