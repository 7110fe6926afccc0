//! The numpy files of a checkpoint, read.

use std::fs;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crc32fast::Hasher;
use rustix::fs::{OFlags, SeekFrom, seek};

use crate::error::{CheckpointError, at, if_found};
use crate::manifest::{DATA, Entry, File};
use crate::open::open;

/// Bytes per call of the system. So few bytes remain in the cache of a CPU until all work on them is done.
pub(crate) const PIECE: usize = 256 << 10;

/// The start of each numpy file, before its version.
const MAGIC: &[u8] = b"\x93NUMPY";

/// The header of a numpy file for a vector of `len` bytes, or with `descr` and `shape` for others.
pub(crate) fn head_of(descr: &str, shape: &str) -> Vec<u8> {
    let text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({shape}), }}");
    // Contents begin at a multiple of 64 bytes, and the text ends with a line.
    let len = (10 + text.len() + 1).next_multiple_of(64) - 10;
    let mut head = [MAGIC, b"\x01\x00", &(len as u16).to_le_bytes()].concat();
    head.extend(format!("{text:<width$}\n", width = len - 1).bytes());
    head
}

/// The checksum of so many zeros.
pub(crate) fn zeros(mut count: u64) -> Hasher {
    let (mut all, mut unit) = (Hasher::new(), Hasher::new());
    unit.update(&[0]);
    while count > 0 {
        if count % 2 == 1 {
            all.combine(&unit);
        }
        unit.combine(&unit.clone());
        count /= 2;
    }
    all
}

/// A consumer of bytes of an array, with the offset of the first.
pub(crate) trait Each: FnMut(u64, &[u8]) -> Result<(), CheckpointError> {}
impl<F: FnMut(u64, &[u8]) -> Result<(), CheckpointError>> Each for F {}

/// An open file of a checkpoint, whose length is that of the manifest.
struct Open<'a> {
    file: fs::File,
    path: PathBuf,
    entry: &'a File,
    /// Length of the header.
    head: u64,
}

