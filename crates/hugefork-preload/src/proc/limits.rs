//! Checks the room for more threads in the process's control group (`pids.max` and `pids.current`,
//! version 1 or 2), and whether its memory is limited. Only the process's own group is checked, not
//! the groups above it.

use std::ffi::CStr;

use rustix::process::{Resource, getrlimit};

use super::mappings::lines;

/// Number of the program's own threads that must still fit, besides the worker and the living children.
const MIN_FREE_THREADS: u64 = 8;

/// Whether the process's control group has room for the worker besides this many children. True if that cannot be
/// determined.
pub(crate) fn has_room(children: usize) -> bool {
    let mut has_room = None;
    let _ = lines(c"/proc/self/cgroup", |line| {
        if let Some((root, path)) = group_of(line) {
            // In a container, the mounted hierarchy may begin at the group itself.
            has_room = [path, b""].into_iter().find_map(|path| {
                let most = number([root, path, b"/pids.max"])?;
                Some(number([root, path, b"/pids.current"])? + MIN_FREE_THREADS + children as u64 <= most)
            });
        }
        has_room.is_none()
    });
    has_room.unwrap_or(true)
}

/// The group that limits the number of processes, from a line (`4:pids:/path`, `0::/path`): the folder of version 1
/// that contains it (empty in version 2), and its path.
fn group_of(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut words = line.splitn(3, |byte| *byte == b':');
    let (number, controllers, path) = (words.next()?, words.next()?, words.next()?);
    let path = path.strip_suffix(b"/").unwrap_or(path);
    if controllers.split(|byte| *byte == b',').any(|name| name == b"pids") {
        return Some((b"pids", path));
    }
    (number == b"0" && controllers.is_empty()).then_some((b"", path))
}

/// The number in a file of a control group. `None` if there is no limit.
fn number(parts: [&[u8]; 3]) -> Option<u64> {
    let (mut bytes, mut len, mut found) = ([0_u8; 512], 0, None);
    for part in [b"/sys/fs/cgroup/".as_slice()].into_iter().chain(parts) {
        bytes.get_mut(len..len + part.len())?.copy_from_slice(part);
        len += part.len();
    }
    let _ = lines(CStr::from_bytes_until_nul(&bytes).ok()?, |line| {
        found = std::str::from_utf8(line).ok().and_then(|line| line.trim_ascii().parse().ok());
        false
    });
    found
}

/// Whether the process has a limit of memory (`RLIMIT_AS`, `RLIMIT_DATA`).
pub(crate) fn is_limited() -> bool {
    [Resource::As, Resource::Data].into_iter().any(|which| getrlimit(which).current.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_group_is_found_in_either_version() {
        let of = |line: &'static str| group_of(line.as_bytes());
        assert_eq!(of("4:cpu,pids:/a/b"), Some((b"pids".as_slice(), b"/a/b".as_slice())));
        assert_eq!(of("0::/"), Some((b"".as_slice(), b"".as_slice())));
        assert_eq!((of("9:name=systemd:/"), of("")), (None, None));
        let _ = has_room(0);
    }
}
