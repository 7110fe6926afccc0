//! A model of the machine on which the patches behind this library were measured: 2 x 18 cores with
//! 45 MiB of shared cache a socket. Few people have such a machine. The model shows whether the
//! order alone explains the patches' figures, and predicts the best plan for other shares of the
//! cache.
//!
//! The model moves no real bytes: it tracks the cached pieces of each block and the requests that
//! wait for memory. Run it with `cargo run --release -p hugefork-kernels --example model`; `--help`
//! explains the assumptions.
//!
//! | file | holds |
//! |---|---|
//! | `cache` | a cache and its replacement policies |
//! | `workload` | the accesses to a block, in the library's orders |
//! | `machine` | one socket, its threads and its channel to memory |
//! | `tables` | the printed tables |
//! | `file` | the predictions for `hugefork report` |

pub(crate) mod cache;
pub(crate) mod file;
pub(crate) mod machine;
pub(crate) mod tables;
pub(crate) mod workload;

use std::{env, fs::File, io, io::Write, process::ExitCode};

use cache::Policy;

const HELP: &str = "\
A model of the machine on which target-last order was measured for Linux.

Usage: model [--policy NAME] [--blocks N] [--json FILE]

  --policy NAME  how the shared cache of the second and later tables replaces
                 lines: lru, srrip, drrip (the default), quad-age,
                 adaptive-quad-age or random
  --blocks N     blocks that a run finishes, 720 unless given, and fewer in
                 the later tables; from 4 to 120 a thread
  --json FILE    computes the predictions alone, and writes them there as
                 results that `hugefork report FILE` draws
  --help         this

The same arguments give the same output. All takes some 10 to 30
seconds.
";

/// The request in the arguments.
enum Asked {
    Help,
    Tables { policy: Policy, blocks: usize, file: Option<String> },
}

#[cfg_attr(test, allow(dead_code))]
fn main() -> ExitCode {
    match answer(env::args().skip(1), &mut io::stdout().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        // The reader has closed the pipe.
        Err(Failure::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(Failure::Output(error)) => fail(&error.to_string()),
        Err(Failure::Arguments(error)) => fail(&format!("{error}; --help says what there is")),
    }
}

fn fail(error: &str) -> ExitCode {
    eprintln!("model: {error}");
    ExitCode::FAILURE
}

/// The reason for missing tables.
#[derive(Debug)]
pub(crate) enum Failure {
    Arguments(String),
    Output(io::Error),
}

/// Executes the arguments and prints the result.
pub(crate) fn answer(arguments: impl Iterator<Item = String>, out: &mut dyn Write) -> Result<(), Failure> {
    match asked(arguments).map_err(Failure::Arguments)? {
        Asked::Help => out.write_all(HELP.as_bytes()),
        Asked::Tables { policy, blocks, file: None } => print(policy, blocks, out),
        Asked::Tables { policy, blocks, file: Some(file) } => {
            let refused = |error: io::Error| {
                Failure::Arguments(format!("{file} cannot be written: {error}; name a file that can be"))
            };
            let mut json = io::BufWriter::new(File::create(&file).map_err(refused)?);
            let command = format!("model --policy {} --blocks {blocks}", policy.name());
            let predicted = tables::predict(policy, predicted_blocks(blocks));
            file::write(&command, &predicted, &mut json).and_then(|()| json.flush()).map_err(refused)?;
            tables::predictions(policy, &predicted, out)
        }
    }
    .map_err(Failure::Output)
}

/// Number of blocks for one run of the predictions, which need many runs.
fn predicted_blocks(blocks: usize) -> usize {
    blocks * 2 / 5
}

fn print(policy: Policy, blocks: usize, out: &mut dyn Write) -> io::Result<()> {
    tables::policies(blocks, out)?;
    tables::assumptions(policy, blocks, out)?;
    tables::predictions(policy, &tables::predict(policy, predicted_blocks(blocks)), out)
}

fn asked(mut arguments: impl Iterator<Item = String>) -> Result<Asked, String> {
    let (mut policy, mut blocks, mut file) = (Policy::Drrip, 720, None);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
        match argument.as_str() {
            "--help" | "-h" => return Ok(Asked::Help),
            "--policy" => {
                let name = value()?;
                let found = Policy::ALL.into_iter().find(|policy| policy.name() == name);
                policy = found.ok_or(format!("there is no policy `{name}`"))?;
            }
            "--blocks" => {
                let number = value()?;
                let parsed = number.parse().ok().filter(|blocks| (1..=1_000_000).contains(blocks));
                blocks = parsed.ok_or(format!("`{number}` is no number of blocks from 1 to 1000000"))?;
            }
            "--json" => file = Some(value()?),
            _ => return Err(format!("unknown argument `{argument}`")),
        }
    }
    Ok(Asked::Tables { policy, blocks, file })
}
