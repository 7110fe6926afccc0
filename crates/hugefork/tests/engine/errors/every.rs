//! Provokes every error that the engine can return, and checks that it says what to do about it. The list of errors
//! comes from the sources, so a new error needs a case here.

use std::collections::BTreeSet;
use std::error::Error;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::common::alone::alone;
use crate::common::by_block;
use crate::common::forked::in_fork;
use crate::common::seccomp::{every, refuse, with};
use hugefork::kernels::{Kernel, KernelError, Order, Primitive, PrimitiveName};
use hugefork::machine::PressureError;
use hugefork::{
    Backing, BlockSize, BuildError, ByteSize, Commit, ErrorCode, Extents, Fallback, ImportError, Imported, Observer,
    Operations, Pool, Region, RegionError, RegionOptions, Reserve, ResetError, SizeError,
};

const BLOCK: usize = 2 << 20;

type Failed = Box<dyn Error>;

/// A way to provoke an error, and the advice in its message. Each case runs in a process of its own.
struct Case {
    /// `Family::Variant`.
    name: &'static str,
    /// The advice, or the refusal of the kernel where no advice is possible.
    advice: &'static str,
    provoke: fn() -> Failed,
}

const fn case(name: &'static str, advice: &'static str, provoke: fn() -> Failed) -> Case {
    Case { name, advice, provoke }
}

