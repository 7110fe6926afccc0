//! The `hugefork` command.
//!
//! | command | task | module |
//! |---|---|---|
//! | `bench` | measures hugefork beside the kernel | [`commands::bench`] |
//! | `bench compare` | puts two results side by side | [`commands::bench_compare`] |
//! | `run` | becomes a program that has hugefork's library in it | [`commands::run`] |
//! | `keep` | keeps running programs in huge pages, from outside the programs | [`commands::keep`] |
//! | `report` | draws results as a page or pictures | [`commands::report`] |
//! | `doctor` | reports this machine's support for hugefork | [`commands::doctor`] |
//! | `completions`, `man` | print completions and man pages | [`commands::manual`] |
//! | `reset-program` | hidden; a sample of the case `reset` of `bench` | [`commands::bench`] |
//! | `tune-guardian` | hidden; restores settings after `bench --tune` | [`settings::guardian`] |
//!
//! Commands use three shared modules: [`args`] describes the command line; [`output`] prints text
//! and writes files; [`settings`] changes the kernel settings of `bench --tune` and `doctor --fix`.
//! [`failure`] lies below all of these.
//!
//! Exit status: 0 success, 1 a failure, 2 wrong arguments, 3 or 4 findings of `doctor --strict`,
//! 128 + n stopped by signal n (130: Ctrl-C). `run` exits with the program's status, or 125, 126
//! and 127 like `env(1)`. An error is one line on standard error, `error: …`.

mod args;
mod commands;
mod failure;
mod output;
mod settings;

use std::io;
use std::process::ExitCode;
use std::sync::Arc;

use args::bench::BenchCommand;
use args::{Asked, Command};
use commands::{bench, bench_compare, doctor, keep, manual, report};
use failure::Failure;
use hugefork_bench::cases::reset;
use output::stdout::print;
use settings::guardian;
use signal_hook::consts::SIGXFSZ;

fn main() -> ExitCode {
    // With a handler, a file that would grow beyond RLIMIT_FSIZE makes the write fail instead of ending the process.
    // Unlike an ignored signal, a handler is not inherited by other programs.
    let _ = signal_hook::flag::register(SIGXFSZ, Arc::default());
    let done = match args::parse() {
        Ok(Asked::Work(command)) => run(command),
        Ok(Asked::Text(text)) => {
            print(&args::shown(&text, &io::stdout())).map(|()| ExitCode::SUCCESS).map_err(Failure::from)
        }
        Ok(Asked::Nothing(help)) => {
            eprint!("{}", args::shown(&help, &io::stderr()));
            Ok(ExitCode::from(2))
        }
        Err(failure) => Err(failure),
    };
    done.unwrap_or_else(|failure| failure.report())
}

fn run(command: Command) -> Result<ExitCode, Failure> {
    match command {
        Command::Bench(args) => match &args.instead {
            Some(BenchCommand::Compare(args)) => bench_compare::run(args),
            None => bench::run(&args),
        },
        Command::Run(args) => commands::run::run(&args),
        Command::Keep(args) => keep::run(&args),
        Command::Report(args) => report::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Completions(args) => manual::completions(&args),
        Command::Man(args) => manual::man(&args),
        Command::ResetProgram { words } => bench::print_program(reset::run_program(&words)),
        Command::TuneGuardian(args) => guardian::run(&args),
    }
}
