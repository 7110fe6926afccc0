//! `Region::in_child`: work on snapshots in a child, and its answer.

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::{BLOCK, builder, close_from, until_free};
use crate::common::Over;
use crate::common::alone::alone;
use crate::common::wait::until;
use hugefork::{Pool, Region, RegionError};

#[test]
fn work_in_a_child_sees_older_snapshots_and_its_result_panic_and_end_come_back() {
    let ended = alone(|| {
        let pool = builder(32).build().unwrap();
        let (mut old, mut live) = (pool.region(3 * BLOCK).unwrap(), pool.region(BLOCK).unwrap());
        let mut snapshots = Vec::new();
        for round in 1..=3u8 {
            old.as_mut_slice()[..BLOCK + 5].fill(round);
            snapshots.push(old.snapshot().unwrap());
            live.as_mut_slice()[0] = round;
        }
        let (of_old, of_live) = (old.as_ptr(), live.as_ptr());
        // SAFETY: the child's own memory, which nobody writes to.
        let bytes =
            || unsafe { [of_old.read(), of_old.add(BLOCK + 4).read(), of_old.add(BLOCK + 5).read(), of_live.read()] };
        for (nth, snapshot) in snapshots.iter().enumerate() {
            old.as_mut_slice()[..2 * BLOCK].fill(9);
            // SAFETY: the process has no other thread but the engine's.
            let child = unsafe { Region::in_child(&[(&old, snapshot)], || bytes().to_vec()) }.unwrap();
            old.as_mut_slice().fill(7);
            let round = nth as u8 + 1;
            assert_eq!(child.wait().unwrap(), [round, round, 0, 3]);
        }
        // SAFETY: as above.
        let child = unsafe { Region::in_child(&[(&old, &snapshots[0])], || panic!("no {}", 7)) }.unwrap();
        assert_eq!(child.wait().unwrap_err().to_string(), "the child has panicked: no 7");
        // SAFETY: as above; the child ends itself.
        let child = unsafe {
            Region::in_child(&[(&old, &snapshots[0])], || {
                libc::kill(libc::getpid(), libc::SIGKILL);
                Vec::new()
            })
        };
        let error = child.unwrap().wait().unwrap_err().to_string();
        assert!(error.contains("without an answer: signal: 9"), "{error}");
        // A region and a snapshot that no child can have are an error, and leave no child.
        let refused = |pairs: &[(&Region, &hugefork::Snapshot)]| {
            // SAFETY: as above.
            unsafe { Region::in_child(pairs, Vec::new) }.map(drop).unwrap_err()
        };
        let (other_pool, without) = (builder(4).build().unwrap(), Pool::builder().capacity(4 * BLOCK).build().unwrap());
        let other = other_pool.region(3 * BLOCK).unwrap();
        assert!(matches!(refused(&[(&other, &snapshots[0])]), RegionError::AnotherPool { .. }));
        assert!(matches!(refused(&[(&live, &snapshots[0])]), RegionError::AnotherLength { .. }));
        let plain = without.region(BLOCK).unwrap();
        let of_plain = plain.snapshot().unwrap();
        let error = refused(&[(&plain, &of_plain)]);
        assert!(matches!(error, RegionError::NotExportable { .. }), "{error}");
        assert!(error.to_string().ends_with("build the pool with children(Children::Inherit)"), "{error}");
        // SAFETY: forks nothing.
        let not_forked = unsafe {
            Region::fork_process_with(&[(&old, &snapshots[0])], || Err(std::io::ErrorKind::OutOfMemory.into()))
        };
        assert_eq!(not_forked.unwrap_err().to_string(), "fork failed: input/output error (EIO)");
        close_from(3);
        let lost = refused(&[(&old, &snapshots[0])]);
        assert!(matches!(lost, RegionError::System(_)), "{lost}");
        // SAFETY: writes nothing.
        assert_eq!(unsafe { libc::waitpid(-1, std::ptr::null_mut(), 0) }, -1, "a child is left");
    });
    assert!(!ended.stderr.contains("has no regions"), "{ended}");
    ended.well();
}

#[test]
fn work_in_a_child_begins_only_if_the_child_has_the_regions() {
    alone(|| {
        // No pool inherits, so libc calls no handler of the engine.
        let pool = Pool::builder().capacity(4 * BLOCK).build().unwrap();
        let region = pool.region(BLOCK).unwrap();
        let saved = region.snapshot().unwrap();
        // SAFETY: the process has no other thread but the engine's.
        let refused = unsafe { Region::in_child(&[(&region, &saved)], Vec::new) }.map(drop).unwrap_err();
        assert!(matches!(refused, RegionError::NotExportable { .. }), "{refused}");
        // SAFETY: writes nothing.
        assert_eq!(unsafe { libc::waitpid(-1, std::ptr::null_mut(), 0) }, -1, "a child is left");
    })
    .well();
}

#[test]
fn the_result_of_work_in_a_child_waits_for_no_other_child() {
    alone(|| {
        let pool = builder(16).build().unwrap();
        let region = pool.region(BLOCK).unwrap();
        let saved = region.snapshot().unwrap();
        let (over, results) = (AtomicBool::new(false), AtomicUsize::new(0));
        let in_child = |work: fn() -> Vec<u8>| {
            // SAFETY: the work takes no lock.
            unsafe { Region::in_child(&[(&region, &saved)], work) }.unwrap()
        };
        std::thread::scope(|scope| {
            let forker = scope.spawn(|| {
                let mut waiting = Vec::new();
                while !over.load(Ordering::Relaxed) {
                    // One for each result, however fast the machine is.
                    if waiting.len() > results.load(Ordering::Relaxed) {
                        std::thread::yield_now();
                        continue;
                    }
                    waiting.push(in_child(|| {
                        // SAFETY: sleeps until a signal ends it.
                        unsafe { (libc::alarm(600), libc::pause()) };
                        Vec::new()
                    }));
                }
                waiting
            });
            let stop = Over(&over);
            for _ in 0..300 {
                assert_eq!(in_child(|| vec![7; 100_000]).wait().unwrap(), [7; 100_000]);
                results.fetch_add(1, Ordering::Relaxed);
            }
            drop(stop);
            for child in forker.join().unwrap() {
                // SAFETY: a child of this test.
                assert_eq!(unsafe { libc::kill(child.id().cast_signed(), libc::SIGKILL) }, 0);
                assert!(child.wait().unwrap_err().to_string().contains("signal: 9"));
            }
        });
        drop((region, saved));
        until_free(&pool, 16);
    })
    .well();
}

