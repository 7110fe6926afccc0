//! Regions and snapshots as words, as values and in parts.

use std::io::{self, ErrorKind, Read, Write};
use std::panic::catch_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::common::alone::alone;
use crate::common::{Over, by_block, pool};
use bytemuck::{Pod, Zeroable};
use hugefork::{Backing, BlockSize, OwnedValues, Pool, Region, RegionError, Snapshot};

const BLOCK: usize = 2 << 20;

fn a_pool(blocks: usize) -> Pool {
    pool(Backing::Auto, blocks * BLOCK, BlockSize::MIB_2).unwrap()
}

fn word(bytes: &[u8], index: usize) -> u64 {
    u64::from_ne_bytes(bytes[index * 8..][..8].try_into().unwrap())
}

#[test]
fn every_increment_of_an_atomic_word_counts_beside_snapshots_and_forks() {
    alone(|| {
        const THREADS: u64 = 3;
        const EACH: u64 = 20_000;
        let region = a_pool(32).region(4 * BLOCK).unwrap();
        let counters = |words: &[AtomicU64]| (0..8).map(|at| words[at * words.len() / 8].load(Ordering::Relaxed)).sum();
        let sum_of = |bytes: &[u8]| (0..8).map(|at| word(bytes, at * bytes.len() / 64)).sum::<u64>();
        let running = AtomicU64::new(THREADS);
        let (mut taken, mut sum) = (0, 0);
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    let words = region.as_atomic_u64s();
                    (0..EACH).for_each(|round| {
                        words[round as usize % 8 * words.len() / 8].fetch_add(1, Ordering::Relaxed);
                    });
                    running.fetch_sub(1, Ordering::Release);
                });
            }
            while running.load(Ordering::Acquire) > 0 || taken < 10 {
                let (snapshot, fork) = (region.snapshot().unwrap(), region.fork().unwrap());
                let (of_snapshot, of_fork): (u64, u64) = (sum_of(&snapshot), counters(fork.as_atomic_u64s()));
                assert!(sum <= of_snapshot && of_snapshot <= of_fork, "{sum} {of_snapshot} {of_fork}");
                sum = of_fork;
                taken += 1;
            }
        });
        let total: u64 = counters(region.as_atomic_u64s());
        assert_eq!(total, THREADS * EACH);
        assert_eq!(region.as_atomic_u64s().len(), 4 * BLOCK / 8);
    })
    .well();
}

#[test]
fn parts_are_written_by_several_threads_while_another_takes_snapshots() {
    alone(|| {
        let mut region = a_pool(32).region(7 * BLOCK).unwrap();
        let (snapshots, parts) = region.writers_of::<u64>(3).unwrap();
        let starts = [0, 3 * BLOCK, 5 * BLOCK];
        assert_eq!(parts.iter().map(|part| part.len() * 8).collect::<Vec<_>>(), [3 * BLOCK, 2 * BLOCK, 2 * BLOCK]);
        let is_over = AtomicBool::new(false);
        let last = std::thread::scope(|scope| {
            let writers: Vec<_> = parts
                .into_iter()
                .map(|words| {
                    let is_over = &is_over;
                    scope.spawn(move || {
                        let end = words.len() - 1;
                        let mut round = 0;
                        while !is_over.load(Ordering::Relaxed) {
                            round += 1;
                            words.set(0, round);
                            // The compiler must not write the second word before the first, nor leave rounds out.
                            std::sync::atomic::compiler_fence(Ordering::SeqCst);
                            words.set(end, round);
                            std::sync::atomic::compiler_fence(Ordering::SeqCst);
                        }
                        round
                    })
                })
                .collect();
            let over = Over(&is_over);
            let mut before = [0; 3];
            for _ in 0..200 {
                let snapshot = snapshots.snapshot().unwrap();
                for (before, (start, len)) in before.iter_mut().zip(starts.into_iter().zip([3, 2, 2])) {
                    let part = &snapshot[start..start + len * BLOCK];
                    let (first, last) = (word(part, 0), word(part, part.len() / 8 - 1));
                    assert!(first == last || first == last + 1, "{first} {last}");
                    assert!(*before <= last, "{before} {last}");
                    *before = last;
                }
            }
            let fork = snapshots.fork().unwrap();
            assert_eq!((fork.len(), snapshots.stats().faults.snapshots), (7 * BLOCK, 201));
            drop(over);
            writers.into_iter().map(|writer| writer.join().unwrap()).collect::<Vec<_>>()
        });
        let written: Vec<_> = starts.iter().map(|&start| word(&region.as_mut_slice()[start..], 0)).collect();
        assert_eq!(written, last);
    })
    .well();
}

