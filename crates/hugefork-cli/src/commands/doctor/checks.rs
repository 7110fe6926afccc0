//! The checks: a row for each.

use std::env;
use std::fmt::Display;

use hugefork::kernels::Use;
use hugefork::machine::{ADDRESSES, calibration, kernels, no_own_tmpfs, no_waiting, tracks_writes};
use hugefork::{BlockSize, Granted, PressureWatch};
use hugefork_program::ProgramMemory;

use super::finding::{Finding, Mend, Status};
use super::machine::Machine;
use crate::failure::Failure;
use crate::output::size;
use crate::settings::Setting;

/// A check.
pub(super) struct Check {
    group: &'static str,
    /// A stable name.
    name: &'static str,
    /// The reason why it matters.
    why: &'static str,
    look: fn(&Machine) -> Found,
}

/// The groups.
const PAGES: &str = "huge pages";
const LIMITS: &str = "limits";
const KERNEL: &str = "kernel";

#[rustfmt::skip]
pub(super) const CHECKS: [Check; 20] = [
    row(PAGES, "backing", "the memory of pools that request no other kind", backing),
    row(PAGES, "shmem-thp", "the best backing: huge pages without a reservation, and mappings that merge", shmem),
    row(PAGES, "own-tmpfs", "huge pages at first touch, whatever shmem_enabled says but `deny`", own_tmpfs),
    row(PAGES, "thp", "hugefork works without it; what `bench` compares hugefork with does not", thp),
    row(PAGES, "hugetlb", "pages set aside: for pools that ask for them, and for `bench` to compare with", hugetlb),
    row(PAGES, "free-memory", "huge pages are made of free pieces of 2 MiB; without any, the kernel moves pages", free),
    row(LIMITS, "memory", "pools take it block by block; the first use of a block that finds none is a SIGBUS", memory),
    row(LIMITS, "memory-limit", "when pools take more, the OOM killer ends the program", memory_limit),
    row(LIMITS, "hugetlb-limit", "the first use of a hugetlb block beyond it is a SIGBUS", hugetlb_limit),
    row(LIMITS, "map-count", "each block away from its neighbours uses one; with none left a write is a SIGBUS", map_count),
    row(LIMITS, "address-space", "regions live in 16 TiB of addresses, which take no memory", address_space),
    row(LIMITS, "overcommit", "strict accounting refuses memory while there is still some", overcommit),
    row(LIMITS, "swap", "shmem blocks that are swapped out come back 4 KiB at a time", swap),
    row(LIMITS, "core-dump", "whether hugetlb regions are dumped is decided by this bit, not by CoreDump", core_dump),
    row(KERNEL, "linux", "5.14 is needed; 6.1 makes shmem blocks huge without any setting", linux),
    row(KERNEL, "page-grain", "with it, a sparse write to shared memory copies 4 KiB; without it, 2 MiB", page_grain),
    row(KERNEL, "system-calls", "read(2) into a region waits while pages are written back", system_calls),
    row(KERNEL, "run-pool", "hugefork run --pool gives programs memory whose page tables no fork copies", run_pool),
    row(KERNEL, "pressure", "pools can watch for pressure, and give memory back when tasks wait for it", pressure),
    row(KERNEL, "kernels", "how blocks are cleared and copied: measured, unless the environment pins it", clear_and_copy),
];

const fn row(group: &'static str, name: &'static str, why: &'static str, look: fn(&Machine) -> Found) -> Check {
    Check { group, name, why, look }
}

impl Check {
    pub(super) fn look(&self, machine: &Machine) -> Finding {
        let Check { group, name, why, look } = *self;
        let Found { status, found, mend } = look(machine);
        Finding { group, name, status, found, why, mend }
    }
}

/// The finding of a check, and its remedy.
struct Found {
    status: Status,
    found: String,
    mend: Option<Mend>,
}

