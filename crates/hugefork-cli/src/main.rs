//! The `hugefork` command.
//!
//! | command | task | module |
//! |---|---|---|
//! | `bench` | measures hugefork beside the kernel | [`commands::bench`] |
//! | `bench compare` | puts two results side by side | [`commands::compare`] |
//! | `run` | becomes a program that has hugefork's library in it | [`commands::run`] |
//! | `keep` | keeps running programs in huge pages, from outside the programs | [`commands::keep`] |
//! | `report` | draws results as a page or pictures | [`commands::report`] |
//! | `doctor` | reports this machine's support for hugefork | [`commands::doctor`] |
//! | `completions`, `man` | print completions and man pages | [`commands::manual`] |
//! | `reset-program` | not for users; a sample of the case `reset` of `bench` | [`reset::run_program`] |
//! | `tune-guardian` | not for users; restores settings after `bench --tune` | [`settings::guardian`] |
//!
//! Commands use three shared modules: [`args`] describes the command line; [`output`] prints text
//! and writes files; [`settings`] changes the kernel settings of `bench --tune` and `doctor --fix`.
//! [`failure`] lies below all of these.
//!
//! Exit status: 0 success, 1 a failure, 2 wrong arguments, 3 or 4 findings of `doctor --strict`,
//! 128 + n stopped by signal n (130: Ctrl-C). `run` exits with the program's status, or 126 and 127
//! like `env(1)`. An error begins with `error: ` on standard error.

mod args;
mod commands;
mod failure;
mod output;
mod settings;

use std::process::ExitCode;
use std::sync::Arc;

use args::{BenchCommand, Cli, Command};
use commands::{bench, compare, doctor, keep, manual, report, run};
use failure::Failure;
use hugefork_bench::cases::reset;
use output::print;
use settings::guardian;
use signal_hook::consts::SIGXFSZ;

fn main() -> ExitCode {
    // With a handler, a file that would grow beyond RLIMIT_FSIZE makes the write fail instead of ending the process.
    // Unlike an ignored signal, a handler is not inherited by other programs.
    let _ = signal_hook::flag::register(SIGXFSZ, Arc::default());
    let words: Vec<String> = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    let done = match words.split_first() {
        Some((name, words)) if name == reset::COMMAND => {
            // A Ctrl-C ends the bench, which waits for this sample.
            guardian::be_deaf();
            reset::run_program(words).map_err(Failure::from).and_then(|line| Ok(print(&format!("{line}\n"))?))
        }
        Some((name, words)) if name == guardian::COMMAND => guardian::run(words),
        _ => return execute(Cli::read().command).unwrap_or_else(|failure| failure.report()),
    };
    done.map_or_else(|failure| failure.report(), |()| ExitCode::SUCCESS)
}

fn execute(command: Command) -> Result<ExitCode, Failure> {
    match command {
        Command::Bench(args) => match &args.instead {
            Some(BenchCommand::Compare(args)) => compare::run(args)?,
            None => return bench::run(&args),
        },
        Command::Run(args) => run::run(&args)?,
        Command::Keep(args) => keep::run(&args)?,
        Command::Report(args) => report::run(&args)?,
        Command::Doctor(args) => return doctor::run(&args),
        Command::Completions { shell } => manual::completions(shell)?,
        Command::Man { dir } => manual::man(dir.as_deref())?,
    }
    Ok(ExitCode::SUCCESS)
}
