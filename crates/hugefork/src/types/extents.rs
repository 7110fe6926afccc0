//! [`Extents`]: the offsets of a snapshot's bytes in the file of an export, also as text.

use std::fmt;
use std::str::FromStr;

use super::error::ImportError;
use crate::units::{BASE_PAGE, BlockSize};

/// The first line. Its number increases when the format changes.
const TITLE: &str = "hugefork-extents 1";

/// The problem of a line.
struct Wrong(&'static str);

/// A range of a snapshot and its place in the file. Offsets and length are bytes, and multiples of
/// [`Extents::page_size`].
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let pool = hugefork::Pool::builder().capacity(8 << 20).exports(true).build()?;
/// let mut state = pool.region(6 << 20)?;
/// state.as_mut_slice()[2 << 20] = 1; // one block of three
/// let export = state.snapshot()?.export()?;
/// for extent in export.extents().iter() {
///     assert_eq!((extent.offset, extent.len), (2 << 20, 2 << 20));
///     println!("mmap(at + {}, {}, …, fd, {})", extent.offset, extent.len, extent.file_offset);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Extent {
    /// Offset in the snapshot.
    pub offset: usize,
    /// Offset in the file.
    pub file_offset: usize,
    /// Length.
    pub len: usize,
}

/// The offsets of a snapshot's bytes in the file of an [`Export`](crate::Export): extents sorted by offset, without
/// overlap. Bytes outside of all extents are zeros.
///
/// # As text
/// It prints as lines, which [`FromStr`] or any other program can parse. Numbers are decimal, in bytes:
///
/// ```text
/// hugefork-extents 1
/// length 4294967296
/// page 4096
/// extent 0 10485760 2097152
/// extent 4194304 16777216 2147483648
/// end 2
/// ```
///
/// `length` is that of the snapshot, and `page` divides all other numbers. Each `extent` has an offset in the snapshot,
/// an offset in the file, and a length. `end` has the number of extents. The last line ends in a newline, too.
///
/// A page that the snapshot holds in place of a page of a shared block takes two lines of some 30 bytes each. An
/// argument of a command line, or an environment variable, can have 128 KiB: pass longer texts in a file or a pipe.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use hugefork::Extents;
/// # let pool = hugefork::Pool::builder().capacity(8 << 20).exports(true).build()?;
/// # let mut state = pool.region(4 << 20)?;
/// # state.as_mut_slice()[0] = 1;
/// # let export = state.snapshot()?.export()?;
/// let text = export.extents().to_string(); // for a pipe, a file, the command line
/// assert_eq!(text.parse::<Extents>()?, *export.extents());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extents {
    len: usize,
    page: usize,
    list: Vec<Extent>,
}

impl Extents {
    /// An empty list for a snapshot of `len` bytes.
    pub(crate) fn new(len: usize, page: usize) -> Extents {
        Extents { len, page, list: Vec::new() }
    }

    /// Adds an extent after all others. It is merged with the last if it continues that on both sides. An empty one is
    /// ignored.
    pub(crate) fn push(&mut self, extent: Extent) {
        match self.list.last_mut() {
            _ if extent.len == 0 => {}
            Some(last) if last.continues(&extent) => last.len += extent.len,
            Some(_) | None => self.list.push(extent),
        }
    }

    /// Length of the snapshot in bytes.
    #[allow(clippy::len_without_is_empty)] // A snapshot is never empty.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The divisor of all offsets and lengths, and of the address at which the file can be mapped: 4096, or the size of
    /// a hugetlb page.
    pub fn page_size(&self) -> usize {
        self.page
    }

