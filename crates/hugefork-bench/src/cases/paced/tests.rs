//! Each subject keeps what was put when a snapshot was taken, and the check sees a snapshot that does not.

use std::cell::RefCell;

use ::hugefork::{Backing, BlockSize, Fallback};

use super::puts::{BIAS, SLOT, value};
use super::*;
use crate::plan::job::{EngineChoice, Keep};

const SIZE: usize = 64 << 20;
/// What is checked holds however late a put or a snapshot is.
const SCHEDULE: Schedule = Schedule { size: SIZE, keys: None, period: Duration::from_millis(20), snapshots: 3 };

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

#[test]
fn every_subject_keeps_what_was_put() {
    for subject in Paced.subjects(Scope::Full) {
        for keys in [None, Some(100)] {
            let schedule = Schedule { keys, ..SCHEDULE };
            let planned = planned(subject.clone());
            let mut work: Box<dyn Work> = match planned.engine {
                Some(choice) => Box::new(Paces::new(HugeforkRival::new(choice), schedule)),
                None => Box::new(Paces::new(ForkRival::new(planned.pages()), schedule)),
            };
            match work.prepare() {
                Err(error) if error.is_lack() => {
                    let told = format!("skipped: {subject}: {error}\n");
                    let _ = std::io::Write::write_all(&mut std::io::stderr(), told.as_bytes());
                    continue;
                }
                prepared => prepared.unwrap(),
            }
            let measures = work.sample(&mut Random::new(3)).unwrap_or_else(|error| panic!("{subject}: {error}"));
            let of = |name| measures.iter().find(|measure| measure.metric.name() == name).unwrap().value;
            assert!(of("p50") <= of("p99") && of("p99") <= of("p99.9") && of("p99.9") <= of("max"), "{subject}");
            // A machine so busy that no put had its CPU tells of none.
            assert!(of("own_max") >= 0.0 && of("call") > 0.0, "{subject}");
        }
    }
}

/// Puts of a thread into an area of its own, done one by one.
fn puts() -> (Puts, RefCell<Vec<u64>>) {
    let mut puts = Puts::new(1_000).unwrap();
    puts.draw(0, 1, 64 * SLOT, None, &mut Random::new(5));
    (puts, RefCell::new((0..64 * SLOT / 8).map(|word| word as u64 + BIAS).collect()))
}

fn put(puts: &Puts, area: &RefCell<Vec<u64>>, which: std::ops::Range<usize>) {
    let shared = puts.shared();
    for nth in which {
        // SAFETY: within the list, which lives.
        let first = unsafe { shared.offset(nth) } / 8;
        area.borrow_mut()[first..first + SLOT / 8].fill(value(nth + 1));
        // SAFETY: as above; no other thread has it.
        unsafe { shared.done(nth, 1) };
    }
}

#[test]
fn a_snapshot_that_lacks_a_put_or_has_one_too_many_shows() {
    let (puts, area) = puts();
    put(&puts, &area, 0..100);
    let earlier = area.borrow().clone();
    put(&puts, &area, 100..200);
    puts.cut(Cut { before: 200, until: 201 }, true);
    let kept = area.borrow().clone();
    put(&puts, &area, 200..400);
    puts.check_written(|offset| area.borrow()[offset / 8]).unwrap();
    puts.check_kept(|offset| kept[offset / 8]).unwrap();
    assert!(puts.check_kept(|offset| earlier[offset / 8]).is_err(), "it lacks puts");
    assert!(puts.check_kept(|offset| area.borrow()[offset / 8]).is_err(), "it has later puts");
    assert!(puts.check_written(|offset| kept[offset / 8]).is_err());
    assert_eq!(puts.latencies().len(), 200, "those since the first snapshot");
}

#[test]
fn a_cut_may_go_through_a_put_but_not_backwards() {
    let (puts, area) = puts();
    put(&puts, &area, 0..100);
    puts.cut(Cut { before: 100, until: 101 }, true);
    let mut kept = area.borrow().clone();
    put(&puts, &area, 100..101);
    // SAFETY: within the list, which lives.
    let first = unsafe { puts.shared().offset(100) } / 8;
    kept[first..first + 3].fill(value(101));
    puts.check_kept(|offset| kept[offset / 8]).unwrap();
    kept[first + 7] = value(101);
    assert!(puts.check_kept(|offset| kept[offset / 8]).is_err());
}

/// However slow the machine is: the figures are those of puts that come after it.
#[test]
fn a_thread_leaves_some_puts_until_there_is_a_snapshot() {
    let (puts, area) = puts();
    let mut memory: Vec<u64> = area.borrow().clone();
    let (area, shared) = (AreaStart(memory.as_mut_ptr().cast()), puts.shared());
    let pace = Pace { start: clock::now(), tick: 1_000, puts: 10 };
    thread::scope(|scope| {
        // SAFETY: the area and the lists outlive the scope; nobody else puts.
        scope.spawn(move || unsafe { writer::run(area, shared, pace) });
        while puts.done() < 990 {
            thread::yield_now();
        }
        puts.cut(Cut { before: puts.done(), until: puts.done() + 1 }, true);
    });
    assert_eq!((puts.first(), puts.done()), (990, 1_000));
}
