//! How much more memory the process may take before somebody is killed for it: the kernel says so to nobody who could
//! still give some back.
//!
//! | who sets the limit | limit | taken | of that, may be taken back |
//! |---|---|---|---|
//! | control group, version 2 | `memory.max` | `memory.current` | `inactive_file`, `active_file` of `memory.stat` |
//! | version 1 | `hierarchical_memory_limit` of `memory.stat` | `memory.usage_in_bytes` | the same, with `total_` |
//! | the machine | `MemTotal` of `/proc/meminfo` | all but `MemAvailable` | |
//!
//! The process's own group is looked at, and none above it. Only the limit of version 1 is the lowest of all of these.

use std::ffi::CStr;

use rustix::process::{Resource, getrlimit};

use super::mappings::lines;
use super::usage;

/// How short memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Shortage {
    /// There is so much that it is not short soon, whatever is copied.
    NotSoon,
    /// There is enough.
    None,
    /// What there is may not be had twice: no more is to be copied than must be.
    OfCopies,
    /// As little as possible is to be taken, and what is only kept for later is better given back.
    Here,
}

/// Memory is short if less than this part of the limit is left, or less than so many bytes.
const PART: u64 = 8;
const LEAST: u64 = 128 << 20;

/// So much more is not taken in some tens of milliseconds: a block is copied in a tenth of one.
const PLENTY: u64 = 1 << 30;

/// A limit, and how much is left of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Room {
    limit: u64,
    left: u64,
}

impl Room {
    fn shortage(self, copied: u64) -> Shortage {
        // Of a small limit, half is enough to keep something.
        let least = (self.limit / PART).max(LEAST).min(self.limit / 2);
        if self.left < least {
            Shortage::Here
        } else if self.left < copied / 2 {
            Shortage::OfCopies
        } else if self.left <= least.max(copied / 2) + PLENTY {
            Shortage::None
        } else {
            Shortage::NotSoon
        }
    }
}

/// How short memory is just now for a process that may come to copy so many bytes. It takes some tens of microseconds.
pub(crate) fn now(copied: u64) -> Shortage {
    let all = [group(), machine()];
    all.into_iter().flatten().map(|room| room.shortage(copied)).max().unwrap_or(Shortage::None)
}

fn machine() -> Option<Room> {
    let (mut limit, mut left) = (None, None);
    lines(c"/proc/meminfo", |line| {
        limit = limit.or_else(|| after(line, "MemTotal:"));
        left = left.or_else(|| after(line, "MemAvailable:"));
        limit.is_none() || left.is_none()
    })
    .ok()?;
    Some(Room { limit: limit? << 10, left: left? << 10 })
}

