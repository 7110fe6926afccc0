//! Exports of snapshots to other processes: what these see, that they can change nothing, how long an export lasts, and
//! its errors.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::alone::alone;
use crate::common::forked::{check_fork, in_fork};
use crate::common::seccomp::{every, refuse, with};
use crate::common::{BACKINGS, Over, by_block, exporting};
use hugefork::{
    Backing, BlockSize, CopyGrain, ErrorCode, Export, Extents, ImportError, Imported, Pool, Region, RegionError,
    RegionOptions, Snapshot,
};

const PAGE: usize = 4096;
const BLOCK: usize = 2 << 20;
/// The environment variable that tells the process of a test that it is the receiver.
const RECEIVER: &str = "HUGEFORK_TEST_RECEIVER";

/// A checksum of every eighth word, since a debug build is slow.
fn checksum(bytes: &[u8]) -> u64 {
    let (words, _) = bytes.as_chunks();
    let (mut sum, mut at) = (0_u64, 0);
    // In a debug build, this loop is five times faster than an iterator.
    while at < words.len() {
        sum = sum.rotate_left(7) ^ u64::from_ne_bytes(words[at]);
        at += 8;
    }
    sum
}

/// Runs this test again in a new process, with the export's descriptor as its standard input.
fn receiver(export: &Export) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(std::env::args().skip(1))
        .env(RECEIVER, export.extents().to_string())
        .stdin(export.as_fd().try_clone_to_owned().unwrap())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// The export, mapped, if this process is the receiver.
fn received() -> Option<Imported> {
    let text = std::env::var(RECEIVER).ok()?;
    let extents: Extents = text.parse().unwrap();
    Some(Imported::map(io::stdin(), &extents).unwrap())
}

fn said(mut child: Child) -> String {
    let mut text = String::new();
    child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    assert!(child.wait().unwrap().success(), "{text}");
    text.rsplit_once("said: ").map(|(_, said)| said.trim().to_owned()).unwrap_or_default()
}

/// A region with all kinds of blocks, and with holes.
fn region(pool: &Pool, grain: CopyGrain) -> Region {
    let mut region = pool
        .region_with(8 * BLOCK, RegionOptions::new().copy_grain(grain).calls_wait(grain == CopyGrain::Page))
        .unwrap();
    let words = region.as_mut_slice().chunks_exact_mut(8).enumerate();
    for (nth, word) in words.filter(|(nth, _)| nth * 8 / BLOCK % 3 != 1) {
        word.copy_from_slice(&(nth as u64 * 0x9e37_79b9).to_ne_bytes());
    }
    region
}

#[test]
fn a_child_of_exec_reads_what_was_exported_and_writes_for_itself() {
    let ended = alone(|| {
        if let Some(mut imported) = received() {
            // SAFETY: the parent keeps the export until this process has ended.
            let sum = checksum(unsafe { imported.bytes() });
            // SAFETY: as above.
            let bytes = unsafe { imported.bytes_mut() };
            bytes.chunks_mut(BLOCK).for_each(|block| block[77] = 201);
            assert!(bytes.iter().skip(77).step_by(BLOCK).all(|byte| *byte == 201));
            println!("said: {sum}");
            return;
        }
        for backing in BACKINGS {
            for size in [BlockSize::MIB_2, BlockSize::KIB_64, BlockSize::KIB_4] {
                // hugetlb has no blocks smaller than its pages.
                if backing == Backing::Hugetlb && size < BlockSize::MIB_2 {
                    continue;
                }
                // The child's private copies take pages of this kind, too.
                let Some(pool) = exporting(backing, 40 * BLOCK, size) else { continue };
                let mut region = region(&pool, CopyGrain::Auto);
                let snapshot = region.snapshot().unwrap();
                let before = snapshot.to_vec();
                let export = snapshot.export().unwrap();
                drop(snapshot);
                region.as_mut_slice().fill(5);
                let copy = region.snapshot().unwrap();
                for export in [&export, &copy.export_copy().unwrap()] {
                    let sum = if export.extents().iter().len() == 1 { checksum(&copy) } else { checksum(&before) };
                    assert_eq!(said(receiver(export)), sum.to_string(), "{backing} {size}");
                }
                assert!(region.as_mut_slice().iter().all(|byte| *byte == 5), "a child wrote");
                let again = Imported::map(&export, export.extents()).unwrap();
                // SAFETY: the export is kept.
                assert!(unsafe { again.bytes() } == before, "a child wrote");
                drop((region, copy, again));
                assert!(pool.stats().blocks_free < pool.stats().blocks, "the export holds its blocks");
                drop(export);
                assert_eq!(pool.stats().blocks_free, pool.stats().blocks);
            }
        }
    });
    ended.well();
}

