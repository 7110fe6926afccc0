//! `hugefork doctor`: what this machine offers hugefork, and the command that mends what it does not.
//!
//! The engine looks at the machine ([`machine::survey`]); here each finding is judged, one function a finding, so that each
//! can be tested with findings of other machines.
//!
//! *pass*: as good as it gets. *warn*: hugefork works, though not at its best. *fail*: hugefork, or what was asked of it, does
//! not work. The exit status is 1 if anything fails.

use std::fmt::Write;
use std::process::ExitCode;

use anyhow::Context;
use hugefork::machine::{self, Survey};
use hugefork::{Backing, ByteSize, Granted};
use hugefork_bench::Host;
use hugefork_kernels::Primitive;
use serde::Serialize;

use crate::args::DoctorArgs;
use crate::bench::print;
use crate::calibration::{self, Tried};
use crate::failure::Failure;

/// The layout of the JSON.
const SCHEMA: u32 = 1;

/// How a finding is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
enum Status {
    Pass,
    Warn,
    Fail,
}

impl Status {
    fn word(self) -> &'static str {
        match self {
            Status::Pass => "pass",
            Status::Warn => "warn",
            Status::Fail => "FAIL",
        }
    }
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Check {
    name: &'static str,
    status: Status,
    found: String,
    /// The command that mends it, if a command can.
    #[serde(skip_serializing_if = "Option::is_none")]
    mend: Option<String>,
}

/// What is printed as JSON.
#[derive(Debug, Serialize)]
struct Diagnosis {
    schema: u32,
    version: &'static str,
    /// The worst of the checks.
    status: Status,
    checks: Vec<Check>,
    /// What was tried to choose the kernels.
    calibration: Vec<Tried>,
    host: Host,
}

