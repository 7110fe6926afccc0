//! Tests of what a plan accepts and how it shares out memory.

use super::*;
use crate::cases::{
    self, anon_cow_seq, anon_w_seq, changes, clear_copy, lazy_free, reset, snapshot, writer_latency, zero_fault,
};
use crate::host::{Cache, HugetlbPool};
use crate::memory::thp::{Folio, Thp};
use crate::plan::writes::{AskedWrites, Density, Epoch, Pattern};
use crate::subject::Stock;

const CLEAR: &dyn Case = &clear_copy::CLEAR;
const ZERO_FAULT: &dyn Case = &zero_fault::ZeroFault;
const ANON_W_SEQ: &dyn Case = &anon_w_seq::AnonWSeq;
const ANON_COW_SEQ: &dyn Case = &anon_cow_seq::AnonCowSeq;
const SNAPSHOT: &dyn Case = &snapshot::Snapshot;
const WRITER_LATENCY: &dyn Case = &writer_latency::WriterLatency;
const LAZY_FREE: &dyn Case = &lazy_free::LazyFree;
const CHANGES: &dyn Case = &changes::Changes;
const RESET: &dyn Case = &reset::Reset;

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
    Options {
        cases: cases.to_vec(),
        scope: Scope::Quick,
        sizes: Vec::new(),
        tasks: None,
        block_sizes: None,
        backings: vec![Backing::Auto],
        writes: AskedWrites::default(),
        runs: 5,
        time_budget: None,
        subjects: None,
        command: None,
    }
}

fn refused(change: impl FnOnce(&mut Options)) -> String {
    let mut options = options(cases::ALL);
    change(&mut options);
    Plan::new(&options, &host(24, 0)).unwrap_err().0
}

#[test]
fn impossible_requests_name_their_option_and_a_way_out() {
    assert!(refused(|o| o.sizes = vec![0]).starts_with("--size 0: take a multiple of 2MiB"));
    assert!(refused(|o| o.sizes = vec![3 << 20]).contains("the nearest is 2MiB"));
    assert!(refused(|o| o.sizes = vec![4096]).contains("the nearest is 2MiB"));
    assert!(refused(|o| o.sizes = vec![1 << 40]).contains("larger than this machine's memory"));
    assert!(refused(|o| o.tasks = Some(0)).starts_with("--tasks 0"));
    assert!(refused(|o| o.tasks = Some(1 << 20)).contains("at most 1024"));
    assert!(refused(|o| o.runs = 0).starts_with("--runs 0"));
    let error = refused(|o| {
        o.cases = vec![CLEAR];
        o.subjects = Some(vec![Subject::ForkThp]);
    });
    assert!(error.starts_with("--subjects fork-thp: no chosen case has it") && error.contains("memset"), "{error}");
}

#[test]
fn few_runs_and_warm_caches_are_flagged() {
    let mut options = options(&[ZERO_FAULT]);
    options.runs = 1;
    options.sizes = vec![16 << 20];
    let plan = Plan::new(&options, &host(24, 0)).unwrap();
    assert!(plan.warnings[0].contains("1 counted run"), "{:?}", plan.warnings);
    assert!(plan.warnings[1].contains("four times the last-level cache (128MiB)"), "{:?}", plan.warnings);
}

#[test]
fn defaults_rotate_over_enough_and_fit_small_machines() {
    for memory_gib in [1, 2, 8, 24, 512] {
        let host = host(memory_gib, 0);
        for scope in [Scope::Quick, Scope::Full] {
            let plan = Plan::new(&Options { scope, ..options(cases::ALL) }, &host).unwrap();
            for case in &plan.cases {
                assert!(
                    case.job.size > 0 && case.job.size.is_multiple_of(case.job.stride()),
                    "{memory_gib} GiB: {case:?}"
                );
                for subject in &case.subjects {
                    assert!(subject.memory <= host.memory_bytes / 2, "{memory_gib} GiB, {}: {subject:?}", case.case);
                }
                if memory_gib >= 24 && case.case.facts().rotates {
                    assert!(case.job.size >= 128 << 20, "{}", case.case);
                }
            }
        }
    }
}

