//! The library as a file that programs can load. The command contains it, and writes it once for
//! each user and version.
//!
//! A user who could replace that file would run code in every program started with it. So it is
//! stored where no other user can do so (`place`). An existing file is used only if it belongs to
//! this user and equals the built-in library byte for byte. A new file is written under another
//! name and renamed, so that concurrent commands never see a half-written one.

use std::env;
use std::fs::{File, Permissions};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags, StatVfsMountFlags, fstatvfs, openat, renameat, unlinkat};
use rustix::io::Errno;
use rustix::process::geteuid;

use super::place::{self, Wrong};

/// A library built by the build script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Library {
    /// A hash of its contents.
    number: &'static str,
    contents: &'static [u8],
}

/// The library for `hugefork run --pool`.
const RUN: Library = Library {
    number: env!("HUGEFORK_LIBRARY_NUMBER"),
    contents: include_bytes!(concat!(env!("OUT_DIR"), "/library.so")),
};

impl Library {
    /// Its file name, which contains the hash.
    fn name(self) -> String {
        format!("{}{}.so", hugefork_preload::LIBRARY, self.number)
    }
}

/// Mode of the file: other users may read it, because programs that change their user need that.
const MODE: u32 = 0o755;

/// The location of a library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct InPlace {
    pub(super) path: PathBuf,
    /// The reasons why earlier places were refused as unsafe.
    pub(super) refused: Vec<String>,
}

/// Stores the library if it is missing, and returns its location.
///
/// # Errors
/// The reasons why all places were refused, in one line.
pub(super) fn put_in_place() -> Result<InPlace, String> {
    let named = |name: &str| env::var_os(name).map(PathBuf::from);
    put_into_one_of(RUN, &places(named("XDG_CACHE_HOME"), named("HOME"), geteuid().as_raw()))
}

/// The places in order of preference. Root's library serves services with users of their own, which cannot read root's
/// home.
fn places(cache: Option<PathBuf>, home: Option<PathBuf>, user: u32) -> Vec<PathBuf> {
    let absolute = |path: Option<PathBuf>| path.filter(|path| path.is_absolute());
    let below = |path: PathBuf| path.join("hugefork");
    let mut places = Vec::new();
    places.extend(absolute(cache).map(below));
    places.extend((user == 0).then(|| below("/var/cache".into())));
    places.extend(absolute(home).map(|home| below(home.join(".cache"))));
    // All users can write to `/tmp`; the checks of `place` make this safe.
    places.push(format!("/tmp/hugefork-{user}").into());
    places
}

fn put_into_one_of(library: Library, places: &[PathBuf]) -> Result<InPlace, String> {
    let (mut wrong, mut refused) = (Vec::new(), Vec::new());
    for place in places {
        match put_into(library, place) {
            Ok(path) => return Ok(InPlace { path, refused }),
            Err(why) => {
                wrong.push(format!("{}: {why}", place.display()));
                if let Wrong::Unsafe(why) = why {
                    refused.push(format!("{} cannot hold its library: {why}", place.display()));
                }
            }
        }
    }
    Err(format!(
        "there is no place for hugefork's library ({}); set XDG_CACHE_HOME to a directory that only you can write to",
        wrong.join("; ")
    ))
}

fn put_into(library: Library, place: &Path) -> Result<PathBuf, Wrong> {
    let path = place.join(library.name());
    // The loader treats these characters as separators or variables.
    if path.to_str().is_none_or(|path| path.contains([':', ' ', '$'])) {
        return Err(Wrong::Unfit("the loader cannot parse such a name".to_owned()));
    }
    let directory = place::open(place)?;
    if fstatvfs(&directory).is_ok_and(|file_system| file_system.f_flag.contains(StatVfsMountFlags::NOEXEC)) {
        return Err(Wrong::Unfit("is mounted noexec".to_owned()));
    }
    if !is_there(library, &directory) {
        write(library, &directory)?;
    }
    Ok(path)
}

/// Whether the library exists, is complete, and belongs to this user.
fn is_there(library: Library, directory: &OwnedFd) -> bool {
    let open = || -> io::Result<bool> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let mut file = File::from(openat(directory, library.name(), flags, Mode::empty())?);
        let there = file.metadata()?;
        let user = geteuid().as_raw();
        if !there.is_file() || there.uid() != user || there.mode() & 0o7777 != MODE {
            return Ok(false);
        }
        if there.len() != library.contents.len() as u64 {
            return Ok(false);
        }
        let mut contents = Vec::with_capacity(library.contents.len());
        file.read_to_end(&mut contents)?;
        Ok(contents == library.contents)
    };
    open().unwrap_or(false)
}

