//! A file in a tmpfs of the pool's own, which is mounted `huge=always` and attached nowhere. The kernel gives it huge
//! pages at first touch, whatever `shmem_enabled` says except `deny`: that setting governs the mount in which memfds
//! lie.
//!
//! ```text
//!  may mount:  fsopen ─▶ fsconfig ─▶ fsmount ─▶ open, unlink, ftruncate ─▶ the file
//!  may not:    clone ─▶ a helper in a user namespace, where it may: the same ─▶ it ends
//! ```
//! The mount has no name in any namespace. Only the open file keeps it alive, so it goes with the last descriptor or
//! mapping, also when the process is killed.
//!
//! The helper process shares the memory and the descriptors of this process (`CLONE_VM`, `CLONE_FILES`), so that the
//! kernel copies no page tables, and the helper need not send the descriptor. The calling thread waits for the helper's
//! end (`CLONE_VFORK`); the other threads go on. The helper's end sends no signal, and only a `wait` that asks for such
//! children sees it (`__WALL`, `__WCLONE`). The helper makes system calls directly, allocates nothing and does not
//! change `errno`, which it shares with the calling thread.
//!
//! Needs Linux 5.2, and 6.4 for a tmpfs that is not swapped.

use core::ffi::{CStr, c_int, c_void};
use core::fmt;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd};

use hugefork_linux::Descriptor;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, fchmod, fstatfs, ftruncate, openat, stat, unlinkat};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen,
};
use rustix::process::{Pid, WaitOptions, getegid, geteuid, waitpid};
use thiserror::Error;

use super::advice::is_filtered;
use super::mask::SignalsBlocked;
use super::share::{self, PrivateMemory};
use super::{LOST, kept, named};
use crate::sys::SystemError;
use crate::units::HUGE_PAGE;

/// Whether the system may swap a pool's memory out. hugetlb pages are never swapped.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use hugefork::{Pool, Swap};
/// let pool = Pool::builder().capacity(8 << 20).swap(Swap::Refused).build()?;
/// if let Some(reason) = pool.fallback_reason() {
///     println!("{}: {reason}", pool.backing()); // such as a process without CAP_SYS_ADMIN
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Swap {
    /// Like all memory of programs.
    #[default]
    Allowed,
    /// Never: shmem in a tmpfs of the pool's own, mounted `noswap`, which needs `CAP_SYS_ADMIN` and Linux 6.4, or
    /// hugetlb. If neither is granted, the pool uses swappable memory and
    /// [`Pool::fallback_reason`](crate::Pool::fallback_reason) says so, or it fails with
    /// [`Fallback::Refused`](crate::Fallback). Pages that a write has copied ([`CopyGrain::Page`](crate::CopyGrain))
    /// may be swapped until they are written back into blocks.
    Refused,
}

/// Why there is no such file.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub(crate) enum NoTmpfs {
    /// A filter may end a process that makes an unknown call. If it ends the helper, it may end this process with it,
    /// because they share memory.
    #[error("a seccomp filter is in force, which may end a process that mounts")]
    Filtered,
    #[error("this process may not mount, and has no user namespace to do so: {0}")]
    NoNamespace(SystemError),
    /// The helper would be the first process of that pid namespace. After its end, no process can be forked into it.
    #[error("this process may not mount, and its children are in a pid namespace of their own")]
    OtherPids,
    #[error("mounting it: {0}")]
    NotMounted(SystemError),
}

/// Creates a file of `len` bytes, whose memory is allocated at first touch. Only this process has it, and no process
/// may open it anew for writing. It takes some 0.1 ms if the process may mount, 0.5 ms otherwise.
pub(crate) fn create(len: usize, swap: Swap) -> Result<Descriptor, NoTmpfs> {
    if is_filtered() {
        return Err(NoTmpfs::Filtered);
    }
    let wish = Wish::new(len, swap);
    match wish.mount() {
        Err(refused) if refused.raw_os_error() == Errno::PERM.raw_os_error() && swap == Swap::Allowed => {
            wish.mount_elsewhere()
        }
        made => made.map_err(NoTmpfs::NotMounted),
    }
}