const CASES: [Case; 50] = [
    case("SizeError::NotABlockSize", "take a power of two", || failed(BlockSize::new(3))),
    case("SizeError::Zero", "take at least one block", || {
        let Err(RegionError::Length(error)) = pool(4).region(0) else { panic!("a region of nothing") };
        error.into()
    }),
    case("SizeError::NotAMultiple", "the next multiple is 2097152 bytes", || {
        let Err(BuildError::Capacity(error)) = Pool::builder().capacity(1).build() else { panic!("half a block") };
        error.into()
    }),
    case("SizeError::Unreadable", "write 4KiB, 512MiB", || failed("ten".parse::<ByteSize>())),
    case("BuildError::Capacity", "the next multiple is", || failed(Pool::builder().capacity(1).build())),
    case("BuildError::BeyondTheMachine", "lower the capacity", || failed(Pool::builder().capacity(1 << 48).build())),
    case("BuildError::TooManyBlocks", "take larger blocks", || {
        failed(Pool::builder().capacity(usize::MAX - BLOCK + 1).build())
    }),
    case("BuildError::BackingUnavailable", "take blocks of ", || {
        let builder = Pool::builder().capacity(4 * BLOCK).block_size(BlockSize::KIB_4).backing(Backing::Hugetlb);
        failed(builder.fallback(Fallback::Refused).build())
    }),
    case("BuildError::UnknownBacking", "take auto, hugetlb", || failed("disk".parse::<Backing>())),
    case("BuildError::OutOfAddresses", "raise RLIMIT_AS", || {
        limit_addresses(1 << 30);
        failed(Pool::builder().capacity(BLOCK).build())
    }),
    case("BuildError::OutOfMemory", "lower the capacity or free memory", || {
        refuse(with(libc::SYS_madvise, 2, libc::MADV_POPULATE_WRITE, libc::ENOMEM));
        failed(Pool::builder().capacity(4 * BLOCK).commit(Commit::Upfront).build())
    }),
    case("BuildError::Setting", "HUGEFORK_WINDOW", || {
        // SAFETY: this process has one thread.
        unsafe { std::env::set_var("HUGEFORK_WINDOW", "5000") };
        failed(Pool::builder().capacity(BLOCK).build())
    }),
    case("BuildError::ForkedChild", "build the first pool after the fork", || {
        let _pool = pool(4);
        in_child(|| failed(Pool::builder().capacity(BLOCK).build()))
    }),
    case("BuildError::System", "memfd_create failed", || {
        refuse(every(libc::SYS_memfd_create, libc::EPERM));
        failed(Pool::builder().capacity(BLOCK).build())
    }),
    case("RegionError::Length", "the next multiple is", || failed(pool(4).region(1))),
    case("RegionError::LargerThanPool", "build the pool with more capacity", || failed(pool(4).region(5 * BLOCK))),
    case("RegionError::OutOfRange", "take one that is", || failed(region(1).discard(0..usize::MAX))),
    case("RegionError::NotAView", "starts at a multiple of 8", || failed(region(1).slice_of_mut::<u64>(1..9))),
    case("RegionError::NotWords", "take arrays or structures", || failed(region(1).values_of::<f32>(0..8))),
    case("RegionError::AnotherPool", "take one of the same pool", || {
        let (one, other) = (region(1), region(1).snapshot().unwrap());
        failed(one.changed_since(&other))
    }),
    case("RegionError::AnotherLength", "take one of the same length", || {
        let pool = pool(4);
        let (one, other) = (pool.region(BLOCK).unwrap(), pool.region(2 * BLOCK).unwrap().snapshot().unwrap());
        failed(one.changed_since(&other))
    }),
    case("RegionError::PoolFull", "drop a fork or snapshot", || {
        let pool = pool(2);
        let _all = written(&pool, 2);
        failed(pool.region(BLOCK).unwrap().populate())
    }),
    case("RegionError::NotReservable", "take Reserve::None", || {
        let pool = pool(2);
        let _all = written(&pool, 2);
        failed(pool.region_with(BLOCK, RegionOptions::new().reserve(Reserve::Full)))
    }),
    case("RegionError::LimitOnSnapshot", "leave it out", || {
        failed(region(1).snapshot_with(RegionOptions::new().max_cow_bytes(BLOCK)))
    }),
    case("RegionError::Revoked", "make it with Reserve::Full", || {
        let mut region = written(&pool(2), 2);
        let snapshot = region.snapshot().unwrap();
        region.as_mut_slice()[0] = 2;
        failed(snapshot.read_at(0, &mut [0]))
    }),
    case("RegionError::InsideOperation", "leave it first", || {
        let (region, operations) = (region(1), Operations::new());
        region.set_operations(&operations).unwrap();
        let _inside = operations.enter();
        failed(region.snapshot())
    }),
    case("RegionError::OperationGoesOn", "have it leave", || {
        let (region, operations) = (region(1), Operations::with_patience(Duration::ZERO));
        region.set_operations(&operations).unwrap();
        let _inside = operations.enter();
        std::thread::scope(|scope| failed(scope.spawn(|| region.snapshot()).join().unwrap()))
    }),
    case("RegionError::AnotherOperations", "make one Operations", || {
        let region = region(1);
        region.set_operations(&Operations::new()).unwrap();
        failed(region.set_operations(&Operations::new()))
    }),
    case("RegionError::TooManyPins", "drop a pin of it first", || {
        let region = region(1);
        let pins: Vec<_> = (0..255).map(|_| region.pin(0..1).unwrap()).collect();
        let error = failed(region.pin(0..1));
        drop(pins);
        error
    }),
    case("RegionError::AlreadyObserved", "let that one tell others", || {
        struct Nothing;
        impl Observer for Nothing {
            fn invalidate_start(&self, _: Range<usize>) {}
            fn invalidate_end(&self, _: Range<usize>) {}
        }
        let region = region(1);
        region.observe(Arc::new(Nothing)).unwrap();
        failed(region.observe(Arc::new(Nothing)))
    }),
    case("RegionError::OutOfMemory", "free memory, or build the pool with Commit::Upfront", || {
        let region = region(1);
        refuse(with(libc::SYS_madvise, 2, libc::MADV_POPULATE_WRITE, libc::ENOMEM));
        failed(region.populate())
    }),
    case("RegionError::TooManyMappings", "sysctl -w vm.max_map_count=", || {
        make_mappings(pool(1).stats().mappings_limit);
        // A new pool counts the mappings that are left.
        failed(pool(1).region(BLOCK))
    }),
    case("RegionError::OutOfAddresses", "drop regions or snapshots, or raise RLIMIT_AS", || {
        limit_addresses(40 << 30);
        let pool = pool(1);
        let mut regions = Vec::new();
        loop {
            match pool.region(BLOCK) {
                Ok(region) => regions.push(region),
                Err(error) => return error.into(),
            }
        }
    }),
    case("RegionError::NotExportable", "take export_copy", || {
        let snapshot = region(1).snapshot().unwrap();
        refuse(every(libc::SYS_openat, libc::ENOENT));
        #[cfg(target_arch = "x86_64")]
        refuse(every(libc::SYS_open, libc::ENOENT));
        failed(snapshot.export())
    }),
    case("RegionError::ForkedChild", "do not cross fork(2)", || {
        let region = region(1);
        in_child(|| failed(region.snapshot()))
    }),
    case("RegionError::System", "memfd_create failed", || {
        let snapshot = region(1).snapshot().unwrap();
        refuse(every(libc::SYS_memfd_create, libc::EPERM));
        failed(snapshot.export_copy())
    }),
    case("ImportError::Unreadable", "take the text as `Extents` prints it", || failed("extents\n".parse::<Extents>())),
    case("ImportError::NotAnExport", "take the one that `Export` gives", || {
        let extents: Extents = "hugefork-extents 1\nlength 4096\npage 4096\nend 0\n".parse().unwrap();
        failed(Imported::map(std::fs::File::open("/proc/self/maps").unwrap(), &extents))
    }),
    case("ImportError::TooShort", "of one export", || {
        let text = "hugefork-extents 1\nlength 2097152\npage 4096\nextent 0 1099511627776 2097152\nend 1\n";
        let export = region(1).snapshot().unwrap().export().unwrap();
        failed(Imported::map(export.as_fd(), &text.parse().unwrap()))
    }),
    case("ImportError::OtherPages", "of one export", || {
        let text = "hugefork-extents 1\nlength 4096\npage 4096\nextent 0 0 4096\nend 1\n";
        failed(Imported::map(hugetlb_file(), &text.parse().unwrap()))
    }),
    case("ImportError::NoPages", "raise vm.nr_hugepages", || {
        let text = "hugefork-extents 1\nlength 2097152\npage 2097152\nextent 0 0 2097152\nend 1\n";
        refuse(with(libc::SYS_madvise, 2, libc::MADV_POPULATE_READ, libc::EFAULT));
        failed(Imported::map(hugetlb_file(), &text.parse().unwrap()))
    }),
    case("ImportError::TooManyMappings", "raise vm.max_map_count", || {
        let export = written(&pool(1), 1).snapshot().unwrap().export().unwrap();
        refuse(with(libc::SYS_mmap, 4, export.as_fd().as_raw_fd(), libc::ENOMEM));
        failed(Imported::map(&export, export.extents()))
    }),
    case("ImportError::OutOfRange", "take one that is", || {
        let export = region(1).snapshot().unwrap().export().unwrap();
        let imported = Imported::map(&export, export.extents()).unwrap();
        failed(imported.read_at(BLOCK, &mut [0]))
    }),
    case("ImportError::System", "mmap of an extent failed", || {
        let export = written(&pool(1), 1).snapshot().unwrap().export().unwrap();
        refuse(with(libc::SYS_mmap, 4, export.as_fd().as_raw_fd(), libc::EPERM));
        failed(Imported::map(&export, export.extents()))
    }),
    case("PressureError", "open", || {
        refuse(every(libc::SYS_openat, libc::ENOENT));
        #[cfg(target_arch = "x86_64")]
        refuse(every(libc::SYS_open, libc::ENOENT));
        failed(hugefork::PressureWatch::new().try_out())
    }),
    case("KernelError::Unknown", "this machine has", || failed("straight/magic".parse::<Kernel>())),
    case("KernelError::Unavailable", "which this machine does not offer: use", || {
        let lacking = PrimitiveName::ALL.iter().find(|name| Primitive::new(**name).is_none());
        match lacking {
            Some(name) => failed(name.as_str().parse::<Primitive>()),
            // This machine has all primitives.
            None => KernelError::Unavailable(PrimitiveName::Portable).into(),
        }
    }),
    case("KernelError::BadWindow", "use for example 128KiB", || {
        failed(Kernel::new(Order::Hybrid, Primitive::PORTABLE).with_window(5000))
    }),
    case("KernelError::CannotCopy", "to copy use", || {
        match Primitive::new(PrimitiveName::Clzero) {
            Some(clzero) => failed(Kernel::new(Order::Hybrid, clzero).check_copy()),
            // This machine lacks the one primitive that cannot copy.
            None => KernelError::CannotCopy(PrimitiveName::Clzero).into(),
        }
    }),
    case("KernelError::NearNotCached", "for the window use", || {
        match Primitive::all().find(|primitive| primitive.is_non_temporal()) {
            Some(past) => failed(Kernel::new(Order::Hybrid, Primitive::PORTABLE).with_near(past)),
            // This machine has no primitive that bypasses the cache.
            None => KernelError::NearNotCached(PrimitiveName::Sse2Nt).into(),
        }
    }),
];

