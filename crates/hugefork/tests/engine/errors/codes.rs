//! The codes of errors, which bindings and programs compare with: a number, a name, an `errno`.

use std::error::Error;
use std::io;
use std::path::Path;

use hugefork::kernels::Kernel;
use hugefork::{Backing, BlockSize, ByteSize, ErrorCode, Pool, RegionError, RegionOptions, Reserve};
use syn::visit::{self, Visit};

/// Rows may be added here. After the first release, no row may be changed or removed.
const GOLDEN: [(i32, &str, i32); 33] = [
    (1001, "not_a_block_size", libc::EINVAL),
    (1002, "zero_size", libc::EINVAL),
    (1003, "not_a_multiple", libc::EINVAL),
    (1004, "unreadable_size", libc::EINVAL),
    (1005, "unknown_backing", libc::EINVAL),
    (1006, "too_many_blocks", libc::EINVAL),
    (1007, "larger_than_pool", libc::EINVAL),
    (1008, "out_of_range", libc::EINVAL),
    (1009, "not_a_view", libc::EINVAL),
    (1010, "limit_on_snapshot", libc::EINVAL),
    (1011, "bad_setting", libc::EINVAL),
    (1012, "bad_kernel", libc::EINVAL),
    (1013, "another_pool", libc::EINVAL),
    (1014, "another_length", libc::EINVAL),
    (1015, "bad_extents", libc::EINVAL),
    (1016, "not_an_export", libc::EINVAL),
    (1017, "another_operations", libc::EINVAL),
    (1101, "beyond_the_machine", libc::ENOMEM),
    (1102, "out_of_memory", libc::ENOMEM),
    (1103, "out_of_addresses", libc::ENOMEM),
    (1104, "too_many_mappings", libc::ENOMEM),
    (1105, "pool_full", libc::ENOMEM),
    (1106, "not_reservable", libc::ENOMEM),
    (1108, "too_many_pins", libc::EBUSY),
    (1201, "revoked", libc::EIO),
    (1202, "already_observed", libc::EEXIST),
    (1203, "forked_child", libc::EOPNOTSUPP),
    (1205, "inside_operation", libc::EDEADLK),
    (1206, "operation_goes_on", libc::EBUSY),
    (1301, "backing_unavailable", libc::EOPNOTSUPP),
    (1302, "pressure_unwatched", libc::EOPNOTSUPP),
    (1303, "system", libc::EIO),
    (1304, "not_exportable", libc::EOPNOTSUPP),
];

const BLOCK: usize = 2 << 20;

#[test]
fn no_code_changes_its_number_or_its_name() {
    let now = ErrorCode::ALL.map(|code| (code.number(), code.as_str(), code.errno()));
    assert_eq!(now, GOLDEN);
    assert!(ErrorCode::ALL.is_sorted() && ErrorCode::ALL.iter().all(|code| code.number() > 1000));
    assert!(now.iter().all(|(number, ..)| *number != 1204), "it was `no_origin`");
    assert_eq!(ErrorCode::PoolFull.to_string(), "pool_full");
}

fn source() -> syn::File {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/types/code.rs");
    syn::parse_file(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// Counts the patterns of a function that match anything.
#[derive(Default)]
struct Wildcards(usize);

impl<'ast> Visit<'ast> for Wildcards {
    fn visit_arm(&mut self, arm: &'ast syn::Arm) {
        self.0 += usize::from(matches!(arm.pat, syn::Pat::Wild(_) | syn::Pat::Ident(_)));
        visit::visit_arm(self, arm);
    }
}

/// Without a wildcard, the compiler demands a code for each new error.
#[test]
fn no_code_is_given_by_a_wildcard() {
    let source = source();
    let (mut wildcards, mut found) = (Wildcards::default(), 0);
    for item in &source.items {
        let syn::Item::Impl(item) = item else { continue };
        for item in &item.items {
            let syn::ImplItem::Fn(function) = item else { continue };
            if function.sig.ident == "code" {
                found += 1;
                wildcards.visit_impl_item_fn(function);
            }
        }
    }
    assert_eq!((found, wildcards.0), (8, 0));
}

#[track_caller]
fn check(error: impl Error + Send + Sync + 'static, code: ErrorCode) {
    assert_eq!(ErrorCode::of(&error), Some(code), "{error}");
    let error = io::Error::other(error);
    assert_eq!(ErrorCode::of(&error), Some(code), "inside of an io::Error");
    assert_eq!(ErrorCode::of(&io::Error::other(Around(error))), Some(code), "as a source");
}

/// An error type of another library.
#[derive(Debug)]
struct Around(io::Error);

impl std::fmt::Display for Around {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("around")
    }
}

impl Error for Around {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.0)
    }
}

#[test]
fn an_error_tells_its_code_through_whatever_is_around_it() {
    let pool = Pool::builder().capacity(4 * BLOCK).build().unwrap();
    let region = pool.region(2 * BLOCK).unwrap();
    check(pool.region(1).unwrap_err(), ErrorCode::NotAMultiple);
    check(pool.region(0).unwrap_err(), ErrorCode::ZeroSize);
    check(region.discard(0..usize::MAX).unwrap_err(), ErrorCode::OutOfRange);
    check(region.read_from(std::io::stdin(), 0..usize::MAX).unwrap_err(), ErrorCode::OutOfRange);
    let reserved = RegionOptions::new().reserve(Reserve::Full);
    check(pool.region_with(8 * BLOCK, reserved).unwrap_err(), ErrorCode::LargerThanPool);
    let _all = pool.region_with(4 * BLOCK, reserved).unwrap();
    check(pool.region_with(BLOCK, reserved).unwrap_err(), ErrorCode::NotReservable);
    check(region.populate().unwrap_err(), ErrorCode::PoolFull);
    check(BlockSize::new(3).unwrap_err(), ErrorCode::NotABlockSize);
    check("ten".parse::<ByteSize>().unwrap_err(), ErrorCode::UnreadableSize);
    check("disk".parse::<Backing>().unwrap_err(), ErrorCode::UnknownBacking);
    check("straight/magic".parse::<Kernel>().unwrap_err(), ErrorCode::BadKernel);
    check(Pool::builder().capacity(1).build().unwrap_err(), ErrorCode::NotAMultiple);
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    let error = region.write_to(&file, 0..1).unwrap_err();
    let RegionError::System(refused) = error.reason.clone() else { panic!("{error}") };
    assert_eq!(refused.raw_os_error(), libc::EBADF);
    check(refused, ErrorCode::System);
    check(error, ErrorCode::System);
    assert_eq!(ErrorCode::of(&io::Error::from_raw_os_error(libc::EBADF)), None);
    assert_eq!(ErrorCode::of(&"x".parse::<u8>().unwrap_err()), None);
}
