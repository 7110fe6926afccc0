//! Checks of texts from untrusted sources, for the tests and for the fuzzer in fuzz/.

use std::fmt::Display;
use std::fs::File;
use std::str::FromStr;

use hugefork::kernels::Kernel;
use hugefork::{Backing, BlockSize, ByteSize, Extents, ImportError, Imported};
use rustix::fs::{MemfdFlags, SealFlags};

/// Checks that a value read from the text prints as a text with the same value.
fn check<T: FromStr + Display + PartialEq + std::fmt::Debug>(text: &str) {
    if let Ok(value) = text.parse::<T>() {
        assert_eq!(value.to_string().parse::<T>().ok().as_ref(), Some(&value), "{text:?}");
    }
}

/// Files that cannot become shorter: three pages of memory, three pages to which nobody may write, and three hugetlb
/// pages without memory, if the machine has such files.
pub(crate) fn files() -> Vec<File> {
    let file = |kind: MemfdFlags, page: u64, seals: SealFlags| {
        let file = rustix::fs::memfd_create("fuzz", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | kind).ok()?;
        rustix::fs::ftruncate(&file, 3 * page).unwrap();
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | seals).unwrap();
        Some(File::from(file))
    };
    let plain = [SealFlags::empty(), SealFlags::WRITE].map(|seals| file(MemfdFlags::empty(), 4096, seals));
    let hugetlb = file(MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB, 2 << 20, SealFlags::empty());
    plain.into_iter().chain([hugetlb]).flatten().collect()
}

/// The most bytes read in one piece.
const MOST: usize = 32 << 20;

/// Reads all of it. If it is longer than [`MOST`], reads only its ends and the ends of its extents.
fn read_all(imported: &Imported, extents: &Extents) -> Result<(), ImportError> {
    let mut byte = [1];
    // A page past the end of the file would raise SIGBUS.
    for extent in extents.iter() {
        imported.read_at(extent.offset + extent.len - 1, &mut byte)?;
        assert_eq!(byte, [0]);
    }
    let mut some = vec![1; imported.len().min(MOST)];
    let zeros = vec![0; some.len()];
    for at in [0, imported.len() - some.len()] {
        imported.read_at(at, &mut some)?;
        assert!(some == zeros);
    }
    if let Some(bytes) = imported.sealed() {
        assert!(bytes[..some.len()] == some);
    }
    Ok(())
}

pub(crate) fn check_all(text: &str, files: &[File]) {
    check::<ByteSize>(text);
    check::<BlockSize>(text);
    check::<Backing>(text);
    check::<Kernel>(text);
    let Ok(extents) = text.parse::<Extents>() else { return };
    assert_eq!(extents.to_string(), text, "extents are read exactly as they print");
    for file in files {
        match Imported::map(file, &extents).and_then(|imported| read_all(&imported, &extents)) {
            Ok(()) => {}
            Err(error) => assert!(
                matches!(
                    error,
                    ImportError::TooShort { .. }
                        | ImportError::OtherPages { .. }
                        | ImportError::NoPages { .. }
                        | ImportError::TooManyMappings { .. }
                        | ImportError::System(_)
                ),
                "{error}"
            ),
        }
    }
}
