//! `hugefork completions` and `hugefork man`.

use std::path::PathBuf;

use clap::Args;
use clap_complete::Shell;

const COMPLETIONS_HELP: &str = "\
Examples:
  hugefork completions bash > ~/.local/share/bash-completion/completions/hugefork
  hugefork completions zsh > ~/.zfunc/_hugefork        with ~/.zfunc in $fpath
  hugefork completions fish > ~/.config/fish/completions/hugefork.fish";

/// Options of `completions`.
#[derive(Args, Debug)]
#[command(after_help = COMPLETIONS_HELP)]
pub(crate) struct CompletionsArgs {
    /// The shell to print completions for
    pub(crate) shell: Shell,
}

const MAN_HELP: &str = "\
Examples:
  hugefork man | man -l -
  hugefork man ~/.local/share/man/man1";

/// Options of `man`.
#[derive(Args, Debug)]
#[command(after_help = MAN_HELP)]
pub(crate) struct ManArgs {
    /// Write hugefork.1 and a page for each command to DIR, which is created if need be; without DIR, print hugefork.1
    pub(crate) dir: Option<PathBuf>,
}
