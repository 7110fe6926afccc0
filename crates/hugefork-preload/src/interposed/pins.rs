//! What a program does before devices, pipes or the network use pages of its memory without going by their addresses.
//!
//! Mode `pool` moves what lies at an address to other pages: a block is promoted, a page is written back. Linux copies
//! to and from user space by address, so that whoever comes meanwhile waits. But some calls pin the pages that are
//! there, and what arrives in those later would arrive in nobody's. The kernel does not say which pages are pinned. So
//! all such memory is the kernel's before the call can be made:
//!
//! | call | |
//! |---|---|
//! | `open…`, `mkostemp…`, `shm_open`, `fcntl` with `O_DIRECT` | all of the pool's memory is handed over, for good |
//! | `setsockopt` with `SO_ZEROCOPY`, for memory of `AF_XDP`, or of the kernel's ciphers (`AF_ALG`) | the same |
//! | `io_uring_setup`, `io_uring_register` by libc's `syscall` | the same |
//! | `vmsplice` | what it names is handed over |
//! | `pthread_attr_setstack…` | the same: when a thread ends, the kernel finds who joins it by a page there |
//!
//! Programs that pin memory in other ways are told by their libraries, before there is any (modes/pool/engine.rs).

use std::ffi::{c_char, c_int, c_long, c_uint, c_void};
use std::mem;

use crate::environment::Mode;
use crate::interposed::doors::are_readable;
use crate::interposed::kernel::{kernel, quietly};
use crate::interposed::libcs::Libcs;
use crate::interposed::memory::parts::make_plain;
use crate::{config, modes};

type Open = unsafe extern "C" fn(*const c_char, c_int, c_uint) -> c_int;
type OpenAt = unsafe extern "C" fn(c_int, *const c_char, c_int, c_uint) -> c_int;
type MakeTemporary = unsafe extern "C" fn(*mut c_char, c_int) -> c_int;
type MakeTemporaryBefore = unsafe extern "C" fn(*mut c_char, c_int, c_int) -> c_int;
type SetAddress = unsafe extern "C" fn(*mut libc::pthread_attr_t, *mut c_void) -> c_int;
type SetStack = unsafe extern "C" fn(*mut libc::pthread_attr_t, *mut c_void, usize) -> c_int;
type Control = unsafe extern "C" fn(c_int, c_int, c_long) -> c_int;

static OPEN: Libcs = Libcs::new(c"open");
static OPENAT: Libcs = Libcs::new(c"openat");
static MKOSTEMP: Libcs = Libcs::new(c"mkostemp");
static MKOSTEMPS: Libcs = Libcs::new(c"mkostemps");
/// Before glibc 2.34 in a library of its own: it is not looked for before somebody calls it.
static SHM_OPEN: Libcs = Libcs::new(c"shm_open");
static FCNTL: Libcs = Libcs::new(c"fcntl");
static SET_STACK: Libcs = Libcs::new(c"pthread_attr_setstack");
static SET_ADDRESS: Libcs = Libcs::new(c"pthread_attr_setstackaddr");

/// Looks for libc's functions, so that none is looked for in a signal handler.
pub(crate) fn resolve() {
    let all = [&OPEN, &OPENAT, &MKOSTEMP, &MKOSTEMPS, &FCNTL, &SET_STACK, &SET_ADDRESS];
    all.into_iter().for_each(|function| _ = function.find());
}

/// Looks at the flags of a file that is opened, by whichever call.
pub(crate) fn look(flags: c_int) {
    if flags & libc::O_DIRECT != 0 && config::mode() == Some(Mode::Pool) {
        quietly(modes::leave_it_all_to_the_kernel);
    }
}

/// As libc's `open`. The last argument is only there with `O_CREAT` or `O_TMPFILE`, and otherwise whatever the register
/// holds.
///
/// # Safety
/// As libc's.
#[cfg_attr(hugefork_interposed, unsafe(no_mangle))]
pub unsafe extern "C" fn open(path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
    look(flags);
    // SAFETY: libc's `open` takes these, and the rest is the caller's.
    unsafe { mem::transmute::<usize, Open>(OPEN.find())(path, flags, mode) }
}

/// As libc's `openat`; see [`open`].
///
/// # Safety
/// As libc's.
#[cfg_attr(hugefork_interposed, unsafe(no_mangle))]
pub unsafe extern "C" fn openat(directory: c_int, path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
    look(flags);
    // SAFETY: libc's `openat` takes these, and the rest is the caller's.
    unsafe { mem::transmute::<usize, OpenAt>(OPENAT.find())(directory, path, flags, mode) }
}

/// As libc's `open_by_handle_at`. It cannot be cancelled by `pthread_cancel`.
///
/// # Safety
/// As libc's.
#[cfg_attr(hugefork_interposed, unsafe(no_mangle))]
pub unsafe extern "C" fn open_by_handle_at(mount: c_int, handle: *mut c_void, flags: c_int) -> c_int {
    look(flags);
    // SAFETY: the caller's.
    unsafe { kernel!(libc::SYS_open_by_handle_at, mount, handle, flags) as c_int }
}

