//! Keeps the program from outside: a process of its own that goes on when this one becomes the program.
//!
//! ```text
//! hugefork run ── fork ──▶ (child) ── setsid, fork ──▶ keeper, until the program and all that it starts have ended
//!      │                      └─ ends at once
//!      └─ execve ─▶ the program, with the number, the parent, the terminal and the descriptors of the command
//! ```
//! The keeper is no child of the program, which would find it by `wait(2)`, and would wait for it if it waits for all.
//! A program that orphans become children of, as of process 1 of a container, therefore has no keeper.

use std::ffi::c_int;
use std::ptr;

use hugefork_keep::{Keeper, Targets, has_room_for_a_task};

/// Starts the keeper of this process, and says so in words.
///
/// # Errors
/// The reason why nothing can be kept here.
pub(super) fn start() -> Result<&'static str, String> {
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
    // SAFETY: this process has one thread, so its copy may do whatever it may.
    match unsafe { libc::fork() } {
        -1 => return Err(format!("no process can be made for that: {}", std::io::Error::last_os_error())),
        0 => leave_the_session_and_keep(own),
        child => {
            // SAFETY: the child of above, which nobody else waits for.
            unsafe { libc::waitpid(child, ptr::null_mut(), 0) };
        }
    }
    Ok("is kept in huge pages from outside, once it forks")
}

/// Whether orphans become children of this process, and so of the program.
fn adopts_orphans() -> bool {
    let mut is_subreaper: c_int = 0;
    // SAFETY: the kernel writes a number to the one that is named.
    unsafe { libc::prctl(libc::PR_GET_CHILD_SUBREAPER, ptr::from_mut(&mut is_subreaper), 0, 0, 0) };
    is_subreaper != 0 || std::process::id() == 1
}

/// Becomes the keeper, in a session of its own: signals to the program's process group do not reach it.
fn leave_the_session_and_keep(program: u32) -> ! {
    // SAFETY: numbers alone are passed. The copy has one thread.
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
    // SAFETY: nothing is left to be done at an exit.
    unsafe { libc::_exit(0) }
}

/// Closes all descriptors, so that nobody waits for the end of a pipe that the program has closed, and leaves the
/// directory, so that it can be unmounted.
fn hold_nothing_of_the_programs() {
    const NULL: &std::ffi::CStr = c"/dev/null";
    // SAFETY: strings that end, and numbers. Nothing of this process uses a descriptor from here on but what it opens.
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