/// The process's control group, if it has a limit.
fn group() -> Option<Room> {
    let mut found = None;
    lines(c"/proc/self/cgroup", |line| {
        if let Some((version, path)) = group_of(line) {
            // In a container, the file system may begin with the container's group.
            found = [path, &b""[..]].into_iter().find_map(|path| room_of(version, path));
        }
        found.is_none()
    })
    .ok()?;
    found
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// The version and the path of a line that is about memory: `4:memory:/path`, `0::/path`.
fn group_of(line: &[u8]) -> Option<(Version, &[u8])> {
    let mut words = line.splitn(3, |byte| *byte == b':');
    let (number, controllers, path) = (words.next()?, words.next()?, words.next()?);
    let path = path.strip_suffix(b"/").unwrap_or(path);
    if controllers.split(|byte| *byte == b',').any(|name| name == b"memory") {
        return Some((Version::One, path));
    }
    (number == b"0" && controllers.is_empty()).then_some((Version::Two, path))
}

fn room_of(version: Version, path: &[u8]) -> Option<Room> {
    let root: &[u8] = if version == Version::One { b"/sys/fs/cgroup/memory" } else { b"/sys/fs/cgroup" };
    let mut place = FileName::new();
    let mut number = |file: &[u8], name: &str| {
        let (mut sum, mut is_there) = (0_u64, false);
        lines(place.at(&[root, path, b"/", file])?, |line| {
            if let Some(value) = after(line, name) {
                (sum, is_there) = (sum.saturating_add(value), true);
            }
            true
        })
        .ok()?;
        is_there.then_some(sum)
    };
    let (limit, taken, prefix) = match version {
        Version::One => {
            let limit = number(b"memory.stat", "hierarchical_memory_limit ")?;
            (limit, number(b"memory.usage_in_bytes", "")?, ["total_inactive_file ", "total_active_file "])
        }
        Version::Two => {
            (number(b"memory.max", "")?, number(b"memory.current", "")?, ["inactive_file ", "active_file "])
        }
    };
    let cache: u64 = prefix.into_iter().filter_map(|name| number(b"memory.stat", name)).sum();
    // Version 1 says a huge number where there is no limit.
    (limit < 1 << 50).then(|| Room { limit, left: limit.saturating_sub(taken.saturating_sub(cache)) })
}

/// The number after `name` at the beginning of a line.
fn after(line: &[u8], name: &str) -> Option<u64> {
    let rest = std::str::from_utf8(line.strip_prefix(name.as_bytes())?).ok()?;
    rest.split_ascii_whitespace().next()?.parse().ok()
}

/// The name of a file, put together on the stack.
struct FileName {
    bytes: [u8; 512],
}

impl FileName {
    fn new() -> FileName {
        FileName { bytes: [0; 512] }
    }

    /// None if it is too long.
    fn at(&mut self, parts: &[&[u8]]) -> Option<&CStr> {
        let mut len = 0;
        for part in parts {
            self.bytes.get_mut(len..len + part.len())?.copy_from_slice(part);
            len += part.len();
        }
        *self.bytes.get_mut(len)? = 0;
        CStr::from_bytes_with_nul(self.bytes.get(..=len)?).ok()
    }
}

/// Whether pages may have been swapped out. It says so before the first can be (`swapon` counts first), so who looked
/// for pages before he asked has missed none.
pub(crate) fn has_swap() -> bool {
    usage::machine().is_none_or(|machine| machine.totalswap != 0)
}

/// Whether the process may not have all memory that there is (`RLIMIT_AS`, `RLIMIT_DATA`).
pub(crate) fn is_limited() -> bool {
    [Resource::As, Resource::Data].into_iter().any(|which| getrlimit(which).current.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_group_is_found_in_either_version() {
        assert_eq!(group_of(b"4:cpu,memory:/a/b"), Some((Version::One, &b"/a/b"[..])));
        assert_eq!(group_of(b"0::/"), Some((Version::Two, &b""[..])));
        assert_eq!((group_of(b"9:name=systemd:/"), group_of(b"")), (None, None));
    }

    #[test]
    fn memory_is_short_by_its_limit_and_by_bytes() {
        const GIB: u64 = 1 << 30;
        let of = |limit, left, copied| Room { limit, left }.shortage(copied);
        assert_eq!([3 * GIB, 5 * GIB].map(|left| of(32 * GIB, left, 0)), [Shortage::Here, Shortage::None]);
        assert_eq!([100, 200].map(|left| of(GIB, left << 20, 0)), [Shortage::Here, Shortage::None]);
        assert_eq!([20, 40].map(|left| of(64 << 20, left << 20, 0)), [Shortage::Here, Shortage::None]);
        assert_eq!([8, 12].map(|size| of(32 * GIB, 5 * GIB, size * GIB)), [Shortage::None, Shortage::OfCopies]);
        assert_eq!(of(32 * GIB, 3 * GIB, 12 * GIB), Shortage::Here);
        assert_eq!([8, 12].map(|size| of(32 * GIB, 6 * GIB, size * GIB)), [Shortage::NotSoon, Shortage::None]);
    }

    #[test]
    fn the_machine_says_what_is_left() {
        let room = machine().unwrap();
        assert!(0 < room.left && room.left < room.limit);
        let _ = now(0);
    }
}