    /// The extents, in the order of their offsets.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Extent> + Clone + '_ {
        self.list.iter().copied()
    }

    /// The minimum length of the file.
    pub(crate) fn file_len(&self) -> usize {
        self.list.iter().map(|extent| extent.file_offset + extent.len).max().unwrap_or(0)
    }

    /// Checks a parsed extent, and adds it without merging.
    fn add(&mut self, extent: Extent) -> Result<(), Wrong> {
        let Extent { offset, file_offset, len } = extent;
        let is_whole = [offset, file_offset, len].iter().all(|number| number.is_multiple_of(self.page));
        let start = self.list.last().map_or(0, |last| last.offset + last.len);
        match (offset.checked_add(len), file_offset.checked_add(len)) {
            _ if !is_whole => Err(Wrong("an offset or a length is no multiple of the page size")),
            _ if len == 0 => Err(Wrong("the extent is empty")),
            _ if offset < start => Err(Wrong("the extent begins before the end of the one before it")),
            (Some(end), Some(file_end)) if end <= self.len && isize::try_from(file_end).is_ok() => {
                self.list.push(extent);
                Ok(())
            }
            _ => Err(Wrong("the extent ends behind the end of the snapshot, or of any file")),
        }
    }
}

impl Extent {
    pub(crate) const fn new(offset: usize, file_offset: usize, len: usize) -> Extent {
        Extent { offset, file_offset, len }
    }

    /// Whether `next` continues this one on both sides.
    fn continues(&self, next: &Extent) -> bool {
        self.offset + self.len == next.offset && self.file_offset + self.len == next.file_offset
    }
}

impl fmt::Display for Extents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{TITLE}\nlength {}\npage {}", self.len, self.page)?;
        for Extent { offset, file_offset, len } in &self.list {
            writeln!(f, "extent {offset} {file_offset} {len}")?;
        }
        writeln!(f, "end {}", self.list.len())
    }
}

/// The numbers of a line that begins with `word`: exactly as many as requested.
fn numbers<const COUNT: usize>(line: &str, word: &str) -> Option<[usize; COUNT]> {
    let mut words = line.split(' ');
    if words.next() != Some(word) {
        return None;
    }
    let mut found = [0; COUNT];
    for number in &mut found {
        let text = words.next()?;
        // Only the printed form: no sign, and no zero before other digits.
        *number = text.parse().ok().filter(|number: &usize| number.to_string() == text)?;
    }
    words.next().is_none().then_some(found)
}

impl FromStr for Extents {
    type Err = ImportError;

