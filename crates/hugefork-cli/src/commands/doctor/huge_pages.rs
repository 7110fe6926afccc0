//! Huge pages: whether pools get them, how, and of which kind.

use std::fmt::Display;
use std::time::Duration;

use hugefork::machine::{FirstWrite, Survey};
use hugefork::{Backing, ByteSize, Granted};

use super::check::{About, Check, NOT_TRIED};
use super::root::{Root, size};
use crate::failure::Failure;

/// `hugetlb_wanted`: the number of 2 MiB pages after `--hugepages`.
pub(super) fn look(root: &Root, survey: Option<&Survey>, hugetlb_wanted: Option<u64>) -> Vec<Check> {
    let tried = |wanted| {
        let (_, got) = survey?.backings.iter().find(|(backing, _)| *backing == wanted)?;
        Some(got.as_ref().map(|_| ()))
    };
    vec![
        backing(survey.map(|survey| &survey.chosen)),
        shmem(root, tried(Backing::ShmemHuge)),
        own_tmpfs(survey.map(|survey| survey.no_own_tmpfs.as_deref())),
        thp(root),
        hugetlb(root, tried(Backing::Hugetlb), hugetlb_wanted),
        free(root),
        survey.map_or_else(|| FIRST_WRITE.skip(NOT_TRIED), |survey| first_write(survey.first_write.as_ref())),
    ]
}

/// The result of trying a feature, if it was tried.
type Attempt<E> = Option<Result<(), E>>;

fn backing<E: Display>(choice: Option<&Result<(Granted, Option<String>), E>>) -> Check {
    let about = About("backing", "the memory of pools that request no other kind");
    match choice {
        None => about.skip(NOT_TRIED),
        Some(Ok((granted @ Granted::ShmemBase, why))) => {
            about.warn(format!("{granted}, which is 4 KiB pages: {}", why.as_deref().unwrap_or_default()))
        }
        Some(Ok((granted, None))) => about.pass(granted.to_string()),
        Some(Ok((granted, Some(why)))) => about.pass(format!("{granted} ({why})")),
        Some(Err(why)) => about.fail(why.to_string()),
    }
}

const THP: &str = "/sys/kernel/mm/transparent_hugepage";

fn shmem<E: Display>(root: &Root, tried: Attempt<E>) -> Check {
    let about = About("shmem-thp", "the best backing: huge pages without a reservation, and mappings that merge");
    let (all, of_size) = (format!("{THP}/shmem_enabled"), format!("{THP}/hugepages-2048kB/shmem_enabled"));
    let Some(word) = root.value(&all) else { return about.warn("this kernel has no transparent huge pages") };
    // Since Linux 6.11, this page size has its own setting, unless that is `inherit`. `deny` in the general setting
    // overrules it.
    let (path, word) = match root.value(&of_size) {
        Some(own) if own != "inherit" && word != "deny" => (of_size, own),
        _ => (all, word),
    };
    let check = match (word.as_str(), tried) {
        // The pool uses a tmpfs of its own, or collapses block by block; `backing` shows which.
        ("never", Some(Ok(()))) => return about.pass("never, but pools have them"),
        ("never", None) => about.warn("never: huge in a tmpfs of the pool's own, or block by block (MADV_COLLAPSE)"),
        (_, Some(Err(why))) => about.warn(why.to_string()),
        ("deny", _) => about.warn("deny: the administrator forbids it"),
        _ => return about.pass(word),
    };
    match word.as_str() {
        "never" => check.set(root.at(&path), "advise"),
        // `deny` is a decision of the administrator.
        "deny" => check.run(format!("echo advise > {}", root.at(&path).display())),
        _ => check,
    }
}

/// `refused`: the reason for the refusal, if it was tried.
fn own_tmpfs(refused: Option<Option<&str>>) -> Check {
    let about = About("own-tmpfs", "huge pages at first touch, whatever shmem_enabled says but `deny`");
    match refused {
        None => about.skip(NOT_TRIED),
        Some(None) => about.pass("a pool may have a tmpfs of its own, mounted huge=always"),
        Some(Some(why)) => about.warn(format!("none: {why}")),
    }
}

fn thp(root: &Root) -> Check {
    let about = About("thp", "hugefork works without it; what `bench` compares hugefork with does not");
    let path = format!("{THP}/enabled");
    let Some(word) = root.value(&path) else { return about.skip("this kernel has no transparent huge pages") };
    if !matches!(word.as_str(), "always" | "madvise") {
        return about
            .warn(format!("{word}: subjects kernel-thp and fork-thp cannot run"))
            .run(format!("echo madvise > {}", root.at(&path).display()));
    }
    let mut sizes: Vec<(usize, String)> = root
        .names(THP)
        .iter()
        .filter_map(|name| {
            let kib: usize = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
            Some((kib, root.value(&format!("{THP}/{name}/enabled"))?)).filter(|(_, word)| word != "never")
        })
        .collect();
    sizes.sort();
    let sizes: Vec<String> = sizes.into_iter().map(|(kib, word)| format!("{} {word}", ByteSize(kib << 10))).collect();
    about.pass(if sizes.is_empty() { word } else { format!("{word} ({})", sizes.join(", ")) })
}

const HUGETLB_POOL: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";

