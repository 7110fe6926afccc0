//! The description of the command line, with a file for each command that has options. It executes
//! nothing.

pub(crate) mod bench;
pub(crate) mod bench_compare;
pub(crate) mod doctor;
pub(crate) mod guardian;
pub(crate) mod keep;
pub(crate) mod manual;
mod number;
pub(crate) mod report;
pub(crate) mod run;

use std::io::IsTerminal;
use std::os::fd::AsFd;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser, Subcommand};
use hugefork_bench::cases;
use hugefork_bench::nearest::nearest;

use self::bench::BenchArgs;
use self::doctor::DoctorArgs;
use self::guardian::GuardianArgs;
use self::keep::KeepArgs;
use self::manual::{CompletionsArgs, ManArgs};
use self::report::ReportArgs;
use self::run::RunArgs;
use crate::failure::Failure;
use crate::output::terminal;

/// The assumed columns of a stream that is not a terminal.
const PAPER: usize = 100;

/// Huge-page memory whose faults are resolved in user space: measure it, and check this machine's support for it.
#[derive(Debug, Parser)]
// The output wraps the help text.
#[command(name = "hugefork", version, term_width = 0)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// The command to execute.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Measure hugefork beside the kernel: the same work, interleaved, all samples kept
    Bench(Box<BenchArgs>),
    /// Run a program unchanged, with huge pages that remain huge across fork(2)
    Run(RunArgs),
    /// Keep running programs in huge pages across fork(2), from outside the programs
    Keep(KeepArgs),
    /// Draw results of `bench --json` as one page that needs no network
    Report(ReportArgs),
    /// Check this machine's support for hugefork, and print the command for each remedy
    Doctor(DoctorArgs),
    /// Print the completions of this command line for a shell
    Completions(CompletionsArgs),
    /// Print the man page, or write one for each command
    Man(ManArgs),
    /// Write and reset, as the case `reset` needs it (started by `bench`)
    #[command(hide = true)]
    ResetProgram {
        /// The work, as words
        words: Vec<String>,
    },
    /// Restore settings once standard input ends (started by `bench --tune`)
    #[command(hide = true)]
    TuneGuardian(GuardianArgs),
}

/// The description of the command line for clap.
pub(crate) fn command() -> clap::Command {
    Cli::command()
}

/// The request on the command line.
pub(crate) enum Asked {
    Work(Command),
    /// `--help` or `--version`, to be printed on standard output.
    Text(clap::Error),
    /// No command: the help goes to standard error.
    Nothing(clap::Error),
}

/// Parses the command line.
pub(crate) fn parse() -> Result<Asked, Failure> {
    let error = match Cli::try_parse() {
        Ok(cli) => return Ok(Asked::Work(cli.command)),
        Err(error) => error,
    };
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Ok(Asked::Text(error)),
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => Ok(Asked::Nothing(error)),
        _ => Err(Failure::Usage(one_line(&error, &std::env::args().collect::<Vec<_>>()))),
    }
}

/// Formats a help or version text for `stream`, with its colours and width.
pub(crate) fn shown(text: &clap::Error, stream: &(impl IsTerminal + AsFd)) -> String {
    let text = text.render();
    let text = if terminal::colours(stream) { text.ansi().to_string() } else { text.to_string() };
    terminal::help(&text, terminal::columns_of(stream).unwrap_or(PAPER))
}

/// clap's message without its usage block: the mistake, the nearest name if there is one, and a pointer to the help.
/// `words` are the whole command line.
fn one_line(error: &clap::Error, words: &[String]) -> String {
    let text = error.to_string();
    let mut line = text
        .lines()
        .take_while(|line| !line.is_empty())
        .map(str::trim)
        .collect::<Vec<_>>()
        .join(" ")
        .trim_start_matches("error: ")
        .to_owned();
    let named = error.context().find_map(|(kind, value)| match (kind, value) {
        (ContextKind::InvalidSubcommand, ContextValue::String(name)) => elsewhere(name),
        (ContextKind::InvalidArg, ContextValue::String(name)) if error.kind() == ErrorKind::UnknownArgument => {
            one_dash(name, words)
        }
        _ => None,
    });
    if let Some(command) = &named {
        line.push_str(&format!("; did you mean `{command}`?"));
    }
    for (kind, value) in error.context().filter(|_| named.is_none()) {
        let nearest = match (kind, value) {
            (ContextKind::SuggestedArg | ContextKind::SuggestedSubcommand, ContextValue::String(name)) => name,
            (ContextKind::SuggestedSubcommand, ContextValue::Strings(names)) if !names.is_empty() => &names[0],
            _ => continue,
        };
        line.push_str(&format!("; did you mean `{nearest}`?"));
    }
    line + " (see `hugefork --help`, or `--help` after a command)"
}

