//! The `hugefork` command.
//!
//! | command | what it does | module |
//! |---|---|---|
//! | `bench` | measures hugefork beside the kernel | [`mod@bench`], [`progress`], [`table`], [`sink`], [`tune`] |
//! | `doctor` | says what this machine offers hugefork | [`doctor`], [`calibration`] |
//! | `tune-guardian` | hidden; puts settings back when `bench --tune` is gone | [`guardian`] |
//!
//! Exit status: 0 done, 1 something failed, 2 it was called wrongly, 128 + n stopped by signal n (130: Ctrl-C). An error is
//! one line on standard error, `error: …`.

mod args;
mod bench;
mod calibration;
mod doctor;
mod failure;
mod guardian;
mod progress;
mod signals;
mod sink;
mod table;
mod tune;

use std::process::ExitCode;

use args::Command;

fn main() -> ExitCode {
    let done = match args::parse() {
        Ok(Command::Bench(args)) => bench::run(&args),
        Ok(Command::Doctor(args)) => doctor::run(&args),
        Ok(Command::TuneGuardian(args)) => guardian::run(&args),
        Err(failure) => Err(failure),
    };
    done.unwrap_or_else(|failure| failure.report())
}