#[test]
fn a_block_larger_than_a_huge_page_is_the_stride() {
    let mut options = options(&[ZERO_FAULT]);
    options.block_sizes = Some(vec![BlockSize::new(8 << 20).unwrap()]);
    let plan = Plan::new(&options, &host(24, 0)).unwrap();
    assert_eq!(plan.cases[0].job.stride(), 8 << 20);
    options.block_sizes = Some(vec![BlockSize::KIB_4]);
    let plan = Plan::new(&options, &host(24, 0)).unwrap();
    assert_eq!(plan.cases[0].job.stride(), 2 << 20);
}

#[test]
fn hugetlb_pages_are_shared_out_and_who_gets_none_is_told_why() {
    let mut options = options(&[ANON_W_SEQ]);
    options.sizes = vec![64 << 20];
    options.tasks = Some(2);
    options.backings = vec![Backing::Hugetlb, Backing::Auto];
    options.subjects = Some(vec![Subject::Hugefork, Subject::KernelThp, Subject::KernelHugetlb, Subject::Kernel4k]);
    let lacks = |pages: usize| {
        let host = host(24, pages);
        let mut plan = Plan::new(&options, &host).unwrap();
        assert_eq!(plan.hugetlb_bytes(), 2 * (128 << 20), "one for hugefork, one for the kernel");
        plan.settle(&host, Settings::Fixed);
        plan.cases.remove(0).subjects
    };
    let without = |subjects: &[SubjectPlan]| -> Vec<String> {
        subjects.iter().filter(|subject| subject.lack.is_some()).map(|subject| subject.subject.to_string()).collect()
    };

    assert!(without(&lacks(128)).is_empty());
    assert_eq!(without(&lacks(64)), ["kernel-hugetlb"]);
    let none = lacks(0);
    assert_eq!(without(&none), ["hugefork", "kernel-hugetlb"]);
    let why = none.iter().find_map(|subject| subject.lack.clone()).unwrap();
    for part in ["backing hugetlb: ", "needs 64 free", "vm.nr_hugepages=64", "--tune"] {
        assert!(why.contains(part), "{why}");
    }
    // With `auto` it takes what there is.
    assert!(none.iter().any(|subject| subject.engine.is_some() && subject.lack.is_none()));
}

#[test]
fn with_memory_freed_between_samples_subjects_share_the_pages() {
    let mut options = options(&[SNAPSHOT]);
    options.sizes = vec![4 << 30];
    options.backings = vec![Backing::Hugetlb];
    let host = host(24, 2048);
    let mut plan = Plan::new(&options, &host).unwrap();
    assert!(plan.cases[0].subjects.iter().all(|subject| subject.keep == Keep::Freed));
    assert_eq!(plan.hugetlb_bytes(), 4 << 30);
    plan.settle(&host, Settings::Fixed);
    assert!(plan.cases[0].subjects.iter().all(|subject| subject.lack.is_none()));
}

#[test]
fn hugefork_makes_way_where_others_fork() {
    let plan = Plan::new(&options(&[ZERO_FAULT, ANON_COW_SEQ, SNAPSHOT]), &host(64, 0)).unwrap();
    let keeps = |case: usize| {
        let subjects = &plan.cases[case].subjects;
        (subjects[0].keep, subjects[1].keep)
    };
    assert_eq!(keeps(0), (Keep::Held, Keep::Held));
    assert_eq!(keeps(1), (Keep::Freed, Keep::Held));
    assert_eq!(keeps(2), (Keep::Freed, Keep::Held));
}

#[test]
fn switched_off_huge_pages_and_too_little_memory_are_told() {
    let mut options = options(&[SNAPSHOT]);
    options.sizes = vec![8 << 30];
    let mut host = host(12, 0);
    host.thp.enabled = "never".into();
    let mut plan = Plan::new(&options, &host).unwrap();
    assert!(plan.cases[0].subjects.iter().all(|subject| subject.keep == Keep::Freed));
    plan.settle(&host, Settings::Fixed);
    let lack = |subject: Subject| {
        plan.cases[0].subjects.iter().find(|planned| planned.subject == subject).unwrap().lack.clone()
    };
    assert!(lack(Subject::ForkThp).unwrap().contains("echo madvise >"));
    assert!(lack(Subject::Memcpy).unwrap().contains("needs 16GiB"));
    assert_eq!(lack(Subject::Fork4k), None);
}