impl Found {
    /// Adds a setting for `--fix`.
    fn set(mut self, machine: &Machine, path: &str, value: impl Display) -> Found {
        let setting = Setting { path: machine.at(path), value: value.to_string() };
        self.mend = Some(Mend { command: setting.command(), set: Some(setting) });
        self
    }

    /// Adds a command that is only printed: people decide.
    fn run(mut self, command: impl Into<String>) -> Found {
        self.mend = Some(Mend { command: command.into(), set: None });
        self
    }
}

fn found(status: Status, found: impl Display) -> Found {
    // Joins the lines of an error message; the output wraps it later.
    let found = found.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
    Found { status, found, mend: None }
}

fn skip(text: impl Display) -> Found {
    found(Status::Skip, text)
}

fn pass(text: impl Display) -> Found {
    found(Status::Pass, text)
}

fn warn(text: impl Display) -> Found {
    found(Status::Warn, text)
}

fn fail(text: impl Display) -> Found {
    found(Status::Fail, text)
}

/// The finding of a check that needs a trial when trials are not allowed.
fn not_tried() -> Found {
    skip("not tried: --root")
}

/// `pass` if there is less than 64 MiB.
fn pass_unless_short(left: u64, text: String) -> Found {
    if left < 64 << 20 { warn(text) } else { pass(text) }
}

fn backing(machine: &Machine) -> Found {
    if rustix::param::page_size() != 4096 && machine.tried.is_some() {
        return fail("this kernel's pages are not of 4 KiB: no pool can be built; boot one with pages of 4 KiB");
    }
    match machine.tried.as_ref().map(|tried| &tried.chosen) {
        None => not_tried(),
        Some(Ok((granted @ Granted::ShmemBase, why))) => {
            warn(format!("{granted}, which is 4 KiB pages: {}", why.as_deref().unwrap_or_default()))
        }
        Some(Ok((granted, None))) => pass(granted),
        Some(Ok((granted, Some(why)))) => pass(format!("{granted} ({why})")),
        Some(Err(why)) => fail(why),
    }
}

fn shmem(machine: &Machine) -> Found {
    let all = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
    let of_size = "/sys/kernel/mm/transparent_hugepage/hugepages-2048kB/shmem_enabled";
    let Some(word) = machine.value(all) else { return warn("this kernel has no transparent huge pages") };
    // Since Linux 6.11, this page size has its own setting, unless that is `inherit`. `deny` in the general setting
    // overrules it.
    let (path, word) = match machine.value(of_size) {
        Some(own) if own != "inherit" && word != "deny" => (of_size, own),
        _ => (all, word),
    };
    let check = match (word.as_str(), machine.tried.as_ref().map(|tried| &tried.shmem)) {
        // The pool uses a tmpfs of its own, or collapses block by block; `backing` shows which.
        ("never", Some(Ok(()))) => return pass("never, but pools have them"),
        ("never", None) => warn("never: huge in a tmpfs of the pool's own, or block by block (MADV_COLLAPSE)"),
        (_, Some(Err(why))) => warn(why),
        ("deny", _) => warn("deny: the administrator forbids it"),
        _ => return pass(word),
    };
    match word.as_str() {
        "never" => check.set(machine, path, "advise"),
        // `deny` is a decision of the administrator.
        "deny" => check.run(format!("echo advise > {}", machine.at(path).display())),
        _ => check,
    }
}

fn own_tmpfs(machine: &Machine) -> Found {
    match machine.tried.as_ref().map(|_| no_own_tmpfs()) {
        None => not_tried(),
        Some(None) => pass("a pool may have a tmpfs of its own, mounted huge=always"),
        Some(Some(why)) => warn(format!("none: {why}")),
    }
}

fn thp(machine: &Machine) -> Found {
    let path = "/sys/kernel/mm/transparent_hugepage/enabled";
    match machine.value(path) {
        None => skip("this kernel has no transparent huge pages"),
        Some(word) if word == "always" || word == "madvise" => pass(word),
        Some(word) => warn(format!("{word}: subjects kernel-thp and fork-thp cannot run"))
            .run(format!("echo madvise > {}", machine.at(path).display())),
    }
}