fn hugetlb<E: Display>(root: &Root, tried: Attempt<E>, wanted: Option<u64>) -> Check {
    let about = About("hugetlb", "pages set aside: for pools that ask for them, and for `bench` to compare with");
    let pool = |kib: u64| {
        let of = |name| root.number(&format!("/sys/kernel/mm/hugepages/hugepages-{kib}kB/{name}"));
        let total = of("nr_hugepages")?;
        Some((total, of("free_hugepages")?.saturating_sub(of("resv_hugepages").unwrap_or(0))))
    };
    let Some((total, free)) = pool(2048) else { return about.skip("this kernel has no hugetlb pages of 2 MiB") };
    let mut found = format!("{free} of {total} pages of 2 MiB are free");
    if let Some((total, free)) = pool(1 << 20).filter(|(total, _)| *total > 0) {
        found += &format!(", {free} of {total} of 1 GiB");
    }
    match (wanted, tried) {
        (Some(wanted), _) if wanted > total => {
            about.warn(format!("{found}; {wanted} are asked for (--hugepages)")).set(root.at(HUGETLB_POOL), wanted)
        }
        (_, Some(Err(why))) if free > 0 => about.warn(format!("{found}, but {why}")),
        _ if total == 0 => about.skip(format!("{found}; --fix --hugepages N sets some aside")),
        _ => about.pass(found),
    }
}

/// Refuses more than three quarters of the available memory; the kernel itself would hand out all of it.
pub(super) fn check_affordable(root: &Root, wanted: u64) -> Result<(), Failure> {
    let more = wanted.saturating_sub(root.number(HUGETLB_POOL).unwrap_or(0)).saturating_mul(2 << 20);
    match root.memory("MemAvailable") {
        Some(available) if more > available / 4 * 3 => Err(Failure::Usage(format!(
            "--hugepages {wanted}: needs {} more, but at most {} are available for it",
            size(more),
            size(available / 4 * 3)
        ))),
        _ => Ok(()),
    }
}

/// The smallest order in `/proc/buddyinfo` that contains a 2 MiB page.
const HUGE_ORDER: usize = 9;

fn free(root: &Root) -> Check {
    let about = About(
        "free-memory",
        "huge pages are made of free pieces of 2 MiB; if there are none, the kernel moves pages first",
    );
    let (Some(zones), Some(free)) = (root.text("/proc/buddyinfo"), root.memory("MemFree")) else {
        return about.skip("/proc/buddyinfo does not say");
    };
    let huge: u64 = zones
        .lines()
        .flat_map(|zone| zone.split_whitespace().skip(4 + HUGE_ORDER).zip(1_u64..))
        .map(|(count, pieces)| count.parse::<u64>().unwrap_or(0) << pieces << 20)
        .sum();
    let found = format!("{} free, {} of it in pieces of 2 MiB", size(free), size(huge));
    if huge >= free / 4 { about.pass(found) } else { about.warn(found).run("echo 1 > /proc/sys/vm/compact_memory") }
}

const FIRST_WRITE: About = About(
    "first-write",
    "the first write to a block waits for the kernel to clear it; a pool that is built with all of it upfront never waits",
);

fn first_write<E: Display>(tried: Result<&FirstWrite, E>) -> Check {
    match tried {
        Ok(FirstWrite { late, ready, .. }) => {
            let ms = |time: &Duration| format!("{:.3} ms", time.as_secs_f64() * 1e3);
            let (late, ready) = (ms(late), ms(ready));
            FIRST_WRITE.pass(format!("{late} for a block of 2 MiB that has no memory yet, {ready} for one that has"))
        }
        Err(why) => FIRST_WRITE.warn(format!("could not be tried: {why}")),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::check::Status;
    use super::*;

    #[test]
    fn no_backing_is_a_failure_and_small_pages_are_a_warning() {
        assert_eq!(backing(Some(&Err("nothing".to_owned()))).status, Status::Fail);
        assert_eq!(
            backing(Some(&Ok::<_, String>((Granted::ShmemBase, Some("be\n cause".to_owned()))))).status,
            Status::Warn
        );
        assert_eq!(backing(Some(&Ok::<_, String>((Granted::Hugetlb, None)))).status, Status::Pass);
        let reason = backing(Some(&Ok::<_, String>((Granted::Hugetlb, Some("be\n cause".to_owned())))));
        assert_eq!((reason.status, reason.found.as_str()), (Status::Pass, "hugetlb (be cause)"));
    }

    /// The result of a trial overrules the files.
    #[test]
    fn a_feature_that_is_set_but_unavailable_is_a_warning() {
        let root = Root(std::env::temp_dir().join(format!("hugefork-doctor-tried-{}", std::process::id())));
        let write = |path: &str, text: &str| {
            let path = root.at(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let (no, yes) = (Some(Err("why")), Some(Ok(())));
        for (word, tried, status, fixable) in [
            ("advise", yes, Status::Pass, false),
            ("advise", no, Status::Warn, false),
            ("never", yes, Status::Pass, false),
            ("never", no, Status::Warn, true),
            ("deny", no, Status::Warn, false),
        ] {
            write("/sys/kernel/mm/transparent_hugepage/shmem_enabled", &format!("x [{word}] y"));
            let check = shmem(&root, tried);
            let set = check.mend.and_then(|mend| mend.set);
            assert_eq!((check.status, set.is_some()), (status, fixable), "{word} {tried:?}: {}", check.found);
            assert_eq!(check.found.contains("why"), tried == no, "{}", check.found);
        }
        for (total, free, tried, status) in
            [(0, 0, no, Status::Skip), (4, 0, no, Status::Pass), (4, 4, no, Status::Warn), (4, 4, yes, Status::Pass)]
        {
            write("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", &total.to_string());
            write("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", &free.to_string());
            assert_eq!(hugetlb(&root, tried, None).status, status, "{free} of {total} {tried:?}");
        }
        fs::remove_dir_all(&root.0).unwrap();
    }
}