/// Tries every way in which a process could change what it can read. Returns the ways that worked.
fn attack(fd: BorrowedFd<'_>, len: usize) -> Vec<&'static str> {
    let raw = fd.as_raw_fd();
    let mut worked = Vec::new();
    let mut note = |what, result: i64| {
        if result >= 0 {
            worked.push(what);
        }
    };
    let bytes = [0xee_u8; 16];
    let (shared, none) = (libc::MAP_SHARED, std::ptr::null_mut::<libc::c_void>());
    // SAFETY: none of these calls touches this process's memory, except where a comment says so.
    unsafe {
        note("write", libc::write(raw, bytes.as_ptr().cast(), 16) as i64);
        note("pwrite", libc::pwrite(raw, bytes.as_ptr().cast(), 16, 0) as i64);
        note("ftruncate", libc::ftruncate(raw, 0).into());
        note("ftruncate longer", libc::ftruncate(raw, len as i64 * 2).into());
        let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        note("punch", libc::fallocate(raw, punch, 0, PAGE as i64).into());
        note("fallocate", libc::fallocate(raw, 0, 0, len as i64 * 2).into());
        note("seal", libc::fcntl(raw, libc::F_ADD_SEALS, libc::F_SEAL_WRITE).into());
        note("splice", {
            let mut pipe = [0; 2];
            assert_eq!(libc::pipe(pipe.as_mut_ptr()), 0);
            libc::write(pipe[1], bytes.as_ptr().cast(), 16);
            let result = libc::splice(pipe[0], none.cast(), raw, none.cast(), 16, libc::SPLICE_F_NONBLOCK) as i64;
            libc::close(pipe[0]);
            libc::close(pipe[1]);
            result
        });
        let writable = libc::mmap(none, BLOCK, libc::PROT_READ | libc::PROT_WRITE, shared, raw, 0);
        note("a writable mapping", if writable == libc::MAP_FAILED { -1 } else { 0 });
        let at = libc::mmap(none, BLOCK, libc::PROT_READ, shared, raw, 0);
        if at != libc::MAP_FAILED {
            note("mprotect", libc::mprotect(at, BLOCK, libc::PROT_READ | libc::PROT_WRITE).into());
            note("MADV_REMOVE", libc::madvise(at, BLOCK, libc::MADV_REMOVE).into());
            note("MADV_POPULATE_WRITE", libc::madvise(at, BLOCK, libc::MADV_POPULATE_WRITE).into());
            let memory = libc::open(c"/proc/self/mem".as_ptr(), libc::O_RDWR);
            if memory >= 0 {
                note("/proc/self/mem", libc::pwrite(memory, bytes.as_ptr().cast(), 16, at as i64) as i64);
                libc::close(memory);
            }
            let moved = libc::mremap(at, 0, BLOCK, libc::MREMAP_MAYMOVE);
            if moved != libc::MAP_FAILED {
                note("mprotect of a duplicate", libc::mprotect(moved, BLOCK, libc::PROT_WRITE).into());
                libc::munmap(moved, BLOCK);
            }
            libc::munmap(at, BLOCK);
        }
    }
    worked
}

/// Opens a descriptor anew for writing.
fn reopen(fd: BorrowedFd<'_>) -> io::Result<File> {
    File::options().write(true).open(format!("/proc/self/fd/{}", fd.as_raw_fd()))
}

fn become_nobody() {
    // SAFETY: changes the user of this process, which runs only this test. The calls go past the C library, which would
    // wait for threads that a fork(2) child does not have.
    unsafe {
        assert_eq!(libc::syscall(libc::SYS_setresgid, 65534, 65534, 65534), 0);
        assert_eq!(libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534), 0);
    }
}

