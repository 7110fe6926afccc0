//! `hugefork run`: puts the library into a program, and becomes that program.
//!
//! ```text
//! program      which file is run, and which image runs in the end (scripts)
//! image        what its ELF says: libc, needs, allocator
//! refusal      why the library cannot be put into it
//! library      the libraries themselves, in files that all programs of this user may load
//! place        a directory for them whose path nobody else can make lead elsewhere
//! environment  what the program finds in its environment, and how it is printed
//! become_it    execve(2)
//! ```

pub(crate) mod become_it;
mod environment;
mod image;
mod library;
mod place;
mod program;
mod refusal;

use std::process::ExitCode;

use hugefork_preload::{Malloc, Settings};
use signal_hook::consts::{SIGUSR1, SIGUSR2};

use self::environment::Environment;
use self::image::{Allocator, Image};
use self::program::Program;
use crate::args::run::{RunArgs, StatsSignal};
use crate::failure::Failure;
use crate::output::stdout::print;

/// The status of a command that runs another and cannot do its own part.
const OWN_PART: u8 = 125;

/// Becomes the program, or prints what would make it so. Comes back only from the latter.
pub(crate) fn run(args: &RunArgs) -> Result<ExitCode, Failure> {
    let program = args.command.first().map(|name| Program::find(name)).transpose()?;
    let image = program.as_ref().and_then(|program| Image::read(&program.image));
    let refused = program.as_ref().zip(image.as_ref()).and_then(|(program, image)| refusal::of(program, image));
    let name = program.as_ref().map_or(String::new(), |program| program.name());
    if let Some(why) = &refused
        && (!args.or_plain || args.print_env.is_some())
    {
        let advice = "run it without hugefork, or with --or-plain";
        return Err(Failure::Status(OWN_PART, format!("{name}: {why}; {advice}")));
    }
    let environment = match &refused {
        Some(_) => Environment::of_this_process(),
        None => {
            let settings = settings(args);
            let wanted = if settings.brings_malloc() { library::WITH_MALLOC } else { library::RUN };
            let in_place = library::put_in_place(wanted).map_err(|why| Failure::Status(OWN_PART, why))?;
            if !args.quiet {
                for why in &in_place.refused {
                    eprintln!("hugefork: {why}; it is {}", in_place.path.display());
                }
            }
            Environment::of_this_process().with(&settings, &in_place.path)
        }
    };
    if let Some(format) = args.print_env {
        print(&environment.printed(format)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let program = program.expect("the command line has one, unless the environment is printed");
    if !args.quiet {
        match &refused {
            Some(why) => eprintln!("hugefork: {name} runs as it is: {why}"),
            None => eprintln!("hugefork: {name} runs {}", done(args, image.as_ref())),
        }
    }
    if refused.is_none() {
        allow_huge_pages();
    }
    Err(become_it::execute(&program, &args.command[1..], environment))
}

fn settings(args: &RunArgs) -> Settings {
    Settings {
        mode: args.mode,
        min_size: args.min_size.0,
        malloc: args.malloc,
        children: args.children,
        memory: args.memory,
        only: args.only.clone(),
        at_exit: args.stats,
        signal: args.stats_signal.map(|signal| match signal {
            StatsSignal::Usr1 => SIGUSR1,
            StatsSignal::Usr2 => SIGUSR2,
        }),
    }
}

/// Whose `malloc` it has, in words.
fn malloc(args: &RunArgs, image: Option<&Image>) -> &'static str {
    let has = image.map_or(Allocator::Libc, Image::allocator);
    match (has, args.malloc) {
        // What is in the program itself comes first.
        (Allocator::Own, _) => has.in_words(),
        (Allocator::Libc, _) | (_, Malloc::Mimalloc) if settings(args).brings_malloc() => "hugefork's mimalloc",
        (_, _) => has.in_words(),
    }
}

/// What was done, in words.
fn done(args: &RunArgs, image: Option<&Image>) -> String {
    let mut text = format!("in mode {}, from {} on, with {}", args.mode, args.min_size, malloc(args, image));
    let enabled = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    if enabled.contains("[never]") {
        text += "; transparent huge pages are `never` here, so its memory is huge only after its first fork \
                 (`hugefork doctor` says how to change that)";
    }
    // SAFETY: of no bytes at all; the kernel only says whether it knows the advice.
    if unsafe { libc::madvise(std::ptr::null_mut(), 0, libc::MADV_COLLAPSE) } != 0 {
        text += "; this kernel cannot collapse memory (Linux 6.1 can), so only its first forks are short";
    }
    text
}

/// Takes back what may have been inherited: a process for which transparent huge pages are disabled.
fn allow_huge_pages() {
    // SAFETY: a number and zeros; no memory is named. It fails only on kernels that cannot disable them either.
    unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 0, 0, 0, 0) };
}
