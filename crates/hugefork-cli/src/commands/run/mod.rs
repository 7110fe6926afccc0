//! `hugefork run`: runs a program and takes care of its memory.
//!
//! ```text
//! outside      keeps a program from outside, by a process beside it
//! pool         puts the library into a program, and becomes that program
//! program      which file is run, and which image runs in the end (scripts)
//! image        what its ELF says: libc, needs, allocator
//! refusal      why the library cannot be put into it
//! library      the library itself, in a file that all programs of this user may load
//! place        a directory for it whose path nobody else can make lead elsewhere
//! environment  what the program finds in its environment
//! become_it    execve(2)
//! ```

pub(crate) mod become_it;
mod environment;
mod image;
mod library;
mod outside;
mod place;
mod pool;
mod program;
mod refusal;

use std::process::ExitCode;

use self::environment::Environment;
use self::program::Program;
use crate::args::run::RunArgs;
use crate::failure::Failure;

/// Becomes the program. Returns only after a failure.
pub(crate) fn run(args: &RunArgs) -> Result<ExitCode, Failure> {
    let program = Program::find(&args.command[0])?;
    let environment = if args.pool { pool::prepare(&program, args)? } else { Environment::of_this_process() };
    if !args.pool {
        let name = program.name();
        let done = if args.merge { merge_equal_pages() } else { outside::start() };
        match done {
            Ok(what) if !args.quiet => eprintln!("hugefork: {name} {what}"),
            Err(why) if !args.quiet => eprintln!("hugefork: {name} runs unchanged: {why}"),
            Ok(_) | Err(_) => {}
        }
    }
    Err(become_it::execute(&program, &args.command[1..], environment))
}

/// Lets the kernel merge equal pages of this process, and of the program that it becomes. Returns a description.
///
/// # Errors
/// The kernel lacks the feature, or its merging thread does not run.
fn merge_equal_pages() -> Result<&'static str, String> {
    /// `PR_SET_MEMORY_MERGE` of linux/prctl.h.
    const MERGE: libc::c_int = 67;
    // SAFETY: the call takes numbers; merging preserves the contents of pages.
    if unsafe { libc::prctl(MERGE, 1, 0, 0, 0) } != 0 {
        return Err("this kernel cannot merge pages of a whole process; use Linux 6.4 or newer with KSM".to_owned());
    }
    match std::fs::read_to_string("/sys/kernel/mm/ksm/run") {
        Ok(run) if run.trim() == "1" => {
            Ok("has its equal pages merged, and so have programs that it starts (Linux 6.7)")
        }
        _ => Err("KSM does not run: run `echo 1 | sudo tee /sys/kernel/mm/ksm/run`".to_owned()),
    }
}