#[test]
fn nothing_can_be_changed_through_the_descriptor() {
    alone(|| {
        // SAFETY: only asks for the user of this process.
        let is_root = unsafe { libc::geteuid() } == 0;
        for backing in BACKINGS {
            let Some(pool) = exporting(backing, 40 * BLOCK, BlockSize::MIB_2) else { continue };
            let mut region = region(&pool, CopyGrain::Auto);
            let snapshot = region.snapshot().unwrap();
            let before = snapshot.to_vec();
            let (export, copy) = (snapshot.export().unwrap(), snapshot.export_copy().unwrap());
            for export in [&export, &copy] {
                assert_eq!(attack(export.as_fd(), pool.capacity()), Vec::<&str>::new(), "{backing}");
            }
            if is_root {
                check_fork(|| {
                    become_nobody();
                    assert_eq!(attack(export.as_fd(), pool.capacity()), Vec::<&str>::new());
                    assert_eq!(reopen(export.as_fd()).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
                    // SAFETY: changes the mode of a file, or is refused.
                    assert_eq!(unsafe { libc::fchmod(export.as_fd().as_raw_fd(), 0o666) }, -1);
                    assert_eq!(attack(copy.as_fd(), pool.capacity()), Vec::<&str>::new());
                });
                // Root may open the copy, but cannot change it.
                if let Ok(file) = reopen(copy.as_fd()) {
                    assert_eq!(attack(file.as_fd(), snapshot.len()), Vec::<&str>::new());
                }
            } else {
                assert_eq!(reopen(export.as_fd()).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
            }
            assert!(snapshot[..] == before && region.as_mut_slice() == before);
        }
    })
    .well();
}

#[test]
fn a_process_that_is_not_root_exports_too() {
    alone(|| {
        // SAFETY: only asks for the user of this process.
        if unsafe { libc::geteuid() } != 0 {
            println!("skipped: this takes root, to be somebody else");
            return;
        }
        // Root builds this pool, and another user exports from it.
        let pool = Pool::builder().capacity(40 * BLOCK).exports(true).build().unwrap();
        let snapshot = region(&pool, CopyGrain::Auto).snapshot().unwrap();
        become_nobody();
        // SAFETY: /proc of this process belongs to it again.
        unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 1, 0, 0, 0) };
        let own = Pool::builder().capacity(40 * BLOCK).exports(true).build().unwrap();
        let own = region(&own, CopyGrain::Auto).snapshot().unwrap();
        for snapshot in [snapshot, own] {
            let export = snapshot.export().unwrap();
            assert_eq!(reopen(export.as_fd()).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
            let imported = Imported::map(&export, export.extents()).unwrap();
            // SAFETY: the export is kept.
            assert!(unsafe { imported.bytes() } == &snapshot[..]);
        }
    })
    .well();
}

/// A region with snapshots that hold captured pages: single ones, some at both ends of a block, neighbours, long runs,
/// and every other page. `None` if snapshots copy whole blocks here.
fn history(pool: &Pool) -> Option<(Region, Vec<Snapshot>)> {
    let mut region = region(pool, CopyGrain::Auto);
    let mut held = vec![region.snapshot().unwrap()];
    for round in 1..4 {
        let single = (0..8).map(|block| block * BLOCK / PAGE + 7 * round);
        let both_ends = [2 * BLOCK / PAGE, 3 * BLOCK / PAGE - 1];
        let in_rows = (0..30).map(|nth| 3 * BLOCK / PAGE + 40 + nth + nth / 3);
        let (long, every_other) = (6 * BLOCK / PAGE + 100..6 * BLOCK / PAGE + 164, 5 * BLOCK / PAGE..);
        for page in single.chain(both_ends).chain(in_rows).chain(long).chain(every_other.step_by(2).take(60)) {
            region.as_mut_slice()[page * PAGE] = 100 + round as u8;
        }
        held.push(region.snapshot().unwrap());
    }
    (pool.stats().pages_held > 0).then_some((region, held))
}

/// The importer maps the blocks and copies pages over them, but maps long runs of pages too.
#[test]
fn a_child_of_exec_reads_pages_that_a_history_holds_and_they_take_no_block() {
    let ended = alone(|| {
        if let Some(imported) = received() {
            // SAFETY: the parent keeps the export until this process has ended.
            return println!("said: {}", checksum(unsafe { imported.bytes() }));
        }
        // Snapshots of hugetlb copy blocks.
        for backing in BACKINGS.into_iter().filter(|backing| *backing != Backing::Hugetlb) {
            for size in [BlockSize::MIB_2, BlockSize::KIB_64] {
                let Some(pool) = exporting(backing, 60 * BLOCK, size) else { continue };
                let Some((mut region, held)) = history(&pool) else {
                    println!("skipped: no snapshot holds single pages here");
                    continue;
                };
                // All free blocks, so that no copy of a block could be made.
                let rest = pool.region(pool.stats().blocks_free * size.bytes()).unwrap();
                rest.populate().unwrap();
                for snapshot in &held {
                    let before = pool.stats();
                    let export = snapshot.export().unwrap();
                    let after = pool.stats();
                    assert_eq!((after.blocks_free, after.pages_held), (0, before.pages_held), "{backing} {size}");
                    let sum = checksum(snapshot).to_string();
                    assert_eq!(said(receiver(&export)), sum, "{backing} {size}");
                    assert_eq!(said(receiver(&snapshot.export_copy().unwrap())), sum, "{backing} {size}");
                }
                let (export, before) = (held[2].export().unwrap(), held[2].to_vec());
                drop((held, rest));
                region.as_mut_slice().fill(5);
                let later = [region.snapshot().unwrap(), region.snapshot().unwrap()];
                let imported = Imported::map(&export, export.extents()).unwrap();
                // SAFETY: the export is kept.
                assert!(unsafe { imported.bytes() } == before, "{backing} {size}");
                assert!(pool.stats().pages_held > 0, "the export holds its pages");
                drop((region, later, export));
                assert_eq!((pool.stats().blocks_free, pool.stats().pages_held), (pool.stats().blocks, 0));
            }
        }
    });
    ended.well();
}

#[test]
fn many_pages_take_few_mappings_and_a_copy_that_is_refused_leaves_none() {
    alone(|| {
        let pool = Pool::builder().capacity(140 * BLOCK).exports(true).build().unwrap();
        let mut region = pool.region(64 * BLOCK).unwrap();
        region.as_mut_slice().fill(1);
        let first = region.snapshot().unwrap();
        // Pages scattered over each block: if they were many, or neighbours, the engine would copy their blocks.
        for page in (0..800).map(|nth| nth * 1223 % (64 * BLOCK / PAGE)) {
            region.as_mut_slice()[page * PAGE + 9] = 88;
        }
        let snapshot = region.snapshot().unwrap();
        let export = snapshot.export().unwrap();
        drop(first);
        if pool.stats().pages_held == 0 {
            return println!("skipped: no snapshot holds single pages here");
        }
        assert!(export.extents().iter().len() > 1000);
        let maps = || std::fs::read_to_string("/proc/self/maps").unwrap().lines().count();
        drop(Imported::map(&export, export.extents()).unwrap());
        let before = maps();
        let imported = Imported::map(&export, export.extents()).unwrap();
        assert!(maps() < before + 30, "{} mappings more", maps() - before);
        // SAFETY: the export is kept.
        assert!(unsafe { imported.bytes() } == &snapshot[..]);
        drop(imported);
        let before = maps();
        refuse(every(libc::SYS_pread64, libc::EPERM));
        let error = Imported::map(&export, export.extents()).unwrap_err();
        assert!(error.to_string().contains("pread of an extent failed"), "{error}");
        assert_eq!(maps(), before);
    })
    .well();
}

#[test]
fn nothing_is_taken_away_from_an_export_and_nobody_loses_a_block_in_vain() {
    let pool = Pool::builder().capacity(4 * BLOCK).exports(true).build().unwrap();
    let mut region = pool.region_with(4 * BLOCK, by_block()).unwrap();
    region.as_mut_slice().fill(1);
    let (snapshot, fork) = (region.snapshot().unwrap(), region.fork_with(by_block()).unwrap());
    let export = snapshot.export().unwrap();
    let imported = Imported::map(&export, export.extents()).unwrap();
    // SAFETY: the export is kept.
    let is_whole = || unsafe { imported.bytes() }.iter().all(|byte| *byte == 1);
    let refused = region.prepare_write(0..1).unwrap_err();
    assert!(matches!(refused, RegionError::PoolFull { .. }), "{refused}");
    assert!(!snapshot.is_revoked() && !fork.is_revoked() && is_whole());
    // Neither a fork nor a fork of the fork can take the exported block back.
    assert!(fork.fork_with(by_block()).unwrap().prepare_write(0..1).is_err());
    assert!(is_whole() && !snapshot.is_revoked());
    drop((imported, export));
    region.as_mut_slice().fill(2);
    assert!(snapshot.is_revoked() && fork.is_revoked());
    // A write by page succeeds, because it takes no block.
    drop((snapshot, fork, region));
    if pool.has_page_grain() {
        let mut region = pool.region(4 * BLOCK).unwrap();
        region.as_mut_slice().fill(1);
        let export = region.snapshot().unwrap().export().unwrap();
        (0..4).for_each(|block| region.as_mut_slice()[block * BLOCK + 5 * PAGE] = 2);
        let imported = Imported::map(&export, export.extents()).unwrap();
        // SAFETY: the export is kept.
        assert!(unsafe { imported.bytes() }.iter().all(|byte| *byte == 1));
    }
}

#[test]
fn a_limit_that_would_revoke_goes_on_without() {
    let pool = Pool::builder().capacity(16 * BLOCK).exports(true).build().unwrap();
    let mut region = pool.region_with(4 * BLOCK, by_block().max_cow_bytes(BLOCK)).unwrap();
    region.as_mut_slice().fill(1);
    let snapshot = region.snapshot().unwrap();
    let export = snapshot.export().unwrap();
    region.as_mut_slice().fill(2);
    assert!(!snapshot.is_revoked() && snapshot.iter().all(|byte| *byte == 1));
    drop(export);
}

#[test]
fn an_export_of_what_was_taken_away_is_an_error() {
    let pool = Pool::builder().capacity(4 * BLOCK).exports(true).build().unwrap();
    let mut region = pool.region_with(4 * BLOCK, by_block()).unwrap();
    region.as_mut_slice().fill(1);
    let snapshot = region.snapshot().unwrap();
    region.as_mut_slice()[0] = 2;
    assert_eq!(snapshot.export().map(drop), Err(RegionError::Revoked));
    assert_eq!(snapshot.export_copy().map(drop), Err(RegionError::Revoked));
}

#[test]
fn a_copy_says_how_far_it_is_and_what_that_raises_ends_it() {
    const LEN: usize = 160 << 20;
    let pool = exporting(Backing::ShmemBase, LEN, BlockSize::MIB_2).unwrap();
    let mut region = pool.region(LEN).unwrap();
    region.as_mut_slice()[LEN - 1] = 1;
    let snapshot = region.snapshot().unwrap();
    let mut said = Vec::new();
    snapshot.export_copy_with(|done| said.push(done)).unwrap();
    assert_eq!(said, [64 << 20, 128 << 20, LEN]);
    let ends = || snapshot.export_copy_with(|done| std::panic::resume_unwind(Box::new(done))).map(drop);
    let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(ends)).unwrap_err();
    assert_eq!(ended.downcast_ref::<usize>(), Some(&(64 << 20)));
    // Nothing is held or locked any more.
    assert_eq!(snapshot.export_copy().unwrap().extents().iter().len(), 1);
}

