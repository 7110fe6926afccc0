//! Descriptors and extents from a hostile exporter. `Imported::map` refuses them, or everything that it maps can be
//! read or gives an error. Mappings beside it stay as they are.

mod common;

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use common::alone::alone;
use common::random::Random;
use common::{Over, exporting};
use hugefork::{Backing, BlockSize, ErrorCode, Extents, ImportError, Imported};
use rustix::fs::{
    FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags, fallocate, fcntl_add_seals, ftruncate, memfd_create, open,
};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

const PAGE: usize = 4096;
const MIB_2: usize = 2 << 20;
const GIB_1: usize = 1 << 30;

/// One test runs at a time: some take all free hugetlb pages, and all need some.
static ALL_PAGES: Mutex<()> = Mutex::new(());

fn extents(len: usize, page: usize, list: &[[usize; 3]]) -> Extents {
    let lines: String = list.iter().map(|[at, from, len]| format!("extent {at} {from} {len}\n")).collect();
    format!("hugefork-extents 1\nlength {len}\npage {page}\n{lines}end {}\n", list.len()).parse().unwrap()
}

/// A sealed memfd without any memory.
fn memfd(len: usize, kind: MemfdFlags, seals: SealFlags) -> OwnedFd {
    let fd = memfd_create("hostile", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | kind).unwrap();
    ftruncate(&fd, len as u64).unwrap();
    fcntl_add_seals(&fd, seals).unwrap();
    fd
}

fn hugetlb(page: usize) -> MemfdFlags {
    MemfdFlags::HUGETLB | MemfdFlags::from_bits_retain(page.trailing_zeros() << libc::MFD_HUGE_SHIFT)
}

/// The number of free hugetlb pages of a size; `None` if the machine has no such size.
fn free_pages(page: usize) -> Option<usize> {
    let number = |name: &str| {
        let text = fs::read_to_string(format!("/sys/kernel/mm/hugepages/hugepages-{}kB/{name}", page >> 10)).ok()?;
        text.trim().parse::<usize>().ok()
    };
    Some(number("free_hugepages")?.saturating_sub(number("resv_hugepages")?))
}

/// Reserves all free hugetlb pages of a size until it is dropped, which takes no time and no memory.
struct AllPages(Vec<(*mut libc::c_void, usize)>);

impl AllPages {
    fn take(page: usize) -> AllPages {
        let mut taken = AllPages(Vec::new());
        // Other processes may take some meanwhile, or give some back.
        while let Some(free @ 1..) = free_pages(page) {
            let flags = MapFlags::PRIVATE | MapFlags::HUGETLB;
            let size = MapFlags::from_bits_retain(page.trailing_zeros() << libc::MAP_HUGE_SHIFT);
            let rights = ProtFlags::READ | ProtFlags::WRITE;
            // SAFETY: a new mapping.
            let at = unsafe { mmap_anonymous(std::ptr::null_mut(), free * page, rights, flags | size) };
            taken.0.extend(at.map(|at| (at, free * page)));
        }
        taken
    }
}

impl Drop for AllPages {
    fn drop(&mut self) {
        for &(at, len) in &self.0 {
            // SAFETY: nobody uses it.
            unsafe { rustix::mm::munmap(at, len) }.unwrap();
        }
    }
}

/// The most bytes that these tests read in one piece.
const MOST: usize = 16 << 20;

/// Reads all of it in every possible way. If it is longer than [`MOST`], reads only its ends.
fn read_all(imported: &Imported) -> Result<(), ImportError> {
    let mut some = vec![0; imported.len().min(MOST)];
    imported.read_at(0, &mut some)?;
    imported.read_at(imported.len() - some.len(), &mut some)?;
    if let Some(bytes) = imported.sealed() {
        let bytes = &bytes[..some.len()];
        assert!(bytes.iter().step_by(PAGE).fold(0_u64, |sum, &byte| sum + u64::from(byte)) < u64::MAX);
    }
    Ok(())
}

/// A size of hugetlb pages of which the machine probably has none free.
fn scarce() -> Option<usize> {
    [GIB_1, MIB_2].into_iter().find(|&page| free_pages(page).is_some())
}

#[test]
fn a_hugetlb_file_without_pages_is_refused() {
    let _one = ALL_PAGES.lock().unwrap_or_else(PoisonError::into_inner);
    alone(|| {
        let Some(page) = scarce() else { return println!("skipped: there is no hugetlb") };
        let _none_is_left = AllPages::take(page);
        for seals in [SealFlags::SHRINK, SealFlags::SHRINK | SealFlags::WRITE] {
            let file = memfd(page, hugetlb(page), seals);
            let refused = Imported::map(&file, &extents(page, page, &[[0, 0, page]])).and_then(|imported| {
                read_all(&imported)?;
                Ok(imported)
            });
            let error = refused.map(drop).unwrap_err();
            assert_eq!(error.code(), ErrorCode::OutOfMemory, "{error}");
            assert!(error.to_string().contains("hugetlb"), "{error}");
        }
    })
    .well();
}