#[test]
fn a_case_named_twice_runs_once() {
    let plan = Plan::new(&options(&[SNAPSHOT, SNAPSHOT]), &host(24, 0)).unwrap();
    assert_eq!(plan.cases.len(), 1);
}

#[test]
fn several_blocks_are_works_of_clear_and_subjects_of_pools() {
    let mut options = options(&[CLEAR, ZERO_FAULT]);
    options.block_sizes = Some(vec![BlockSize::MIB_2, BlockSize::KIB_64, BlockSize::MIB_2]);
    options.subjects = Some(vec![Subject::Hugefork, Subject::Memset, Subject::KernelThp]);
    let plan = Plan::new(&options, &host(24, 0)).unwrap();
    let what: Vec<(&dyn Case, BlockSize, usize)> =
        plan.cases.iter().map(|case| (case.case, case.job.block_size, case.subjects.len())).collect();
    assert_eq!(
        what,
        [
            (CLEAR, BlockSize::MIB_2, 2),
            (CLEAR, BlockSize::KIB_64, 2),
            // hugefork with each block size and the kernel once, since all use the same stride.
            (ZERO_FAULT, BlockSize::MIB_2, 3),
        ]
    );
    let blocks: Vec<BlockSize> = plan.cases[2].subjects.iter().filter_map(|s| s.engine).map(|e| e.block_size).collect();
    assert_eq!(blocks, [BlockSize::MIB_2, BlockSize::KIB_64]);
    options.block_sizes = Some(vec![BlockSize::KIB_4, BlockSize::GIB_1]);
    options.sizes = vec![256 << 20];
    assert!(Plan::new(&options, &host(24, 0)).unwrap_err().0.contains("not a multiple of 1GiB"));
}

#[test]
fn a_block_that_memory_has_no_room_for_does_not_run() {
    let mut options = options(&[CLEAR]);
    options.block_sizes = Some(vec![BlockSize::KIB_4, BlockSize::MIB_2, BlockSize::GIB_1]);
    let lacks = |host: &Host| -> Vec<Option<String>> {
        let mut plan = Plan::new(&options, host).unwrap();
        plan.settle(host, Settings::Fixed);
        plan.cases.iter().map(|case| case.subjects[0].lack.clone()).collect()
    };
    let mut small = host(24, 0);
    assert_eq!(lacks(&small), [None, None, None]);
    small.available_bytes = 512 << 20;
    let found = lacks(&small);
    assert_eq!(found[..2], [None, None]);
    assert!(found[2].as_ref().unwrap().contains("needs 1GiB of memory"), "{found:?}");
}

#[test]
fn stocks_belong_to_cases_with_first_writes() {
    let stocks = |scope| -> Vec<Vec<Stock>> {
        let cases = [ZERO_FAULT, ANON_W_SEQ, ANON_COW_SEQ];
        let plan = Plan::new(&Options { scope, ..options(&cases) }, &host(64, 0)).unwrap();
        plan.cases.iter().map(|c| c.subjects.iter().filter_map(|s| s.engine).map(|e| e.stock).collect()).collect()
    };
    let (both, without) = (vec![Stock::Without, Stock::Filled], vec![Stock::Without]);
    let with_default = vec![Stock::Without, Stock::Unused, Stock::Filled];
    assert_eq!(stocks(Scope::Quick), [with_default.clone(), both, without.clone()]);
    let all = vec![Stock::Without, Stock::Filled, Stock::Refilling];
    assert_eq!(stocks(Scope::Full), [with_default, all, without]);
}

/// Without one, its figures were those of the last rival, under its name.
#[test]
fn hugefork_has_an_engine_wherever_rivals_have_areas() {
    let options = Options { scope: Scope::Full, ..options(&[RESET, CHANGES, SNAPSHOT]) };
    for case in Plan::new(&options, &host(64, 0)).unwrap().cases {
        for planned in &case.subjects {
            let is_own = planned.subject.to_string().starts_with("hugefork");
            assert_eq!(planned.engine.is_some(), is_own, "{} of {}", planned.subject, case.case.name());
        }
    }
}

