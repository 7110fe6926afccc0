//! Reads files of foreign programs as the command does. For the tests, and for the fuzzer in fuzz/.

mod elf;
#[path = "../../src/commands/run/image.rs"]
#[allow(dead_code)]
mod image;

use std::io::{Cursor, Read, Seek, SeekFrom};

use self::elf::{Elf, FUNCTIONS};
use self::image::Image;

/// Reads `bytes` as each kind of file, and builds a program from them and reads it.
pub(crate) fn check(bytes: &[u8]) {
    check_program(bytes);
    check_written(bytes);
}

/// A file that counts the bytes that are read.
struct Counted<'a> {
    bytes: Cursor<&'a [u8]>,
    calls: usize,
    read: usize,
}

impl Read for Counted<'_> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let read = self.bytes.read(into)?;
        self.calls += 1;
        self.read += read;
        Ok(read)
    }
}

impl Seek for Counted<'_> {
    fn seek(&mut self, to: SeekFrom) -> std::io::Result<u64> {
        self.bytes.seek(to)
    }
}

/// Reading takes bounded work, and reports nothing that is not in the file.
pub(crate) fn check_program(bytes: &[u8]) {
    let mut counted = Counted { bytes: Cursor::new(bytes), calls: 0, read: 0 };
    let image = Image::of(&mut counted);
    // The header twice, four tables, and their strings.
    let (calls, read) = (counted.calls, counted.read);
    assert!(calls <= 16 && read <= 10 * bytes.len(), "{calls} reads, {read} of {} bytes", bytes.len());
    let Some(image) = image else { return };
    assert!(bytes.starts_with(b"\x7fELF"));
    let is_there = |name: &str| {
        let ended = [name.as_bytes(), b"\0"].concat();
        name.contains('\u{fffd}') || bytes.windows(ended.len()).any(|window| window == ended)
    };
    // Each byte that is not text becomes three.
    assert!(image.loader.as_ref().is_none_or(|name| name.len() < 3 * 4096 && is_there(name)), "{image:?}");
    assert!(image.needs.len() <= 4096 && image.needs.iter().all(|name| name.len() <= 3 * 255), "{image:?}");
    assert!(image.needs.iter().take(4).all(|name| is_there(name)), "{image:?}");
    assert!(image.has.len() <= 2 * FUNCTIONS.len(), "{image:?}");
    assert!(image.has.iter().all(|name| FUNCTIONS.contains(&name.as_str()) && is_there(name)), "{image:?}");
    assert!(!image.is_go || is_there(".go.buildinfo"), "{image:?}");
    assert!(image.sanitizer().is_none() || !image.needs.is_empty() || !image.has.is_empty(), "{image:?}");
}

/// A program built from `bytes` is read back with the same facts.
pub(crate) fn check_written(bytes: &[u8]) {
    let elf = Elf::said_by(bytes);
    let text = |names: &[Vec<u8>]| names.iter().map(|name| String::from_utf8_lossy(name).into_owned()).collect();
    let telling = |names: &[Vec<u8>]| {
        let mut found: Vec<String> = Vec::new();
        for name in FUNCTIONS.iter().filter(|name| names.iter().any(|other| *other == name.as_bytes())) {
            found.push((*name).to_owned());
        }
        found
    };
    let mut has = telling(&elf.defines);
    if has.iter().any(|name| name == "malloc") {
        has.extend(telling(&elf.keeps));
    }
    has.sort();
    let wanted = Image {
        is_of_this_machine: elf.is_of_this_machine,
        loader: elf.loader.as_ref().map(|name| String::from_utf8_lossy(name).into_owned()),
        needs: text(&elf.needs),
        has,
        is_go: elf.is_go,
    };
    let written = elf.to_bytes();
    let mut read = Image::of(Cursor::new(&written)).expect("a program");
    read.has.sort();
    assert_eq!(read, wanted);
    check_program(&written);
}