const HUGETLB_POOL: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";

fn hugetlb(machine: &Machine) -> Found {
    let of = |name| machine.number(&HUGETLB_POOL.replace("nr_hugepages", name));
    let (Some(total), Some(free)) = (of("nr_hugepages"), of("free_hugepages")) else {
        return skip("this kernel has no hugetlb pages of 2 MiB");
    };
    let free = free.saturating_sub(of("resv_hugepages").unwrap_or(0));
    let text = format!("{free} of {total} pages of 2 MiB are free");
    match (machine.hugepages, machine.tried.as_ref().map(|tried| &tried.hugetlb)) {
        (Some(wanted), _) if wanted > total => {
            warn(format!("{text}; {wanted} are asked for (--hugepages)")).set(machine, HUGETLB_POOL, wanted)
        }
        (_, Some(Err(why))) if free > 0 => warn(format!("{text}, but {why}")),
        _ if total == 0 => skip(format!("{text}; --fix --hugepages N sets some aside")),
        _ => pass(text),
    }
}

/// Refuses more pages than three quarters of the available memory; the kernel itself would hand out all of it.
pub(super) fn affordable(machine: &Machine, wanted: u64) -> Result<(), Failure> {
    let more = wanted.saturating_sub(machine.number(HUGETLB_POOL).unwrap_or(0)).saturating_mul(2 << 20);
    match machine.memory("MemAvailable").map(|available| available / 4 * 3) {
        Some(most) if more > most => Err(Failure::usage(format!(
            "--hugepages {wanted}: needs {} more, but at most {} are available for it",
            size(more),
            size(most)
        ))),
        _ => Ok(()),
    }
}

/// The smallest order in `/proc/buddyinfo` that contains a 2 MiB page.
const HUGE_ORDER: usize = 9;

fn free(machine: &Machine) -> Found {
    let (Some(zones), Some(free)) = (machine.text("/proc/buddyinfo"), machine.memory("MemFree")) else {
        return skip("/proc/buddyinfo does not say");
    };
    let pieces = zones.lines().flat_map(|zone| zone.split_whitespace().skip(4 + HUGE_ORDER).zip(1_u64..));
    let huge: u64 = pieces.map(|(count, order)| count.parse::<u64>().unwrap_or(0) << order << 20).sum();
    let text = format!("{} free, {} of it in pieces of 2 MiB", size(free), size(huge));
    if huge >= free / 4 { pass(text) } else { warn(text).run("echo 1 > /proc/sys/vm/compact_memory") }
}

fn memory(machine: &Machine) -> Found {
    let (Some(available), Some(total)) = (machine.memory("MemAvailable"), machine.memory("MemTotal")) else {
        return skip("/proc/meminfo does not say");
    };
    pass_unless_short(available, format!("{} of {} available", size(available), size(total)))
}

/// The mounts of control groups: the controller in `/proc/self/cgroup` (none in version 2), and the files with a
/// group's memory limit and usage.
const GROUPS: [(&str, &str, &str, &str); 3] = [
    ("", "/sys/fs/cgroup", "memory.max", "memory.current"),
    ("", "/sys/fs/cgroup/unified", "memory.max", "memory.current"),
    ("memory", "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
];

/// The lowest limit in the files with that name in the control group of this process and in the groups above it, and
/// its group.
fn tightest(machine: &Machine, controller: &str, mount: &str, file: &str) -> Option<(u64, String)> {
    let text = machine.text("/proc/self/cgroup")?;
    let own = text.lines().find_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        controllers.split(',').any(|one| one == controller).then(|| path.trim_end_matches('/'))
    })?;
    let ends = own.match_indices('/').map(|(at, _)| at).chain([own.len()]);
    let groups = ends.map(|end| format!("{mount}{}", &own[..end]));
    groups.filter_map(|group| Some((machine.number(&format!("{group}/{file}"))?, group))).min()
}

