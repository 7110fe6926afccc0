//! `hugefork run --pool`: puts the library into a program.

use super::environment::Environment;
use super::image::Image;
use super::program::Program;
use super::{library, refusal};
use crate::args::run::RunArgs;
use crate::failure::Failure;

/// The status of a command that runs another and cannot do its own part.
const OWN_PART: u8 = 125;

/// Gives the environment in which the program has the library, or runs as it is.
pub(super) fn prepare(program: &Program, args: &RunArgs) -> Result<Environment, Failure> {
    let image = Image::read(&program.image);
    let refused = image.as_ref().and_then(|image| refusal::of(program, image)).or_else(refusal::of_the_machine);
    if let Some(why) = refused {
        if !args.quiet {
            eprintln!("hugefork: {} runs as it is: {why}", program.name());
        }
        return Ok(Environment::of_this_process());
    }
    let in_place = library::put_in_place().map_err(|why| Failure::Status(OWN_PART, why))?;
    if !args.quiet {
        for why in &in_place.refused {
            eprintln!("hugefork: {why}; it is {}", in_place.path.display());
        }
        eprintln!("hugefork: {}", done(program));
    }
    allow_huge_pages();
    Ok(Environment::of_this_process().with(&in_place.path))
}

/// The first line: the program and its pool.
fn done(program: &Program) -> String {
    let step = if program.image == program.path {
        String::new()
    } else {
        format!(", which {} runs: the pool is that program's, and nobody's that it starts", program.image.display())
    };
    let name = program.name();
    format!(
        "{name} runs with a pool for its mappings of 2 MiB and more; memory of libc's malloc stays the kernel's{step}"
    )
}

/// Takes back what may have been inherited: a process for which transparent huge pages are disabled.
fn allow_huge_pages() {
    // SAFETY: a number and zeros; no memory is named. It fails only on kernels that cannot disable them either.
    unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 0, 0, 0, 0) };
}