/// Whether children of this thread are in its own pid namespace. Otherwise the helper could be the first process of
/// another one, which takes no more processes after the helper's end.
fn children_stay() -> Result<bool, SystemError> {
    let namespace = |path: &'static CStr, call| named(call, stat(path)).map(|found| (found.st_dev, found.st_ino));
    let own = namespace(c"/proc/thread-self/ns/pid", "stat of /proc/thread-self/ns/pid")?;
    let of_children = c"/proc/thread-self/ns/pid_for_children";
    Ok(namespace(of_children, "stat of /proc/thread-self/ns/pid_for_children").is_ok_and(|found| found == own))
}

/// A short text without an allocation, because the caller may be an allocator itself.
struct Text([u8; 64]);

impl Text {
    fn new(text: fmt::Arguments<'_>) -> Text {
        let mut made = Text([0; 64]);
        // The last byte stays zero.
        (&mut made.0[..63]).write_fmt(text).expect("three numbers fit");
        made
    }

    /// The text with its final zero byte.
    fn c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.0).expect("it is shorter than its place")
    }
}

/// Everything that the file needs, as ready texts, so that making it allocates nothing.
struct Wish {
    len: u64,
    /// The size of the mount in bytes: whole huge pages, because the last one may reach past the end of the file.
    size: Text,
    swap: Swap,
    /// The maps of a new user namespace, in which user and group keep their numbers.
    user: Text,
    group: Text,
}

/// The number by which `statfs(2)` names a tmpfs (`<linux/magic.h>`).
const TMPFS_MAGIC: rustix::fs::FsWord = 0x0102_1994;

/// The name that the kernel gives to a memfd of a pool, so that a search in `/proc/PID/maps` finds all pools by one
/// name.
const NAME: &CStr = c"memfd:hugefork";

impl Wish {
    fn new(len: usize, swap: Swap) -> Wish {
        let (user, group) = (geteuid().as_raw(), getegid().as_raw());
        Wish {
            len: len as u64,
            size: Text::new(format_args!("{}", len.next_multiple_of(HUGE_PAGE))),
            swap,
            user: Text::new(format_args!("{user} {user} 1")),
            group: Text::new(format_args!("{group} {group} 1")),
        }
    }