fn memory_limit(machine: &Machine) -> Found {
    // In version 1, a very large number means no limit.
    let no_limit = i64::MAX as u64 >> 1;
    let limits = GROUPS.iter().filter_map(|(controller, mount, file, used)| {
        let (limit, group) = tightest(machine, controller, mount, file)?;
        (limit < no_limit).then(|| (limit, format!("{group}/{used}"), file))
    });
    let Some((limit, used, file)) = limits.min() else { return pass("none") };
    let left = limit.saturating_sub(machine.number(&used).unwrap_or(0));
    pass_unless_short(left, format!("{} ({file}), {} of it left", size(limit), size(left)))
}

fn hugetlb_limit(machine: &Machine) -> Found {
    let mut limits = GROUPS.iter().filter_map(|group| tightest(machine, group.0, group.1, "hugetlb.2MB.max"));
    let Some((limit, _)) = limits.next() else { return pass("none") };
    let (pages, pool) = (limit / (2 << 20), machine.number(HUGETLB_POOL).unwrap_or(0));
    let text = format!("{pages} pages of 2 MiB (hugetlb.2MB.max)");
    if pages < pool { warn(format!("{text}, fewer than the {pool} there are")) } else { pass(text) }
}

/// The kernel's default.
const USUAL_MAPPINGS: u64 = 65530;

/// Enough is one mapping for each block that fits in memory, in a region and in a fork of it.
fn map_count(machine: &Machine) -> Found {
    let path = "/proc/sys/vm/max_map_count";
    let Some(limit) = machine.number(path) else { return skip(format!("{path} does not say")) };
    let blocks = machine.memory("MemTotal").unwrap_or(0) / (2 << 20);
    let enough = (2 * blocks).clamp(USUAL_MAPPINGS, i32::MAX as u64);
    let text = format!("{limit} mappings, for {} in lone 2 MiB blocks", size(limit.saturating_mul(2 << 20)));
    if limit < enough { warn(text).set(machine, path, enough) } else { pass(text) }
}

fn address_space(machine: &Machine) -> Found {
    let (least, best) = (*ADDRESSES.start() as u64, *ADDRESSES.end() as u64);
    let text = machine.text("/proc/self/limits").unwrap_or_default();
    let limit = text.lines().find_map(|line| line.strip_prefix("Max address space")?.split_whitespace().next());
    match limit.map(str::parse) {
        None => skip("/proc/self/limits does not say"),
        Some(Err(_)) => pass("unlimited"),
        Some(Ok(limit)) if limit < least => {
            fail(format!("{}, but {} are needed", size(limit), size(least))).run("ulimit -v unlimited")
        }
        Some(Ok(limit)) if limit < best => {
            warn(format!("{}: all regions together can have no more", size(limit))).run("ulimit -v unlimited")
        }
        Some(Ok(limit)) => pass(size(limit)),
    }
}

fn overcommit(machine: &Machine) -> Found {
    match machine.number("/proc/sys/vm/overcommit_memory") {
        None => skip("/proc/sys/vm/overcommit_memory does not say"),
        Some(2) => {
            let committed = machine.memory("Committed_AS").unwrap_or(0);
            let left = machine.memory("CommitLimit").unwrap_or(0).saturating_sub(committed);
            warn(format!("2 (strict): {} left", size(left))).run("sysctl -w vm.overcommit_memory=0")
        }
        Some(mode) => pass(mode),
    }
}

fn swap(machine: &Machine) -> Found {
    let Some(total) = machine.memory("SwapTotal") else { return skip("/proc/meminfo does not say") };
    let used = total.saturating_sub(machine.memory("SwapFree").unwrap_or(total));
    match (total, used >> 20) {
        (0, _) => pass("none"),
        (_, 0) => pass(format!("{}, not in use", size(total))),
        _ => warn(format!("{} of {} in use", size(used), size(total))),
    }
}

