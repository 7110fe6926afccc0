//! What the command reads of foreign programs: their files, and the page on which the library counts in them. For the
//! tests, and for the fuzzer in fuzz/.

mod elf;
#[path = "../../src/commands/run/image.rs"]
#[allow(dead_code)]
mod image;
#[path = "../../src/commands/stats/text.rs"]
mod text;

use std::collections::BTreeSet;
use std::io::{Cursor, Read, Seek, SeekFrom};

use hugefork_preload::Mode;
use hugefork_preload::stats::{Counters, Report};

use self::elf::{Elf, FUNCTIONS};
use self::image::{Allocator, Image};

/// Reads `bytes` as each of them, and what they say written as a program.
pub(crate) fn check(bytes: &[u8]) {
    check_program(bytes);
    check_page(bytes);
    check_written(bytes);
}

/// Bytes that count what is read of them.
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

/// Reads them with bounded work, and invents nothing.
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
    // Each byte that is no text becomes three.
    assert!(image.loader.as_ref().is_none_or(|name| name.len() < 3 * 4096 && is_there(name)), "{image:?}");
    assert!(image.needs.len() <= 4096 && image.needs.iter().all(|name| name.len() <= 3 * 255), "{image:?}");
    assert!(image.needs.iter().take(4).all(|name| is_there(name)), "{image:?}");
    assert!(image.has.len() <= 2 * FUNCTIONS.len(), "{image:?}");
    assert!(image.has.iter().all(|name| FUNCTIONS.contains(&name.as_str()) && is_there(name)), "{image:?}");
    assert!(!image.is_go || is_there(".go.buildinfo"), "{image:?}");
    assert!(image.allocator() == Allocator::Libc || !image.needs.is_empty() || !image.has.is_empty(), "{image:?}");
    assert!(image.sanitizer().is_none() || !image.needs.is_empty() || !image.has.is_empty(), "{image:?}");
    assert!(!image.allocator().in_words().is_empty());
}

/// A program that says what `bytes` say is read so.
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

/// The words of a page, by the names that `hugefork stats --json` has for them. They have their places for ever.
const WORDS: [(&str, usize); 26] = [
    ("mappings", 4),
    ("mapped_bytes", 5),
    ("total_forks", 6),
    ("latest_fork_usec", 7),
    ("longest_fork_usec", 8),
    ("all_forks_usec", 9),
    ("forks_alive", 10),
    ("passes", 11),
    ("blocks_collapsed", 12),
    ("blocks_not_collapsed", 13),
    ("thp_disables_kept", 14),
    ("pool_mappings", 15),
    ("pool_refused", 16),
    ("blocks_handed_over", 17),
    ("blocks_unseen", 18),
    ("pages_written_back", 19),
    ("blocks_promoted", 20),
    ("blocks_made_huge", 21),
    ("pool_left", 22),
    ("pool_bytes", 23),
    ("pool_kept_bytes", 24),
    ("blocks_privatised", 25),
    ("pages_given_back", 26),
    ("sharing_usec", 27),
    ("pool_refused_why", 28),
    ("blocks_demoted", 29),
];
const HISTOGRAMS: usize = 64;
const NAMES: [&str; 3] = ["fork_usec_histogram", "promotion_usec_histogram", "write_back_usec_histogram"];
const BUCKETS: usize = 32;
const PAGE: usize = 4096;

/// Reads them, filled up to a page; every number that is printed is one of the page. What comes after the counters
/// stands for the kernel's texts, too.
pub(crate) fn check_page(bytes: &[u8]) {
    assert!(bytes.len() >= PAGE || Counters::from_bytes(bytes).is_none());
    let mut page = bytes.to_vec();
    page.resize(page.len().max(PAGE), 0);
    let word = |place: usize| u64::from_le_bytes(page[place * 8..place * 8 + 8].try_into().unwrap());
    let counters = Counters::from_bytes(&page);
    let is_known = page.starts_with(b"hugefork") && word(1) == 1 && word(2) <= u64::from(u32::MAX);
    assert_eq!(counters.is_some(), is_known && word(3) < Mode::ALL.len() as u64);
    let Some(counters) = counters else { return };
    let mode = Mode::ALL[word(3) as usize].name();
    assert_eq!((u64::from(counters.process), counters.mode), (word(2), mode));

    let texts = String::from_utf8_lossy(&page[(HISTOGRAMS + NAMES.len() * BUCKETS) * 8..]).into_owned();
    let report = Report::new(counters, &texts, &texts);
    let json = text::json(7, &report);
    for (name, place) in WORDS {
        assert_eq!(json[name], word(place), "{name}");
    }
    for (name, place) in NAMES.into_iter().zip((HISTOGRAMS..).step_by(BUCKETS)) {
        let histogram: Vec<u64> = (place..place + BUCKETS).map(word).collect();
        assert_eq!(json[name], serde_json::json!(histogram), "{name}");
    }
    assert_eq!(json["mode"], mode);

    let table = text::table(7, &report);
    assert!(table.split_terminator('\n').skip(1).all(|line| line.starts_with("  ")), "{table}");
    assert!(!table.contains(|char: char| char != '\n' && char.is_control()), "{table}");
    // The number of the process, the size of a block, and the descriptors and addresses that a pool needs.
    let mut known = BTreeSet::from(["7", "2", "980", "16"].map(str::to_owned));
    let memory = [report.resident_bytes, report.peak_bytes, report.anonymous_bytes, report.huge_bytes];
    let words = (4..HISTOGRAMS + NAMES.len() * BUCKETS).map(word).filter(|word| *word > 0);
    let mean = word(9).checked_div(word(6)).unwrap_or(0);
    for number in words.chain(memory).chain([0, mean]) {
        known.extend([number.to_string(), (number >> 20).to_string(), format!("{:.3}", number as f64 / 1e3)]);
    }
    known.extend((0..BUCKETS).map(|bucket| ((1_u64 << bucket) as f64 / 1e3).to_string()));
    let is_other = |char: char| !char.is_ascii_digit() && char != '.';
    for number in table.split(is_other).map(|word| word.trim_matches('.')).filter(|word| !word.is_empty()) {
        assert!(known.contains(number), "{number} is not of the page:\n{table}");
    }
}