#[test]
fn a_copy_is_sparse_holds_no_blocks_and_never_changes() {
    let pool = Pool::builder().capacity(40 * BLOCK).exports(true).build().unwrap();
    let mut region = pool.region(16 * BLOCK).unwrap();
    region.as_mut_slice()[3 * BLOCK + 9] = 7;
    region.as_mut_slice()[8 * BLOCK..9 * BLOCK].fill(8);
    region.as_mut_slice()[12 * BLOCK] = 0;
    let snapshot = region.snapshot().unwrap();
    let before = snapshot.to_vec();
    let copy = snapshot.export_copy().unwrap();
    let extents: Vec<_> = copy.extents().iter().map(|extent| (extent.offset, extent.file_offset, extent.len)).collect();
    assert_eq!(extents, [3, 8].map(|block| (block * BLOCK, block * BLOCK, BLOCK)));
    let status = rustix::fs::fstat(copy.as_fd()).unwrap();
    assert_eq!(status.st_size as usize, snapshot.len());
    assert!(status.st_blocks as usize * 512 <= BLOCK + 2 * PAGE, "{} blocks", status.st_blocks);
    drop((snapshot, region));
    assert_eq!(pool.stats().blocks_free, pool.stats().blocks);
    let imported = Imported::map(&copy, copy.extents()).unwrap();
    drop((copy, pool));
    assert!(imported.sealed().unwrap() == before);
    let mut some = [0; 20];
    imported.read_at(3 * BLOCK, &mut some).unwrap();
    assert_eq!(some[9], 7);
    let beyond = imported.read_at(imported.len() - 19, &mut some).unwrap_err();
    assert!(matches!(beyond, ImportError::OutOfRange { .. }) && beyond.code() == ErrorCode::OutOfRange);
    assert!(imported.read_at(usize::MAX, &mut some).is_err());
}