/// Bit 6 of `coredump_filter`: shared hugetlb memory.
const SHARED_HUGETLB: u64 = 1 << 6;

fn core_dump(machine: &Machine) -> Found {
    let filter = machine.text("/proc/self/coredump_filter").and_then(|text| u64::from_str_radix(&text, 16).ok());
    match filter {
        None => skip("this kernel writes none"),
        Some(filter) if filter & SHARED_HUGETLB != 0 => {
            warn(format!("bit 6 of coredump_filter {filter:#x} is set: all hugetlb memory is dumped"))
                .run(format!("echo {:#x} > /proc/self/coredump_filter", filter & !SHARED_HUGETLB))
        }
        Some(filter) => pass(format!("without hugetlb (coredump_filter {filter:#x})")),
    }
}

/// The engine needs Linux 5.14 (`MADV_POPULATE_WRITE`); 6.1 makes huge pages without a setting (`MADV_COLLAPSE`).
fn linux(machine: &Machine) -> Found {
    match machine.release() {
        None => skip("the release is unknown"),
        Some((release, (0..5, _) | (5, 0..14))) => fail(format!("{release} is too old")),
        Some((release, (5, _) | (6, 0))) => warn(format!("{release}: huge pages only if settings allow them")),
        Some((release, _)) => pass(release),
    }
}

/// The first kernel that reports the private pages of a mapping (`PAGEMAP_SCAN`).
const PAGE_GRAIN: (u32, u32) = (6, 7);

fn page_grain(machine: &Machine) -> Found {
    let lacks = |why: &str| warn(format!("writes copy whole blocks: {why}"));
    match machine.tried.as_ref().map(|tried| tried.no_page_grain.as_deref()) {
        Some(None) => {
            let tracks = if tracks_writes() { "tracks writes" } else { "tracks no writes (Linux 6.14 does)" };
            pass(format!("pools of shmem copy single pages, and the kernel {tracks}; pools of hugetlb copy blocks"))
        }
        Some(Some(why)) if machine.at("/proc/self").exists() => lacks(why),
        Some(Some(why)) => lacks(why).run(format!("mount -t proc proc {}", machine.at("/proc").display())),
        None => match machine.release() {
            Some((release, version)) if version < PAGE_GRAIN => lacks(&format!("{release} is older than Linux 6.7")),
            Some(_) | None => not_tried(),
        },
    }
}

/// Whether system calls wait for a write-back, as writers do.
fn system_calls(machine: &Machine) -> Found {
    match machine.tried.as_ref().map(|_| no_waiting()) {
        Some(None) => pass("wait for write-backs: this process may handle their faults"),
        Some(Some(why)) => warn(format!("fail with EFAULT at some moments: {why}; pin the memory that they write to"))
            .run("sysctl vm.unprivileged_userfaultfd=1"),
        None => not_tried(),
    }
}

/// Whether `hugefork run --pool` can give programs its memory.
fn run_pool(machine: &Machine) -> Found {
    if machine.tried.is_none() {
        return not_tried();
    }
    let Err(why) = ProgramMemory::new(BlockSize::MIB_2.bytes()) else {
        return pass("programs of this user can have it; not for io_uring and GPU buffers");
    };
    let lacks = warn(format!("programs of this user run unchanged under it: {why}"));
    if why.to_string().contains("page faults") { lacks.run("sysctl vm.unprivileged_userfaultfd=1") } else { lacks }
}

fn pressure(machine: &Machine) -> Found {
    match machine.tried.as_ref().map(|_| PressureWatch::new().try_out()) {
        Some(Ok(file)) => pass(file.display()),
        Some(Err(why)) => warn(format!("cannot be watched: {why} (if the file is missing: boot with psi=1)")),
        None if machine.at("/proc/pressure/memory").exists() => pass("/proc/pressure/memory"),
        None => warn("/proc/pressure/memory is not there: boot with psi=1"),
    }
}

