//! `hugefork run --pool`: loads the library into a program.

use super::environment::Environment;
use super::image::Image;
use super::program::Program;
use super::{library, refusal};
use crate::args::run::RunArgs;
use crate::failure::Failure;

/// Exit status when the command cannot do its own part of running another.
const OWN_PART: u8 = 125;

/// Returns the environment in which the program has the library, or runs unchanged.
pub(super) fn prepare(program: &Program, args: &RunArgs) -> Result<Environment, Failure> {
    let image = Image::read(&program.image);
    let refused = image.as_ref().and_then(|image| refusal::of(program, image)).or_else(refusal::of_the_machine);
    if let Some(why) = refused {
        if !args.quiet {
            eprintln!("hugefork: {} runs unchanged: {why}", program.name());
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

/// The message about the program and its pool.
fn done(program: &Program) -> String {
    let step = if program.image == program.path {
        String::new()
    } else {
        format!(
            ", which {} runs: only that program gets the pool, not the programs that it starts",
            program.image.display()
        )
    };
    let name = program.name();
    format!(
        "{name} runs with a pool for its mappings of 2 MiB and more; memory of libc's malloc still comes from the kernel{step}"
    )
}

/// Undoes an inherited setting that disables transparent huge pages.
fn allow_huge_pages() {
    // SAFETY: the call takes numbers. It fails only on kernels that have no such setting.
    unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 0, 0, 0, 0) };
}
