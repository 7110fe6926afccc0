//! `hugefork run`: runs a program and takes care of its memory.
//!
//! ```text
//! outside  keeps a program from outside, by a process beside it
//! pool     puts the library into the program's environment
//! refusal  why the library cannot be put into it
//! program  which file is run, and how this process becomes it
//! ```

mod outside;
mod pool;
mod program;
mod refusal;

use self::program::Program;
use crate::args::RunArgs;
use crate::failure::Failure;

/// Becomes the program. Returns only after a failure.
pub(crate) fn run(args: &RunArgs) -> Result<(), Failure> {
    let program = Program::find(&args.command[0])?;
    let mut environment = pool::environment();
    let done = if args.pool { pool::add(&program, &mut environment) } else { outside::start() };
    if !args.quiet {
        let what = done.unwrap_or_else(|why| format!("runs unchanged: {why}"));
        eprintln!("hugefork: {} {what}", program.name());
    }
    Err(program.execute(&args.command[1..], &environment))
}
