//! The kernel, and what it runs on.

use std::fmt::Display;
use std::path::PathBuf;

use hugefork::machine::PressureError;

use super::check::{About, Check};
use super::root::Root;

/// `pressure`: the file that could be watched, if that was tried.
pub(super) fn look(root: &Root, pressure: Option<&Result<PathBuf, PressureError>>) -> Vec<Check> {
    vec![linux(root), watcher(root, pressure), virtual_machine(root)]
}

/// The engine needs 5.14 (`MADV_POPULATE_WRITE`); 6.1 gives huge pages without a setting (`MADV_COLLAPSE`).
fn linux(root: &Root) -> Check {
    let about = About("linux", "5.14 is needed; 6.1 makes shmem blocks huge without any setting");
    let Some(release) = root.text("/proc/sys/kernel/osrelease") else { return about.skip("the release is unknown") };
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|digits| digits.parse::<u32>().unwrap_or(0));
    match (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) {
        (0..5, _) | (5, 0..14) => about.fail(format!("{release} is too old")),
        (5, _) | (6, 0) => about.warn(format!("{release}: huge pages only if settings allow them")),
        _ => about.pass(release),
    }
}

fn watcher<E: Display>(root: &Root, tried: Option<&Result<PathBuf, E>>) -> Check {
    let about = About("pressure", "pools can watch for pressure, and give memory back when tasks wait for it");
    match tried {
        Some(Ok(file)) => about.pass(file.display().to_string()),
        Some(Err(why)) => about.warn(format!("cannot be watched: {why} (if the file is missing: boot with psi=1)")),
        None if root.at("/proc/pressure/memory").exists() => about.pass("/proc/pressure/memory"),
        None => about.warn("/proc/pressure/memory is not there: boot with psi=1"),
    }
}

/// The balloon among virtio devices, and the feature bit of one that reports free pages to the host.
const BALLOON: &str = "0x0005";
const REPORTS: usize = 5;

fn virtual_machine(root: &Root) -> Check {
    let about = About("virtual-machine", "the first use of memory that the host took back is a fault in the host, too");
    let info = root.text("/proc/cpuinfo").unwrap_or_default();
    let flags = info.lines().find_map(|line| line.strip_prefix("flags")).unwrap_or_default();
    if !flags.split_whitespace().any(|flag| flag == "hypervisor") {
        return about.pass("no");
    }
    let virtio = "/sys/bus/virtio/devices";
    let of = |device: &String, name| root.text(&format!("{virtio}/{device}/{name}")).unwrap_or_default();
    let devices = root.names(virtio);
    match devices.iter().find(|device| of(device, "device") == BALLOON) {
        Some(balloon) if of(balloon, "features").as_bytes().get(REPORTS) == Some(&b'1') => {
            about.pass("yes; its balloon reports free pages to the host, which takes them back")
        }
        Some(_) => about.pass("yes, with a balloon"),
        None => about.pass("yes"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::check::Status;
    use super::*;

    #[test]
    fn what_the_watcher_found_counts() {
        let root = Root("/nonexistent".into());
        assert_eq!(watcher(&root, Some(&Ok::<_, String>("/a/file".into()))).found, "/a/file");
        let refused = watcher(&root, Some(&Err("/a/file: Permission denied".to_owned())));
        assert_eq!(refused.status, Status::Warn);
        assert!(refused.found.contains("/a/file: Permission denied"));
    }
}
