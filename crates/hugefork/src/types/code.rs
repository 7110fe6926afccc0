//! [`ErrorCode`]: a stable number and name for each error.
//!
//! All codes are assigned here, in one exhaustive `match` for each family, so no new error can lack
//! one.

use std::error::Error;
use std::fmt;
use std::io::{self, ErrorKind};
use std::iter;

use hugefork_kernels::KernelError;

use super::error::{BuildError, ImportError, RegionError, ResetError, TransferError};
use crate::sys::linux::pressure::PressureError;
use crate::sys::{SystemError, answer};
use crate::units::SizeError;

/// Defines the codes by one row each: what it is, its number, its name, and its `errno`.
macro_rules! codes {
    ($(#[doc = $what:literal] $code:ident = $number:literal $name:literal $errno:ident;)*) => {
        /// A stable number and name for an error: for bindings, logs and programs that compare errors.
        ///
        /// Every error type of hugefork has a method `code`; [`ErrorCode::of`] finds the code of an error of any type.
        /// A code that is no longer used is never reassigned. The numbers are larger than every `errno`, so that one
        /// `int` may be either. The thousands digit is always 1; the hundreds digit is 0 for bad requests, 1 for
        /// used-up resources, 2 for the state of a region, and 3 for the machine.
        ///
        /// | number | name | `errno` | what it is |
        /// |---|---|---|---|
        $(#[doc = concat!("| ", $number, " | `", $name, "` | `", stringify!($errno), "` |", $what, " |")])*
        ///
        /// ```
        /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
        /// use hugefork::{ErrorCode, Pool};
        /// let pool = Pool::builder().capacity(4 << 20).build()?;
        /// let error = pool.region(8 << 20).unwrap_err();
        /// assert_eq!(error.code(), ErrorCode::LargerThanPool);
        /// assert_eq!((error.code().number(), error.code().as_str()), (1007, "larger_than_pool"));
        /// # Ok(())
        /// # }
        /// ```
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(i32)]
        #[non_exhaustive]
        pub enum ErrorCode {
            $(#[doc = $what] $code = $number,)*
        }

        impl ErrorCode {
            /// All codes, in the order of their numbers.
            pub const ALL: [ErrorCode; [$($number),*].len()] = [$(ErrorCode::$code),*];

            /// The name, such as `pool_full`.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(ErrorCode::$code => $name,)*
                }
            }

            /// The closest `errno`, for interfaces that have nothing else. It agrees with the kind of the [`io::Error`]
            /// that the error becomes, except for [`ErrorCode::Revoked`], which has no kind. For [`ErrorCode::System`]
            /// the kernel's own error says more: [`SystemError::raw_os_error`].
            pub const fn errno(self) -> i32 {
                match self {
                    $(ErrorCode::$code => answer::$errno,)*
                }
            }
        }
    };
}

