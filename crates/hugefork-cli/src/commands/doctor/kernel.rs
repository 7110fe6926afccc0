//! The kernel, and the machine below it.

use std::fmt::Display;
use std::path::PathBuf;

use hugefork::BlockSize;
use hugefork::machine::{PressureError, Survey};
use hugefork_program::ProgramMemory;

use super::check::{About, Check, NOT_TRIED};
use super::root::Root;

pub(super) fn look(root: &Root, survey: Option<&Survey>) -> Vec<Check> {
    let pressure: Option<&Result<PathBuf, PressureError>> = survey.map(|survey| &survey.pressure);
    vec![
        linux(root),
        page_size(survey.map(|_| rustix::param::page_size() as u64)),
        page_grain(root, survey.map(|survey| survey.no_page_grain.as_deref().map_or(Ok(()), Err))),
        system_calls(survey),
        run_pool(survey.map(|_| no_program_memory()).as_ref().map(Option::as_deref)),
        watcher(root, pressure),
        virtual_machine(root),
    ]
}

/// The engine needs Linux 5.14 (`MADV_POPULATE_WRITE`); 6.1 makes huge pages without a setting (`MADV_COLLAPSE`).
fn linux(root: &Root) -> Check {
    let about = About("linux", "5.14 is needed; 6.1 makes shmem blocks huge without any setting");
    let Some((release, version)) = release(root) else { return about.skip("the release is unknown") };
    match version {
        (0..5, _) | (5, 0..14) => about.fail(format!("{release} is too old")),
        (5, _) | (6, 0) => about.warn(format!("{release}: huge pages only if settings allow them")),
        _ => about.pass(release),
    }
}

/// The kernel's release name, and its first two numbers.
fn release(root: &Root) -> Option<(String, (u32, u32))> {
    let release = root.text("/proc/sys/kernel/osrelease")?;
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|digits| digits.parse().unwrap_or(0));
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    Some((release, version))
}

/// The only page size that the engine supports.
const PAGE: u64 = 4 << 10;

/// `found`: this kernel's page size.
fn page_size(found: Option<u64>) -> Check {
    let about = About("page-size", "hugefork works with pages of 4 KiB alone");
    match found {
        None => about.skip(NOT_TRIED),
        Some(PAGE) => about.pass("4 KiB"),
        Some(other) => {
            about.fail(format!("{} KiB: no pool can be built; boot a kernel with pages of 4 KiB", other >> 10))
        }
    }
}

/// The first kernel that reports the private pages of a mapping (`PAGEMAP_SCAN`).
const PAGE_GRAIN: (u32, u32) = (6, 7);

/// `tried`: the result of a small shmem pool, if one was built.
fn page_grain(root: &Root, tried: Option<Result<(), &str>>) -> Check {
    let about = About("page-grain", "with it, a sparse write to shared memory copies 4 KiB; without it, 2 MiB");
    let lacks = |why: &str| about.warn(format!("writes copy whole blocks: {why}"));
    match tried {
        Some(Ok(())) => about.pass("pools of shmem copy single pages; pools of hugetlb copy blocks"),
        Some(Err(why)) if root.at("/proc/self").exists() => lacks(why),
        Some(Err(why)) => lacks(why).run(format!("mount -t proc proc {}", root.at("/proc").display())),
        None => match release(root) {
            Some((release, version)) if version < PAGE_GRAIN => lacks(&format!("{release} is older than Linux 6.7")),
            Some(_) | None => about.skip(NOT_TRIED),
        },
    }
}

/// Whether system calls wait for a write-back, as writers do.
fn system_calls(survey: Option<&Survey>) -> Check {
    let about =
        About("system-calls", "where writes copy pages, read(2) into a region waits while pages are written back");
    match survey.map(|survey| &survey.no_waiting) {
        Some(None) => about.pass("wait for write-backs: this process may handle their faults"),
        Some(Some(why)) => about
            .warn(format!("fail with EFAULT at some moments: {why}; pin the memory that they write to"))
            .run("sysctl vm.unprivileged_userfaultfd=1"),
        None => about.skip(NOT_TRIED),
    }
}

/// The reason why `hugefork run --pool` cannot give programs its memory.
fn no_program_memory() -> Option<String> {
    ProgramMemory::new(BlockSize::MIB_2.bytes()).err().map(|why| why.to_string())
}

/// `tried`: the obstacle to such memory, if it was tried.
fn run_pool(tried: Option<Option<&str>>) -> Check {
    let about = About("run-pool", "hugefork run --pool gives programs memory of which a fork copies no page tables");
    match tried {
        Some(None) => about.pass("programs of this user can have it; not for io_uring and GPU buffers"),
        Some(Some(why)) => {
            let lacks = about.warn(format!("programs of this user run unchanged under it: {why}"));
            if why.contains("page faults") { lacks.run("sysctl vm.unprivileged_userfaultfd=1") } else { lacks }
        }
        None => about.skip(NOT_TRIED),
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

/// The device id of a virtio balloon, and the feature bit of a balloon that reports free pages to the host.
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
            about.pass("yes; its balloon reports free pages to the host, which reuses them")
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
    fn a_page_size_other_than_4_kib_is_a_failure() {
        assert_eq!(page_size(Some(4096)).status, Status::Pass);
        let other = page_size(Some(16 << 10));
        assert!(other.status == Status::Fail && other.found.starts_with("16 KiB: "), "{}", other.found);
        assert_eq!(page_size(None).status, Status::Skip);
    }

    #[test]
    fn a_lack_of_page_grain_is_reported_with_its_reason() {
        let nowhere = Root("/nonexistent".into());
        assert_eq!(page_grain(&nowhere, Some(Ok(()))).status, Status::Pass);
        let why = "open of /proc/self/pagemap failed";
        let lacks = page_grain(&Root("/".into()), Some(Err(why)));
        assert_eq!((lacks.status, lacks.mend), (Status::Warn, None));
        assert!(lacks.found.ends_with(why), "{}", lacks.found);
        let unmounted = page_grain(&nowhere, Some(Err(why)));
        assert_eq!(unmounted.mend.unwrap().command, "mount -t proc proc /nonexistent/proc");
        assert_eq!(page_grain(&nowhere, None).status, Status::Skip);
    }

    #[test]
    fn the_reason_for_no_program_pool_is_reported() {
        assert_eq!(run_pool(Some(None)).status, Status::Pass);
        let lacks = run_pool(Some(Some("userfaultfd failed")));
        assert!(lacks.status == Status::Warn && lacks.found.ends_with("userfaultfd failed"), "{}", lacks.found);
        assert_eq!(run_pool(None).status, Status::Skip);
    }

    #[test]
    fn the_watchers_finding_is_reported() {
        let root = Root("/nonexistent".into());
        assert_eq!(watcher(&root, Some(&Ok::<_, String>("/a/file".into()))).found, "/a/file");
        let refused = watcher(&root, Some(&Err("/a/file: Permission denied".to_owned())));
        assert_eq!(refused.status, Status::Warn);
        assert!(refused.found.contains("/a/file: Permission denied"));
    }
}
