//! `hugefork run --pool`: puts the library into a program, and becomes that program.

use std::process::ExitCode;

use super::environment::Environment;
use super::image::{Allocator, Image};
use super::program::Program;
use super::{become_it, library, refusal};
use crate::args::run::RunArgs;
use crate::failure::Failure;

/// The status of a command that runs another and cannot do its own part.
const OWN_PART: u8 = 125;

/// Becomes the program, with the library in it or as it is. Comes back only if that fails.
pub(super) fn run(args: &RunArgs) -> Result<ExitCode, Failure> {
    let program = Program::find(&args.command[0])?;
    let image = Image::read(&program.image);
    let refused = image.as_ref().and_then(|image| refusal::of(&program, image)).or_else(refusal::of_the_machine);
    let name = program.name();
    let environment = match &refused {
        Some(why) => {
            if !args.quiet {
                eprintln!("hugefork: {name} runs as it is: {why}");
            }
            Environment::of_this_process()
        }
        None => {
            let in_place = library::put_in_place().map_err(|why| Failure::Status(OWN_PART, why))?;
            if !args.quiet {
                for why in &in_place.refused {
                    eprintln!("hugefork: {why}; it is {}", in_place.path.display());
                }
                eprintln!("hugefork: {}", done(&program, image.as_ref()));
            }
            allow_huge_pages();
            Environment::of_this_process().with(&in_place.path)
        }
    };
    Err(become_it::execute(&program, &args.command[1..], environment))
}

/// What was done, in words.
fn done(program: &Program, image: Option<&Image>) -> String {
    let step = if program.image == program.path {
        String::new()
    } else {
        format!(", which {} runs: the pool is that program's, and nobody's that it starts", program.image.display())
    };
    let allocator = image.map_or(Allocator::Libc, Image::allocator);
    let whose = match allocator {
        Allocator::Libc => "memory of libc's malloc stays the kernel's".to_owned(),
        other => format!("with {}", other.in_words()),
    };
    format!("{} runs with a pool for its mappings of 8 MiB and more, {whose}{step}", program.name())
}

/// Takes back what may have been inherited: a process for which transparent huge pages are disabled.
fn allow_huge_pages() {
    // SAFETY: a number and zeros; no memory is named. It fails only on kernels that cannot disable them either.
    unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 0, 0, 0, 0) };
}
