//! Each rival takes three snapshots of a small area, with everything checked, and its figures fit together.

use ::hugefork::{Backing, BlockSize, CopyGrain, Fallback};

use super::measured::AMPLIFICATION;
use super::words::{BIAS, Words};
use super::*;
use crate::cases::rival::Rival;
use crate::measure::random::Random;
use crate::memory::kernel_memory::HUGE_PAGE;
use crate::plan::job::{EngineChoice, Keep};
use crate::results::metric::Measure;
use crate::subject::Stock;

const SIZE: usize = 64 << 20;

fn planned(subject: Subject) -> SubjectPlan {
    let engine = subject.stock().map(|stock| EngineChoice {
        block_size: BlockSize::MIB_2,
        stock,
        grain: subject.grain(),
        backing: Backing::Auto,
        fallback: Fallback::Allowed,
    });
    SubjectPlan { subject, engine, memory: 2 * SIZE, keep: Keep::Held, lack: None }
}

fn ground() -> Ground {
    Ground { size: SIZE, cpu: crate::measure::affinity::allowed_cpus()[0] }
}

/// The words that a sample of this seed writes in its last epoch.
fn words(writes: Writes, seed: u64) -> Words {
    let (mut words, mut targets) = (Words::new(SIZE, writes).unwrap(), Random::new(seed));
    words.begin(&mut targets);
    for epoch in 1..=writes.epoch.number() {
        words.draw(epoch, &mut targets);
    }
    words
}

/// A sample, or nothing if the machine lacks what the subject stands on.
fn sampled(subject: &Subject, writes: Writes) -> Option<Vec<Measure>> {
    let mut work = work(&planned(subject.clone()), ground(), writes);
    match work.prepare() {
        Err(error) if error.is_lack() => {
            let told = format!("skipped: {subject}: {error}\n");
            let _ = std::io::Write::write_all(&mut std::io::stderr(), told.as_bytes());
            return None;
        }
        prepared => prepared.unwrap(),
    }
    Some(work.sample(&mut Random::new(3)).unwrap_or_else(|error| panic!("{subject}: {error}")))
}

fn value(measures: &[Measure], name: &str) -> f64 {
    measures.iter().find(|measure| measure.metric.name() == name).unwrap_or_else(|| panic!("no {name}")).value
}

#[test]
fn every_subject_keeps_three_snapshots_in_every_pattern() {
    let third = Writes { epoch: Epoch::Third, ..Writes::first(Density::DENSE) };
    for subject in WriterLatency.subjects(Scope::Full) {
        for writes in [third, Writes { pattern: Pattern::Clustered, ..third }] {
            let Some(measures) = sampled(&subject, writes) else { continue };
            let of = |name| value(&measures, name);
            assert!((of("pause") + of("total") - of("taken")).abs() < 1e-9, "{subject}");
            assert!((of("call") + of("total") - of("all")).abs() < 1e-9, "{subject}");
            assert!(of("call") >= of("pause") && of("pause") > 0.0 && of("max") >= of("p50"), "{subject}");
        }
    }
}

#[test]
fn amplification_is_what_the_module_says() {
    let writes = Writes::first(Density::SPARSE);
    let words = words(writes, 3);
    let of = |piece: usize| (words.distinct(piece) * piece) as f64 / (words.distinct(8) * 8) as f64;
    let pages = [Subject::Fork4k, Subject::ForkThp, Subject::MemfdPrivate];
    let blocks = [Subject::HugeforkBlock];
    for (subjects, piece) in [(&pages[..], 4096), (&blocks[..], HUGE_PAGE)] {
        for subject in subjects {
            let Some(measures) = sampled(subject, writes) else { continue };
            let found = value(&measures, AMPLIFICATION.name());
            // The thread's own stack and lists may take a few faults more.
            assert!((of(piece)..of(piece) * 1.05).contains(&found), "{subject}: {found}, at least {}", of(piece));
        }
    }
}

#[test]
fn pages_that_the_kernel_copies_for_hugefork_count_once() {
    let choice = |grain| EngineChoice { grain, ..planned(Subject::Hugefork).engine.unwrap() };
    let words = words(Writes::first(Density::SPARSE), 3);
    let (blocks, pages) = (words.distinct(HUGE_PAGE), words.distinct(4096));
    let counted = |grain, copied, faults| {
        HugeforkRival::new(choice(grain)).pages_copied(copied, &|piece| words.distinct(piece), faults) / 4096
    };
    assert_eq!(counted(CopyGrain::Page, 0, pages - 5), pages - 5);
    assert_eq!(counted(CopyGrain::Auto, 3, 13), 10, "each block that was copied is mapped by a fault");
    assert_eq!(counted(CopyGrain::Page, 0, pages + 100), pages);
    assert_eq!(counted(CopyGrain::Auto, blocks, 1 << 20), 0);
    assert_eq!(counted(CopyGrain::Block, 0, 100), 0);
}

#[test]
fn memory_for_pages_that_the_kernel_copies_is_warmed() {
    // More than there are addresses: whoever touches it fails.
    let (huge, cpus) = (1 << 50, [ground().cpu]);
    let of = |subject: Subject| HugeforkRival::new(planned(subject).engine.unwrap());
    for subject in [Subject::Hugefork, Subject::HugeforkPage] {
        assert!(of(subject).warm(huge, &cpus).is_err());
    }
    for subject in [Subject::HugeforkBlock, Subject::HugeforkDefault] {
        of(subject).warm(huge, &cpus).unwrap();
    }
}

#[test]
fn a_pool_that_may_stay_is_used_again() {
    let mut rival = HugeforkRival::new(planned(Subject::Hugefork).engine.unwrap());
    assert_eq!(rival.pool().map(|_| ()), None);
    rival.populate(SIZE, BIAS).unwrap();
    let start = rival.start();
    rival.end_sample();
    rival.populate(SIZE, BIAS).unwrap();
    assert_eq!(rival.start(), start);
    let unused = EngineChoice { stock: Stock::Unused, ..planned(Subject::Hugefork).engine.unwrap() };
    let mut rival = HugeforkRival::new(unused);
    rival.populate(SIZE, BIAS).unwrap();
    rival.populate(SIZE, BIAS).unwrap();
    rival.release();
    assert!(rival.pool().is_none());
}