/// Writes the library under a temporary name and renames it. Programs that use an older file still have that one.
fn write(library: Library, directory: &OwnedFd) -> io::Result<()> {
    let beside = format!(".{}.{}", library.name(), std::process::id());
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let new = || openat(directory, &beside, flags, Mode::RWXU);
    let remove = || unlinkat(directory, &beside, AtFlags::empty());
    let file = match new() {
        // A file left by an earlier process with the same number.
        Err(Errno::EXIST) => {
            remove()?;
            new()
        }
        other => other,
    }?;
    let filled = |mut file: File| -> io::Result<()> {
        file.write_all(library.contents)?;
        file.set_permissions(Permissions::from_mode(MODE))?;
        Ok(renameat(directory, &beside, directory, library.name())?)
    };
    filled(file.into()).inspect_err(|_| _ = remove())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, DirBuilder};
    use std::os::unix::fs::DirBuilderExt;
    use std::thread;

    /// A temporary directory of this test, removed at its end.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Scratch {
            let path = env::temp_dir().join(format!("hugefork-library-{name}-{}", std::process::id()));
            DirBuilder::new().mode(0o755).create(&path).unwrap();
            Scratch(path)
        }

        fn place(&self) -> &Path {
            &self.0
        }

        /// Whether the library exists.
        fn has(&self) -> bool {
            is_there(RUN, &place::open(&self.0).unwrap())
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn concurrent_commands_store_one_complete_file() {
        let scratch = Scratch::new("many");
        let put = || put_into(RUN, scratch.place()).unwrap();
        // Threads of one process would share its number, and so the temporary name.
        let put_apart = || {
            let path = scratch.0.join(RUN.name());
            write_as(&path, &format!("{:?}", thread::current().id()));
            put()
        };
        thread::scope(|scope| (0..8).for_each(|_| drop(scope.spawn(put_apart))));
        let left: Vec<_> = fs::read_dir(&scratch.0).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, [RUN.name().as_str()]);
        put();
        assert!(scratch.has());
    }

    /// Does what another process would do at the same time.
    fn write_as(path: &Path, who: &str) {
        let beside = path.with_file_name(format!("beside-{who}"));
        fs::write(&beside, RUN.contents).unwrap();
        fs::set_permissions(&beside, Permissions::from_mode(0o755)).unwrap();
        fs::rename(&beside, path).unwrap();
    }

    #[test]
    fn an_incomplete_or_foreign_library_is_replaced() {
        let scratch = Scratch::new("again");
        let path = put_into(RUN, scratch.place()).unwrap();
        for spoil in [
            |path: &Path| fs::write(path, b"half").unwrap(),
            |path: &Path| fs::set_permissions(path, Permissions::from_mode(0o777)).unwrap(),
            |path: &Path| {
                fs::remove_file(path).unwrap();
                std::os::unix::fs::symlink("/etc/passwd", path).unwrap();
            },
            |path: &Path| {
                let mut contents = RUN.contents.to_vec();
                contents[RUN.contents.len() / 2] ^= 1;
                fs::write(path, contents).unwrap();
            },
        ] {
            spoil(&path);
            assert!(!scratch.has());
            assert_eq!(put_into(RUN, scratch.place()).unwrap(), path);
            assert!(scratch.has());
            assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o755);
        }
    }

    #[test]
    fn directories_that_other_users_can_write_to_are_refused() {
        let scratch = Scratch::new("open");
        fs::set_permissions(&scratch.0, Permissions::from_mode(0o777)).unwrap();
        let open = Err(Wrong::Unsafe(format!("others can write to {}", scratch.0.display())));
        assert_eq!(put_into(RUN, scratch.place()), open);
        assert_eq!(put_into(RUN, &scratch.0.join("inside")), open);
        fs::set_permissions(&scratch.0, Permissions::from_mode(0o755)).unwrap();
        let named = scratch.0.join("a b");
        assert!(put_into(RUN, &named).unwrap_err().to_string().contains("loader"));
        let nowhere = put_into_one_of(RUN, &[named, "/proc/hugefork".into()]).unwrap_err();
        assert!(nowhere.contains("a b: ") && nowhere.contains("/proc/hugefork: "), "{nowhere}");
    }

    #[test]
    fn places_are_ordered_and_absolute() {
        let paths = |cache: &str, home: &str, user| {
            let some = |path: &str| (!path.is_empty()).then(|| PathBuf::from(path));
            let places = places(some(cache), some(home), user);
            places.iter().map(|place| place.display().to_string()).collect::<Vec<_>>()
        };
        assert_eq!(paths("", "", 7), ["/tmp/hugefork-7"]);
        assert_eq!(paths("/c", "/h", 7), ["/c/hugefork", "/h/.cache/hugefork", "/tmp/hugefork-7"]);
        assert_eq!(paths("c", "/root", 0), ["/var/cache/hugefork", "/root/.cache/hugefork", "/tmp/hugefork-0"]);
    }
}
