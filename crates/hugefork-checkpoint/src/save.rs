//! Saves checkpoints.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::io::{self, ErrorKind};
use std::iter;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crc32fast::Hasher;
use hugefork::{RegionError, Snapshot, SnapshotId};
use rustix::fs::{AtFlags, CWD, linkat};

use crate::alone::Alone;
use crate::error::{CheckpointError, at};
use crate::files::{ArrayFiles, PIECE, head_of, is_zero, zeros};
use crate::kept::remove_others;
use crate::manifest::{DATA, Entry, File, Manifest, quoted, remove_leftover, stem, sync};

/// Maximum number of changes on top of a whole array: loading applies each of them.
const MOST_CHANGES: usize = 16;

/// Pages that are compared with those of earlier files.
const PAGE: usize = 4096;

/// Bytes of the smallest run of zeros that becomes a hole of the file.
const HOLE: usize = 64 << 10;

/// The longest name of an array, with `%` for other letters: the names of files have 255 letters.
const LONGEST_NAME: usize = 200;

/// A named array of a checkpoint.
#[derive(Clone, Debug)]
pub struct Part<'a> {
    name: &'a str,
    source: Source<'a>,
    older: Option<&'a Snapshot>,
    head: Option<&'a [u8]>,
}

#[derive(Clone, Debug)]
enum Source<'a> {
    Snapshot(&'a Snapshot, Range<usize>),
    Bytes(&'a [u8]),
}

impl<'a> Part<'a> {
    /// All bytes of a snapshot.
    pub fn of(name: &'a str, snapshot: &'a Snapshot) -> Part<'a> {
        Part::of_range(name, snapshot, 0..snapshot.len())
    }

    /// The bytes of `range` of a snapshot.
    pub fn of_range(name: &'a str, snapshot: &'a Snapshot, range: Range<usize>) -> Part<'a> {
        Part { name, source: Source::Snapshot(snapshot, range), older: None, head: None }
    }

    /// Bytes that lie in no region. They are written whole each time.
    pub fn of_bytes(name: &'a str, bytes: &'a [u8]) -> Part<'a> {
        Part { name, source: Source::Bytes(bytes), older: None, head: None }
    }

    /// The snapshot of the same part in the earlier save, see [`Save::since`]. The engine finds the pages that differ
    /// from it, so no file is read. With any other snapshot, or none, the save compares the files.
    #[must_use]
    pub fn since(mut self, older: &'a Snapshot) -> Part<'a> {
        self.older = Some(older);
        self
    }

    /// The header of the numpy file, for arrays of another type or shape than a vector of bytes: all bytes before the
    /// contents. `numpy.lib.format.write_array_header_1_0` makes it.
    #[must_use]
    pub fn head(mut self, head: &'a [u8]) -> Part<'a> {
        self.head = Some(head);
        self
    }

    fn len(&self) -> usize {
        match &self.source {
            Source::Snapshot(_, range) => range.len(),
            Source::Bytes(bytes) => bytes.len(),
        }
    }

    fn check(&self) -> Result<(), CheckpointError> {
        let refused = |why| Err(CheckpointError::Part { name: self.name.to_owned(), why });
        if !(1..=LONGEST_NAME).contains(&quoted(self.name).len()) {
            return refused("it cannot be the name of a file: give text of up to 200 letters");
        }
        match &self.source {
            Source::Snapshot(snapshot, range) if range.start > range.end || range.end > snapshot.len() => {
                refused("the range does not lie in the snapshot: give one that ends at its length or before")
            }
            Source::Snapshot(..) | Source::Bytes(_) => Ok(()),
        }
    }

    /// Copies bytes from `offset` of the source on.
    fn read(&self, offset: usize, to: &mut [u8]) -> Result<(), RegionError> {
        match &self.source {
            Source::Snapshot(snapshot, _) => snapshot.read_at(offset, to),
            Source::Bytes(bytes) => {
                to.copy_from_slice(&bytes[offset..][..to.len()]);
                Ok(())
            }
        }
    }

    /// The pages whose bytes differ from those of files.
    fn differing_from_files(&self, files: &ArrayFiles<'_>) -> Result<Vec<Range<usize>>, CheckpointError> {
        let Source::Snapshot(_, range) = &self.source else { unreachable!("only snapshots are compared") };
        let [mut new, mut old] = [vec![0; PIECE], vec![0; PIECE]];
        let mut ranges: Vec<Range<usize>> = Vec::new();
        for start in range.clone().step_by(PIECE) {
            let count = PIECE.min(range.end - start);
            self.read(start, &mut new[..count])?;
            files.read((start - range.start) as u64, &mut old[..count])?;
            for page in (0..count).step_by(PAGE) {
                let end = count.min(page + PAGE);
                if new[page..end] == old[page..end] {
                    continue;
                }
                match ranges.last_mut().filter(|last| last.end == start + page) {
                    Some(last) => last.end = start + end,
                    None => ranges.push(start + page..start + end),
                }
            }
        }
        Ok(ranges)
    }
}

/// The ranges of a snapshot that may have other bytes than zeros.
fn written(snapshot: &Snapshot) -> Result<Vec<Range<usize>>, RegionError> {
    // A region that nobody has written to takes no memory.
    let zeros = snapshot.pool().region(snapshot.len())?.snapshot()?;
    snapshot.changed_since(&zeros)?.blocks().collect()
}

/// The parts of ranges in address order that lie in `outer`.
fn within(ranges: &[Range<usize>], outer: &Range<usize>) -> Vec<Range<usize>> {
    let first = ranges.partition_point(|range| range.end <= outer.start);
    let inside = ranges[first..].iter().take_while(|range| range.start < outer.end);
    let cut = inside.map(|range| range.start.max(outer.start)..range.end.min(outer.end));
    cut.filter(|range| !range.is_empty()).collect()
}

/// An earlier checkpoint, of which a save writes the changes.
#[derive(Clone, Copy, Debug)]
pub enum Since<'a> {
    /// A save of this process.
    Save(&'a Saved),
    /// A directory, for example that of an earlier process: its files are read and compared.
    Directory(&'a Path),
}

/// A checkpoint that this process has saved. See [`Save::since`].
#[derive(Clone, Debug)]
pub struct Saved {
    directory: PathBuf,
    manifest: Manifest,
    /// The snapshot and the range of each part.
    places: HashMap<String, (SnapshotId, Range<usize>)>,
}

impl Saved {
    /// Its directory, as an absolute path.
    pub fn directory(&self) -> &Path {
        &self.directory
    }
}

/// Reports the progress of a save: bytes done, and in all. See [`Save::progress`].
type Progress<'a> = dyn FnMut(u64, u64) -> io::Result<()> + 'a;

/// A save with options. [`save`](crate::save) and [`save_since`](crate::save_since) are saves without.
#[must_use = "`write` saves"]
pub struct Save<'a> {
    directory: PathBuf,
    since: Option<Since<'a>>,
    meta: &'a str,
    progress: Option<&'a mut Progress<'a>>,
}

impl<'a> Save<'a> {
    /// A save to a directory, which [`Save::write`] makes. A checkpoint that is there is replaced when the new one is
    /// complete.
    pub fn to(directory: impl AsRef<Path>) -> Save<'a> {
        Save { directory: directory.as_ref().to_owned(), since: None, meta: "null", progress: None }
    }

    /// Writes only the pages of 4 KiB that have changed since an earlier checkpoint, for each part that has the same
    /// name, length and header there. After 16 such saves, or when half of a part has changed, all of it is written.
    /// If the earlier checkpoint is in another directory, its files become hard links here: each directory is a
    /// complete checkpoint, and removing one does not affect the others. All is written where links are impossible, as
    /// between file systems, or if that checkpoint was replaced or removed.
    pub fn since(mut self, since: Since<'a>) -> Save<'a> {
        self.since = Some(since);
        self
    }

    /// A text that is kept with the arrays, see [`Checkpoint::meta`](crate::Checkpoint::meta). `hugefork.checkpoint` of
    /// Python reads it as JSON. By default `null`.
    pub fn meta(mut self, meta: &'a str) -> Save<'a> {
        self.meta = meta;
        self
    }

    /// A function that is called after each piece of up to 256 KiB, with the number of bytes that are done and the
    /// number in all, which becomes less where parts turn out to be unchanged or never written. It may sleep, to leave
    /// the disk to others. Its error ends the save with [`CheckpointError::Ended`].
    pub fn progress(mut self, progress: &'a mut Progress<'a>) -> Save<'a> {
        self.progress = Some(progress);
        self
    }

    /// Writes the checkpoint, and returns when it is safe on the disk. It takes no lock of the regions: their threads
    /// go on writing. Saves to one directory, also by other processes, come one after the other.
    ///
    /// Blocks that were never written take no time and no room on the disk, where files can have holes.
    ///
    /// # Errors
    /// [`CheckpointError`]. The checkpoint that was in the directory is as before, and the new files are removed; if
    /// the process is killed, the next save removes them. [`CheckpointError::Part`] for a name that is too long or
    /// occurs twice, and for a range outside of its snapshot.
    pub fn write(self, parts: &[Part<'_>]) -> Result<Saved, CheckpointError> {
        let directory = at(&self.directory, std::path::absolute(&self.directory))?;
        let mut names = HashSet::new();
        for part in parts {
            part.check()?;
            if !names.insert(part.name) {
                let why = "two parts have this name: give each its own";
                return Err(CheckpointError::Part { name: part.name.to_owned(), why });
            }
        }
        Manifest::before(&directory)?;
        make(&directory)?;
        let _alone = Alone::wait(&directory)?;
        let before = Manifest::before(&directory)?;
        let number = before.as_ref().map_or(1, |before| before.save + 1);
        let total = parts.iter().map(|part| part.len() as u64).sum();
        let data = directory.join(DATA);
        let (made, found) = (Vec::new(), HashMap::new());
        let mut work = Work { data: data.clone(), number, made, progress: self.progress, done: 0, total, found };
        let earlier = match self.since {
            Some(since) => work.earlier(parts, since, &directory)?,
            None => HashMap::new(),
        };
        let written = |part: &Part<'_>| Ok((part.name.to_owned(), work.write(part, earlier.get(part.name))?));
        let arrays = parts.iter().map(written).collect::<Result<BTreeMap<_, _>, CheckpointError>>()?;
        let manifest = Manifest::new(number, self.meta.to_owned(), arrays);
        sync(&data)?;
        let opened = manifest.put(&directory)?;
        // The new manifest is there, whether or not it is safe on the disk.
        work.made.clear();
        at(&directory, opened.sync_all())?;
        remove_others(&data, &manifest);
        let places = parts.iter().filter_map(|part| match &part.source {
            Source::Snapshot(snapshot, range) => Some((part.name.to_owned(), (snapshot.id(), range.clone()))),
            Source::Bytes(_) => None,
        });
        Ok(Saved { places: places.collect(), directory, manifest })
    }
}

/// Makes the folders of a checkpoint.
fn make(directory: &Path) -> Result<(), CheckpointError> {
    if directory.join(DATA).is_dir() {
        return Ok(());
    }
    at(directory, fs::create_dir_all(directory))?;
    match fs::create_dir(directory.join(DATA)) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists && directory.join(DATA).is_dir() => {}
        made => at(&directory.join(DATA), made)?,
    }
    directory.parent().map_or(Ok(()), sync)
}

/// A part of the earlier checkpoint: the place of its bytes, and its files.
struct Earlier<'a> {
    older: Older<'a>,
    entries: Vec<Entry>,
}