fn failed<T>(result: Result<T, impl Error + 'static>) -> Failed {
    match result {
        Ok(_) => panic!("it worked"),
        Err(error) => error.into(),
    }
}

fn pool(blocks: usize) -> Pool {
    let builder = Pool::builder().exports(true).name("test").capacity(blocks * BLOCK).block_size(BlockSize::MIB_2);
    builder.backing(Backing::ShmemBase).build().unwrap()
}

fn region(blocks: usize) -> Region {
    pool(blocks).region(blocks * BLOCK).unwrap()
}

fn written(pool: &Pool, blocks: usize) -> Region {
    let region = pool.region_with(blocks * BLOCK, by_block()).unwrap();
    region.populate().unwrap();
    region
}

/// A file of hugetlb pages without any page.
fn hugetlb_file() -> std::os::fd::OwnedFd {
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
    let file = memfd_create("every-error", flags).unwrap();
    ftruncate(&file, BLOCK as u64).unwrap();
    fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
    file
}

fn limit_addresses(bytes: u64) {
    let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
    // SAFETY: reads `limit`.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) }, 0);
}

/// Makes `count` mappings of this process's own.
fn make_mappings(count: usize) {
    const PAGE: usize = 4096;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), count * PAGE, libc::PROT_NONE, flags, -1, 0) };
    assert_ne!(start, libc::MAP_FAILED);
    for page in (1..count).step_by(2) {
        // SAFETY: inside the new mapping, which nobody uses.
        assert_eq!(unsafe { libc::mprotect(start.wrapping_byte_add(page * PAGE), PAGE, libc::PROT_READ) }, 0);
    }
}