codes! {
    /// A block size that is no power of two from 4 KiB to 1 GiB.
    NotABlockSize = 1001 "not_a_block_size" EINVAL;
    /// A size of zero bytes.
    ZeroSize = 1002 "zero_size" EINVAL;
    /// A size that is no whole number of blocks.
    NotAMultiple = 1003 "not_a_multiple" EINVAL;
    /// Text that is no size.
    UnreadableSize = 1004 "unreadable_size" EINVAL;
    /// Text that names no backing.
    UnknownBacking = 1005 "unknown_backing" EINVAL;
    /// More blocks than a pool can have.
    TooManyBlocks = 1006 "too_many_blocks" EINVAL;
    /// A region that is larger than its pool.
    LargerThanPool = 1007 "larger_than_pool" EINVAL;
    /// A range that does not lie inside.
    OutOfRange = 1008 "out_of_range" EINVAL;
    /// A range that is no slice of the type.
    NotAView = 1009 "not_a_view" EINVAL;
    /// A limit on copies for a snapshot, which has none.
    LimitOnSnapshot = 1010 "limit_on_snapshot" EINVAL;
    /// An environment variable with an impossible value.
    BadSetting = 1011 "bad_setting" EINVAL;
    /// A kernel that this machine lacks, or text that names none.
    BadKernel = 1012 "bad_kernel" EINVAL;
    /// A snapshot of another pool.
    AnotherPool = 1013 "another_pool" EINVAL;
    /// A snapshot of another length.
    AnotherLength = 1014 "another_length" EINVAL;
    /// Text that lists no extents of a snapshot.
    BadExtents = 1015 "bad_extents" EINVAL;
    /// A descriptor that belongs to no export, or to another one.
    NotAnExport = 1016 "not_an_export" EINVAL;
    /// Operations other than those of the region, or of others in its cut.
    AnotherOperations = 1017 "another_operations" EINVAL;
    /// More memory than the machine or container has.
    BeyondTheMachine = 1101 "beyond_the_machine" ENOMEM;
    /// The machine has no memory left.
    OutOfMemory = 1102 "out_of_memory" ENOMEM;
    /// No addresses are left.
    OutOfAddresses = 1103 "out_of_addresses" ENOMEM;
    /// More mappings than `vm.max_map_count` allows.
    TooManyMappings = 1104 "too_many_mappings" ENOMEM;
    /// The pool has no free block.
    PoolFull = 1105 "pool_full" ENOMEM;
    /// The pool has too few blocks to reserve.
    NotReservable = 1106 "not_reservable" ENOMEM;
    /// A block has as many pins as can be counted.
    TooManyPins = 1108 "too_many_pins" EBUSY;
    /// Part of a fork or snapshot was taken away.
    Revoked = 1201 "revoked" EIO;
    /// The region has an observer.
    AlreadyObserved = 1202 "already_observed" EEXIST;
    /// The process is a `fork(2)` child, which cannot make this call.
    ForkedChild = 1203 "forked_child" EOPNOTSUPP;
    /// A fork, snapshot or reset inside an operation, which it would wait for.
    InsideOperation = 1205 "inside_operation" EDEADLK;
    /// An operation that took longer than a fork, snapshot or reset waits.
    OperationGoesOn = 1206 "operation_goes_on" EBUSY;
    /// The machine lacks the backing that was asked for.
    BackingUnavailable = 1301 "backing_unavailable" EOPNOTSUPP;
    /// Memory pressure cannot be watched.
    PressureUnwatched = 1302 "pressure_unwatched" EOPNOTSUPP;
    /// The kernel refused a call, see [`SystemError::raw_os_error`].
    System = 1303 "system" EIO;
    /// The pool's memory cannot be opened for reading only.
    NotExportable = 1304 "not_exportable" EOPNOTSUPP;
}

impl ErrorCode {
    /// The number, above 1000.
    pub const fn number(self) -> i32 {
        self as i32
    }