#[test]
fn parts_are_the_whole_region_however_many_are_asked_for() {
    let mut region = a_pool(8).region(5 * BLOCK).unwrap();
    for (count, blocks) in
        [(0, &[5][..]), (1, &[5]), (2, &[3, 2]), (4, &[2, 1, 1, 1]), (5, &[1; 5]), (usize::MAX, &[1; 5])]
    {
        let (_handle, parts) = region.writers_of::<u8>(count).unwrap();
        assert_eq!(parts.iter().map(|part| part.len() / BLOCK).collect::<Vec<_>>(), blocks, "{count}");
        (1..).zip(&parts).for_each(|(number, part)| part.fill(number));
        let expected: Vec<u8> = (1..).zip(blocks).flat_map(|(number, len)| vec![number; len * BLOCK]).collect();
        assert!(region.as_mut_slice() == expected, "{count}");
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
#[repr(C)]
struct Particle {
    at: [f32; 3],
    charge: i32,
    id: u64,
}

#[test]
fn plain_types_are_written_to_regions_and_read_from_snapshots() {
    let mut region = a_pool(8).region(2 * BLOCK).unwrap();
    let range = 8..8 + size_of::<Particle>() * 70_000;
    let particles = |count: u64| (0..count).map(|id| Particle { at: [id as f32; 3], charge: -1, id });
    for (place, particle) in region.slice_of_mut::<Particle>(range.clone()).unwrap().iter_mut().zip(particles(70_000)) {
        *place = particle;
    }
    let snapshot = region.snapshot().unwrap();
    region.slice_of_mut::<Particle>(range.clone()).unwrap()[69_999].charge = 2;
    assert!(snapshot.slice_of::<Particle>(range.clone()).unwrap().iter().copied().eq(particles(70_000)));
    assert_eq!(region.slice_of_mut::<Particle>(range).unwrap()[69_999].charge, 2);
    assert_eq!(snapshot.slice_of::<u8>(0..8).unwrap(), [0; 8]);
    assert_eq!(snapshot.slice_of::<[u64; 4]>(64..64).unwrap().len(), 0);
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(8192))]
struct Wide([u64; 1024]);

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Nothing;

#[test]
fn ranges_that_hold_no_whole_values_are_refused_with_the_reason() {
    fn check<T: Pod>(region: &mut Region, range: std::ops::Range<usize>, says: &[&str]) {
        let snapshot: Snapshot = region.snapshot().unwrap();
        let of_snapshot = snapshot.slice_of::<T>(range.clone()).map(<[T]>::len).unwrap_err();
        let of_region = region.slice_of_mut::<T>(range).map(|slice| slice.len()).unwrap_err();
        assert!(matches!(of_region, RegionError::NotAView { .. }), "{of_region}");
        assert_eq!(of_region, of_snapshot);
        says.iter().for_each(|part| assert!(of_region.to_string().contains(part), "`{part}` in {of_region}"));
    }
    let region = &mut a_pool(8).region(BLOCK).unwrap();
    let rule = "starts at a multiple of 8 and is a multiple of 8 bytes long";
    check::<u64>(region, 4..12, &["bytes 4..12 are no slice of u64", rule]);
    check::<u64>(region, 8..20, &[rule]);
    check::<Particle>(region, 0..23, &["Particle", "a multiple of 8 and is a multiple of 24 bytes long"]);
    check::<Wide>(region, 0..4096, &["a multiple of 8192 bytes long"]);
    check::<Wide>(region, 4096..4096 + 8192, &["starts at a multiple of 8192"]);
    check::<Nothing>(region, 0..4, &["it takes no bytes"]);
    let outside = region.slice_of_mut::<u64>(BLOCK..BLOCK + 8).unwrap_err();
    assert!(matches!(outside, RegionError::OutOfRange { .. }), "{outside}");
    assert_eq!(io::Error::from(outside).kind(), ErrorKind::InvalidInput);
}

/// A writer that accepts this many bytes, and then refuses more.
struct Full(usize);

impl Write for Full {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(self.0);
        self.0 -= taken;
        if taken == 0 { Err(ErrorKind::StorageFull.into()) } else { Ok(taken) }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_snapshot_is_written_as_it_was() {
    let pool = a_pool(8);
    let mut region = pool.region(2 * BLOCK).unwrap();
    for (at, byte) in region.as_mut_slice()[..BLOCK + BLOCK / 2].iter_mut().enumerate() {
        *byte = (at % 251) as u8;
    }
    let snapshot = region.snapshot().unwrap();
    region.as_mut_slice().fill(9);
    for range in [0..2 * BLOCK, 5..5, 77..78, BLOCK - 1000..2 * BLOCK - 1] {
        let mut written = Vec::new();
        snapshot.write_to(&mut written, range.clone()).unwrap();
        let mut read = Vec::new();
        assert_eq!(snapshot.reader(range.clone()).unwrap().read_to_end(&mut read).unwrap(), range.len());
        assert!(read == written);
        let expected = range.map(|at| if at < BLOCK + BLOCK / 2 { (at % 251) as u8 } else { 0 }).collect::<Vec<_>>();
        assert!(written == expected);
    }
    let outside = snapshot.write_to(Vec::new(), 1..2 * BLOCK + 1).unwrap_err();
    assert_eq!(outside.kind(), ErrorKind::InvalidInput);
    assert!(matches!(snapshot.reader(1..2 * BLOCK + 1), Err(RegionError::OutOfRange { .. })));
    assert_eq!(snapshot.write_to(Full(BLOCK), 0..2 * BLOCK).unwrap_err().kind(), ErrorKind::StorageFull);
}

#[test]
fn what_was_taken_away_from_a_snapshot_is_an_error_when_it_is_written() {
    let pool = a_pool(4);
    let mut region = pool.region_with(2 * BLOCK, by_block()).unwrap();
    region.as_mut_slice().fill(1);
    let snapshot = region.snapshot().unwrap();
    let rest = pool.region(2 * BLOCK).unwrap();
    rest.populate().unwrap();
    region.as_mut_slice()[BLOCK] = 2;
    assert!(snapshot.is_revoked());
    let mut written = Vec::new();
    let error = snapshot.write_to(&mut written, 0..2 * BLOCK).unwrap_err();
    assert_eq!(error.get_ref().and_then(|inner| inner.downcast_ref()), Some(&RegionError::Revoked));
    assert!(written == vec![1; BLOCK]);
    let error = snapshot.reader(BLOCK..2 * BLOCK).unwrap().read(&mut [0; 9]).unwrap_err();
    assert_eq!(error.get_ref().and_then(|inner| inner.downcast_ref()), Some(&RegionError::Revoked));
}

#[test]
fn a_child_of_fork_is_given_no_view_of_what_it_does_not_have() {
    alone(|| {
        let mut region = a_pool(8).region(BLOCK).unwrap();
        region.as_mut_slice()[0] = 1;
        let snapshot = region.snapshot().unwrap();
        let shared = Arc::new(snapshot.fork().unwrap());
        let owned = OwnedValues::<u64>::of(shared, 0..8).unwrap();
        // SAFETY: no other thread of this process uses anything that the child uses.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: a child that hangs ends with SIGALRM.
            unsafe { libc::alarm(300) };
            let panics = |body: &mut (dyn FnMut() + Send)| {
                catch_unwind(std::panic::AssertUnwindSafe(body)).unwrap_err().downcast::<String>().unwrap()
            };
            let expected = format!("a region cannot be borrowed: {}", RegionError::ForkedChild);
            let refused = panics(&mut || region.as_mut_slice()[0] = 2).as_str() == expected
                && panics(&mut || region.as_atomic_u64s()[0].store(2, Ordering::Relaxed)).as_str() == expected
                && panics(&mut || owned.values().set(0, 2)).as_str() == expected
                && region.writers_of::<u8>(2).is_err_and(|error| error == RegionError::ForkedChild)
                && region.slice_of_mut::<u64>(0..8) == Err(RegionError::ForkedChild)
                && snapshot.slice_of::<u64>(0..8) == Err(RegionError::ForkedChild)
                && snapshot.write_to(io::sink(), 0..8).is_err()
                && region.read_from(io::stdin(), 0..8).is_err_and(|error| error.reason == RegionError::ForkedChild);
            // SAFETY: ends the process.
            unsafe { libc::_exit(i32::from(!refused)) };
        }
        let mut status = 0;
        // SAFETY: writes the status.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0);
        assert_eq!(region.as_mut_slice()[0], 1);
    })
    .well();
}

/// A type whose size is not a whole word and not a power of two.
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
#[repr(C)]
struct Pixel {
    red: u16,
    green: u16,
    blue: u16,
}

/// A type of 7 KiB.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Large {
    first: [u64; 512],
    second: [u64; 256],
    third: [u64; 128],
}