#[test]
fn a_descriptor_that_is_no_export_is_an_error() {
    let extents = |len: usize| -> Extents {
        format!("hugefork-extents 1\nlength {len}\npage 4096\nextent 0 0 {len}\nend 1\n").parse().unwrap()
    };
    let (mut pipe, _other) = io::pipe().unwrap();
    let file = File::open("/proc/self/maps").unwrap();
    let no_memfd = [file.as_fd(), pipe.as_fd()];
    for fd in no_memfd {
        let error = Imported::map(fd, &extents(PAGE)).unwrap_err();
        assert!(error == ImportError::NotAnExport && error.to_string().contains("Export"), "{error}");
    }
    let _ = &mut pipe;
    let flags = rustix::fs::MemfdFlags::ALLOW_SEALING;
    let memfd = rustix::fs::memfd_create("some", flags).unwrap();
    rustix::fs::ftruncate(&memfd, 2 * PAGE as u64).unwrap();
    assert_eq!(Imported::map(&memfd, &extents(PAGE)).unwrap_err(), ImportError::NotAnExport, "it may become shorter");
    rustix::fs::fcntl_add_seals(&memfd, rustix::fs::SealFlags::SHRINK).unwrap();
    let imported = Imported::map(&memfd, &extents(2 * PAGE)).unwrap();
    assert!(imported.sealed().is_none(), "it may be written to");
    let short = Imported::map(&memfd, &extents(3 * PAGE)).unwrap_err();
    assert!(matches!(short, ImportError::TooShort { needed, len, .. } if (needed, len) == (3 * PAGE, 2 * PAGE as u64)));
    assert_eq!(short.code(), ErrorCode::NotAnExport);
    assert_eq!(io::Error::from(short).kind(), io::ErrorKind::InvalidInput);
    let huge =
        Imported::map(&memfd, &"hugefork-extents 1\nlength 4611686018427387904\npage 4096\nend 0\n".parse().unwrap());
    assert!(matches!(huge, Err(ImportError::TooManyMappings { .. })), "{huge:?}");
}