/// Provokes an error in a child of `fork(2)`. The error cannot leave the child, so the child checks it, and this
/// process ends with the child's status.
fn in_child(provoke: impl FnOnce() -> Failed) -> Failed {
    // SAFETY: this process has one thread, and a child that hangs ends with SIGALRM.
    match unsafe { libc::fork() } {
        0 => provoke(),
        child => {
            let mut status = 0;
            // SAFETY: waits for the child, and ends as it has ended.
            unsafe {
                assert_eq!(libc::waitpid(child, &mut status, 0), child);
                libc::_exit(if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { 101 })
            }
        }
    }
}

/// `Family::Variant` of an error.
fn name_of(error: &Failed) -> String {
    let family = [
        ("SizeError", error.is::<SizeError>()),
        ("BuildError", error.is::<BuildError>()),
        ("RegionError", error.is::<RegionError>()),
        ("ImportError", error.is::<ImportError>()),
        ("KernelError", error.is::<KernelError>()),
    ];
    if error.is::<PressureError>() {
        return "PressureError".to_owned();
    }
    let family = family.iter().find(|(_, is_it)| *is_it).map_or("?", |(name, _)| name);
    let debug = format!("{error:?}");
    let variant = debug.split(|letter: char| !letter.is_ascii_alphanumeric()).next().unwrap_or_default();
    format!("{family}::{variant}")
}

#[test]
fn every_error_comes_about_and_says_what_to_do() {
    alone(|| {
        // A child exits with the number of its error's code in the list of all codes, or fails.
        let code = |case: &Case| {
            let status = in_fork(|| {
                let (name, advice, error) = (case.name, case.advice, (case.provoke)());
                assert_eq!(name_of(&error), name, "{error}");
                assert!(error.to_string().contains(advice), "{name} does not say `{advice}`: {error}");
                let code = ErrorCode::of(&*error);
                ErrorCode::ALL.iter().position(|one| Some(*one) == code).expect("every error has a code") as i32
            });
            *status.code().and_then(|nth| ErrorCode::ALL.get(nth as usize)).unwrap_or_else(|| panic!("{}", case.name))
        };
        let codes: BTreeSet<_> = CASES.iter().map(code).collect();
        assert_eq!(codes, BTreeSet::from(ErrorCode::ALL), "every code comes about");
    })
    .well();
}

