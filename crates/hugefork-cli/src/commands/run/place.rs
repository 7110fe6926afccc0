//! A directory of this user's whose path nobody else can make lead elsewhere.
//!
//! Whoever can write to a directory can put something else in the place of what is in it. So each on the way from the
//! root is looked at, not the last one alone: it belongs to this user or to root, and nobody else can write to it, or
//! only as to `/tmp`, where a user cannot take away what is another's (sticky). Rights by access control lists count,
//! since the group's bits are what they may give at most. Links are followed here and not by the kernel, and only those
//! of this user's or root's.
//!
//! Each is looked up in the open directory above it, and looked at once it is open itself. So there is no moment
//! between look and use: from when a directory was looked at, nobody else can change what the names in it lead to that
//! belong to this user or to root, and only then is the next name looked up. What the loader finds later by the same
//! path is therefore the same, until this user or root change it.
//!
//! What remains is who can do more than its rights say: a file system that another user serves (FUSE) may say what it
//! likes of owners. The kernel lets nobody else enter it unless root has allowed that, to all, in `/etc/fuse.conf`.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat, chmodat, fstat, mkdirat, openat, readlinkat};
use rustix::io::Errno;
use rustix::process::geteuid;

/// Why a place is not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Wrong {
    /// Somebody else could replace what is put there.
    Unsafe(String),
    /// It cannot be made, or programs cannot be loaded from there.
    Unfit(String),
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Wrong::Unsafe(why) | Wrong::Unfit(why)) = self;
        f.write_str(why)
    }
}

impl From<std::io::Error> for Wrong {
    fn from(error: std::io::Error) -> Wrong {
        Wrong::Unfit(error.to_string())
    }
}

impl From<Errno> for Wrong {
    fn from(errno: Errno) -> Wrong {
        std::io::Error::from(errno).into()
    }
}

/// Of directories that are made: others may enter, since programs that change their user need that.
const MADE: Mode = Mode::from_raw_mode(0o755);

/// As many links as the kernel follows.
const LINKS: usize = 40;

/// Opens a directory that belongs to this user, and to which nobody else can write. Makes it and those above it where
/// they are not there.
///
/// # Errors
/// Why it is not taken.
pub(super) fn open(path: &Path) -> Result<OwnedFd, Wrong> {
    let (directory, there, path) = PathWalk::to(path)?;
    if there.st_uid != geteuid().as_raw() {
        return Err(Wrong::Unsafe(format!("{} belongs to user {}", path.display(), there.st_uid)));
    }
    if there.st_mode & 0o022 != 0 {
        return Err(Wrong::Unsafe(format!("others can write to {}", path.display())));
    }
    Ok(openat(&directory, c".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

/// The way to a directory.
struct PathWalk {
    /// Who may change `/`. In a user namespace root has no name, and is whoever that belongs to.
    root: u32,
    /// Where it has led to so far, and by which names.
    here: OwnedFd,
    path: PathBuf,
    /// The names that are to come, the next one last.
    names: Vec<OsString>,
}

impl PathWalk {
    fn to(path: &Path) -> Result<(OwnedFd, Stat, PathBuf), Wrong> {
        let here = openat(CWD, c"/", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let mut there = fstat(&here)?;
        let mut way = PathWalk { root: there.st_uid, here, path: "/".into(), names: names(path) };
        way.keeps_names(&there)?;
        let mut links = 0;
        while let Some(name) = way.names.pop() {
            let next = way.open_or_make(&name)?;
            let found = fstat(&next)?;
            let path = way.path.join(&name);
            if ![geteuid().as_raw(), 0, way.root].contains(&found.st_uid) {
                return Err(Wrong::Unsafe(format!("{} belongs to user {}", path.display(), found.st_uid)));
            }
            match FileType::from_raw_mode(found.st_mode) {
                FileType::Directory => (way.here, way.path, there) = (next, path, found),
                FileType::Symlink if links == LINKS => {
                    return Err(Wrong::Unfit(format!("{} is one of too many links", path.display())));
                }
                FileType::Symlink => {
                    links += 1;
                    there = way.follow(&next, there)?;
                    continue;
                }
                _ => return Err(Wrong::Unfit(format!("{} is not a directory", path.display()))),
            }
            way.keeps_names(&there)?;
        }
        Ok((way.here, there, way.path))
    }

    fn open_or_make(&self, name: &OsStr) -> Result<OwnedFd, Errno> {
        let open = || openat(&self.here, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty());
        match open() {
            Err(Errno::NOENT) => match mkdirat(&self.here, name, MADE) {
                Ok(()) => {
                    if self.names.is_empty() {
                        // Whatever the mask of this process is.
                        chmodat(&self.here, name, MADE, AtFlags::empty())?;
                    }
                    open()
                }
                Err(Errno::EXIST) => open(),
                Err(errno) => Err(errno),
            },
            other => other,
        }
    }

    /// Goes where a link leads. What it was read from is what was looked at. Gives what is known of where that begins.
    fn follow(&mut self, link: &OwnedFd, there: Stat) -> Result<Stat, Errno> {
        let target = PathBuf::from(OsString::from_vec(readlinkat(link, c"", Vec::new())?.into_bytes()));
        self.names.extend(names(&target));
        if !target.is_absolute() {
            return Ok(there);
        }
        self.here = openat(CWD, c"/", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        self.path = "/".into();
        fstat(&self.here)
    }

    /// Whether nobody else can put something in the place of what is in here.
    fn keeps_names(&self, there: &Stat) -> Result<(), Wrong> {
        if there.st_mode & 0o022 == 0 || there.st_mode & libc::S_ISVTX != 0 {
            return Ok(());
        }
        Err(Wrong::Unsafe(format!("others can write to {}", self.path.display())))
    }
}

/// The names of a path, the first one last.
fn names(path: &Path) -> Vec<OsString> {
    let names = path.components().filter(|part| matches!(part, Component::Normal(_) | Component::ParentDir));
    names.map(|part| part.as_os_str().to_owned()).rev().collect()
}
