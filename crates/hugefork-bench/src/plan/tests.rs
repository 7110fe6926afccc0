//! Tests of the options that a plan accepts, and of the subjects that can run.

use super::*;
use crate::cases::{self, anon_w_seq, clear_copy, first_touch, lazy_free, snapshot};
use crate::host::{Cache, HugetlbPool};
use crate::memory::thp::{Folio, Thp};

const CLEAR: &dyn Case = &clear_copy::CLEAR;
const FIRST_TOUCH: &dyn Case = &first_touch::FirstTouch;
const ANON_W_SEQ: &dyn Case = &anon_w_seq::AnonWSeq;
const SNAPSHOT: &dyn Case = &snapshot::Snapshot;
const LAZY_FREE: &dyn Case = &lazy_free::LazyFree;

fn host(memory_gib: usize, hugetlb_pages: usize) -> Host {
    Host {
        cpus: 2,
        cpu_numbers: vec![0, 1],
        caches: vec![Cache { level: 3, kind: "Unified".into(), size: "32MiB".into(), shared_by: "0-1".into() }],
        memory_bytes: memory_gib << 30,
        available_bytes: memory_gib << 30,
        thp: Thp {
            enabled: "madvise".into(),
            defrag: "madvise".into(),
            shmem_enabled: "never".into(),
            folios: [("64KiB", "never"), ("2MiB", "inherit")]
                .map(|(size, enabled)| Folio { size: size.into(), enabled: enabled.into() })
                .to_vec(),
        },
        hugetlb: vec![HugetlbPool { page: "2MiB".into(), total: hugetlb_pages, free: hugetlb_pages }],
        ..Host::default()
    }
}