#[test]
fn a_child_can_be_asked_whether_it_has_ended() {
    alone(|| {
        let pool = builder(16).build().unwrap();
        let region = pool.region(BLOCK).unwrap();
        let saved = region.snapshot().unwrap();
        let mut ends = [0; 2];
        // SAFETY: makes two descriptors.
        assert_eq!(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) }, 0);
        let in_child = |work: &dyn Fn() -> Vec<u8>| {
            // SAFETY: the process has no other thread but the engine's.
            unsafe { Region::in_child(&[(&region, &saved)], work) }.unwrap()
        };
        let mut child = in_child(&|| {
            // SAFETY: reads a byte, or waits for the end of the parent.
            unsafe { (libc::close(ends[1]), libc::read(ends[0], [0_u8].as_mut_ptr().cast(), 1)) };
            vec![7; 3]
        });
        assert!((0..3).all(|_| child.try_wait().unwrap().is_none()));
        // SAFETY: the child waits for this.
        assert_eq!(unsafe { libc::close(ends[1]) }, 0);
        let mut result = None;
        until("the end of the child", || {
            result = child.try_wait().unwrap();
            result.is_some()
        });
        assert_eq!((result, child.try_wait().unwrap()), (Some(vec![7; 3]), Some(vec![7; 3])));
        assert_eq!(child.wait().unwrap(), [7; 3]);
        let mut child = in_child(&|| panic!("no"));
        until("the panic of the child", || child.try_wait().is_err());
        assert_eq!(child.try_wait().unwrap_err().to_string(), "the child has panicked: no");
        assert_eq!(child.wait().unwrap_err().to_string(), "the child has panicked: no");
    })
    .well();
}

/// A process may have its children's ends ignored, so that there is no exit status.
#[test]
fn an_answer_that_a_child_could_not_complete_is_none() {
    alone(|| {
        // SAFETY: sets a disposition.
        unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
        let pool = builder(16).build().unwrap();
        let region = pool.region(BLOCK).unwrap();
        let saved = region.snapshot().unwrap();
        let in_child = |len: usize| {
            let work = move || {
                let most = libc::rlimit { rlim_cur: 1 << 20, rlim_max: 1 << 20 };
                // SAFETY: limits the child's files, and has it end at the limit.
                unsafe { (libc::setrlimit(libc::RLIMIT_FSIZE, &most), libc::signal(libc::SIGXFSZ, libc::SIG_DFL)) };
                vec![7; len]
            };
            // SAFETY: the process has no other thread but the engine's.
            unsafe { Region::in_child(&[(&region, &saved)], work) }.unwrap().wait()
        };
        assert_eq!(in_child(1000).unwrap(), [7; 1000]);
        let error = in_child(2 << 20).unwrap_err().to_string();
        assert!(error.contains("without an answer"), "{error}");
    })
    .well();
}

/// The work, or this process, closes all descriptors, and opens files of its own.
#[test]
fn an_answer_goes_to_no_file_of_the_program_and_comes_from_none() {
    alone(|| {
        let pool = builder(16).build().unwrap();
        let region = pool.region(BLOCK).unwrap();
        let saved = region.snapshot().unwrap();
        let folder = std::env::temp_dir().join(format!("hugefork-answer-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let scratch = |nth: usize| folder.join(nth.to_string());
        let open_files = || {
            close_from(3);
            let files: Vec<_> = (0..50).map(|nth| std::fs::File::create(scratch(nth)).unwrap()).collect();
            // The answer may have had a number that is high.
            let of_last = std::os::fd::AsRawFd::as_raw_fd(&files[49]);
            for number in 900..910 {
                // SAFETY: makes a descriptor, which stays open.
                assert_eq!(unsafe { libc::dup2(of_last, number) }, number);
            }
            std::mem::forget(files);
        };
        let lens = || (0..50).map(|nth| std::fs::metadata(scratch(nth)).unwrap().len()).collect::<Vec<_>>();
        let in_child = |work: &dyn Fn() -> Vec<u8>| {
            // SAFETY: the process has no other thread but the engine's.
            unsafe { Region::in_child(&[(&region, &saved)], work) }.unwrap()
        };
        let child = in_child(&|| {
            open_files();
            vec![7; 1000]
        });
        let error = child.wait().unwrap_err().to_string();
        assert!(error.contains("without an answer: exit status: 1"), "{error}");
        assert_eq!(lens(), [0; 50]);
        let child = in_child(&|| vec![7; 1000]);
        open_files();
        let error = child.wait().unwrap_err().to_string();
        assert!(error.contains("which the program has closed or replaced"), "{error}");
        assert_eq!(lens(), [0; 50]);
        (3..910).for_each(|number| {
            // SAFETY: asks whether it is open.
            let is_open = unsafe { libc::fcntl(number, libc::F_GETFD) } >= 0;
            assert_eq!(is_open, !(53..900).contains(&number), "{number}");
        });
        std::fs::remove_dir_all(&folder).unwrap();
    })
    .well();
}