#[test]
fn it_goes_over_a_socket_and_outlives_the_process_that_exported_it() {
    alone(|| {
        if std::env::var_os(RECEIVER).is_some() {
            // This is the process that exports, and then dies.
            let pool = Pool::builder().capacity(40 * BLOCK).exports(true).build().unwrap();
            let export = region(&pool, CopyGrain::Auto).snapshot().unwrap().export().unwrap();
            let text = export.extents().to_string();
            send(io::stdin().as_fd(), text.as_bytes(), export.as_fd());
            // Until the parent kills this process, or ends itself.
            let _ = io::stdin().read(&mut [0]);
            return;
        }
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(std::env::args().skip(1)).env(RECEIVER, "").stdin(OwnedFd::from(theirs));
        let mut child = child.stdout(Stdio::null()).spawn().unwrap();
        let (text, fd) = receive(ours.as_fd());
        let extents: Extents = text.parse().unwrap();
        let imported = Imported::map(&fd, &extents).unwrap();
        // SAFETY: the child keeps the export until it is killed, and after its death nobody else gets the memory.
        let sum = || checksum(unsafe { imported.bytes() });
        let before = sum();
        child.kill().unwrap();
        child.wait().unwrap();
        drop(fd);
        assert_eq!(sum(), before);
        let pool = Pool::builder().capacity(40 * BLOCK).exports(true).build().unwrap();
        assert_eq!(checksum(region(&pool, CopyGrain::Auto).as_mut_slice()), before);
    })
    .well();
}

/// Sends bytes together with a descriptor.
fn send(socket: BorrowedFd<'_>, bytes: &[u8], fd: BorrowedFd<'_>) {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut with = SendAncillaryBuffer::new(&mut space);
    let fds = [fd];
    assert!(with.push(SendAncillaryMessage::ScmRights(&fds)));
    let sent = sendmsg(socket, &[io::IoSlice::new(bytes)], &mut with, SendFlags::empty()).unwrap();
    assert_eq!(sent, bytes.len());
}

/// Receives text together with a descriptor.
fn receive(socket: BorrowedFd<'_>) -> (String, OwnedFd) {
    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
    let mut bytes = vec![0; 1 << 16];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut with = RecvAncillaryBuffer::new(&mut space);
    let got = recvmsg(socket, &mut [io::IoSliceMut::new(&mut bytes)], &mut with, RecvFlags::CMSG_CLOEXEC).unwrap();
    bytes.truncate(got.bytes);
    let fd = with.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    (String::from_utf8(bytes).unwrap(), fd.unwrap())
}

/// Private memory of a process in KiB: what it does not share with others.
fn private_kib(pid: u32) -> usize {
    let rollup = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    let of = |name: &str| -> usize {
        let line = rollup.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    };
    of("Private_Dirty:") + of("Anonymous:")
}

#[test]
fn a_hundred_children_take_what_they_write() {
    alone(|| {
        if let Some(mut imported) = received() {
            let before = private_kib(std::process::id());
            // SAFETY: the parent keeps the export until this process has ended.
            let sum = checksum(unsafe { imported.bytes() });
            // SAFETY: as above.
            let bytes = unsafe { imported.bytes_mut() };
            bytes[5 * PAGE] = 1;
            let more = private_kib(std::process::id()).saturating_sub(before);
            assert!(more < 1 << 10, "{more} KiB for one page");
            println!("said: {sum}");
            io::stdout().flush().unwrap();
            // Waits until the parent has seen everything.
            let _ = io::stderr().flush();
            return;
        }
        let pool = Pool::builder().capacity(40 * BLOCK).exports(true).build().unwrap();
        let region = region(&pool, CopyGrain::Auto);
        let snapshot = region.snapshot().unwrap();
        let export = snapshot.export().unwrap();
        let before = rustix::fs::fstat(export.as_fd()).unwrap().st_blocks;
        let children: Vec<Child> = (0..100).map(|_| receiver(&export)).collect();
        let sum = checksum(&snapshot).to_string();
        assert!(children.into_iter().map(said).all(|said| said == sum));
        assert_eq!(rustix::fs::fstat(export.as_fd()).unwrap().st_blocks, before, "the pool's memory");
    })
    .well();
}

