//! `hugefork completions` and `hugefork man`. Both are generated from the description of the
//! command line, so they always match it.

use std::fs;
use std::path::Path;

use clap::CommandFactory;
use clap_complete::Shell;
use clap_mangen::Man;

use crate::args::Cli;
use crate::failure::Failure;
use crate::output::{print, unwritable};

/// Prints the completion script for a shell.
pub(crate) fn completions(shell: Shell) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "hugefork", &mut script);
    Ok(print(&String::from_utf8_lossy(&script))?)
}

/// Prints or writes the man pages.
pub(crate) fn man(dir: Option<&Path>) -> Result<(), Failure> {
    let command = Cli::command().disable_help_subcommand(true).mut_subcommands(with_version);
    let Some(dir) = dir else {
        let mut page = Vec::new();
        Man::new(command).render(&mut page)?;
        return Ok(print(&String::from_utf8_lossy(&page))?);
    };
    let written = fs::create_dir_all(dir).and_then(|()| clap_mangen::generate_to(command, dir));
    written.map_err(|error| unwritable(&format!("man {}", dir.display()), "directory", &error))
}

/// Adds the version, which the man pages show in their footer.
fn with_version(command: clap::Command) -> clap::Command {
    command.version(env!("CARGO_PKG_VERSION")).disable_version_flag(true).mut_subcommands(with_version)
}
