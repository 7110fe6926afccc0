//! Opens a directory of this user whose path no other user can redirect.
//!
//! A user who can write to a directory can replace its entries. So the code checks every directory
//! on the path from the root: it must belong to this user or to root, and no other user may write
//! to it, except in sticky directories such as `/tmp`, where users cannot remove entries of others.
//! Access control lists are covered, because the group bits are their upper limit. The code follows
//! links itself, and only links of this user or of root.
//!
//! Each name is looked up in the open directory above it, and checked after it is opened, so there
//! is no gap between check and use. After a directory was checked, no other user can change its
//! entries that belong to this user or to root, and only then is the next name looked up. So the
//! loader later finds the same file by the same path, unless this user or root changes it.
//!
//! One gap remains: a file system served by another user (FUSE) may report any owner. The kernel
//! lets other users enter it only if root has allowed that in `/etc/fuse.conf`.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat, chmodat, fstat, mkdirat, openat, readlinkat};
use rustix::io::Errno;
use rustix::process::geteuid;

/// The reason why a directory is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Wrong {
    /// Another user could replace its contents.
    Unsafe(String),
    /// It cannot be made, or programs cannot load libraries from it.
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

/// Mode of new directories: other users may enter, because programs that change their user need that.
const MADE: Mode = Mode::from_raw_mode(0o755);

/// The kernel's maximum number of links.
const LINKS: usize = 40;

/// Opens a directory that belongs to this user and that no other user can write to. Makes it and its parents if they
/// are missing.
///
/// # Errors
/// The reason why the directory is refused.
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

/// The walk along a path.
struct PathWalk {
    /// The user who may change `/`. In a user namespace, root may have no name, so the owner of `/` counts.
    root: u32,
    /// The directory reached so far, and its path.
    here: OwnedFd,
    path: PathBuf,
    /// The names to follow, the next one last.
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
                        // Independent of the umask of this process.
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

    /// Follows a link: the link that is read is the one that was checked. Returns the state of the directory where its
    /// target begins.
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

    /// Whether no other user can replace entries of this directory.
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