#[test]
fn a_value_that_is_larger_than_a_block_lies_in_one_part_or_none() {
    fn lengths<T: Pod>(region: &mut Region) -> Vec<usize> {
        let (_handle, parts) = region.writers_of::<T>(3).unwrap();
        parts.iter().for_each(|part| (0..part.len()).for_each(|nth| part.set(nth, T::zeroed())));
        parts.iter().map(|part| part.len()).collect()
    }
    let pool = Pool::builder().capacity(12 << 10).block_size(BlockSize::KIB_4).build().unwrap();
    let mut region = pool.region(12 << 10).unwrap();
    assert_eq!(lengths::<Large>(&mut region), [1, 0, 0]);
    assert_eq!(lengths::<[u64; 2048]>(&mut region), [0, 0, 0]);
}

#[test]
fn values_of_any_size_and_width_are_what_was_set() {
    alone(|| {
        fn check<T: Pod + PartialEq + std::fmt::Debug + Send>(region: &mut Region, value: impl Fn(usize) -> T + Sync) {
            let (handle, parts) = region.writers_of::<T>(3).unwrap();
            let count: usize = parts.iter().map(|part| part.len()).sum();
            assert_eq!(count, 4 * BLOCK / size_of::<T>());
            let firsts = [0, parts[0].len(), parts[0].len() + parts[1].len()];
            let value = &value;
            std::thread::scope(|scope| {
                for (part, first) in parts.iter().zip(firsts) {
                    scope.spawn(move || (0..part.len()).step_by(509).for_each(|nth| part.set(nth, value(first + nth))));
                }
            });
            let saved = handle.snapshot().unwrap();
            let range = 0..count * size_of::<T>();
            let values = saved.slice_of::<T>(range.clone()).unwrap();
            for (part, first) in parts.iter().zip(&firsts) {
                for nth in (0..part.len()).step_by(509) {
                    assert_eq!((part.get(nth), values[first + nth]), (value(first + nth), value(first + nth)));
                }
            }
            let last = parts[2].len() - 1;
            parts[2].write(last - 1, &[value(1), value(2)]);
            let mut read = [value(0); 2];
            parts[2].read(last - 1, &mut read);
            assert_eq!(read, [value(1), value(2)]);
            handle.reset_to(&saved).unwrap();
            assert!(parts[2].iter().eq(values[firsts[2]..].iter().copied()));
            assert_eq!(region.slice_of_mut::<T>(range).unwrap(), values);
        }
        let pool = a_pool(64);
        let mut region = pool.region(4 * BLOCK).unwrap();
        check(&mut region, |nth| nth as u8);
        check(&mut region, |nth| nth as f32);
        check(&mut region, |nth| nth as u64);
        check(&mut region, |nth| nth as u128 * 3);
        check(&mut region, |nth| Pixel { red: nth as u16, green: 1, blue: !nth as u16 });
        check(&mut region, |nth| [nth as u64, 7, 9]);
    })
    .well();
}