fn options(cases: &[&'static dyn Case]) -> Options {
    Options::new(cases.to_vec())
}

fn refused(change: impl FnOnce(&mut Options)) -> String {
    let mut options = options(cases::ALL);
    change(&mut options);
    Plan::new(&options, &host(24, 0)).unwrap_err().0
}

/// The names of the subjects that cannot run, each with its reason.
fn lacks(options: &Options, host: &Host, settings: Settings) -> Vec<(String, String)> {
    let mut plan = Plan::new(options, host).unwrap();
    plan.settle(host, settings);
    plan.subjects().filter_map(|planned| Some((planned.subject.to_string(), planned.lack.clone()?))).collect()
}

#[test]
fn impossible_requests_name_their_option_and_a_way_out() {
    assert!(refused(|o| o.sizes = vec![0]).starts_with("--size 0: take a multiple of 2MiB"));
    assert!(refused(|o| o.sizes = vec![3 << 20]).contains("the nearest is 2MiB"));
    assert!(refused(|o| o.sizes = vec![4096]).contains("the nearest is 2MiB"));
    assert!(refused(|o| o.sizes = vec![2 << 20, 3 << 20]).starts_with("--size 3MiB: not a multiple"));
    assert!(refused(|o| o.sizes = vec![1 << 40]).contains("larger than this machine's memory"));
    assert!(refused(|o| o.tasks = Some(0)).starts_with("--tasks 0"));
    assert!(refused(|o| o.tasks = Some(1 << 20)).contains("at most 1024"));
    assert!(refused(|o| o.runs = 0).starts_with("--runs 0"));
    let error = refused(|o| {
        o.cases = vec![CLEAR];
        o.subjects = Some(vec![Subject::ForkThp]);
    });
    assert!(error.starts_with("--subjects fork-thp: no chosen case has it") && error.contains("memset"), "{error}");
    let error = refused(|o| (o.cases, o.block_sizes) = (vec![SNAPSHOT], vec![BlockSize::KIB_64]));
    assert!(error.starts_with("--block-size: is for clear, copy and lazy-free"), "{error}");
    let error = refused(|o| (o.block_sizes, o.sizes) = (vec![BlockSize::KIB_4, BlockSize::GIB_1], vec![256 << 20]));
    assert!(error.contains("not a multiple of 1GiB"), "{error}");
}

#[test]
fn few_runs_warm_caches_and_many_tasks_are_flagged() {
    let mut options = options(&[ANON_W_SEQ]);
    (options.runs, options.sizes, options.tasks) = (1, vec![16 << 20], Some(3));
    let warnings = Plan::new(&options, &host(24, 0)).unwrap().warnings;
    for (warning, words) in
        warnings.iter().zip(["1 counted run", "four times the last-level cache (128MiB)", "3 tasks share 2 CPUs"])
    {
        assert!(warning.contains(words), "{warnings:?}");
    }
    assert_eq!(warnings.len(), 3, "{warnings:?}");
}

#[test]
fn usual_sizes_fit_small_machines_and_exceed_caches_on_others() {
    for memory_gib in [1, 2, 8, 24, 512] {
        let host = host(memory_gib, 0);
        for scope in [Scope::Quick, Scope::Full] {
            let plan = Plan::new(&Options { scope, ..options(cases::ALL) }, &host).unwrap();
            for case in &plan.cases {
                assert!(case.job.size > 0 && case.job.size.is_multiple_of(HUGE_PAGE), "{memory_gib} GiB: {case:?}");
                for subject in &case.subjects {
                    assert!(subject.memory <= host.memory_bytes / 2, "{memory_gib} GiB, {}: {subject:?}", case.case);
                }
                assert!(memory_gib < 24 || case.job.size >= 128 << 20, "{}", case.case);
            }
            assert!(memory_gib < 24 || plan.warnings.is_empty(), "{:?}", plan.warnings);
        }
    }
}

#[test]
fn samples_share_hugetlb_pages_and_the_lack_of_them_names_its_remedy() {
    let mut options = options(&[ANON_W_SEQ]);
    (options.sizes, options.tasks) = (vec![64 << 20], Some(2));
    assert_eq!(Plan::new(&options, &host(24, 0)).unwrap().hugetlb_bytes(), 128 << 20);
    assert_eq!(lacks(&options, &host(24, 64), Settings::Fixed), []);
    let found = lacks(&options, &host(24, 3), Settings::Fixed);
    let [(subject, why)] = &found[..] else { panic!("{found:?}") };
    assert_eq!(subject, "kernel-hugetlb");
    for part in ["needs 64 free", "there are 3", "vm.nr_hugepages=64", "--tune"] {
        assert!(why.contains(part), "{why}");
    }
}

#[test]
fn switched_off_huge_pages_and_too_little_memory_are_reasons() {
    let mut options = options(&[SNAPSHOT]);
    options.sizes = vec![8 << 30];
    let mut host = host(12, 0);
    host.thp.enabled = "never".into();
    let found = lacks(&options, &host, Settings::Fixed);
    let why = |name: &str| found.iter().find(|(subject, _)| subject == name).map_or("", |(_, why)| why);
    assert!(why("fork-thp").contains("echo madvise >"), "{found:?}");
    assert!(why("memcpy").contains("needs 16384MiB of memory"), "{found:?}");
    assert!(!Plan::new(&options, &host).unwrap().subjects().any(|subject| subject.lack.is_some()), "not settled yet");
}

#[test]
fn each_size_and_each_block_is_a_work_and_each_is_run_once() {
    let mut options = options(&[CLEAR, SNAPSHOT, SNAPSHOT]);
    options.block_sizes = vec![BlockSize::MIB_2, BlockSize::KIB_64, BlockSize::MIB_2];
    options.sizes = vec![256 << 20, 1 << 30, 256 << 20];
    let plan = Plan::new(&options, &host(24, 0)).unwrap();
    let works: Vec<_> = plan.cases.iter().map(|case| (case.case, case.job.size >> 20, case.job.block_size)).collect();
    let (small, large) = (BlockSize::KIB_64, BlockSize::MIB_2);
    let clears = [256, 1024].map(|size| [(CLEAR, size, large), (CLEAR, size, small)]);
    let snapshots = [256, 1024].map(|size| (SNAPSHOT, size, large));
    assert_eq!(works, [clears.concat(), snapshots.to_vec()].concat());
}

#[test]
fn folios_that_only_a_setting_gives_need_tune() {
    let mut options = options(&[LAZY_FREE]);
    let sizes = |options: &Options| -> Vec<BlockSize> {
        Plan::new(options, &host(24, 0)).unwrap().cases.iter().map(|case| case.job.block_size).collect()
    };
    assert_eq!(sizes(&options), [BlockSize::KIB_4, BlockSize::MIB_2]);
    options.scope = Scope::Full;
    assert_eq!(sizes(&options).len(), 9);
    options.block_sizes = vec![BlockSize::KIB_64, BlockSize::MIB_2];
    assert!(Plan::new(&options, &host(24, 0)).unwrap().wants_folios());
    assert_eq!(lacks(&options, &host(24, 0), Settings::Lent), []);
    let found = lacks(&options, &host(24, 0), Settings::Fixed);
    assert!(found.len() == 1 && found[0].0 == "kernel" && found[0].1.contains("--tune"), "{found:?}");
}

#[test]
fn a_case_without_tasks_has_one() {
    let mut options = options(&[FIRST_TOUCH, ANON_W_SEQ]);
    let tasks = |options: &Options| -> Vec<usize> {
        Plan::new(options, &host(24, 0)).unwrap().cases.iter().map(|case| case.job.tasks).collect()
    };
    assert_eq!(tasks(&options), [1, 2]);
    options.tasks = Some(7);
    assert_eq!(tasks(&options), [1, 7]);
}
