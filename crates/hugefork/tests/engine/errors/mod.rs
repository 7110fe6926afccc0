//! The conversion of hugefork's errors into `std::io::Error`.

mod codes;
mod every;
mod line;

use std::error::Error;
use std::io::{self, ErrorKind};

use crate::common::alone::alone;
use hugefork::{BlockSize, BuildError, ByteSize, Pool, RegionError, RegionOptions, Reserve, SizeError, SystemError};

const BLOCK: usize = 2 << 20;

/// A function of a program that knows only `io::Result`.
fn by_question_mark<T, E>(result: Result<T, E>) -> io::Result<T>
where
    io::Error: From<E>,
{
    Ok(result?)
}

/// Checks the kind, and the error inside with its message.
#[track_caller]
fn check<E: Error + PartialEq + Clone + Send + Sync + 'static>(error: E, kind: ErrorKind)
where
    io::Error: From<E>,
{
    let passed_on = by_question_mark::<(), E>(Err(error.clone())).unwrap_err();
    assert_eq!(passed_on.kind(), kind, "{error}");
    assert_eq!(passed_on.to_string(), error.to_string());
    assert_eq!(passed_on.get_ref().and_then(|inner| inner.downcast_ref::<E>()), Some(&error));
}

#[test]
fn what_regions_answer_becomes_an_io_error_of_its_kind() {
    let pool = Pool::builder().name("test").capacity(4 * BLOCK).build().unwrap();
    let region = pool.region_with(2 * BLOCK, RegionOptions::new().reserve(Reserve::Full)).unwrap();
    check(pool.region(BLOCK + 1).unwrap_err(), ErrorKind::InvalidInput);
    check(pool.region(5 * BLOCK).unwrap_err(), ErrorKind::InvalidInput);
    check(region.prepare_write(0..3 * BLOCK).unwrap_err(), ErrorKind::InvalidInput);
    let full = pool.region(4 * BLOCK).unwrap().populate().unwrap_err();
    assert!(matches!(full, RegionError::PoolFull { .. }), "{full}");
    check(full, ErrorKind::OutOfMemory);
    let too_much = pool.region_with(4 * BLOCK, RegionOptions::new().reserve(Reserve::Full)).unwrap_err();
    assert!(matches!(too_much, RegionError::NotReservable { .. }), "{too_much}");
    check(too_much, ErrorKind::OutOfMemory);
}

#[test]
fn what_builders_and_sizes_answer_becomes_an_io_error_of_its_kind() {
    check(Pool::builder().capacity(1).build().unwrap_err(), ErrorKind::InvalidInput);
    let beyond = Pool::builder().capacity(1 << 50).block_size(BlockSize::GIB_1).build().unwrap_err();
    assert!(matches!(beyond, BuildError::BeyondTheMachine { .. }), "{beyond}");
    check(beyond, ErrorKind::OutOfMemory);
    check(BlockSize::new(3).unwrap_err(), ErrorKind::InvalidInput);
    check("ten".parse::<ByteSize>().unwrap_err(), ErrorKind::InvalidInput);
}

#[test]
fn what_the_kernel_answered_is_to_be_found_in_numbers() {
    alone(|| {
        let limit = libc::rlimit { rlim_cur: 1 << 30, rlim_max: libc::RLIM_INFINITY };
        // SAFETY: changes a limit of this process, which runs only this test.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) }, 0);
        let error = Pool::builder().capacity(BLOCK).build().unwrap_err();
        let refused = error.source().and_then(|source| source.downcast_ref::<SystemError>()).expect("a call failed");
        assert_eq!(refused.raw_os_error(), libc::ENOMEM);
        assert!(error.to_string().contains("failed: out of memory (ENOMEM)"), "{error}");
        check(error, ErrorKind::OutOfMemory);
    })
    .well();
}

#[test]
fn sources_are_kept() {
    let error = io::Error::from(RegionError::from(BlockSize::new(3).unwrap_err()));
    assert!(error.source().is_some_and(|source| source.is::<SizeError>()), "{error:?}");
}
