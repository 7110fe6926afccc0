//! `hugefork completions` and `hugefork man`. Both are generated from the description of the
//! command line, so they always match it.

use std::fs;
use std::process::ExitCode;

use anyhow::Context;
use clap_mangen::Man;

use crate::args;
use crate::args::manual::{CompletionsArgs, ManArgs};
use crate::failure::Failure;
use crate::output::sink::unwritable;
use crate::output::stdout::print;

/// Prints the completion script for a shell.
pub(crate) fn completions(args: &CompletionsArgs) -> Result<ExitCode, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut public(), "hugefork", &mut script);
    print(&String::from_utf8_lossy(&script))?;
    Ok(ExitCode::SUCCESS)
}

/// Prints or writes the man pages.
pub(crate) fn man(args: &ManArgs) -> Result<ExitCode, Failure> {
    let command = public().disable_help_subcommand(true);
    match &args.dir {
        Some(dir) => fs::create_dir_all(dir)
            .and_then(|()| clap_mangen::generate_to(command, dir))
            .map_err(|error| Failure::usage(&unwritable(&format!("man {}", dir.display()), "directory", &error)))?,
        None => {
            let mut page = Vec::new();
            Man::new(command).render(&mut page).context("writing the man page")?;
            print(&String::from_utf8_lossy(&page))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The description of the command line without hidden commands, which completions would offer.
fn public() -> clap::Command {
    let all = args::command();
    let shown = all.get_subcommands().filter(|command| !command.is_hide_set()).cloned();
    clap::Command::new("hugefork")
        .version(env!("CARGO_PKG_VERSION"))
        .about(all.get_about().cloned().unwrap_or_default())
        .args(all.get_arguments().cloned())
        .subcommands(shown)
        .mut_subcommands(with_version)
}

/// Adds the version, which the man pages show in their footer.
fn with_version(command: clap::Command) -> clap::Command {
    command.version(env!("CARGO_PKG_VERSION")).disable_version_flag(true).mut_subcommands(with_version)
}