    /// Parses exactly the printed form.
    ///
    /// # Errors
    /// [`ImportError::Unreadable`].
    fn from_str(text: &str) -> Result<Extents, ImportError> {
        let mut lines =
            text.split_inclusive('\n').map(|line| line.strip_suffix('\n').ok_or(Wrong("the line has no end")));
        let mut number = 0;
        let mut read = || -> Result<Extents, Wrong> {
            let mut line = || {
                number += 1;
                lines.next().unwrap_or(Err(Wrong("the text ends before `end`")))
            };
            if line()? != TITLE {
                return Err(Wrong("it is not `hugefork-extents 1`"));
            }
            let [len] = numbers(line()?, "length").ok_or(Wrong("it is not `length` and a number"))?;
            let [page] = numbers(line()?, "page").ok_or(Wrong("it is not `page` and a number"))?;
            if BlockSize::new(page).is_err() || page < BASE_PAGE {
                return Err(Wrong("the page size is no power of two from 4096 to 1 GiB"));
            }
            if len == 0 || !len.is_multiple_of(page) || isize::try_from(len).is_err() {
                return Err(Wrong("the length is no multiple of the page size"));
            }
            let mut extents = Extents::new(len, page);
            loop {
                let line = line()?;
                if let Some([offset, file_offset, len]) = numbers(line, "extent") {
                    extents.add(Extent { offset, file_offset, len })?;
                } else if let Some([count]) = numbers(line, "end") {
                    return if count == extents.list.len() { Ok(extents) } else { Err(Wrong("the count is wrong")) };
                } else {
                    return Err(Wrong("it is neither `extent` and three numbers nor `end` and one"));
                }
            }
        };
        let extents = read().map_err(|Wrong(reason)| ImportError::Unreadable { line: number, reason })?;
        match lines.next() {
            Some(_) => Err(ImportError::Unreadable { line: number + 1, reason: "there is something behind the end" }),
            None => Ok(extents),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "hugefork-extents 1\nlength 16384\npage 4096\nextent 0 8192 4096\nextent 8192 0 8192\nend 2\n";

    fn line_of(text: &str) -> usize {
        match text.parse::<Extents>() {
            Err(ImportError::Unreadable { line, .. }) => line,
            other => panic!("{text:?}: {other:?}"),
        }
    }

    #[test]
    fn what_is_printed_is_read_back() {
        let extents: Extents = GOOD.parse().unwrap();
        assert_eq!((extents.to_string().as_str(), extents.len(), extents.page_size()), (GOOD, 16384, 4096));
        assert_eq!((extents.iter().len(), extents.file_len()), (2, 12288));
        let empty = Extents::new(4096, 4096);
        assert_eq!((empty.to_string().parse(), empty.file_len()), (Ok(empty.clone()), 0));
    }

    #[test]
    fn neighbours_on_both_sides_are_joined() {
        let mut extents = Extents::new(10 * 4096, 4096);
        let page = |offset: usize, file_offset: usize| Extent {
            offset: offset * 4096,
            file_offset: file_offset * 4096,
            len: 4096,
        };
        for extent in [page(0, 5), page(1, 6), page(2, 8), page(4, 9), page(5, 10)] {
            extents.push(extent);
        }
        let found: Vec<_> = extents.iter().map(|extent| (extent.offset / 4096, extent.len / 4096)).collect();
        assert_eq!(found, [(0, 2), (2, 1), (4, 2)]);
    }

    #[test]
    fn anything_else_is_refused_with_its_line() {
        let with = |from: &str, to: &str| GOOD.replacen(from, to, 1);
        for (text, line) in [
            (String::new(), 1),
            ("hugefork-extents 1".to_owned(), 1),
            (with("extents 1", "extents 2"), 1),
            (with("length 16384", "length 0"), 3),
            (with("length 16384", "length 16385"), 3),
            (with("length 16384", "length 18446744073709551615"), 3),
            (with("length 16384", "length 99999999999999999999"), 2),
            (with("length 16384", "length -4096"), 2),
            (with("length 16384", "length +16384"), 2),
            (with("length 16384", "length 016384"), 2),
            (with("length 16384", "length 16384 "), 2),
            (with("length 16384", "length  16384"), 2),
            (with("length 16384\n", ""), 2),
            (with("page 4096", "page 1000"), 3),
            (with("page 4096", "page 2048"), 3),
            (with("page 4096", "page 2147483648"), 3),
            (with("page 4096", "page 8192"), 4),
            (with("0 8192 4096", "0 8192"), 4),
            (with("0 8192 4096", "0 8192 4096 1"), 4),
            (with("0 8192 4096", "0 8192 0"), 4),
            (with("0 8192 4096", "1 8192 4096"), 4),
            (with("0 8192 4096", "0 8192 12288"), 5),
            (with("8192 0 8192", "8192 0 12288"), 5),
            (with("8192 0 8192", "8192 18446744073709547520 8192"), 5),
            (with("8192 0 8192", "8192 9223372036854771712 8192"), 5),
            (with("8192 0 8192", "18446744073709547520 0 8192"), 5),
            (with("end 2", "end 1"), 6),
            (with("end 2\n", "end 2"), 6),
            (with("end 2\n", ""), 6),
            (with("end 2\n", "end 2\n\n"), 7),
            (with("extent 0", "extend 0"), 4),
            (GOOD.replace('\n', "\r\n"), 1),
        ] {
            assert_eq!(line_of(&text), line, "{text:?}");
        }
    }
}