#[test]
fn it_stays_as_it_was_while_the_region_is_written_written_back_freed_and_short_of_blocks() {
    alone(|| {
        for grain in [CopyGrain::Auto, CopyGrain::Page, CopyGrain::Block] {
            let pool = Pool::builder().capacity(24 * BLOCK).exports(true).build().unwrap();
            let region = region(&pool, grain);
            let words = region.as_atomic_u64s();
            let is_over = AtomicBool::new(false);
            let unprepare = Mutex::new(());
            let snapshot = || {
                let _alone = unprepare.lock().unwrap();
                region.snapshot()
            };
            std::thread::scope(|scope| {
                let over = Over(&is_over);
                scope.spawn(|| {
                    let mut at = 12345_usize;
                    while !is_over.load(Ordering::Relaxed) {
                        at = (at * 69069 + 1) % words.len();
                        // A write that finds the pool full for good would raise SIGBUS, so only prepared and pinned
                        // pages are written. A prepared range stays so until the next snapshot or lazy free, a pinned
                        // one in spite of these.
                        let bytes = at * 8..at * 8 + 8;
                        if at.is_multiple_of(2) {
                            let _nothing_undoes_it = unprepare.lock().unwrap();
                            if region.prepare_write(bytes).is_ok() {
                                words[at].fetch_add(1, Ordering::Relaxed);
                            }
                        } else if let Ok(_pin) = region.pin(bytes) {
                            words[at].fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
                scope.spawn(|| {
                    let mut held: Vec<Snapshot> = Vec::new();
                    let mut turn = 0;
                    while !is_over.load(Ordering::Relaxed) {
                        turn += 1;
                        held.extend(snapshot());
                        if held.len() > turn % 4 {
                            held.remove(0);
                        }
                        let alone = unprepare.lock().unwrap();
                        let _ = region.lazy_free(turn % 8 * BLOCK..(turn % 8 + 1) * BLOCK);
                        drop(alone);
                        let _ = pool.reclaim(BLOCK);
                        let _ = pool.trim();
                    }
                });
                for _ in 0..25 {
                    let Ok(snapshot) = snapshot() else { continue };
                    let Ok(export) = snapshot.export() else { continue };
                    let imported = Imported::map(&export, export.extents()).unwrap();
                    // SAFETY: while the export is kept, nothing of it changes.
                    let sum = || checksum(unsafe { imported.bytes() });
                    let first = sum();
                    drop(snapshot);
                    let status = in_fork(|| {
                        let own = Imported::map(&export, export.extents()).unwrap();
                        // SAFETY: the parent waits for this process.
                        let is_same = checksum(unsafe { own.bytes() }) == first;
                        if is_same {
                            // SAFETY: ends this process, in the middle of its use of the export.
                            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
                        }
                        1
                    });
                    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(libc::SIGKILL));
                    assert_eq!(sum(), first);
                }
                drop(over);
            });
            drop(region);
            assert_eq!(pool.stats().blocks_free, pool.stats().blocks, "{grain:?}");
        }
    })
    .well();
}

#[test]
fn what_a_child_of_fork_drops_stays_with_its_parent() {
    alone(|| {
        let pool = Pool::builder().capacity(40 * BLOCK).exports(true).build().unwrap();
        let region = region(&pool, CopyGrain::Auto);
        let snapshot = region.snapshot().unwrap();
        let mut export = Some(snapshot.export().unwrap());
        let free = pool.stats().blocks_free;
        let sum = checksum(&snapshot);
        check_fork(|| {
            let export = export.take().unwrap();
            let imported = Imported::map(&export, export.extents()).unwrap();
            // SAFETY: the parent keeps the export.
            assert_eq!(checksum(unsafe { imported.bytes() }), sum);
            assert_eq!(snapshot.export().map(drop), Err(RegionError::ForkedChild));
            assert_eq!(snapshot.export_copy().map(drop), Err(RegionError::ForkedChild));
            drop(export);
        });
        assert_eq!(pool.stats().blocks_free, free);
        drop((region, snapshot));
        assert_eq!(pool.stats().blocks_free + 5, pool.stats().blocks);
    })
    .well();
}

#[test]
fn each_call_that_is_refused_is_an_error_and_holds_nothing() {
    alone(|| {
        let pool = Pool::builder().capacity(40 * BLOCK).exports(true).build().unwrap();
        let region = region(&pool, CopyGrain::Auto);
        let snapshot = region.snapshot().unwrap();
        let free = pool.stats().blocks_free;
        let export = snapshot.export().unwrap();
        let copy = snapshot.export_copy().unwrap();
        let check = |error: RegionError, call: &str| {
            assert!(error.to_string().contains(call), "{error}");
            assert_eq!(pool.stats().blocks_free, free);
        };
        let exported = || snapshot.export().map(drop).unwrap_err();
        let copied = || snapshot.export_copy().map(drop).unwrap_err();
        // As where /proc is not mounted.
        refuse(every(libc::SYS_openat, libc::ENOENT));
        #[cfg(target_arch = "x86_64")]
        refuse(every(libc::SYS_open, libc::ENOENT));
        let error = exported();
        assert!(error.to_string().contains("mount /proc") && error.code() == ErrorCode::NotExportable, "{error}");
        check(error, "open of /proc/self/fd failed: no such file or directory (ENOENT)");
        snapshot.export_copy().unwrap();
        refuse(every(libc::SYS_pwrite64, libc::ENOSPC));
        check(copied(), "pwrite");
        refuse(with(libc::SYS_fcntl, 1, libc::F_ADD_SEALS, libc::EINVAL));
        check(exported(), "open");
        refuse(with(libc::SYS_fcntl, 1, libc::F_GET_SEALS, libc::EPERM));
        check(exported(), "fcntl(F_GET_SEALS)");
        let refused = |call: &str| {
            for export in [&export, &copy] {
                let error = Imported::map(export, export.extents()).unwrap_err();
                assert!(error.to_string().contains(call), "{error}");
            }
        };
        refused("fcntl(F_GET_SEALS)");
        refuse(every(libc::SYS_ftruncate, libc::ENOSPC));
        check(copied(), "ftruncate");
        refuse(every(libc::SYS_memfd_create, libc::EMFILE));
        check(copied(), "memfd_create");
    })
    .well();
}

#[test]
fn a_pool_whose_memory_cannot_be_guarded_is_no_worse_and_cannot_be_exported() {
    alone(|| {
        refuse(every(libc::SYS_fchmod, libc::EPERM));
        let pool = Pool::builder().capacity(40 * BLOCK).exports(true).build().unwrap();
        let snapshot = region(&pool, CopyGrain::Auto).snapshot().unwrap();
        let error = snapshot.export().map(drop).unwrap_err();
        assert!(error.to_string().contains("fchmod"), "{error}");
        refuse(with(libc::SYS_fcntl, 1, libc::F_ADD_SEALS, libc::EPERM));
        assert!(snapshot.export_copy().map(drop).unwrap_err().to_string().contains("fcntl(F_ADD_SEALS)"));
    })
    .well();
}

#[test]
fn mappings_that_are_refused_are_an_error_and_leave_none() {
    alone(|| {
        let pool = Pool::builder().capacity(40 * BLOCK).exports(true).build().unwrap();
        let snapshot = region(&pool, CopyGrain::Auto).snapshot().unwrap();
        let (bytes, export) = (snapshot.to_vec(), snapshot.export().unwrap());
        let maps = || std::fs::read_to_string("/proc/self/maps").unwrap().lines().count();
        drop(Imported::map(&export, export.extents()).unwrap());
        let before = maps();
        let check_too_many = || {
            let error = Imported::map(&export, export.extents()).unwrap_err();
            let all = export.extents().iter().len();
            assert!(matches!(error, ImportError::TooManyMappings { extents, .. } if extents == all));
            assert_eq!((error.code(), maps()), (ErrorCode::TooManyMappings, before));
        };
        let refuse_extents = |fixed: i32, errno: i32| {
            let flags = libc::MAP_PRIVATE | fixed | libc::MAP_NORESERVE;
            refuse(with(libc::SYS_mmap, 3, flags, errno));
        };
        refuse_extents(libc::MAP_FIXED_NOREPLACE, libc::ENOMEM);
        check_too_many();
        // As if another thread had taken the addresses meanwhile.
        refuse_extents(libc::MAP_FIXED_NOREPLACE, libc::EEXIST);
        let imported = Imported::map(&export, export.extents()).unwrap();
        // SAFETY: the export is kept.
        assert!(bytes == unsafe { imported.bytes() });
        drop(imported);
        assert_eq!(maps(), before);
        refuse_extents(libc::MAP_FIXED, libc::ENOMEM);
        check_too_many();
        refuse_extents(libc::MAP_FIXED, libc::EACCES);
        let error = Imported::map(&export, export.extents()).unwrap_err();
        assert!(error.to_string().contains("mmap of an extent"), "{error}");
        let limit = libc::rlimit { rlim_cur: 1 << 20, rlim_max: 1 << 20 };
        // SAFETY: changes a limit of this process.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &limit) }, 0);
        let other = pool.region(BLOCK).unwrap().snapshot().unwrap();
        let error = other.export_copy().map(drop).unwrap_err();
        assert!(error.to_string().contains("EFBIG"), "{error}");
        // SAFETY: no descriptor has this number, and it is forgotten below.
        let none = unsafe { OwnedFd::from_raw_fd(800) };
        let error = Imported::map(&none, export.extents()).unwrap_err();
        std::mem::forget(none);
        assert!(error.to_string().contains("EBADF"), "{error}");
    })
    .well();
}
