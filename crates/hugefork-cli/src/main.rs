//! The `hugefork` command.
//!
//! | command | what it does | module |
//! |---|---|---|
//! | `bench` | measures hugefork beside the kernel | [`mod@bench`], [`progress`], [`table`], [`sink`], [`tune`] |
//! | `bench compare` | puts two results side by side | [`mod@compare`] |
//! | `report` | draws results as a page or pictures | [`mod@report`], [`sink`] |
//! | `doctor` | says what this machine offers hugefork | [`doctor`], [`calibration`] |
//! | `completions`, `man` | print completions and man pages | [`manual`] |
//! | `tune-guardian` | hidden; puts settings back when `bench --tune` is gone | [`guardian`] |
//!
//! Exit status: 0 done, 1 something failed, 2 it was called wrongly, 3 or 4 what `doctor --strict` found, 128 + n stopped by
//! signal n (130: Ctrl-C). An error is one line on standard error, `error: …`.

mod args;
mod bench;
mod calibration;
mod compare;
mod doctor;
mod failure;
mod guardian;
mod manual;
mod progress;
mod report;
mod signals;
mod sink;
mod table;
mod terminal;
mod tune;

use std::process::ExitCode;

use args::Command;

fn main() -> ExitCode {
    let done = match args::parse() {
        Ok(Command::Bench(args)) => bench::run(&args),
        Ok(Command::Report(args)) => report::run(&args),
        Ok(Command::Doctor(args)) => doctor::run(&args),
        Ok(Command::Completions(args)) => manual::completions(&args),
        Ok(Command::Man(args)) => manual::man(&args),
        Ok(Command::TuneGuardian(args)) => guardian::run(&args),
        Err(failure) => Err(failure),
    };
    done.unwrap_or_else(|failure| failure.report())
}
