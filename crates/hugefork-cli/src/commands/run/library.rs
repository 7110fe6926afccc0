//! The libraries, in files that programs can load. The command carries them, and writes each once for each user and
//! version.
//!
//! Whoever can write to that file, or to its directory, would be in every program that is started with it. So only
//! directories and files are taken that belong to this user or to root and that nobody else can write to, and what is
//! there already must be, byte for byte, what would have been written. It is written beside and renamed, so that two
//! commands at once do not see each other's half of it.

use std::env;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{StatVfsMountFlags, statvfs};
use rustix::process::geteuid;

/// A library that the build script has built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Library {
    /// What its name begins with.
    begin: &'static str,
    /// What tells its contents.
    number: &'static str,
    contents: &'static [u8],
}

/// What looks after the memory.
pub(super) const RUN: Library = Library {
    begin: hugefork_preload::LIBRARY,
    number: env!("HUGEFORK_LIBRARY_NUMBER"),
    contents: include_bytes!(concat!(env!("OUT_DIR"), "/library.so")),
};

/// What brings a `malloc`.
pub(super) const MALLOC: Library = Library {
    begin: hugefork_preload::MALLOC_LIBRARY,
    number: env!("HUGEFORK_MALLOC_NUMBER"),
    contents: include_bytes!(concat!(env!("OUT_DIR"), "/malloc.so")),
};

impl Library {
    /// Its name, which tells its contents.
    fn name(self) -> String {
        format!("{}{}.so", self.begin, self.number)
    }
}

/// Of the directory and the file: others may enter and read, since programs that change their user need that.
const MODE: u32 = 0o755;

/// Puts a library in place, if it is not there, and says where.
///
/// # Errors
/// What was wrong with each place, in one line.
pub(super) fn put_in_place(library: Library) -> Result<PathBuf, String> {
    let named = |name: &str| env::var_os(name).map(PathBuf::from);
    put_into_one_of(library, &places(named("XDG_CACHE_HOME"), named("HOME"), geteuid().as_raw()))
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

fn put_into_one_of(library: Library, places: &[PathBuf]) -> Result<PathBuf, String> {
    let mut wrong = Vec::new();
    for place in places {
        match put_into(library, place) {
            Ok(path) => return Ok(path),
            Err(why) => wrong.push(format!("{}: {why}", place.display())),
        }
    }
    Err(format!(
        "there is no place for hugefork's library ({}); set XDG_CACHE_HOME to a directory of yours",
        wrong.join("; ")
    ))
}

fn put_into(library: Library, place: &Path) -> Result<PathBuf, String> {
    let path = place.join(library.name());
    // The loader takes these to be between two names.
    if path.to_str().is_none_or(|path| path.contains([':', ' ', '$'])) {
        return Err("the loader does not take such a name".to_owned());
    }
    let failed = |error: io::Error| error.to_string();
    let above = place.parent().unwrap_or(Path::new("/"));
    DirBuilder::new().recursive(true).mode(MODE).create(above).map_err(failed)?;
    keeps_names(&fs::metadata(above).map_err(failed)?)?;
    match DirBuilder::new().mode(MODE).create(place) {
        // Whatever the mask of this process is.
        Ok(()) => directory(place).and_then(|new| new.set_permissions(Permissions::from_mode(MODE))).map_err(failed)?,
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
        Err(error) => return Err(failed(error)),
    }
    is_ours(&fs::symlink_metadata(place).map_err(failed)?)?;
    if statvfs(place).is_ok_and(|file_system| file_system.f_flag.contains(StatVfsMountFlags::NOEXEC)) {
        return Err("is mounted noexec".to_owned());
    }
    if !is_there(library, &path) {
        write(library, &path).map_err(failed)?;
    }
    Ok(path)
}

/// Opens a directory, and nothing that a link leads to.
fn directory(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY | libc::O_NOFOLLOW).open(path)
}

/// Whether a directory is safe.
fn is_ours(there: &fs::Metadata) -> Result<(), String> {
    if !there.is_dir() {
        return Err("is not a directory".to_owned());
    }
    if there.uid() != geteuid().as_raw() {
        return Err(format!("belongs to user {}", there.uid()));
    }
    if there.mode() & 0o022 != 0 {
        return Err("others can write to it".to_owned());
    }
    Ok(())
}

/// Whether nobody else can put another directory in the place of one in here.
fn keeps_names(above: &fs::Metadata) -> Result<(), String> {
    let is_open = above.mode() & 0o002 != 0 && above.mode() & libc::S_ISVTX == 0;
    if is_open { Err("others can replace it".to_owned()) } else { Ok(()) }
}

/// Whether the library is there, whole, and nobody else's.
fn is_there(library: Library, path: &Path) -> bool {
    let open = || -> io::Result<bool> {
        let mut file = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW).open(path)?;
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

/// Writes the library beside `path`, then renames it. What was there before stays what it is for those who use it.
fn write(library: Library, path: &Path) -> io::Result<()> {
    let beside = path.with_file_name(format!(".{}.{}", library.name(), std::process::id()));
    let new =
        || OpenOptions::new().write(true).create_new(true).mode(0o700).custom_flags(libc::O_NOFOLLOW).open(&beside);
    let file = match new() {
        // Left behind by a process of the same number.
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            fs::remove_file(&beside)?;
            new()
        }
        other => other,
    }?;
    let filled = |mut file: File| {
        file.write_all(library.contents)?;
        file.set_permissions(Permissions::from_mode(MODE))?;
        fs::rename(&beside, path)
    };
    filled(file).inspect_err(|_| drop(fs::remove_file(&beside)))
}

#[cfg(test)]
mod tests {
    use super::*;
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
        assert!(is_there(RUN, &put()));
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
            assert!(!is_there(RUN, &path));
            assert_eq!(put_into(RUN, scratch.place()).unwrap(), path);
            assert!(is_there(RUN, &path));
            assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o755);
        }
    }

    #[test]
    fn directories_that_others_may_write_to_are_not_taken() {
        let scratch = Scratch::new("open");
        fs::set_permissions(&scratch.0, Permissions::from_mode(0o777)).unwrap();
        assert_eq!(put_into(RUN, scratch.place()), Err("others can write to it".to_owned()));
        assert_eq!(put_into(RUN, &scratch.0.join("inside")), Err("others can replace it".to_owned()));
        fs::set_permissions(&scratch.0, Permissions::from_mode(0o755)).unwrap();
        let link = scratch.0.join("link");
        std::os::unix::fs::symlink("/var", &link).unwrap();
        assert_eq!(put_into(RUN, &link), Err("is not a directory".to_owned()));
        let named = scratch.0.join("a b");
        assert!(put_into(RUN, &named).unwrap_err().contains("loader"));
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