    fn mount(&self) -> Result<Descriptor, SystemError> {
        let context = named("fsopen of tmpfs", Descriptor::keep(|| fsopen(c"tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)))?;
        let set = |key: &CStr, value: &CStr| fsconfig_set_string(context.as_fd(), key, value);
        named("fsconfig(huge=always) of tmpfs", set(c"huge", c"always"))?;
        named("fsconfig(size) of tmpfs", set(c"size", self.size.c_str()))?;
        if self.swap == Swap::Refused {
            named("fsconfig(noswap) of tmpfs", fsconfig_set_flag(context.as_fd(), c"noswap"))?;
        }
        named("fsconfig(create) of tmpfs", fsconfig_create(context.as_fd()))?;
        let flags = FsMountFlags::FSMOUNT_CLOEXEC;
        let mount = Descriptor::keep(|| fsmount(context.as_fd(), flags, MountAttrFlags::empty()));
        self.make_file(named("fsmount of tmpfs", mount)?.as_fd())
    }

    /// Creates a file, and removes its name at once.
    fn make_file(&self, mount: BorrowedFd<'_>) -> Result<Descriptor, SystemError> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
        let opened = Descriptor::keep(|| openat(mount, NAME, flags, share::FOR_READING));
        let file = named("open of a file in tmpfs", opened)?;
        // If the program has meanwhile put another file in the descriptor's place, that file has bytes or lies
        // elsewhere.
        let is_in_tmpfs = named("fstatfs of a file in tmpfs", fstatfs(kept(&file)?))?.f_type == TMPFS_MAGIC;
        if !is_in_tmpfs || named("fstat of a file in tmpfs", file.stat())?.st_size != 0 {
            return Err(SystemError::new(LOST, Errno::BADF));
        }
        // This sets the mode whatever the umask is.
        named("fchmod of a file in tmpfs", fchmod(kept(&file)?, share::FOR_READING))?;
        named("unlink of a file in tmpfs", unlinkat(mount, NAME, AtFlags::empty()))?;
        named("ftruncate of a file in tmpfs", ftruncate(kept(&file)?, self.len))?;
        Ok(file)
    }

    /// Keeps the user and the group of this process in a new user namespace.
    fn keep_ids(&self) -> Result<(), SystemError> {
        // The kernel lets a process write its `gid_map` only after `setgroups` is denied: leaving a group may give
        // rights back that the group takes away.
        write_all(c"/proc/self/setgroups", b"deny", "write of /proc/self/setgroups")?;
        write_all(c"/proc/self/uid_map", self.user.c_str().to_bytes(), "write of /proc/self/uid_map")?;
        write_all(c"/proc/self/gid_map", self.group.c_str().to_bytes(), "write of /proc/self/gid_map")
    }

    /// As [`Wish::mount`], by a helper in a user namespace of its own.
    fn mount_elsewhere(&self) -> Result<Descriptor, NoTmpfs> {
        const FLAGS: c_int =
            libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_FILES | libc::CLONE_NEWUSER | libc::CLONE_NEWNS;
        if !children_stay().map_err(NoTmpfs::NoNamespace)? {
            return Err(NoTmpfs::OtherPids);
        }
        // It is unmapped when the helper has ended.
        let stack = named("mmap of a stack", PrivateMemory::anywhere(STACK_BYTES)).map_err(NoTmpfs::NoNamespace)?;
        let top = stack.at.wrapping_byte_add(STACK_BYTES);
        let killed = NoTmpfs::NoNamespace(SystemError::new("a helper in a user namespace", Errno::INTR));
        let mut task: Task<'_> = (self, Err(killed));
        // No handler of the program may run in the helper.
        let _signals = SignalsBlocked::new();
        // SAFETY: the helper runs `help` on a stack of its own. This thread does not touch the task before the call
        // returns; the helper has ended then, or will run nothing any more.
        let pid = unsafe { libc::clone(help, top, FLAGS | libc::CLONE_UNTRACED, (&raw mut task).cast()) };
        let Some(pid) = Some(pid).filter(|pid| *pid > 0).and_then(Pid::from_raw) else {
            return Err(NoTmpfs::NoNamespace(SystemError::new("clone(CLONE_NEWUSER)", super::last_error())));
        };
        // Reaps the helper. If another thread waited for all children, it has done so already.
        let all = WaitOptions::from_bits_retain(libc::__WALL.cast_unsigned());
        while waitpid(Some(pid), all).is_err_and(|errno| errno == Errno::INTR) {}
        task.1
    }
}

/// The helper's argument, and its result.
type Task<'a> = (&'a Wish, Result<Descriptor, NoTmpfs>);

/// The body of the helper.
extern "C" fn help(task: *mut c_void) -> c_int {
    // SAFETY: `mount_elsewhere` gives a task, and does not touch it meanwhile.
    let (wish, made) = unsafe { &mut *task.cast::<Task<'_>>() };
    *made = wish.keep_ids().and_then(|()| wish.mount()).map_err(NoTmpfs::NoNamespace);
    0
}

fn write_all(path: &CStr, text: &[u8], call: &'static str) -> Result<(), SystemError> {
    let file = named(call, openat(CWD, path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty()))?;
    let written = named(call, rustix::io::write(&file, text))?;
    if written == text.len() { Ok(()) } else { Err(super::descriptor::WROTE_NOTHING) }
}

/// The size of the helper's stack: far more than it needs, also in an unoptimised build.
const STACK_BYTES: usize = 256 << 10;