/// Missing pages are allocated when the file is mapped, not when it is read.
#[test]
fn a_sealed_hugetlb_file_is_whole_once_it_is_mapped() {
    let _one = ALL_PAGES.lock().unwrap_or_else(PoisonError::into_inner);
    alone(|| {
        if free_pages(MIB_2).is_none_or(|free| free < 8) {
            return println!("skipped: 8 free hugetlb pages of 2 MiB are needed");
        }
        let file = memfd(2 * MIB_2, hugetlb(MIB_2), SealFlags::SHRINK | SealFlags::WRITE);
        let imported = Imported::map(&file, &extents(2 * MIB_2, MIB_2, &[[0, MIB_2, MIB_2]])).unwrap();
        let _none_is_left = AllPages::take(MIB_2);
        read_all(&imported).unwrap();
    })
    .well();
}

/// Such a file can become shorter while somebody has a slice of it.
#[test]
fn what_is_sealed_against_writes_alone_is_refused() {
    for seals in [SealFlags::WRITE, SealFlags::WRITE | SealFlags::GROW] {
        let file = memfd(PAGE, MemfdFlags::empty(), seals | SealFlags::SEAL);
        let refused = Imported::map(&file, &extents(PAGE, PAGE, &[[0, 0, PAGE]])).map(drop);
        assert_eq!(refused.unwrap_err().code(), ErrorCode::NotAnExport);
    }
    // This file was not made for sealing. Nobody gets a slice of it; the kernel reads it for the importer.
    let file = memfd_create("hostile", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&file, PAGE as u64).unwrap();
    let imported = Imported::map(&file, &extents(PAGE, PAGE, &[[0, 0, PAGE]])).unwrap();
    assert!(imported.sealed().is_none());
    read_all(&imported).unwrap();
    ftruncate(&file, 0).unwrap();
    assert_eq!(read_all(&imported).unwrap_err().code(), ErrorCode::OutOfMemory);
}

#[test]
fn pages_that_an_exporter_takes_back_are_an_error() {
    let _one = ALL_PAGES.lock().unwrap_or_else(PoisonError::into_inner);
    alone(|| {
        if free_pages(MIB_2).is_none_or(|free| free < 8) {
            return println!("skipped: 8 free hugetlb pages of 2 MiB are needed");
        }
        let file = memfd(2 * MIB_2, hugetlb(MIB_2), SealFlags::SHRINK);
        fallocate(&file, FallocateFlags::empty(), 0, 2 * MIB_2 as u64).unwrap();
        let imported =
            Imported::map(&file, &extents(3 * MIB_2, MIB_2, &[[0, 0, MIB_2], [2 * MIB_2, MIB_2, MIB_2]])).unwrap();
        // SAFETY: inside of it, and nobody else uses it.
        unsafe { imported.as_mut_ptr().add(5).write(7) };
        read_all(&imported).unwrap();
        let mut byte = [0];
        imported.read_at(5, &mut byte).unwrap();
        assert_eq!(byte, [7], "what is written here is read here");
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&file, punch, 0, 2 * MIB_2 as u64).unwrap();
        let _none_is_left = AllPages::take(MIB_2);
        let error = imported.read_at(2 * MIB_2 - 1, &mut [0; 2]).unwrap_err();
        assert_eq!(error.code(), ErrorCode::OutOfMemory, "{error}");
        imported.read_at(MIB_2, &mut vec![1; MIB_2]).unwrap();
    })
    .well();
}

/// The engine is both exporter and importer here.
#[test]
fn an_export_that_is_gone_is_an_error() {
    let _one = ALL_PAGES.lock().unwrap_or_else(PoisonError::into_inner);
    alone(|| {
        let Some(pool) = exporting(Backing::Hugetlb, 4 * MIB_2, BlockSize::MIB_2) else { return };
        let mut region = pool.region(MIB_2).unwrap();
        region.as_mut_slice().fill(1);
        let export = region.snapshot().unwrap().export().unwrap();
        let imported = Imported::map(&export, export.extents()).unwrap();
        drop((export, region));
        pool.trim().unwrap();
        drop(pool);
        let _none_is_left = AllPages::take(MIB_2);
        // The read may succeed already, from a page of another pool.
        if let Err(error) = read_all(&imported) {
            assert_eq!(error.code(), ErrorCode::OutOfMemory, "{error}");
        }
    })
    .well();
}

