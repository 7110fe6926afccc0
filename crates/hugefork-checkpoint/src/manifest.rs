//! The manifest of a checkpoint: the list of its files. A save replaces it as its last step, so that the directory has
//! the checkpoint before or the new one.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::path::Path;

use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use crate::error::{CheckpointError, at, if_found};
use crate::open::{open, open_folder};

pub(crate) const NAME: &str = "manifest.json";

/// The folder of all other files.
pub(crate) const DATA: &str = "data";

/// The file that a save locks. It is made before all others and never removed, so that it also tells that the files of
/// a killed save are those of a save.
pub(crate) const LOCK: &str = ".lock";

const FORMAT: &str = "hugefork-checkpoint";
const VERSION: u64 = 1;

/// Separates the text of a manifest from its checksum. Two spaces are the indentation of the outermost object, so no
/// member of an inner one begins so.
const SEAL: &str = ",\n  \"crc32\": ";

/// A file of a checkpoint, as the manifest describes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct File {
    /// Its name in the folder [`DATA`].
    #[serde(rename = "file")]
    pub(crate) name: String,
    /// Its length.
    pub(crate) nbytes: u64,
    /// The CRC-32 of all of it.
    pub(crate) crc32: u32,
}

/// The files of an array: the whole array first, and then the changes, in the order in which they were made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum Entry {
    Changes { ranges: File, bytes: File },
    Whole(File),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    format: String,
    version: u64,
    /// The number of the save in its directory. The names of files have it.
    pub(crate) save: u64,
    pub(crate) meta: String,
    pub(crate) arrays: BTreeMap<String, Vec<Entry>>,
    /// All of it, as it is in the file.
    #[serde(skip)]
    pub(crate) text: String,
}

/// The first fields, which all versions have.
#[derive(Deserialize)]
struct Version {
    format: String,
    version: u64,
}

impl Manifest {
    pub(crate) fn new(save: u64, meta: String, arrays: BTreeMap<String, Vec<Entry>>) -> Manifest {
        let format = FORMAT.to_owned();
        let mut manifest = Manifest { format, version: VERSION, save, meta, arrays, text: String::new() };
        let text = serde_json::to_string_pretty(&manifest).expect("all keys are text");
        let body = text.strip_suffix("\n}").expect("an object is in several lines");
        manifest.text = format!("{body}{SEAL}{}\n}}\n", crc32fast::hash(body.as_bytes()));
        manifest
    }

    /// Reads and checks the manifest of a directory.
    pub(crate) fn read(directory: &Path) -> Result<Manifest, CheckpointError> {
        let path = directory.join(NAME);
        let Some(text) = if_found(contents(&path))? else { return Err(CheckpointError::Missing { path }) };
        Manifest::parse(text).map_err(|why| {
            CheckpointError::altered(&path, format!("is not a manifest of a checkpoint, or was altered: {why}"))
        })
    }

    /// Checks a manifest. The error is the reason why it is none.
    fn parse(text: Vec<u8>) -> Result<Manifest, Box<dyn std::error::Error>> {
        let text = String::from_utf8(text)?;
        let Version { format, version } = serde_json::from_str(&text)?;
        if format != FORMAT {
            return Err(format!("its format is {format:?}").into());
        }
        if version != VERSION {
            return Err(format!("a newer hugefork has written it, as version {version}").into());
        }
        let (body, seal) = text.rsplit_once(SEAL).ok_or("it has no checksum")?;
        if seal != format!("{}\n}}\n", crc32fast::hash(body.as_bytes())) {
            return Err("its checksum is another".into());
        }
        let mut manifest: Manifest = serde_json::from_str(&text)?;
        for (name, entries) in &manifest.arrays {
            let is_whole = |entry: &Entry| matches!(entry, Entry::Whole(_));
            if !entries.first().is_some_and(is_whole) || entries[1..].iter().any(is_whole) {
                return Err(format!("array {name:?} is not one file and its changes").into());
            }
        }
        if manifest.save == u64::MAX {
            return Err("no save can follow it".into());
        }
        if let Some(file) = manifest.files().find(|file| !is_name(&file.name)) {
            return Err(format!("{:?} is not the name of a file", file.name).into());
        }
        manifest.text = text;
        Ok(manifest)
    }

