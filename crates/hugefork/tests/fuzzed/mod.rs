//! Texts that may come from anybody, for the tests, and for the fuzzer in fuzz/.

use std::fmt::Display;
use std::fs::File;
use std::str::FromStr;

use hugefork::kernels::Kernel;
use hugefork::{Backing, BlockSize, ByteSize, Extents, ImportError, Imported};

/// What is read prints as something that is read as the same.
fn check<T: FromStr + Display + PartialEq + std::fmt::Debug>(text: &str) {
    if let Ok(value) = text.parse::<T>() {
        assert_eq!(value.to_string().parse::<T>().ok().as_ref(), Some(&value), "{text:?}");
    }
}

/// A file of three pages that cannot become shorter.
pub(crate) fn file() -> File {
    let flags = rustix::fs::MemfdFlags::CLOEXEC | rustix::fs::MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("fuzz", flags).unwrap();
    rustix::fs::ftruncate(&file, 3 * 4096).unwrap();
    rustix::fs::fcntl_add_seals(&file, rustix::fs::SealFlags::SHRINK).unwrap();
    file.into()
}

pub(crate) fn check_all(text: &str, file: &File) {
    check::<ByteSize>(text);
    check::<BlockSize>(text);
    check::<Backing>(text);
    check::<Kernel>(text);
    let Ok(extents) = text.parse::<Extents>() else { return };
    assert_eq!(extents.to_string(), text, "extents are read exactly as they print");
    match Imported::map(file, &extents) {
        Ok(imported) => {
            let mut byte = [1];
            // Pages behind the end of the file would be a SIGBUS.
            for extent in extents.iter() {
                imported.read_at(extent.offset + extent.len - 1, &mut byte).unwrap();
                assert_eq!(byte, [0]);
            }
            imported.read_at(imported.len() - 1, &mut byte).unwrap();
        }
        Err(error) => assert!(
            matches!(
                error,
                ImportError::TooShort { .. } | ImportError::TooManyMappings { .. } | ImportError::System(_)
            ),
            "{error}"
        ),
    }
}