#[test]
fn shared_values_are_whole_words_and_stay_inside() {
    let region = a_pool(8).region(BLOCK).unwrap();
    assert_eq!(region.values_of::<[u32; 2]>(8..64).unwrap().len(), 7);
    let refused = |range| region.values_of::<[u32; 2]>(range).unwrap_err();
    assert!(matches!(refused(4..12), RegionError::NotAView { align: 8, .. }));
    assert!(matches!(refused(0..12), RegionError::NotAView { size: 8, .. }));
    assert!(matches!(refused(0..BLOCK + 8), RegionError::OutOfRange { .. }));
    assert!(matches!(region.values_of::<f32>(0..8).unwrap_err(), RegionError::NotWords { size: 4, .. }));
    assert!(matches!(region.values_of::<()>(0..8).unwrap_err(), RegionError::NotAView { .. }));
    let values = region.values_of::<u64>(0..64).unwrap();
    let (low, high) = values.split_at(3);
    assert_eq!((low.len(), high.len(), values.split_at(8).1.is_empty()), (3, 5, true));
    high.set(0, 5);
    assert_eq!((values.get(3), region.as_atomic_u64s()[3].load(Ordering::Relaxed)), (5, 5));
    let panics = |body: &dyn Fn()| catch_unwind(std::panic::AssertUnwindSafe(body)).is_err();
    assert!(panics(&|| _ = low.get(3)) && panics(&|| low.set(3, 1)) && panics(&|| _ = values.split_at(9)));
    assert!(panics(&|| values.write(7, &[1, 2])) && panics(&|| values.read(usize::MAX, &mut [1])));
}
