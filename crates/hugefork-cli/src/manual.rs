//! `hugefork completions` and `hugefork man`: both made of the command line's own description, so that they never differ from it.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use clap_complete::Shell;
use clap_mangen::Man;

use crate::args;
use crate::bench::print;
use crate::failure::Failure;
use crate::sink::unwritable;

const COMPLETIONS_HELP: &str = "\
Examples:
  hugefork completions bash > ~/.local/share/bash-completion/completions/hugefork
  hugefork completions zsh > ~/.zfunc/_hugefork        with ~/.zfunc in $fpath
  hugefork completions fish > ~/.config/fish/completions/hugefork.fish";

/// Options of `completions`.
#[derive(Args, Debug)]
#[command(after_help = COMPLETIONS_HELP)]
pub(crate) struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

const MAN_HELP: &str = "\
Examples:
  hugefork man | man -l -
  hugefork man ~/.local/share/man/man1";

/// Options of `man`.
#[derive(Args, Debug)]
#[command(after_help = MAN_HELP)]
pub(crate) struct ManArgs {
    /// Write hugefork.1 and a page for each command to DIR, which is made if need be; without it, print hugefork.1
    dir: Option<PathBuf>,
}

/// Prints the script of a shell.
pub(crate) fn completions(args: &CompletionsArgs) -> Result<ExitCode, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut public(), "hugefork", &mut script);
    print(&String::from_utf8_lossy(&script))?;
    Ok(ExitCode::SUCCESS)
}

/// Prints or writes the pages.
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

/// The command line without what is hidden, which completions would offer.
fn public() -> clap::Command {
    let all = args::command();
    let shown = all.get_subcommands().filter(|command| !command.is_hide_set()).cloned();
    clap::Command::new("hugefork")
        .version(env!("CARGO_PKG_VERSION"))
        .about(all.get_about().cloned().unwrap_or_default())
        .args(all.get_arguments().cloned())
        .subcommands(shown)
}