enum Older<'a> {
    Snapshot(&'a Snapshot),
    /// The pages that differ from the files.
    Differing(Vec<Range<usize>>),
}

/// A save that is going on. Its drop removes the files that were made, unless the list is cleared.
struct Work<'a> {
    data: PathBuf,
    number: u64,
    made: Vec<PathBuf>,
    progress: Option<&'a mut Progress<'a>>,
    done: u64,
    total: u64,
    /// The ranges found so far: the pages that differ between two snapshots, and the blocks of one snapshot that may
    /// have other bytes than zeros. Many parts may belong to one snapshot.
    found: HashMap<(SnapshotId, Option<SnapshotId>), Vec<Range<usize>>>,
}

impl Drop for Work<'_> {
    fn drop(&mut self) {
        self.made.drain(..).for_each(|file| _ = fs::remove_file(file));
    }
}

impl Work<'_> {
    /// The parts that may be saved as changes. Empty if the earlier checkpoint does not exist any more.
    fn earlier<'p>(
        &mut self,
        parts: &[Part<'p>],
        since: Since<'_>,
        directory: &Path,
    ) -> Result<HashMap<String, Earlier<'p>>, CheckpointError> {
        let (other, saved) = match since {
            Since::Save(saved) => (saved.directory.as_path(), Some(saved)),
            Since::Directory(other) => (other, None),
        };
        let Ok(manifest) = Manifest::read(other) else { return Ok(HashMap::new()) };
        if saved.is_some_and(|saved| saved.manifest != manifest) {
            return Ok(HashMap::new());
        }
        let mut found = HashMap::new();
        for part in parts {
            let entries = manifest.arrays.get(part.name).filter(|entries| entries.len() <= MOST_CHANGES);
            let (Some(entries), Source::Snapshot(snapshot, range)) = (entries, &part.source) else { continue };
            let Ok(files) = ArrayFiles::open(other, entries) else { continue };
            if files.len() != range.len() as u64 || files.head().ok().as_deref() != Some(&part.head_or_own()) {
                continue;
            }
            let place = saved.and_then(|saved| saved.places.get(part.name));
            let is_of = |older: &&Snapshot| place == Some(&(older.id(), range.clone()));
            let older = match part.older.filter(is_of).filter(|older| older.len() == snapshot.len()) {
                Some(older) => Older::Snapshot(older),
                // Only undamaged files are worth a link.
                None if files.stream(|_, _| Ok(())).is_ok() => Older::Differing(part.differing_from_files(&files)?),
                None => continue,
            };
            found.insert(part.name.to_owned(), Earlier { older, entries: entries.clone() });
        }
        if is_same(other, directory) {
            return Ok(found);
        }
        for (name, earlier) in &mut found {
            match self.linked(name, other, &earlier.entries) {
                Ok(entries) => earlier.entries = entries,
                // The other directory is in another file system, or its file system has no links, or the files have
                // too many.
                Err(_) => return Ok(HashMap::new()),
            }
        }
        // If the checkpoint was replaced meanwhile, these may be files of the next one.
        let is_as_before = Manifest::read(other).is_ok_and(|now| now == manifest);
        Ok(if is_as_before { found } else { HashMap::new() })
    }

    /// Links the files of an array in another directory into this one. A file is never written to after it was made,
    /// and removing one of the two names does not affect the other.
    fn linked(&mut self, name: &str, other: &Path, entries: &[Entry]) -> io::Result<Vec<Entry>> {
        let mut link = |file: &File, kind: String| -> io::Result<File> {
            // These names differ from all names that another array's name with points and numbers can produce.
            let name = format!("{}.{kind}.npy", stem(name, self.number));
            let path = self.data.join(&name);
            remove_leftover(&path)?;
            // A symbolic link may lead elsewhere from this directory, or to a file that is removed with the other.
            linkat(CWD, other.join(DATA).join(&file.name), CWD, &path, AtFlags::SYMLINK_FOLLOW)?;
            self.made.push(path);
            Ok(File { name, ..file.clone() })
        };
        let mut linked = |(nth, entry): (usize, &Entry)| {
            Ok(match entry {
                Entry::Whole(file) => Entry::Whole(link(file, "first".to_owned())?),
                Entry::Changes { ranges, bytes } => Entry::Changes {
                    ranges: link(ranges, format!("ranges-{nth}"))?,
                    bytes: link(bytes, format!("bytes-{nth}"))?,
                },
            })
        };
        entries.iter().enumerate().map(&mut linked).collect()
    }

    /// The ranges of a part that differ from `older`, or without it, those that may have other bytes than zeros.
    fn ranges(&mut self, part: &Part<'_>, older: Option<&Snapshot>) -> Vec<Range<usize>> {
        let (snapshot, range) = match &part.source {
            Source::Bytes(bytes) => return iter::once(0..bytes.len()).collect(),
            Source::Snapshot(snapshot, range) => (snapshot, range),
        };
        let found = self.found.entry((snapshot.id(), older.map(Snapshot::id))).or_insert_with(|| {
            let ranges = match older {
                Some(older) => snapshot.changed_since(older).and_then(|changes| changes.pages().collect()),
                None => written(snapshot),
            };
            // All is read if there are no addresses for a region of zeros, or if the older snapshot has lost a part. If
            // this snapshot has lost one, the read fails.
            ranges.unwrap_or_else(|_| iter::once(0..snapshot.len()).collect())
        });
        within(found, range)
    }

    /// Writes the files of a part that do not exist yet.
    fn write(&mut self, part: &Part<'_>, earlier: Option<&Earlier<'_>>) -> Result<Vec<Entry>, CheckpointError> {
        let (stem, whole) = (stem(part.name, self.number), part.len() as u64);
        if let (Some(earlier), Source::Snapshot(_, place)) = (earlier, &part.source) {
            let ranges = match &earlier.older {
                Older::Snapshot(older) => self.ranges(part, Some(*older)),
                Older::Differing(ranges) => ranges.clone(),
            };
            let changed: u64 = ranges.iter().map(|range| range.len() as u64).sum();
            if changed == 0 {
                self.count(0, whole)?;
                return Ok(earlier.entries.clone());
            }
            let of_bytes = |entry: &Entry| if let Entry::Changes { bytes, .. } = entry { bytes.nbytes } else { 0 };
            let before: u64 = earlier.entries.iter().map(of_bytes).sum();
            if (changed + before) * 2 <= whole {
                let bounds = ranges.iter().flat_map(|range| [range.start - place.start, range.end - place.start]);
                let list: Vec<u8> = bounds.flat_map(|bound| (bound as i64).to_le_bytes()).collect();
                self.total += list.len() as u64;
                self.count(0, whole - changed)?;
                let list_part = Part::of_bytes(part.name, &list);
                let list_head = head_of("<i8", &format!("{}, 2", ranges.len()));
                let bytes_head = head_of("|u1", &format!("{changed},"));
                let mut end = 0;
                let placed = ranges.iter().map(|range| {
                    end += range.len();
                    (end - range.len(), range.clone())
                });
                let placed: Vec<_> = placed.collect();
                return Ok([
                    earlier.entries.as_slice(),
                    &[Entry::Changes {
                        ranges: self.file(
                            format!("{stem}.ranges.npy"),
                            &list_head,
                            &list_part,
                            &[(0, 0..list.len())],
                        )?,
                        bytes: self.file(format!("{stem}.bytes.npy"), &bytes_head, part, &placed)?,
                    }],
                ]
                .concat());
            }
        }
        let start = if let Source::Snapshot(_, place) = &part.source { place.start } else { 0 };
        let ranges = self.ranges(part, None).into_iter();
        let placed: Vec<_> = ranges.map(|range| (range.start - start, range)).collect();
        let head = part.head_or_own();
        Ok(vec![Entry::Whole(self.file(format!("{stem}.npy"), &head, part, &placed)?)])
    }

    /// Writes a file: the header, and each range of the source at its offset. There are zeros between these, and up to
    /// the length of the source if that is the whole file.
    fn file(
        &mut self,
        name: String,
        head: &[u8],
        part: &Part<'_>,
        ranges: &[(usize, Range<usize>)],
    ) -> Result<File, CheckpointError> {
        let path = self.data.join(&name);
        // A file left by a killed save may also be a file of another checkpoint.
        at(&path, remove_leftover(&path))?;
        let file = at(&path, fs::OpenOptions::new().write(true).create_new(true).open(&path))?;
        self.made.push(path.clone());
        at(&path, file.write_all_at(head, 0))?;
        let (mut crc, mut bytes, mut end) = (Hasher::new(), vec![0; PIECE], 0);
        crc.update(head);
        for (offset, range) in ranges {
            self.hole(&mut crc, (offset - end) as u64)?;
            for start in range.clone().step_by(PIECE) {
                let piece = &mut bytes[..PIECE.min(range.end - start)];
                part.read(start, piece)?;
                crc.update(piece);
                let place = (head.len() + offset + start - range.start) as u64;
                for run in runs(piece) {
                    at(&path, file.write_all_at(&piece[run.clone()], place + run.start as u64))?;
                }
                self.count(piece.len() as u64, 0)?;
            }
            end = offset + range.len();
        }
        let is_whole = name == format!("{}.npy", stem(part.name, self.number));
        let len = if is_whole { part.len() } else { end };
        self.hole(&mut crc, (len - end) as u64)?;
        let nbytes = (head.len() + len) as u64;
        at(&path, file.set_len(nbytes).and_then(|()| file.sync_all()))?;
        Ok(File { name, nbytes, crc32: crc.finalize() })
    }

    /// Leaves out zeros.
    fn hole(&mut self, crc: &mut Hasher, count: u64) -> Result<(), CheckpointError> {
        if count > 0 {
            crc.combine(&zeros(count));
            // A caller that limits bytes per second must not wait for these.
            self.count(0, count)?;
        }
        Ok(())
    }

    /// Counts bytes that are done, and bytes that need not be written, and reports the progress.
    fn count(&mut self, done: u64, unchanged: u64) -> Result<(), CheckpointError> {
        self.done += done;
        self.total -= unchanged;
        match &mut self.progress {
            Some(progress) => progress(self.done, self.total).map_err(CheckpointError::Ended),
            None => Ok(()),
        }
    }
}

impl Part<'_> {
    /// The header of the file of the whole part.
    fn head_or_own(&self) -> Vec<u8> {
        self.head.map_or_else(|| head_of("|u1", &format!("{},", self.len())), <[u8]>::to_vec)
    }
}

/// The parts of a piece that are not zeros, for larger runs of zeros.
fn runs(piece: &[u8]) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for start in (0..piece.len()).step_by(HOLE) {
        let end = piece.len().min(start + HOLE);
        match runs.last_mut() {
            _ if is_zero(&piece[start..end]) => {}
            Some(last) if last.end == start => last.end = end,
            _ => runs.push(start..end),
        }
    }
    runs
}

/// Whether two paths lead to one directory.
fn is_same(one: &Path, other: &Path) -> bool {
    let canonical = |path: &Path| fs::canonicalize(path).ok();
    one == other || (canonical(one).is_some() && canonical(one) == canonical(other))
}