#[test]
fn one_byte_is_one_byte() {
    let region = region(1);
    let one_byte: [Failed; 4] = [
        failed(BlockSize::new(1)),
        failed(pool(1).region(1)),
        failed(region.values_of::<u8>(0..1)),
        failed(Kernel::new(Order::Hybrid, Primitive::PORTABLE).with_window(1)),
    ];
    for error in one_byte {
        let said = error.to_string();
        assert!(said.contains("1 byte") && !said.contains("1 bytes"), "{said}");
    }
}

/// An error around another has the inner message, and says how far the call got.
#[test]
fn errors_around_others_say_how_far_it_came_and_what_to_do() {
    let region = region(2);
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let transfer = region.write_to(&full, 0..4096).unwrap_err();
    assert!(transfer.to_string().contains("after 0 bytes") && transfer.to_string().contains("ENOSPC"), "{transfer}");
}

/// A refused reset: the advice in its message, the number of bytes reset before, and a way to provoke it.
type Refused = (&'static str, usize, fn() -> Failed);

/// The reasons for which a reset is refused.
const RESETS: [Refused; 5] = [
    ("take one of the same pool", 0, || failed(region(1).reset_to(&region(1).snapshot().unwrap()))),
    ("take one of the same length", 0, || {
        let pool = pool(4);
        failed(pool.region(BLOCK).unwrap().reset_to(&pool.region(2 * BLOCK).unwrap().snapshot().unwrap()))
    }),
    ("make it with Reserve::Full", 0, || {
        let mut region = written(&pool(2), 2);
        let snapshot = region.snapshot().unwrap();
        region.as_mut_slice()[0] = 2;
        failed(region.reset_to(&snapshot))
    }),
    ("do not cross fork(2)", 0, || {
        let region = region(1);
        let snapshot = region.snapshot().unwrap();
        in_child(|| failed(region.reset_to(&snapshot)))
    }),
    // The snapshot is older than the first write and has no block. The region must reserve one again, but there is
    // none.
    ("take Reserve::None", BLOCK, || {
        let pool = pool(2);
        let mut region = pool.region_with(BLOCK, by_block().reserve(Reserve::Full)).unwrap();
        let empty = region.snapshot().unwrap();
        region.as_mut_slice()[0] = 1;
        let _keeps = region.snapshot().unwrap();
        let _rest = written(&pool, 1);
        let error = failed(region.reset_to(&empty));
        assert_eq!(region.as_mut_slice()[0], 0, "it is as the snapshot all the same");
        error
    }),
];

#[test]
fn a_reset_that_is_refused_says_what_to_do_and_how_far_it_came() {
    alone(|| {
        for (advice, done, provoke) in RESETS {
            let status = in_fork(|| {
                let failed = provoke();
                let error: &ResetError = failed.downcast_ref().expect("an error of a reset");
                let said = error.to_string();
                assert!(said.starts_with(&format!("after {done} bytes: ")) && said.contains(advice), "{said}");
                assert_eq!((error.done, Some(error.code())), (done, ErrorCode::of(&error.reason)));
                0
            });
            assert!(status.success(), "{advice}");
        }
    })
    .well();
}

/// The variants of the public enums in these files whose names end in `Error`.
fn declared() -> BTreeSet<String> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let files = ["hugefork/src/types/error.rs", "hugefork/src/units.rs", "hugefork-kernels/src/error.rs"];
    let mut names = BTreeSet::new();
    for file in files {
        let source = syn::parse_file(&std::fs::read_to_string(crates.join(file)).unwrap()).unwrap();
        for item in source.items {
            if let syn::Item::Enum(item) = item
                && item.ident.to_string().ends_with("Error")
            {
                names.extend(item.variants.iter().map(|variant| format!("{}::{}", item.ident, variant.ident)));
            }
        }
    }
    names
}

#[test]
fn every_error_has_its_case() {
    let cases: BTreeSet<String> = CASES.iter().map(|case| case.name.to_owned()).collect();
    assert_eq!(cases.len(), CASES.len(), "each has one");
    // Errors that are no enums have no variants.
    let variants: BTreeSet<String> = cases.into_iter().filter(|name| name.contains("::")).collect();
    assert_eq!(variants, declared());
}