    /// The manifest that a save to this directory replaces, if it is valid.
    ///
    /// # Errors
    /// [`CheckpointError::Foreign`] if the directory may belong to another program.
    pub(crate) fn before(directory: &Path) -> Result<Option<Manifest>, CheckpointError> {
        let foreign = |why: String| CheckpointError::Foreign { path: directory.to_owned(), why };
        match Manifest::read(directory) {
            Ok(manifest) => return Ok(Some(manifest)),
            Err(CheckpointError::Missing { .. }) => {}
            Err(CheckpointError::Altered { path, why }) => {
                let was_own = contents(&path).is_ok_and(|text| is_own(&text));
                let (why, _) = why.rsplit_once("; ").unwrap_or((&why, ""));
                return if was_own { Ok(None) } else { Err(foreign(format!("{} {why}", path.display()))) };
            }
            Err(error) => return Err(error),
        }
        let data = directory.join(DATA);
        let mut names = match fs::read_dir(&data) {
            Err(error) if [ErrorKind::NotFound, ErrorKind::NotADirectory].contains(&error.kind()) => return Ok(None),
            found => at(&data, found)?.filter_map(Result::ok).map(|entry| entry.file_name()),
        };
        // The lock is looked for after the files were listed: another save may have begun meanwhile.
        let first = names.find(|name| !name.to_str().is_some_and(is_of_a_save));
        let odd = first.or_else(|| if directory.join(LOCK).exists() { None } else { names_of(&data).next() });
        match odd {
            None => Ok(None),
            Some(name) => Err(foreign(format!("there is no checkpoint, and {name:?} in data was not made by a save"))),
        }
    }

    /// Replaces the manifest of a directory: the last step of a save. Returns the open directory, which the caller
    /// makes safe on the disk. It is opened first: after an error, the manifest is as before.
    pub(crate) fn put(&self, directory: &Path) -> Result<fs::File, CheckpointError> {
        let made = directory.join("manifest.json.new");
        let opened = open_folder(directory)?;
        let write = || {
            // A link of this name leads to a file that belongs to others.
            remove_leftover(&made)?;
            let mut file = fs::File::create_new(&made)?;
            file.write_all(self.text.as_bytes())?;
            file.sync_all()?;
            fs::rename(&made, directory.join(NAME))
        };
        at(&made, write()).inspect_err(|_| _ = fs::remove_file(&made))?;
        Ok(opened)
    }

    pub(crate) fn files(&self) -> impl Iterator<Item = &File> {
        self.arrays.values().flatten().flat_map(Entry::files)
    }
}

impl Entry {
    pub(crate) fn files(&self) -> impl Iterator<Item = &File> {
        let (first, second) = match self {
            Entry::Whole(file) => (file, None),
            Entry::Changes { ranges, bytes } => (ranges, Some(bytes)),
        };
        [first].into_iter().chain(second)
    }
}

fn contents(path: &Path) -> Result<Vec<u8>, CheckpointError> {
    let (mut file, mut text) = (open(path, OFlags::RDONLY)?, Vec::new());
    at(path, file.read_to_end(&mut text))?;
    Ok(text)
}

fn names_of(folder: &Path) -> impl Iterator<Item = std::ffi::OsString> {
    fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok).map(|entry| entry.file_name())
}

/// Makes new entries of a folder safe on the disk.
pub(crate) fn sync(folder: &Path) -> Result<(), CheckpointError> {
    at(folder, open_folder(folder)?.sync_all())
}