    /// The code of an error of hugefork, of an [`io::Error`] made from one, or of any other error with one of these as
    /// its source. `None` for all others.
    ///
    /// ```
    /// use hugefork::{BlockSize, ErrorCode};
    /// let error = std::io::Error::from(BlockSize::new(3).unwrap_err());
    /// assert_eq!(ErrorCode::of(&error), Some(ErrorCode::NotABlockSize));
    /// ```
    pub fn of(error: &(dyn Error + 'static)) -> Option<ErrorCode> {
        let mut chain = iter::successors(Some(error), |&error| match error.downcast_ref::<io::Error>() {
            Some(error) => error.get_ref().map(|inner| inner as &(dyn Error + 'static)),
            None => error.source(),
        });
        chain.find_map(ErrorCode::of_own)
    }

    fn of_own(error: &(dyn Error + 'static)) -> Option<ErrorCode> {
        macro_rules! first_of {
            ($($family:ty),*) => { None$(.or_else(|| error.downcast_ref().map(<$family>::code)))* };
        }
        let own = first_of!(
            RegionError,
            BuildError,
            TransferError,
            ImportError,
            ResetError,
            SizeError,
            PressureError,
            SystemError
        );
        own.or_else(|| error.downcast_ref().map(|_: &KernelError| ErrorCode::BadKernel))
    }

    /// The kind of [`io::Error`] that an error with this code becomes.
    pub(crate) fn kind(self) -> ErrorKind {
        match self {
            // No kind means that data is gone for good.
            ErrorCode::Revoked => ErrorKind::Other,
            code => io::Error::from_raw_os_error(code.errno()).kind(),
        }
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl SizeError {
    /// The stable number and name of the error.
    pub const fn code(&self) -> ErrorCode {
        match self {
            SizeError::NotABlockSize { .. } => ErrorCode::NotABlockSize,
            SizeError::Zero { .. } => ErrorCode::ZeroSize,
            SizeError::NotAMultiple { .. } => ErrorCode::NotAMultiple,
            SizeError::Unreadable { .. } => ErrorCode::UnreadableSize,
        }
    }
}

impl BuildError {
    /// The stable number and name of the error.
    pub const fn code(&self) -> ErrorCode {
        match self {
            BuildError::Capacity(size) => size.code(),
            BuildError::BeyondTheMachine { .. } => ErrorCode::BeyondTheMachine,
            BuildError::TooManyBlocks { .. } => ErrorCode::TooManyBlocks,
            BuildError::BackingUnavailable { .. } => ErrorCode::BackingUnavailable,
            BuildError::UnknownBacking { .. } => ErrorCode::UnknownBacking,
            BuildError::OutOfAddresses { .. } => ErrorCode::OutOfAddresses,
            BuildError::OutOfMemory { .. } => ErrorCode::OutOfMemory,
            BuildError::Setting { .. } => ErrorCode::BadSetting,
            BuildError::ForkedChild => ErrorCode::ForkedChild,
            BuildError::System(refused) => refused.code(),
        }
    }
}

impl RegionError {
    /// The stable number and name of the error.
    pub const fn code(&self) -> ErrorCode {
        match self {
            RegionError::Length(size) => size.code(),
            RegionError::LargerThanPool { .. } => ErrorCode::LargerThanPool,
            RegionError::OutOfRange { .. } => ErrorCode::OutOfRange,
            RegionError::NotAView { .. } | RegionError::NotWords { .. } => ErrorCode::NotAView,
            RegionError::PoolFull { .. } => ErrorCode::PoolFull,
            RegionError::NotReservable { .. } => ErrorCode::NotReservable,
            RegionError::LimitOnSnapshot => ErrorCode::LimitOnSnapshot,
            RegionError::Revoked => ErrorCode::Revoked,
            RegionError::AnotherPool { .. } => ErrorCode::AnotherPool,
            RegionError::AnotherLength { .. } => ErrorCode::AnotherLength,
            RegionError::InsideOperation => ErrorCode::InsideOperation,
            RegionError::OperationGoesOn { .. } => ErrorCode::OperationGoesOn,
            RegionError::AnotherOperations => ErrorCode::AnotherOperations,
            RegionError::TooManyPins => ErrorCode::TooManyPins,
            RegionError::AlreadyObserved => ErrorCode::AlreadyObserved,
            RegionError::OutOfMemory { .. } => ErrorCode::OutOfMemory,
            RegionError::TooManyMappings { .. } => ErrorCode::TooManyMappings,
            RegionError::OutOfAddresses { .. } => ErrorCode::OutOfAddresses,
            RegionError::NotExportable { .. } => ErrorCode::NotExportable,
            RegionError::ForkedChild => ErrorCode::ForkedChild,
            RegionError::System(refused) => refused.code(),
        }
    }
}

impl TransferError {
    /// The code of its reason.
    pub const fn code(&self) -> ErrorCode {
        self.reason.code()
    }
}

impl ImportError {
    /// The stable number and name of the error.
    pub const fn code(&self) -> ErrorCode {
        match self {
            ImportError::Unreadable { .. } => ErrorCode::BadExtents,
            ImportError::NotAnExport | ImportError::TooShort { .. } | ImportError::OtherPages { .. } => {
                ErrorCode::NotAnExport
            }
            ImportError::NoPages { .. } => ErrorCode::OutOfMemory,
            ImportError::TooManyMappings { .. } => ErrorCode::TooManyMappings,
            ImportError::OutOfRange { .. } => ErrorCode::OutOfRange,
            ImportError::System(refused) => refused.code(),
        }
    }
}

impl ResetError {
    /// The code of its reason.
    pub const fn code(&self) -> ErrorCode {
        self.reason.code()
    }
}

impl SystemError {
    /// [`ErrorCode::System`]: the code does not contain the call and the kernel's error.
    pub const fn code(&self) -> ErrorCode {
        ErrorCode::System
    }
}

impl PressureError {
    /// [`ErrorCode::PressureUnwatched`].
    pub const fn code(&self) -> ErrorCode {
        ErrorCode::PressureUnwatched
    }
}
