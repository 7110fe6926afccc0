//! Keeps the program in huge pages from outside: a separate process that continues after this one
//! has become the program.
//!
//! ```text
//! hugefork run ── fork ──▶ (child) ── setsid, fork ──▶ keeper, until the program and all that it starts have ended
//!      │                      └─ ends at once
//!      └─ execve ─▶ the program, with the number, the parent, the terminal and the descriptors of the command
//! ```
//! The keeper must not be a child of the program: the program would see it in `wait(2)`, and would
//! wait for it when waiting for all children. A program that adopts orphans, such as process 1 of a
//! container, therefore gets no keeper.

use std::ffi::c_int;
use std::ptr;

use hugefork_keep::{Keeper, Targets, has_room_for_a_task};

/// Starts the keeper of this process, and returns a description of it.
///
/// # Errors
/// The reason why the program cannot be kept.
pub(super) fn start() -> Result<String, String> {
    Keeper::check().map_err(|why| why.to_string())?;
    let own = std::process::id();
    if adopts_orphans() {
        return Err(
            "the keeper would become its child, as all orphans do: run it below an init (`docker run --init`), \
                    or keep it by `hugefork keep` beside it"
                .to_owned(),
        );
    }
    if !has_room_for_a_task(own) {
        return Err("its control group has room for few more tasks: raise pids.max (systemd: TasksMax=)".to_owned());
    }
    // SAFETY: this process has a single thread, so the child may call any function.
    match unsafe { libc::fork() } {
        -1 => return Err(format!("no process can be made for that: {}", std::io::Error::last_os_error())),
        0 => leave_the_session_and_keep(own),
        child => {
            // SAFETY: the child from above; no other code waits for it.
            unsafe { libc::waitpid(child, ptr::null_mut(), 0) };
        }
    }
    Ok("is kept in huge pages from outside, once it forks".to_owned())
}

/// Whether orphans become children of this process, and so of the program.
fn adopts_orphans() -> bool {
    let mut is_subreaper: c_int = 0;
    // SAFETY: the kernel writes one number to `is_subreaper`.
    unsafe { libc::prctl(libc::PR_GET_CHILD_SUBREAPER, ptr::from_mut(&mut is_subreaper), 0, 0, 0) };
    is_subreaper != 0 || std::process::id() == 1
}

/// Becomes the keeper in a session of its own, so that signals to the program's process group do not reach it.
fn leave_the_session_and_keep(program: u32) -> ! {
    // SAFETY: the calls take numbers. The process has a single thread.
    let is_child = unsafe { libc::setsid() > 0 && libc::fork() == 0 };
    if is_child {
        hold_nothing_of_the_programs();
        let mut targets = Targets::new();
        if targets.add_process(program).is_ok()
            && let Ok(mut keeper) = Keeper::new(targets)
        {
            while let Some(time) = keeper.step() {
                keeper.wait(time);
            }
        }
    }
    // SAFETY: no cleanup is needed.
    unsafe { libc::_exit(0) }
}

/// Closes all descriptors, so that no reader waits for the end of a pipe that the program has closed, and leaves the
/// working directory, so that it can be unmounted.
fn hold_nothing_of_the_programs() {
    const NULL: &std::ffi::CStr = c"/dev/null";
    // SAFETY: zero-terminated strings, and numbers. From here on this process uses only descriptors that it opens
    // itself.
    unsafe {
        let null = libc::open(NULL.as_ptr(), libc::O_RDWR);
        for standard in 0..=2 as c_int {
            if libc::dup2(null, standard) < 0 {
                libc::close(standard);
            }
        }
        libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0);
        let _ = libc::chdir(c"/".as_ptr());
        libc::prctl(libc::PR_SET_NAME, c"hugefork-keep".as_ptr());
    }
}
