//! `hugefork run`: starts a program, whose memory is looked after.
//!
//! ```text
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
mod place;
mod pool;
mod program;
mod refusal;

use std::process::ExitCode;

use crate::args::run::RunArgs;
use crate::failure::Failure;

/// Becomes the program. Comes back only if that fails.
pub(crate) fn run(args: &RunArgs) -> Result<ExitCode, Failure> {
    if args.pool {
        return pool::run(args);
    }
    Err(Failure::Usage("run: say what is to be done about the program's memory: --pool".to_owned()))
}