fn clear_and_copy(machine: &Machine) -> Found {
    if machine.tried.is_none() {
        return not_tried();
    }
    let pins = ["HUGEFORK_KERNEL", "HUGEFORK_WINDOW"].into_iter().filter(|name| env::var_os(name).is_some());
    let pins = pins.collect::<Vec<_>>().join(" ");
    let kernels = match kernels() {
        Err(error) => return fail(error).run(format!("unset {pins}")),
        Ok(kernels) => kernels,
    };
    let block = BlockSize::MIB_2.bytes();
    let text = format!("clear {}, copy {}", kernels.clear(block, Use::Near), kernels.copy(block, Use::Near));
    if !pins.is_empty() {
        warn(format!("{text}: pinned by {pins}")).run(format!("unset {pins}"))
    } else if calibration().is_empty() {
        warn(format!("{text}: not measured, since there were no 8 MiB to measure on"))
    } else {
        pass(text)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::commands::doctor::machine::Tried;

    /// This machine, with a changed result of the trials.
    fn tried(change: impl FnOnce(&mut Tried)) -> Machine {
        let mut machine = Machine::new(None, None);
        change(machine.tried.as_mut().unwrap());
        machine
    }

    #[test]
    fn small_pages_are_a_warning_and_reasons_are_reported_on_one_line() {
        let base = tried(|tried| tried.chosen = Ok((Granted::ShmemBase, Some("be\n cause".to_owned()))));
        assert_eq!(backing(&base).status, Status::Warn);
        let reason = backing(&tried(|tried| tried.chosen = Ok((Granted::Hugetlb, Some("be\n cause".to_owned())))));
        assert_eq!((reason.status, reason.found.as_str()), (Status::Pass, "hugetlb (be cause)"));
    }

    #[test]
    fn a_lack_of_page_grain_is_reported_with_its_reason() {
        let why = "open of /proc/self/pagemap failed";
        let mut machine = tried(|tried| tried.no_page_grain = Some(why.to_owned()));
        let lacks = page_grain(&machine);
        assert_eq!((lacks.status, lacks.mend), (Status::Warn, None));
        assert!(lacks.found.ends_with(why), "{}", lacks.found);
        machine = Machine { tried: machine.tried, ..Machine::files(Some(Path::new("/nonexistent"))) };
        assert_eq!(page_grain(&machine).mend.unwrap().command, "mount -t proc proc /nonexistent/proc");
        assert_eq!(page_grain(&Machine { tried: None, ..machine }).status, Status::Skip);
    }

    /// The result of a trial overrules the files.
    #[test]
    fn a_feature_that_is_set_but_unavailable_is_a_warning() {
        let root = std::env::temp_dir().join(format!("hugefork-doctor-tried-{}", std::process::id()));
        let mut machine = Machine { tried: Some(Tried::now()), ..Machine::files(Some(&root)) };
        let write = |path: &str, text: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let (no, yes) = (false, true);
        for (word, has, status, fixable) in [
            ("advise", yes, Status::Pass, false),
            ("advise", no, Status::Warn, false),
            ("never", yes, Status::Pass, false),
            ("never", no, Status::Warn, true),
            ("deny", no, Status::Warn, false),
        ] {
            write("sys/kernel/mm/transparent_hugepage/shmem_enabled", &format!("x [{word}] y"));
            let refused = || hugefork::Pool::builder().capacity(0).build().expect_err("a pool of no memory");
            machine.tried.as_mut().unwrap().shmem = if has { Ok(()) } else { Err(refused()) };
            let check = shmem(&machine);
            let set = check.mend.and_then(|mend| mend.set);
            assert_eq!((check.status, set.is_some()), (status, fixable), "{word} {has}: {}", check.found);
        }
        fs::remove_dir_all(&root).unwrap();
    }
}