/// The whole command for a `name` that belongs after `hugefork bench`: `compare`, or a case.
fn elsewhere(name: &str) -> Option<String> {
    let all = command();
    let has = |parent: &&clap::Command| parent.get_subcommands().any(|command| command.get_name() == name);
    match all.get_subcommands().find(has) {
        Some(parent) => Some(format!("hugefork {} {name}", parent.get_name())),
        None => cases::named(name).map(|case| format!("hugefork bench {case}")),
    }
}

/// The option meant by `-size`, which clap parses as `-s -i -z -e` and reports as an unknown `-s`.
fn one_dash(unknown: &str, words: &[String]) -> Option<String> {
    let names = words.iter().filter(|word| !word.starts_with("--")).filter_map(|word| word.strip_prefix('-'));
    let meant = names
        .filter_map(|name| name.split('=').next())
        .find(|name| name.chars().count() > 1 && format!("-{name}").starts_with(unknown))?;
    let all = command();
    let mut commands: Vec<&clap::Command> = vec![&all];
    let mut options: Vec<&str> = Vec::new();
    while let Some(command) = commands.pop() {
        options.extend(command.get_arguments().filter_map(clap::Arg::get_long));
        commands.extend(command.get_subcommands());
    }
    Some(format!("--{}", nearest(meant, options)?))
}

#[cfg(test)]
mod tests {
    use hugefork::{BlockSize, ByteSize};

    use super::*;

    fn refused(line: &str) -> String {
        let error = Cli::try_parse_from(line.split_whitespace()).unwrap_err();
        let line = one_line(&error, &line.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
        assert!(!line.contains('\n'), "{line}");
        line
    }

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_documented_command_line_is_parsed() {
        let line = "hugefork bench clear snapshot --size 256MiB,1GiB --size 512MiB --tasks 2 --block-size 64KiB,1GiB \
                    --full --runs 7 --subjects hugefork,fork-4k --json out.json --tune";
        let Command::Bench(args) = Cli::try_parse_from(line.split_whitespace()).unwrap().command else {
            panic!("bench was asked for");
        };
        assert_eq!(args.cases, ["clear", "snapshot"].map(|name| cases::named(name).unwrap()));
        assert_eq!(args.size, Some(vec![ByteSize(256 << 20), ByteSize(1 << 30), ByteSize(512 << 20)]));
        assert_eq!(args.block_size, [BlockSize::KIB_64, BlockSize::GIB_1]);
        assert_eq!(args.subjects.unwrap().len(), 2);
        assert!(args.tune && args.full);
    }

    #[test]
    fn mistakes_give_one_line_with_the_nearest_name() {
        assert!(refused("hugefork bench first-tuch").contains("did you mean `first-touch`?"));
        assert!(refused("hugefork bench --subjects kernel-tph").contains("did you mean `kernel-thp`?"));
        assert!(refused("hugefork bench --sizes 1GiB").contains("--size"));
        for dash in ["hugefork bench -size 1GiB", "hugefork bench snapshot -size=1GiB", "hugefork bench -q -sise 1GiB"]
        {
            assert!(refused(dash).contains("did you mean `--size`?"), "{dash}");
        }
        assert!(refused("hugefork doctor -json").contains("did you mean `--json`?"));
        for unlike in ["hugefork bench nope", "hugefork bench -x", "hugefork bench -xylophone"] {
            assert!(!refused(unlike).contains("did you mean"), "{unlike}");
        }
        assert!(refused("hugefork benhc").contains("did you mean `bench`?"));
        assert!(refused("hugefork bench --size 1.5GiB").contains("--size"));
        assert!(refused("hugefork bench --block-size 3MiB").contains("power of two"));
        assert!(refused("hugefork bench --runs many").contains("--runs"));
        for percent in ["-1", "inf", "nan", "5%"] {
            assert!(refused(&format!("hugefork bench compare a b --fail-above={percent}")).contains("--fail-above"));
        }
    }
}
