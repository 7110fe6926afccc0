//! How much more memory and how many more threads the process may have, before somebody is killed or refused for it.
//!
//! | who sets the limit | limit | taken | of that, may be taken back |
//! |---|---|---|---|
//! | control group, version 2 | `memory.max` | `memory.current` | `inactive_file`, `active_file` of `memory.stat` |
//! | version 1 | `hierarchical_memory_limit` of `memory.stat` | `memory.usage_in_bytes` | the same, with `total_` |
//! | the machine | `MemTotal` of `/proc/meminfo` | all but `MemAvailable` | |
//! | control group, both versions | `pids.max` | `pids.current` | |
//!
//! The process's own group is looked at, and none above it. Only the limit of version 1 is the lowest of all of these.

use std::ffi::CStr;

use rustix::process::{Resource, getrlimit};

use super::mappings::lines;

/// How short memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Shortage {
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
        match self.left {
            left if left < least => Shortage::Here,
            left if left < copied / 2 => Shortage::OfCopies,
            _ => Shortage::None,
        }
    }
}

/// How short memory is just now for a process that may come to copy so many bytes. It takes some tens of microseconds.
pub(crate) fn shortage(copied: u64) -> Shortage {
    let all = [memory_of_group(), machine()];
    all.into_iter().flatten().map(|room| room.shortage(copied)).max().unwrap_or(Shortage::None)
}

/// So many threads of the program's own are to have room beside the worker and the children that live.
const ROOM: u64 = 8;

/// Whether the process's control group has room for the worker beside so many children, as far as that can be said.
pub(crate) fn has_room(children: usize) -> bool {
    in_group(b"pids", |group| {
        let most = group.number(b"pids.max", "")?;
        group.number(b"pids.current", "").map(|there| there + ROOM + children as u64 <= most)
    })
    .unwrap_or(true)
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

/// The memory of the process's control group, if it has a limit.
fn memory_of_group() -> Option<Room> {
    in_group(b"memory", |group| {
        let (limit, taken, cache) = if group.root.is_empty() {
            let limit = group.number(b"memory.max", "")?;
            (limit, group.number(b"memory.current", "")?, ["inactive_file ", "active_file "])
        } else {
            let limit = group.number(b"memory.stat", "hierarchical_memory_limit ")?;
            (limit, group.number(b"memory.usage_in_bytes", "")?, ["total_inactive_file ", "total_active_file "])
        };
        let cache: u64 = cache.into_iter().filter_map(|name| group.number(b"memory.stat", name)).sum();
        // Version 1 says a huge number where there is no limit.
        (limit < 1 << 50).then(|| Room { limit, left: limit.saturating_sub(taken.saturating_sub(cache)) })
    })
}

/// A control group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Group<'a> {
    /// The controller, below whose name the groups of version 1 lie; none in version 2.
    root: &'a [u8],
    path: &'a [u8],
}

/// What `ask` says of the process's group of a controller. In a container, the file system may begin with that group.
fn in_group<R>(controller: &[u8], ask: impl Fn(Group<'_>) -> Option<R>) -> Option<R> {
    let mut found = None;
    lines(c"/proc/self/cgroup", |line| {
        if let Some(group) = Group::of_line(line, controller) {
            found = ask(group).or_else(|| ask(Group { path: b"", ..group }));
        }
        found.is_none()
    })
    .ok()?;
    found
}

impl<'a> Group<'a> {
    /// That of a line that is about a controller: `4:memory:/path`, `0::/path`.
    fn of_line(line: &'a [u8], controller: &'a [u8]) -> Option<Group<'a>> {
        let mut words = line.splitn(3, |byte| *byte == b':');
        let (number, controllers, path) = (words.next()?, words.next()?, words.next()?);
        let path = path.strip_suffix(b"/").unwrap_or(path);
        if controllers.split(|byte| *byte == b',').any(|name| name == controller) {
            return Some(Group { root: controller, path });
        }
        (number == b"0" && controllers.is_empty()).then_some(Group { root: b"", path })
    }

    /// The sum of the numbers that a file of the group has after `name`.
    fn number(self, file: &[u8], name: &str) -> Option<u64> {
        let (mut bytes, mut len) = ([0_u8; 512], 0);
        for part in [b"/sys/fs/cgroup/", self.root, self.path, b"/", file] {
            bytes.get_mut(len..len + part.len())?.copy_from_slice(part);
            len += part.len();
        }
        let (mut sum, mut is_there) = (0_u64, false);
        lines(CStr::from_bytes_until_nul(&bytes).ok()?, |line| {
            if let Some(value) = after(line, name) {
                (sum, is_there) = (sum.saturating_add(value), true);
            }
            true
        })
        .ok()?;
        is_there.then_some(sum)
    }
}

/// The number after `name` at the beginning of a line.
fn after(line: &[u8], name: &str) -> Option<u64> {
    let rest = std::str::from_utf8(line.strip_prefix(name.as_bytes())?).ok()?;
    rest.split_ascii_whitespace().next()?.parse().ok()
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
        let of = |line: &'static str| Group::of_line(line.as_bytes(), b"memory");
        assert_eq!(of("4:cpu,memory:/a/b"), Some(Group { root: b"memory", path: b"/a/b" }));
        assert_eq!(of("0::/"), Some(Group { root: b"", path: b"" }));
        assert_eq!((of("9:name=systemd:/"), of("")), (None, None));
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
    }

    #[test]
    fn the_machine_says_what_is_left() {
        let room = machine().unwrap();
        assert!(0 < room.left && room.left < room.limit);
        let _ = shortage(0);
        let _ = has_room(0);
    }
}