impl<'a> Open<'a> {
    fn new(directory: &Path, entry: &'a File) -> Result<Open<'a>, CheckpointError> {
        let path = directory.join(DATA).join(&entry.name);
        let Some(file) = if_found(open(&path, OFlags::RDONLY))? else {
            let why = "is missing: it was removed; put it back, or load another checkpoint".to_owned();
            return Err(CheckpointError::Altered { path, why });
        };
        let found = at(&path, file.metadata())?.len();
        if found != entry.nbytes {
            let how = if found < entry.nbytes { "truncated" } else { "altered" };
            let why = format!("has {found} bytes instead of {}: it was {how}", entry.nbytes);
            return Err(CheckpointError::altered(&path, why));
        }
        let mut start = [0; 12];
        let len = start.len().min(found as usize);
        at(&path, file.read_exact_at(&mut start[..len], 0))?;
        let head = match start[..len].strip_prefix(MAGIC) {
            Some([1, _, a, b, ..]) => Some(10 + u64::from(u16::from_le_bytes([*a, *b]))),
            Some([2 | 3, _, a, b, c, d]) => Some(12 + u64::from(u32::from_le_bytes([*a, *b, *c, *d]))),
            _ => None,
        };
        let head = head.filter(|&head| head <= found);
        let head = head.ok_or_else(|| CheckpointError::altered(&path, "has no header of numpy: it was altered"))?;
        Ok(Open { file, path, entry, head })
    }

    /// Number of bytes behind the header.
    fn len(&self) -> u64 {
        self.entry.nbytes - self.head
    }

    fn read(&self, offset: u64, to: &mut [u8]) -> Result<(), CheckpointError> {
        at(&self.path, self.file.read_exact_at(to, self.head + offset))
    }

    /// Reads the file once, passes the bytes behind the header on, with their offsets, and compares the checksum at the
    /// end. Holes of the file, which are zeros, are not passed on.
    fn stream(&self, mut each: impl Each) -> Result<(), CheckpointError> {
        let (mut crc, mut bytes, mut done) = (Hasher::new(), vec![0; PIECE], 0);
        while done < self.entry.nbytes {
            let data = at(&self.path, self.next_data(done))?;
            if data.start > done {
                crc.combine(&zeros(data.start - done));
            }
            done = data.start;
            while done < data.end {
                let piece = &mut bytes[..PIECE.min((data.end - done) as usize)];
                at(&self.path, self.file.read_exact_at(piece, done))?;
                crc.update(piece);
                let skipped = self.head.saturating_sub(done).min(piece.len() as u64) as usize;
                each((done + skipped as u64).saturating_sub(self.head), &piece[skipped..])?;
                done += piece.len() as u64;
            }
        }
        if crc.finalize() == self.entry.crc32 {
            return Ok(());
        }
        Err(CheckpointError::altered(&self.path, "has another checksum: it was altered"))
    }

    /// The next bytes of the file from `from` on that are in no hole. Empty, at the end, if there are none.
    fn next_data(&self, from: u64) -> io::Result<Range<u64>> {
        let len = self.entry.nbytes;
        let start = match seek(&self.file, SeekFrom::Data(from)) {
            Ok(start) => start.clamp(from, len),
            Err(rustix::io::Errno::NXIO) => return Ok(len..len),
            // The file system knows no holes.
            Err(rustix::io::Errno::INVAL | rustix::io::Errno::OPNOTSUPP) => return Ok(from..len),
            Err(error) => return Err(error.into()),
        };
        let end = seek(&self.file, SeekFrom::Hole(start)).map_or(len, |end| end.clamp(start, len));
        Ok(start..end)
    }
}

/// A list of changes: byte ranges of the array, and the offset in the file of their bytes where each begins.
struct Ranges(Vec<(Range<u64>, u64)>);

impl Ranges {
    /// Reads a list and checks it: each range begins behind the one before, in an array of `len` bytes, and the bytes
    /// are as many as the file has.
    fn read(directory: &Path, ranges: &File, len: u64, bytes: &Open<'_>) -> Result<Ranges, CheckpointError> {
        let file = Open::new(directory, ranges)?;
        let altered = |why: String| Err(CheckpointError::altered(&file.path, why));
        // Holes make a file long that has few bytes.
        if file.len() / 16 > bytes.len() {
            return altered("has more ranges than bytes have changed: it was altered".to_owned());
        }
        let mut numbers = vec![0; file.len() as usize];
        file.stream(|offset, piece| {
            numbers[offset as usize..][..piece.len()].copy_from_slice(piece);
            Ok(())
        })?;
        if !numbers.len().is_multiple_of(16) {
            return altered("has no pairs of int64: it was altered".to_owned());
        }
        let (mut all, mut end, mut offset) = (Vec::new(), 0, 0);
        for pair in numbers.chunks_exact(16) {
            let number = |at: usize| u64::from_le_bytes(pair[at..at + 8].try_into().expect("it is 8 bytes"));
            let range = number(0)..number(8);
            if range.start < end || range.end < range.start || range.end > len {
                return altered(format!("has bytes {range:?} of {len}: it was altered"));
            }
            end = range.end;
            all.push((range.clone(), offset));
            offset += range.end - range.start;
        }
        if offset != bytes.len() {
            let why = format!("has {} bytes, and {offset} have changed: it was altered", bytes.len());
            return Err(CheckpointError::altered(&bytes.path, why));
        }
        Ok(Ranges(all))
    }
}

/// The files of an array, open.
pub(crate) struct ArrayFiles<'a> {
    first: Open<'a>,
    changes: Vec<(Ranges, Open<'a>)>,
}

impl<'a> ArrayFiles<'a> {
    /// Opens the files and checks their lengths, and the checksums of the lists of changes.
    ///
    /// # Errors
    /// [`CheckpointError::Altered`], [`CheckpointError::Io`].
    pub(crate) fn open(directory: &Path, entries: &'a [Entry]) -> Result<ArrayFiles<'a>, CheckpointError> {
        let [Entry::Whole(first), later @ ..] = entries else { unreachable!("the manifest was checked") };
        let mut files = ArrayFiles { first: Open::new(directory, first)?, changes: Vec::new() };
        for entry in later {
            let Entry::Changes { ranges, bytes } = entry else { unreachable!("the manifest was checked") };
            let bytes = Open::new(directory, bytes)?;
            files.changes.push((Ranges::read(directory, ranges, files.len(), &bytes)?, bytes));
        }
        Ok(files)
    }

    /// Length of the array in bytes.
    pub(crate) fn len(&self) -> u64 {
        self.first.len()
    }

    /// The header of the numpy file.
    pub(crate) fn head(&self) -> Result<Vec<u8>, CheckpointError> {
        let mut head = vec![0; self.first.head as usize];
        at(&self.first.path, self.first.file.read_exact_at(&mut head, 0))?;
        Ok(head)
    }

    /// Reads all files and compares their checksums. Passes the bytes of the array on: those of the whole array, except
    /// zeros, and after these those of each change.
    ///
    /// # Errors
    /// [`CheckpointError::Altered`] after bytes of the altered file were passed on. [`CheckpointError::Io`]. Those of
    /// `each`.
    pub(crate) fn stream(&self, mut each: impl Each) -> Result<(), CheckpointError> {
        // Zeros are also in a file that was copied without its holes.
        self.first.stream(|offset, piece| if is_zero(piece) { Ok(()) } else { each(offset, piece) })?;
        for (Ranges(ranges), bytes) in &self.changes {
            let mut done = 0;
            // Gives bytes of the file to the ranges that they belong to.
            let mut give = |to: u64, piece: Option<&[u8]>| -> Result<(), CheckpointError> {
                while done < to {
                    let nth = ranges.partition_point(|(_, offset)| *offset <= done) - 1;
                    let (range, offset) = &ranges[nth];
                    let at = range.start + done - offset;
                    let count = (range.end - at).min(to - done).min(PIECE as u64) as usize;
                    match piece {
                        Some(piece) => each(at, &piece[piece.len() - (to - done) as usize..][..count])?,
                        None => each(at, &[0; PIECE][..count])?,
                    }
                    done += count as u64;
                }
                Ok(())
            };
            bytes.stream(|offset, piece| {
                give(offset, None)?;
                give(offset + piece.len() as u64, Some(piece))
            })?;
            give(bytes.len(), None)?;
        }
        Ok(())
    }

    /// Reads bytes of the array, without a check of checksums.
    ///
    /// # Errors
    /// [`CheckpointError::Io`].
    pub(crate) fn read(&self, offset: u64, to: &mut [u8]) -> Result<(), CheckpointError> {
        self.first.read(offset, to)?;
        let end = offset + to.len() as u64;
        for (Ranges(ranges), bytes) in &self.changes {
            let first = ranges.partition_point(|(range, _)| range.end <= offset);
            for (range, place) in ranges[first..].iter().take_while(|(range, _)| range.start < end) {
                let both = range.start.max(offset)..range.end.min(end);
                let part = &mut to[(both.start - offset) as usize..(both.end - offset) as usize];
                bytes.read(place + both.start - range.start, part)?;
            }
        }
        Ok(())
    }
}

/// Whether all bytes are zeros.
pub(crate) fn is_zero(bytes: &[u8]) -> bool {
    let is_zero = |bytes: &[u8]| bytes.iter().fold(0, |all, byte| all | byte) == 0;
    // The compiler makes vector instructions of chunks with one length.
    let (chunks, rest) = bytes.as_chunks::<64>();
    chunks.iter().all(|chunk| is_zero(chunk)) && is_zero(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_of_zeros_needs_no_zeros() {
        for count in [0, 1, 2, 3, 4095, 4096, 100_001] {
            assert_eq!(zeros(count as u64).finalize(), crc32fast::hash(&vec![0; count]), "{count}");
        }
        let mut crc = Hasher::new();
        crc.update(b"text");
        crc.combine(&zeros(5));
        assert_eq!(crc.finalize(), crc32fast::hash(b"text\0\0\0\0\0"));
    }

    #[test]
    fn a_list_with_more_ranges_than_bytes_takes_no_memory() {
        let folder = std::env::temp_dir().join(format!("hugefork-ranges-{}", std::process::id()));
        fs::create_dir_all(folder.join(DATA)).unwrap();
        let file = |name: &str, nbytes: u64| {
            let file = fs::File::create(folder.join(DATA).join(name)).unwrap();
            file.write_all_at(&head_of("|u1", ""), 0).unwrap();
            file.set_len(nbytes).unwrap();
            File { name: name.to_owned(), nbytes, crc32: 0 }
        };
        let entries = [
            Entry::Whole(file("w", 4096)),
            Entry::Changes { ranges: file("ranges", 4 << 40), bytes: file("bytes", 128) },
        ];
        let error = ArrayFiles::open(&folder, &entries).err().unwrap();
        assert!(error.to_string().contains("more ranges than bytes"), "{error}");
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_header_is_that_of_numpy() {
        let head = head_of("|u1", "4194304,");
        assert_eq!(head.len(), 128);
        assert!(
            head.starts_with(
                b"\x93NUMPY\x01\x00\x76\x00{'descr': '|u1', 'fortran_order': False, 'shape': (4194304,), } "
            )
        );
        assert!(head.ends_with(b" \n"));
    }

    #[test]
    fn zeros_are_told_from_other_bytes() {
        let mut bytes = [0; 200];
        assert!(is_zero(&bytes) && is_zero(&[]));
        for at in [0, 63, 64, 199] {
            bytes[at] = 1;
            assert!(!is_zero(&bytes));
            bytes[at] = 0;
        }
    }
}