/// The kernel maps whole hugetlb pages, however few bytes the caller asks for.
#[test]
fn extents_with_smaller_pages_than_the_file_are_refused() {
    let _one = ALL_PAGES.lock().unwrap_or_else(PoisonError::into_inner);
    alone(|| {
        if free_pages(MIB_2).is_none_or(|free| free < 8) {
            return println!("skipped: 8 free hugetlb pages of 2 MiB are needed");
        }
        let file = memfd(2 * MIB_2, hugetlb(MIB_2), SealFlags::SHRINK);
        let maps = || fs::read_to_string("/proc/self/maps").unwrap().lines().count();
        let before = maps();
        for (len, list) in [(PAGE, [[0, 0, PAGE]]), (2 * PAGE, [[PAGE, 0, PAGE]]), (2 * MIB_2, [[0, 0, MIB_2]])] {
            let error = Imported::map(&file, &extents(len, PAGE, &list)).unwrap_err();
            assert_eq!(error.code(), ErrorCode::NotAnExport, "{error}");
            assert!(error.to_string().contains("2097152"), "{error}");
        }
        assert_eq!(maps(), before);
    })
    .well();
}

/// Files of every kind, with memory and without, with all sets of seals.
fn files(random: &mut Random) -> Vec<(String, io::Result<OwnedFd>)> {
    let all = [SealFlags::SHRINK, SealFlags::GROW, SealFlags::WRITE, SealFlags::FUTURE_WRITE, SealFlags::SEAL];
    let mut found = Vec::new();
    for (kind, page) in [(MemfdFlags::empty(), PAGE), (hugetlb(MIB_2), MIB_2), (hugetlb(GIB_1), GIB_1)] {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | kind;
        let Ok(fd) = memfd_create("hostile", flags) else { continue };
        // hugetlb refuses lengths that are not a whole number of pages.
        let len = (random.below(4) * page + if random.one_in(4) { 1 + random.below(PAGE) } else { 0 }) as u64;
        let _ = ftruncate(&fd, len);
        if random.one_in(2) && page < GIB_1 {
            let _ = fallocate(&fd, FallocateFlags::empty(), 0, len.min(page as u64));
        }
        let seals: SealFlags = all.into_iter().filter(|_| random.one_in(2)).collect();
        let _ = fcntl_add_seals(&fd, seals | if random.one_in(4) { SealFlags::empty() } else { SealFlags::SHRINK });
        found.push((format!("memfd {kind:?} of {len} with {seals:?}"), Ok(fd)));
    }
    for (path, flags) in [
        ("/dev/zero", OFlags::RDWR),
        ("/dev/null", OFlags::RDONLY),
        ("/proc/self/exe", OFlags::RDONLY),
        ("/proc/self/exe", OFlags::PATH),
        ("/proc/self/maps", OFlags::RDONLY),
        ("/proc/self/mem", OFlags::RDWR),
        ("/dev/shm", OFlags::RDONLY | OFlags::DIRECTORY),
        ("/dev/shm", OFlags::RDWR | OFlags::TMPFILE),
    ] {
        found.push((path.to_owned(), open(path, flags | OFlags::CLOEXEC, Mode::RUSR).map_err(io::Error::from)));
    }
    // SAFETY: makes a file of secret memory, or is refused.
    let secret = unsafe { libc::syscall(libc::SYS_memfd_secret, libc::O_CLOEXEC) };
    if secret >= 0 {
        // SAFETY: made just now.
        let secret = unsafe { <OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(secret as i32) };
        let _ = ftruncate(&secret, 4 * PAGE as u64);
        found.push(("memfd_secret".to_owned(), Ok(secret)));
    }
    found
}

/// Extents with any page size, for pages of any file.
fn some_extents(random: &mut Random) -> Extents {
    let page = [PAGE, PAGE, 2 * PAGE, MIB_2, MIB_2, GIB_1][random.below(6)];
    let (mut at, mut list) = (0, Vec::new());
    for _ in 0..random.below(4) {
        let (hole, len) = (random.below(3) * page, (1 + random.below(3)) * page);
        list.push([at + hole, random.below(3) * page, len]);
        at += hole + len;
    }
    extents(at + (1 + random.below(2)) * page, page, &list)
}