/// As libc's `mkostemp`.
///
/// # Safety
/// As libc's.
#[cfg_attr(hugefork_interposed, unsafe(no_mangle))]
pub unsafe extern "C" fn mkostemp(path: *mut c_char, flags: c_int) -> c_int {
    look(flags);
    // SAFETY: libc's `mkostemp` takes these, and the rest is the caller's.
    unsafe { mem::transmute::<usize, MakeTemporary>(MKOSTEMP.find())(path, flags) }
}

/// As libc's `mkostemps`.
///
/// # Safety
/// As libc's.
#[cfg_attr(hugefork_interposed, unsafe(no_mangle))]
pub unsafe extern "C" fn mkostemps(path: *mut c_char, end_len: c_int, flags: c_int) -> c_int {
    look(flags);
    // SAFETY: libc's `mkostemps` takes these, and the rest is the caller's.
    unsafe { mem::transmute::<usize, MakeTemporaryBefore>(MKOSTEMPS.find())(path, end_len, flags) }
}

/// As libc's `shm_open`, whose files have no devices unless something else is mounted there.
///
/// # Safety
/// As libc's.
#[cfg_attr(hugefork_interposed, unsafe(no_mangle))]
pub unsafe extern "C" fn shm_open(name: *const c_char, flags: c_int, mode: c_uint) -> c_int {
    look(flags);
    // SAFETY: libc's `shm_open` takes these, and the rest is the caller's.
    unsafe { mem::transmute::<usize, Open>(SHM_OPEN.find())(name, flags, mode) }
}

/// As libc's `fcntl`. Whatever the last argument is, it fits a register.
///
/// # Safety
/// As libc's.
#[cfg_attr(hugefork_interposed, unsafe(no_mangle))]
pub unsafe extern "C" fn fcntl(file: c_int, command: c_int, argument: c_long) -> c_int {
    if command == libc::F_SETFL {
        look(argument as c_int);
    }
    // SAFETY: libc's `fcntl` takes these, and the rest is the caller's.
    unsafe { mem::transmute::<usize, Control>(FCNTL.find())(file, command, argument) }
}

/// `XDP_UMEM_REG` of `SOL_XDP`: devices write to memory of the program's from then on.
const MEMORY_OF_PACKETS: (c_int, c_int) = (283, 4);

/// Whether a socket uses pages of the program's past their addresses after this option was set.
fn pins(level: c_int, name: c_int) -> bool {
    // Whoever wants something deciphered gives a key first, by one of several names.
    (level, name) == (libc::SOL_SOCKET, libc::SO_ZEROCOPY)
        || (level, name) == MEMORY_OF_PACKETS
        || level == libc::SOL_ALG
}

/// As libc's `setsockopt`.
///
/// # Safety
/// As libc's.
#[cfg_attr(hugefork_interposed, unsafe(no_mangle))]
pub unsafe extern "C" fn setsockopt(
    socket: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: libc::socklen_t,
) -> c_int {
    if pins(level, name) {
        look(libc::O_DIRECT);
    }
    // SAFETY: the caller's.
    unsafe { kernel!(libc::SYS_setsockopt, socket, level, name, value, len) as c_int }
}

/// As libc's `vmsplice`.
///
/// # Safety
/// As libc's.
#[cfg_attr(hugefork_interposed, unsafe(no_mangle))]
pub unsafe extern "C" fn vmsplice(pipe: c_int, pieces: *const libc::iovec, count: usize, flags: c_uint) -> isize {
    // What the kernel refuses, it is to refuse.
    if config::mode() == Some(Mode::Pool) && count <= libc::UIO_MAXIOV as usize && are_readable(pieces, count) {
        for nth in 0..count {
            // SAFETY: it can be read.
            let piece = unsafe { pieces.add(nth).read() };
            make_plain(piece.iov_base, piece.iov_len);
        }
    }
    // SAFETY: the caller's.
    unsafe { kernel!(libc::SYS_vmsplice, pipe, pieces, count, flags) as isize }
}

/// As libc's `pthread_attr_setstack`.
///
/// # Safety
/// As libc's.
#[cfg_attr(hugefork_interposed, unsafe(no_mangle))]
pub unsafe extern "C" fn pthread_attr_setstack(
    attributes: *mut libc::pthread_attr_t,
    stack: *mut c_void,
    len: usize,
) -> c_int {
    make_plain(stack, len);
    // SAFETY: libc's function takes these, and the rest is the caller's.
    unsafe { mem::transmute::<usize, SetStack>(SET_STACK.find())(attributes, stack, len) }
}

/// As libc's `pthread_attr_setstackaddr`, which names the end of the stack and not how long it is.
///
/// # Safety
/// As libc's.
#[cfg_attr(hugefork_interposed, unsafe(no_mangle))]
pub unsafe extern "C" fn pthread_attr_setstackaddr(attributes: *mut libc::pthread_attr_t, end: *mut c_void) -> c_int {
    // Where the kernel finds who joins: the library's of threads puts its data at the end.
    make_plain(end.wrapping_byte_sub(crate::HUGE_PAGE), crate::HUGE_PAGE);
    // SAFETY: libc's function takes these, and the rest is the caller's.
    unsafe { mem::transmute::<usize, SetAddress>(SET_ADDRESS.find())(attributes, end) }
}