/// Looks, judges, prints.
pub(crate) fn run(args: &DoctorArgs) -> Result<ExitCode, Failure> {
    let survey = machine::survey();
    let (checks, calibration) = (judge(&survey), calibration::of(&survey));
    let status = checks.iter().map(|check| check.status).max().unwrap_or(Status::Pass);
    let text = if args.json {
        let version = env!("CARGO_PKG_VERSION");
        let diagnosis = Diagnosis { schema: SCHEMA, version, status, checks, calibration, host: Host::read() };
        serde_json::to_string_pretty(&diagnosis).context("writing JSON")? + "\n"
    } else {
        render(&checks) + &calibration::render(&calibration)
    };
    print(&text)?;
    Ok(if status == Status::Fail { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn judge(survey: &Survey) -> Vec<Check> {
    let mut checks = vec![
        kernel(&survey.kernel),
        memory(survey.memory_available, survey.memory_total),
        thp(survey.thp.as_deref()),
        shmem_thp(survey.shmem_thp.as_deref()),
    ];
    checks.extend(survey.hugetlb.iter().map(|pool| hugetlb(pool.page, pool.total, pool.available)));
    checks.push(map_count(survey.map_count, survey.map_count_limit));
    checks.push(cpu(&survey.cpu, survey.cpus, &survey.primitives));
    checks.extend(survey.backings.iter().map(|(backing, got)| offered(*backing, got)));
    checks.push(chosen(&survey.chosen));
    checks.push(check("clear with", Status::Pass, survey.clear_kernel.to_string()));
    checks.push(check("copy with", Status::Pass, survey.copy_kernel.to_string()));
    checks
}

fn check(name: &'static str, status: Status, found: impl Into<String>) -> Check {
    Check { name, status, found: found.into(), mend: None }
}

impl Check {
    fn mended_by(mut self, command: impl Into<String>) -> Check {
        self.mend = Some(command.into());
        self
    }
}

/// 5.14 is what the engine needs (`MADV_POPULATE_WRITE`), 6.1 what gives huge pages without a setting (`MADV_COLLAPSE`).
fn kernel(release: &str) -> Check {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|digits| digits.parse::<u32>().unwrap_or(0));
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let found = format!("Linux {release}");
    if version < (5, 14) {
        check("kernel", Status::Fail, found + ", 5.14 is needed")
    } else if version < (6, 1) {
        check("kernel", Status::Warn, found + ", 6.1 gives shmem huge pages without a setting")
    } else {
        check("kernel", Status::Pass, found)
    }
}

fn memory(available: usize, total: usize) -> Check {
    let found = format!("{} MiB available of {} MiB", available >> 20, total >> 20);
    let status = if available < 64 << 20 { Status::Warn } else { Status::Pass };
    check("memory", status, found)
}

/// hugefork does without; what it is compared with does not.
fn thp(setting: Option<&str>) -> Check {
    let name = "transparent huge pages";
    match setting {
        Some(good @ ("always" | "madvise")) => check(name, Status::Pass, good),
        Some(bad) => check(name, Status::Warn, format!("{bad}: bench subjects kernel-thp and fork-thp cannot run"))
            .mended_by("echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"),
        None => check(name, Status::Warn, "not in this kernel"),
    }
}

fn shmem_thp(setting: Option<&str>) -> Check {
    let name = "shmem huge pages";
    match setting {
        Some(good @ ("always" | "within_size" | "advise" | "force")) => check(name, Status::Pass, good),
        Some(bad) => {
            check(name, Status::Warn, format!("{bad}: blocks are made huge one by one (MADV_COLLAPSE), or not at all"))
                .mended_by("echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled")
        }
        None => check(name, Status::Warn, "not in this kernel"),
    }
}

/// A pool of hugetlb pages is a wish, not a need: an empty one of the usual size is worth a hint, others are not.
fn hugetlb(page: usize, total: usize, available: usize) -> Check {
    let found = format!("{available} free of {total} pages of {}", ByteSize(page));
    let usual = page == 2 << 20;
    if available > 0 || !usual {
        return check("hugetlb pool", Status::Pass, found);
    }
    check("hugetlb pool", Status::Warn, found + ": backing hugetlb is not to be had")
        .mended_by(format!("sysctl -w vm.nr_hugepages={}", total + 512))
}

/// The kernel's own default. A block may take a mapping, and some more around it.
const USUAL_MAPPINGS: usize = 65530;

fn map_count(used: usize, limit: usize) -> Check {
    let found = format!("{used} of {limit} in use by this process");
    let status = if limit < USUAL_MAPPINGS { Status::Warn } else { Status::Pass };
    let found = check("mappings", status, found);
    if status == Status::Pass { found } else { found.mended_by(format!("sysctl -w vm.max_map_count={USUAL_MAPPINGS}")) }
}

fn cpu(name: &str, cpus: usize, primitives: &[(Primitive, bool)]) -> Check {
    let offered: Vec<&str> = primitives.iter().filter(|(_, has)| *has).map(|(primitive, _)| primitive.name()).collect();
    let past_the_cache = primitives.iter().any(|(primitive, has)| *has && primitive.is_non_temporal());
    let found = format!("{name}, {cpus} CPUs, {}", offered.join(" "));
    if past_the_cache {
        return check("CPU", Status::Pass, found);
    }
    check("CPU", Status::Warn, found + ": nothing that bypasses the cache, clears will be slower")
}

fn offered(backing: Backing, got: &Result<Granted, String>) -> Check {
    let name = match backing {
        Backing::Hugetlb => "backing hugetlb",
        Backing::ShmemHuge => "backing shmem-thp",
        Backing::ShmemBase => "backing shmem-base",
        _ => "backing",
    };
    match got {
        Ok(granted) => check(name, Status::Pass, granted.to_string()),
        // The last resort failing means that nothing works.
        Err(why) if backing == Backing::ShmemBase => check(name, Status::Fail, one_line(why)),
        Err(why) => check(name, Status::Warn, one_line(why)),
    }
}

fn chosen(choice: &Result<(Granted, Option<String>), String>) -> Check {
    let name = "chosen backing";
    match choice {
        Ok((granted @ Granted::ShmemBase, why)) => {
            let why = why.as_deref().map(one_line).unwrap_or_default();
            check(name, Status::Warn, format!("{granted}, which is 4 KiB pages: {why}"))
        }
        Ok((granted, None)) => check(name, Status::Pass, granted.to_string()),
        Ok((granted, Some(why))) => check(name, Status::Pass, format!("{granted} ({})", one_line(why))),
        Err(why) => check(name, Status::Fail, one_line(why)),
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Columns that the text fills at most, but for commands, which are there to be copied.
const WIDTH: usize = 100;

fn render(checks: &[Check]) -> String {
    let names = checks.iter().map(|check| check.name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for check in checks {
        let begin = format!(" {}  {:names$}  ", check.status.word(), check.name);
        let mut indent = begin.len();
        let mut line = begin;
        for word in check.found.split_whitespace() {
            if line.chars().count() > indent && line.chars().count() + word.chars().count() > WIDTH {
                text.push_str(line.trim_end());
                text.push('\n');
                // What goes on is indented a little further, so that no line of it is taken for a finding.
                indent = names + 11;
                line = " ".repeat(indent);
            }
            line.push_str(word);
            line.push(' ');
        }
        text.push_str(line.trim_end());
        text.push('\n');
        if let Some(mend) = &check.mend {
            let _ = writeln!(text, "{:1$}mend: {mend}", "", names + 9);
        }
    }
    let count = |status| checks.iter().filter(|check| check.status == status).count();
    let _ = writeln!(
        text,
        "\n{} passed, {} to improve, {} failed",
        count(Status::Pass),
        count(Status::Warn),
        count(Status::Fail)
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_judged_by_version() {
        for (release, status) in [
            ("4.19.0", Status::Fail),
            ("5.13.7", Status::Fail),
            ("5.14.0-1-amd64", Status::Warn),
            ("6.1.0", Status::Pass),
            ("7.0-rc1", Status::Pass),
        ] {
            assert_eq!(kernel(release).status, status, "{release}");
        }
    }

    #[test]
    fn whatever_can_be_mended_by_a_command_says_which() {
        let mends = [
            (thp(Some("never")), "transparent_hugepage/enabled"),
            (shmem_thp(Some("never")), "echo advise"),
            (hugetlb(2 << 20, 0, 0), "vm.nr_hugepages=512"),
            (hugetlb(2 << 20, 100, 0), "vm.nr_hugepages=612"),
            (map_count(10, 1000), "vm.max_map_count=65530"),
        ];
        for (check, part) in mends {
            assert_eq!(check.status, Status::Warn, "{check:?}");
            assert!(check.mend.as_ref().unwrap().contains(part), "{check:?}");
        }
        for good in [
            thp(Some("madvise")),
            shmem_thp(Some("advise")),
            hugetlb(2 << 20, 8, 8),
            hugetlb(1 << 30, 0, 0),
            map_count(10, 65530),
        ] {
            assert_eq!((good.status, &good.mend), (Status::Pass, &None), "{good:?}");
        }
    }

    #[test]
    fn the_last_resort_failing_is_a_failure_the_others_are_not() {
        let no = || Err("because\n of this".to_owned());
        assert_eq!(offered(Backing::Hugetlb, &no()).status, Status::Warn);
        assert_eq!(offered(Backing::ShmemBase, &no()).status, Status::Fail);
        assert_eq!(offered(Backing::ShmemBase, &no()).found, "because of this");
        assert_eq!(chosen(&Err("nothing".to_owned())).status, Status::Fail);
        assert_eq!(chosen(&Ok((Granted::ShmemBase, Some("why".to_owned())))).status, Status::Warn);
        assert_eq!(chosen(&Ok((Granted::Hugetlb, None))).status, Status::Pass);
    }

    #[test]
    fn a_cpu_without_non_temporal_stores_is_a_warning() {
        assert_eq!(cpu("x", 1, &[(Primitive::Portable, true)]).status, Status::Warn);
        let nt = Primitive::ALL.iter().find(|primitive| primitive.is_non_temporal()).unwrap();
        assert_eq!(cpu("x", 1, &[(*nt, true)]).status, Status::Pass);
        assert_eq!(cpu("x", 1, &[(*nt, false)]).status, Status::Warn);
    }

    #[test]
    fn long_findings_are_wrapped_and_commands_are_not() {
        let long = (1..60).map(|word| format!("word{word}")).collect::<Vec<_>>().join(" ");
        let command = "x".repeat(120);
        let checks = [check("CPU", Status::Warn, long.clone()).mended_by(&command), check("a name", Status::Pass, "y")];
        let text = render(&checks);
        let commands = |line: &&str| line.contains("mend: ");
        assert!(text.lines().filter(|line| !commands(line)).all(|line| line.chars().count() <= WIDTH), "{text}");
        assert!(text.lines().find(commands).unwrap().ends_with(&command), "{text}");
        let found = text.lines().take_while(|line| !commands(line)).flat_map(str::split_whitespace).skip(2);
        assert_eq!(found.collect::<Vec<_>>().join(" "), long);
        // Names and findings stay below each other.
        assert!(text.contains("\n pass  a name  y\n") && text.starts_with(" warn  CPU     word1 word2"), "{text}");
    }

    #[test]
    fn the_text_has_a_line_a_check_and_a_sum() {
        let text = render(&[check("kernel", Status::Pass, "Linux"), thp(Some("never"))]);
        assert!(text.contains("mend: echo madvise >"), "{text}");
        assert!(text.ends_with("1 passed, 1 to improve, 0 failed\n"), "{text}");
    }
}