#[test]
fn pools_make_way_when_they_are_many() {
    let mut options = options(&[ANON_W_SEQ]);
    options.scope = Scope::Full;
    options.tasks = Some(2);
    options.sizes = vec![1 << 30];
    let keeps = |options: &Options| Plan::new(options, &host(24, 0)).unwrap().cases[0].subjects[0].keep;
    assert_eq!(keeps(&options), Keep::Held);
    options.backings = vec![Backing::ShmemHuge, Backing::ShmemBase, Backing::Auto];
    assert_eq!(keeps(&options), Keep::Freed, "nine pools of 2 GiB");
}

#[test]
fn writes_after_a_snapshot_are_sparse_or_dense() {
    let mut options = options(&[SNAPSHOT, WRITER_LATENCY]);
    let plan = Plan::new(&options, &host(64, 0)).unwrap();
    let densities = |plan: &Plan| -> Vec<Option<Density>> {
        plan.cases.iter().map(|case| case.job.writes.map(|writes| writes.density)).collect()
    };
    let quick = densities(&plan);
    assert!(quick[0].is_none() && quick.contains(&Some(Density::SPARSE)) && quick.contains(&Some(Density::DENSE)));
    assert!(quick.len() <= 4, "a quick run has a few: {quick:?}");
    for writes in plan.cases[1..].iter().filter_map(|case| case.job.writes) {
        assert_eq!((writes.pattern, writes.epoch), (Pattern::Random, Epoch::First));
    }
    options.scope = Scope::Full;
    let full = densities(&Plan::new(&options, &host(64, 0)).unwrap());
    assert!(Density::ALL.iter().all(|density| full.contains(&Some(*density))), "{full:?}");
    options.writes.densities = vec![Density::DENSE, "7".parse().unwrap()];
    options.writes.epochs = vec![Epoch::Third];
    let asked = Plan::new(&options, &host(64, 0)).unwrap();
    assert_eq!(densities(&asked), [None, Some(Density::DENSE), "7".parse().ok()]);
    options.cases = vec![SNAPSHOT];
    let refused = Plan::new(&options, &host(64, 0)).unwrap_err().0;
    assert!(refused.starts_with("--densities: is for writer-latency"), "{refused}");
    for case in &plan.cases[1..] {
        assert!(case.subjects.iter().all(|subject| subject.memory == 2 * case.job.size), "an area and its copy");
    }
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
    options.block_sizes = Some(vec![BlockSize::KIB_64, BlockSize::MIB_2]);
    let lacks = |settings| -> Vec<Option<String>> {
        let mut plan = Plan::new(&options, &host(24, 0)).unwrap();
        assert!(plan.wants_folios());
        plan.settle(&host(24, 0), settings);
        let kernels = plan.cases.iter().flat_map(|case| &case.subjects).filter(|s| s.subject == Subject::KernelFolios);
        kernels.map(|subject| subject.lack.clone()).collect()
    };
    assert_eq!(lacks(Settings::Lent), [None, None]);
    let fixed = lacks(Settings::Fixed);
    assert!(fixed[0].as_ref().unwrap().contains("--tune") && fixed[1].is_none(), "{fixed:?}");
}

#[test]
fn several_sizes_are_cases_one_after_the_other() {
    let mut options = options(&[SNAPSHOT, WRITER_LATENCY]);
    options.sizes = vec![256 << 20, 1 << 30, 256 << 20];
    let plan = Plan::new(&options, &host(24, 0)).unwrap();
    let what: Vec<(&dyn Case, usize)> = plan.cases.iter().map(|case| (case.case, case.job.size >> 20)).collect();
    let (snapshot, latency) = (SNAPSHOT, WRITER_LATENCY);
    let of = |case: &'static dyn Case, size: usize| {
        let times = case.usual_writes(Scope::Quick).len().max(1);
        std::iter::repeat_n((case, size), times)
    };
    let wanted = of(snapshot, 256).chain(of(snapshot, 1024)).chain(of(latency, 256)).chain(of(latency, 1024));
    assert_eq!(what, wanted.collect::<Vec<_>>());
    assert!(plan.cases.iter().all(|case| case.smaller.is_empty()), "a size that was asked for is not cut");
    assert!(refused(|o| o.sizes = vec![2 << 20, 3 << 20]).starts_with("--size 3MiB: not a multiple"));
}
