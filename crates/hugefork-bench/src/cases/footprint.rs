//! What processes hold of memory that a snapshot may cost: anonymous memory and hugetlb pages, as the kernel shares
//! them out in `/proc/PID/smaps_rollup`. A page that a parent and its child share counts once for both together.

use std::fs;

/// Bytes that a process holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Footprint {
    /// Anonymous memory: whole pages of its own, and its share of those that it has in common with others.
    pub(super) anonymous: usize,
    /// hugetlb pages of its own.
    pub(super) hugetlb: usize,
    /// hugetlb pages that it has in common with others, each counted whole.
    pub(super) hugetlb_shared: usize,
}

impl Footprint {
    /// Of this process; none if the kernel does not say.
    pub(super) fn by_this() -> Option<Footprint> {
        Footprint::read("/proc/self/smaps_rollup")
    }

    /// Of a child.
    pub(super) fn by(pid: libc::pid_t) -> Option<Footprint> {
        Footprint::read(&format!("/proc/{pid}/smaps_rollup"))
    }

    fn read(path: &str) -> Option<Footprint> {
        parsed(&fs::read_to_string(path).ok()?)
    }

    /// Of a child: what it has in common with its parent is counted there.
    pub(super) fn own(self) -> usize {
        self.anonymous + self.hugetlb
    }

    /// Of a parent, without its children's.
    pub(super) fn alone(self) -> usize {
        self.own() + self.hugetlb_shared
    }
}

fn parsed(rollup: &str) -> Option<Footprint> {
    let field = |name: &str| {
        let line = rollup.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<usize>().ok().map(|kib| kib << 10)
    };
    Some(Footprint {
        anonymous: field("Pss_Anon:")?,
        hugetlb: field("Private_Hugetlb:").unwrap_or(0),
        hugetlb_shared: field("Shared_Hugetlb:").unwrap_or(0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_parent_and_child_share_counts_once() {
        let rollup = |anonymous, private, shared| {
            let text = format!(
                "00400000-7fffc000 ---p 00000000 00:00 0 [rollup]\nRss: 9999 kB\nPss_Anon: {anonymous} kB\n\
                 Shared_Hugetlb: {shared} kB\nPrivate_Hugetlb: {private} kB\n"
            );
            parsed(&text).unwrap()
        };
        let (parent, child) = (rollup(50, 2048, 4096), rollup(30, 2048, 4096));
        assert_eq!(parent.alone() + child.own(), (50 + 30 + 2048 + 2048 + 4096) << 10);
        assert_eq!(parent.alone(), (50 + 2048 + 4096) << 10);
        assert_eq!(parsed("Rss: 10 kB\n"), None);
    }
}