/// Removes a file that a killed save may have left.
pub(crate) fn remove_leftover(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// Whether an invalid manifest was one of this version: damage by the disk must not prevent further saves.
fn is_own(text: &[u8]) -> bool {
    match serde_json::from_slice::<serde_json::Value>(text) {
        Ok(json) => json["format"] == FORMAT && json["version"] == VERSION,
        Err(_) => text.windows(FORMAT.len()).any(|part| part == FORMAT.as_bytes()),
    }
}

/// Whether a manifest may use this name for a file of its folder.
fn is_name(name: &str) -> bool {
    !["", ".", ".."].contains(&name) && !name.contains(['/', '\0'])
}

/// Whether a save may have made a file with this name in [`DATA`], such as `w.3.npy` or `w.4.ranges-2.npy`.
pub(crate) fn is_of_a_save(name: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|letter| letter.is_ascii_digit());
    let is_stem = |stem: &str| stem.rsplit_once('.').is_some_and(|(name, save)| !name.is_empty() && is_number(save));
    let is_kind = |kind: &str| match kind.split_once('-') {
        Some((kind, nth)) => ["ranges", "bytes"].contains(&kind) && is_number(nth),
        None => ["first", "ranges", "bytes"].contains(&kind),
    };
    let Some(name) = name.strip_suffix(".npy") else { return false };
    is_stem(name) || name.rsplit_once('.').is_some_and(|(stem, kind)| is_stem(stem) && is_kind(kind))
}

/// The start of the names of the files that a save makes for an array: its name with `%` for letters that are not
/// allowed everywhere, as in an address of the web.
pub(crate) fn stem(name: &str, save: u64) -> String {
    format!("{}.{save}", quoted(name))
}

pub(crate) fn quoted(name: &str) -> String {
    let mut all = String::new();
    for byte in name.bytes() {
        match byte {
            b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' | b'_' | b'.' | b'-' | b'~' => all.push(byte.into()),
            byte => all.push_str(&format!("%{byte:02X}")),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_saves_are_taken_for_such() {
        for name in
            ["w.3.npy", "w.4.ranges.npy", "w.1.bytes-16.npy", "w.1.first.npy", "w.1.1.npy", "..1.npy", "a%2Fb.1.npy"]
        {
            assert!(is_of_a_save(name), "{name}");
        }
        for name in [
            "train.csv",
            "w.npy",
            ".1.npy",
            "w..npy",
            "w.x.npy",
            "w.1.first-1.npy",
            "w.1.ranges-.npy",
            "w.1",
            "w.1.other.npy",
        ] {
            assert!(!is_of_a_save(name), "{name}");
        }
        assert_eq!(stem("layer/1.bias ü", 3), "layer%2F1.bias%20%C3%BC.3");
    }

    #[test]
    fn a_manifest_is_read_back_and_nothing_else_is_one() {
        let file = |name: &str| File { name: name.to_owned(), nbytes: 7, crc32: 9 };
        let arrays = |files: Vec<Entry>| BTreeMap::from([("w".to_owned(), files)]);
        let changes = Entry::Changes { ranges: file("w.2.ranges.npy"), bytes: file("w.2.bytes.npy") };
        let whole = Entry::Whole(file("w.1.npy"));
        let good = Manifest::new(2, "{\"crc32\": 1}".to_owned(), arrays(vec![whole.clone(), changes.clone()]));
        assert_eq!(Manifest::parse(good.text.clone().into()).unwrap(), good);
        for at in 0..good.text.len() {
            for (flip, cut) in [(1, false), (0x20, false), (0, true)] {
                let mut text = good.text.clone().into_bytes();
                text[at] ^= flip;
                text.truncate(if cut { at } else { text.len() });
                let found = Manifest::parse(text);
                assert!(found.is_err(), "byte {at}: {found:?}");
            }
        }
        for files in [vec![], vec![changes.clone()], vec![whole.clone(), whole], vec![Entry::Whole(file("../w"))]] {
            let forged = Manifest::new(1, String::new(), arrays(files));
            assert!(Manifest::parse(forged.text.clone().into()).is_err(), "{forged:?}");
        }
        // The next save would use its files' names.
        assert!(Manifest::parse(Manifest::new(u64::MAX, String::new(), BTreeMap::new()).text.into()).is_err());
    }
}