/// Extents of a file with `pages` pages: parts of runs, with pages from elsewhere between them, and some holes.
fn pages_between_parts(random: &mut Random, pages: usize) -> Extents {
    let (mut at, mut run, mut list) = (0, random.below(pages / 2), Vec::new());
    for _ in 0..1 + random.below(30) {
        let most = if random.one_in(4) { 20 } else { 3 };
        let len = 1 + random.below(most);
        let from = if random.one_in(2) { run + at } else { random.below(pages) };
        if from + len <= pages {
            list.push([at * PAGE, from * PAGE, len * PAGE]);
        }
        at += len;
        if random.one_in(12) {
            run = random.below(pages);
        }
    }
    extents((at + random.below(2)) * PAGE, PAGE, &list)
}

/// This holds for the parts that are mapped and for those that are copied.
#[test]
fn what_the_extents_name_is_there_and_nothing_else() {
    const PAGES: usize = 200;
    let file = memfd(PAGES * PAGE, MemfdFlags::empty(), SealFlags::SHRINK);
    for page in 0..PAGES {
        rustix::io::pwrite(&file, &[page as u8 + 1; PAGE], (page * PAGE) as u64).unwrap();
    }
    for seed in 0..400 {
        let extents = pages_between_parts(&mut Random::new(seed), PAGES);
        let mut expected = vec![0; extents.len()];
        for extent in extents.iter() {
            let pages = expected[extent.offset..extent.offset + extent.len].chunks_mut(PAGE);
            pages.enumerate().for_each(|(nth, page)| page.fill((extent.file_offset / PAGE + nth) as u8 + 1));
        }
        let imported = Imported::map(&file, &extents).unwrap();
        let mut found = vec![0; extents.len()];
        imported.read_at(0, &mut found).unwrap();
        assert!(found == expected, "seed {seed}: {extents}");
    }
}

/// If the file cannot be sealed, its owner may truncate it.
#[test]
fn a_file_that_becomes_shorter_while_it_is_mapped_is_an_error() {
    alone(|| {
        const PAGES: usize = 64;
        let file = memfd_create("hostile", MemfdFlags::CLOEXEC).unwrap();
        let fill = || fallocate(&file, FallocateFlags::empty(), 0, (PAGES * PAGE) as u64).unwrap();
        fill();
        let (over, mut mapped, mut refused) = (AtomicBool::new(false), 0, 0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    ftruncate(&file, 0).unwrap();
                    fill();
                }
            });
            let _over = Over(&over);
            let mut seed = 0;
            while seed < 500 || (mapped == 0 || refused == 0) && seed < 1_000_000 {
                seed += 1;
                match Imported::map(&file, &pages_between_parts(&mut Random::new(seed), PAGES)) {
                    Ok(imported) => {
                        mapped += 1;
                        let _ = imported.read_at(0, &mut vec![0; imported.len()]);
                    }
                    Err(error) => {
                        refused += 1;
                        let is_known = matches!(error.code(), ErrorCode::OutOfMemory | ErrorCode::NotAnExport);
                        assert!(is_known, "{seed}: {error}");
                    }
                }
            }
        });
        println!("{mapped} mapped, {refused} refused");
    })
    .well();
}

/// Meanwhile another thread gives memory to the file and takes it away.
#[test]
fn whatever_is_mapped_can_be_read() {
    let _one = ALL_PAGES.lock().unwrap_or_else(PoisonError::into_inner);
    alone(|| {
        const SEED: u64 = 28;
        let (mut mapped, mut refused) = (0, 0);
        for turn in 0..40 {
            let mut random = Random::new(SEED + turn);
            let beside = vec![random.next(); 512];
            for (name, file) in files(&mut random) {
                let (Ok(file), extents) = (file, some_extents(&mut random)) else { continue };
                let imported = match Imported::map(&file, &extents) {
                    Ok(imported) => imported,
                    Err(_) => {
                        refused += 1;
                        continue;
                    }
                };
                mapped += 1;
                let over = AtomicBool::new(false);
                std::thread::scope(|scope| {
                    scope.spawn(|| {
                        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                        while !over.load(Ordering::Relaxed) {
                            for flags in [punch, FallocateFlags::empty()] {
                                let _ = fallocate(file.as_fd(), flags, 0, MIB_2 as u64);
                            }
                        }
                    });
                    let _over = Over(&over);
                    let ends = extents.iter().map(|extent| extent.offset + extent.len - 1);
                    let come = ends.clone().try_for_each(|end| imported.read_at(end, &mut [0]));
                    if let Err(error) = come.and_then(|()| read_all(&imported)) {
                        assert_eq!(error.code(), ErrorCode::OutOfMemory, "{name}, seed {SEED} + {turn}: {error}");
                    }
                });
            }
            assert!(beside.iter().all(|word| *word == beside[0]), "seed {SEED} + {turn}");
        }
        println!("{mapped} mapped, {refused} refused");
        assert!(mapped > 10 && refused > 100, "{mapped} mapped, {refused} refused");
    })
    .well();
}
