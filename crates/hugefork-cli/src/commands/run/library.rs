//! The library, in a file that programs can load. The command carries it, and writes it once for each user and version.
//!
//! Whoever can replace that file would be in every program that is started with it. So it lies where nobody else can do
//! so (`place`), and what is there already must be this user's and, byte for byte, what would have been written. It is
//! written beside and renamed, so that two commands at once do not see each other's half of it.

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

/// A library that the build script has built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Library {
    /// What tells its contents.
    number: &'static str,
    contents: &'static [u8],
}

/// What looks after the memory.
const RUN: Library = Library {
    number: env!("HUGEFORK_LIBRARY_NUMBER"),
    contents: include_bytes!(concat!(env!("OUT_DIR"), "/library.so")),
};

impl Library {
    /// Its name, which tells its contents.
    fn name(self) -> String {
        format!("{}{}.so", hugefork_preload::LIBRARY, self.number)
    }
}

/// Of the file: others may read it, since programs that change their user need that.
const MODE: u32 = 0o755;

/// Where a library is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct InPlace {
    pub(super) path: PathBuf,
    /// Why places that come first were not taken, where somebody else could replace it.
    pub(super) refused: Vec<String>,
}

/// Puts the library in place, if it is not there, and says where.
///
/// # Errors
/// What was wrong with each place, in one line.
pub(super) fn put_in_place() -> Result<InPlace, String> {
    let named = |name: &str| env::var_os(name).map(PathBuf::from);
    put_into_one_of(RUN, &places(named("XDG_CACHE_HOME"), named("HOME"), geteuid().as_raw()))
}

/// The places in the order of preference. What root puts somewhere is for services with users of their own, which
/// cannot look into root's home.
fn places(cache: Option<PathBuf>, home: Option<PathBuf>, user: u32) -> Vec<PathBuf> {
    let absolute = |path: Option<PathBuf>| path.filter(|path| path.is_absolute());
    let below = |path: PathBuf| path.join("hugefork");
    let mut places = Vec::new();
    places.extend(absolute(cache).map(below));
    places.extend((user == 0).then(|| below("/var/cache".into())));
    places.extend(absolute(home).map(|home| below(home.join(".cache"))));
    // Everybody writes there, so it is looked at all the more closely.
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
                    refused.push(format!("{} is no place for its library, since {why}", place.display()));
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
    // The loader takes these to be between two names.
    if path.to_str().is_none_or(|path| path.contains([':', ' ', '$'])) {
        return Err(Wrong::Unfit("the loader does not take such a name".to_owned()));
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

/// Whether the library is there, whole, and nobody else's.
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

/// Writes the library beside its name, then renames it. What was there before stays what it is for those who use it.
fn write(library: Library, directory: &OwnedFd) -> io::Result<()> {
    let beside = format!(".{}.{}", library.name(), std::process::id());
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let new = || openat(directory, &beside, flags, Mode::RWXU);
    let remove = || unlinkat(directory, &beside, AtFlags::empty());
    let file = match new() {
        // Left behind by a process of the same number.
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

    /// A directory of this test's own, removed at its end.
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

        /// Whether the library is there.
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
    fn many_at_once_end_with_one_whole_file() {
        let scratch = Scratch::new("many");
        let put = || put_into(RUN, scratch.place()).unwrap();
        // The threads of one process would share its number, and so the name that is written beside.
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

    /// As another process would at the same time.
    fn write_as(path: &Path, who: &str) {
        let beside = path.with_file_name(format!("beside-{who}"));
        fs::write(&beside, RUN.contents).unwrap();
        fs::set_permissions(&beside, Permissions::from_mode(0o755)).unwrap();
        fs::rename(&beside, path).unwrap();
    }

    #[test]
    fn what_is_not_ours_whole_is_written_again() {
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
    fn directories_that_others_may_write_to_are_not_taken() {
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
    fn places_come_in_order_and_only_absolute_ones() {
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
