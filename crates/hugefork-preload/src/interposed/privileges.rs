//! The functions of libc by which a program gives up rights or moves to other namespaces: the library's threads leave
//! before (`sandbox`).
//!
//! libc has the program's threads take part in `setuid` and its like, so it is libc's functions that are called.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem;

use crate::interposed::libcs::Libcs;
use crate::sandbox;

/// Functions of libc's, with the calls that they make.
macro_rules! as_libcs {
    ($($name:ident($($argument:ident: $type:ty),*), $call:ident;)*) => {$(
        /// As libc's.
        ///
        /// # Safety
        /// As libc's.
        #[cfg_attr(hugefork_interposed, unsafe(no_mangle))]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> c_int {
            // C strings of the names of functions, which have no zero byte.
            const NAME: &CStr = match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => panic!("a name has no zero byte"),
            };
            static LIBCS: Libcs = Libcs::new(NAME);
            // SAFETY: libc's function has this type, and the rest is the caller's.
            sandbox::around(libc::$call, || unsafe {
                mem::transmute::<usize, unsafe extern "C" fn($($type),*) -> c_int>(LIBCS.find())($($argument),*)
            })
        }
    )*};
}

as_libcs! {
    setuid(user: libc::uid_t), SYS_setuid;
    setgid(group: libc::gid_t), SYS_setgid;
    seteuid(user: libc::uid_t), SYS_setresuid;
    setegid(group: libc::gid_t), SYS_setresgid;
    setreuid(real: libc::uid_t, effective: libc::uid_t), SYS_setreuid;
    setregid(real: libc::gid_t, effective: libc::gid_t), SYS_setregid;
    setresuid(real: libc::uid_t, effective: libc::uid_t, saved: libc::uid_t), SYS_setresuid;
    setresgid(real: libc::gid_t, effective: libc::gid_t, saved: libc::gid_t), SYS_setresgid;
    setfsuid(user: libc::uid_t), SYS_setfsuid;
    setfsgid(group: libc::gid_t), SYS_setfsgid;
    setgroups(count: usize, groups: *const libc::gid_t), SYS_setgroups;
    initgroups(user: *const c_char, group: libc::gid_t), SYS_setgroups;
    capset(header: *mut c_void, data: *const c_void), SYS_capset;
    setns(space: c_int, kind: c_int), SYS_setns;
    unshare(what: c_int), SYS_unshare;
    chroot(path: *const c_char), SYS_chroot;
}
