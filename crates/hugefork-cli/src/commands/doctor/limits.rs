//! Limits of the system and of the process.

use hugefork::machine;

use super::check::{About, Check};
use super::root::{Root, size};

pub(super) fn look(root: &Root) -> Vec<Check> {
    vec![memory(root), map_count(root), address_space(root), overcommit(root), swap(root), core_dump(root)]
}

fn memory(root: &Root) -> Check {
    let about =
        About("memory", "pools take it block by block; the first use of a block that finds none left is a SIGBUS");
    let (Some(available), Some(total)) = (root.memory("MemAvailable"), root.memory("MemTotal")) else {
        return about.skip("/proc/meminfo does not say");
    };
    let found = format!("{} of {} available", size(available), size(total));
    if available < 64 << 20 { about.warn(found) } else { about.pass(found) }
}

const HUGE_PAGE: u64 = 2 << 20;

/// The kernel's default.
const USUAL_MAPPINGS: u64 = 65530;

/// Enough is one mapping for each block that fits in memory, in a region and in a fork of it.
fn map_count(root: &Root) -> Check {
    let about = About(
        "map-count",
        "each hugetlb block, and each shmem block away from its neighbours, uses one; with none left a write is a SIGBUS",
    );
    let path = "/proc/sys/vm/max_map_count";
    let Some(limit) = root.number(path) else { return about.skip(format!("{path} does not say")) };
    let enough = (2 * root.memory("MemTotal").unwrap_or(0) / HUGE_PAGE).clamp(USUAL_MAPPINGS, i32::MAX as u64);
    let found = format!("{limit} mappings, for {} in lone 2 MiB blocks", size(limit.saturating_mul(HUGE_PAGE)));
    if limit < enough { about.warn(found).set(root.at(path), enough) } else { about.pass(found) }
}

fn address_space(root: &Root) -> Check {
    let about = About("address-space", "regions live in 16 TiB of addresses, which take no memory");
    let (least, best) = (*machine::ADDRESSES.start() as u64, *machine::ADDRESSES.end() as u64);
    match root.limit("Max address space") {
        None => about.skip("/proc/self/limits does not say"),
        Some(limit) if limit < least => {
            about.fail(format!("{}, but {} are needed", size(limit), size(least))).run("ulimit -v unlimited")
        }
        Some(limit) if limit < best => {
            about.warn(format!("{}: all regions together can have no more", size(limit))).run("ulimit -v unlimited")
        }
        Some(u64::MAX) => about.pass("unlimited"),
        Some(limit) => about.pass(size(limit)),
    }
}

fn overcommit(root: &Root) -> Check {
    let about = About("overcommit", "strict accounting refuses memory while there is still some");
    match root.number("/proc/sys/vm/overcommit_memory") {
        None => about.skip("/proc/sys/vm/overcommit_memory does not say"),
        Some(2) => {
            let committed = root.memory("Committed_AS").unwrap_or(0);
            let left = root.memory("CommitLimit").unwrap_or(0).saturating_sub(committed);
            about.warn(format!("2 (strict): {} left", size(left))).run("sysctl -w vm.overcommit_memory=0")
        }
        Some(mode) => about.pass(mode.to_string()),
    }
}

fn swap(root: &Root) -> Check {
    let about = About("swap", "shmem blocks that are swapped out come back 4 KiB at a time");
    let Some(total) = root.memory("SwapTotal") else { return about.skip("/proc/meminfo does not say") };
    let used = total.saturating_sub(root.memory("SwapFree").unwrap_or(total));
    match (total, used >> 20) {
        (0, _) => about.pass("none"),
        (_, 0) => about.pass(format!("{}, not in use", size(total))),
        _ => about.warn(format!("{} of {} in use", size(used), size(total))),
    }
}

/// Bit 6 of `coredump_filter`: shared hugetlb memory.
const SHARED_HUGETLB: u64 = 1 << 6;

fn core_dump(root: &Root) -> Check {
    let about = About("core-dump", "whether hugetlb regions are dumped is decided by this bit, not by CoreDump");
    let filter = root.text("/proc/self/coredump_filter").and_then(|text| u64::from_str_radix(&text, 16).ok());
    match filter {
        None => about.skip("this kernel writes none"),
        Some(filter) if filter & SHARED_HUGETLB != 0 => about
            .warn(format!("bit 6 of coredump_filter {filter:#x} is set: all hugetlb memory is dumped"))
            .run(format!("echo {:#x} > /proc/self/coredump_filter", filter & !SHARED_HUGETLB)),
        Some(filter) => about.pass(format!("without hugetlb (coredump_filter {filter:#x})")),
    }
}
