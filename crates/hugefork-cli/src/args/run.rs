//! `hugefork run`: the program, and what is done about its memory.

use std::ffi::OsString;

use clap::{Args, ValueEnum};
use hugefork::ByteSize;
use hugefork_preload::environment::USUAL_MIN_SIZE;
use hugefork_preload::{Children, Malloc, Memory, Mode};

const RUN_HELP: &str = "\
Mode collapse asks for transparent huge pages for the program's own memory. After each fork(2), \
once no child shares it any more, what the kernel has split meanwhile is put together again. So \
every fork copies few page tables, and not only the first. The program needs no change; it must \
be linked dynamically against glibc.

What the program starts inherits all of it: --only limits it to one program, such as the server \
that a script starts. Programs that have nothing big are left alone, whatever they inherit.

--print-env prints lines for a shell (export NAME='VALUE'), with =systemd for a unit \
(Environment=\"NAME=VALUE\"), with =file for `docker run --env-file` (NAME=VALUE).

Examples:
  hugefork run -- redis-server redis.conf
  hugefork run --stats -- python3 train.py       a line at the end: forks, pauses, huge memory
  hugefork run --only redis-server -- ./start.sh
  hugefork stats \"$(pidof redis-server)\"         from another terminal, while it runs

Exit status: that of the program; 125 hugefork cannot be put into it (nothing was run), 126 it \
cannot be run, 127 it is not found, 2 called wrongly.";

/// Options of `run`.
#[derive(Args, Debug)]
#[command(after_help = RUN_HELP)]
pub(crate) struct RunArgs {
    /// What is done about the program's memory: collapse, pool
    #[arg(long, value_name = "MODE", default_value_t = Mode::Collapse)]
    pub(crate) mode: Mode,

    /// Look after mappings from SIZE on
    #[arg(long, value_name = "SIZE", default_value_t = ByteSize(USUAL_MIN_SIZE))]
    pub(crate) min_size: ByteSize,

    /// Whose malloc the program gets: auto (mimalloc in mode pool, where it would have libc's), keep, mimalloc
    #[arg(long, value_name = "WHOSE", default_value_t = Malloc::Auto)]
    pub(crate) malloc: Malloc,

    /// What the program's children get while it lives: alone (no thread of hugefork's, so that they may enter
    /// sandboxes); in mode pool, a thread: grow (it gives them huge pages where they write much), share (it has them
    /// share pages again that are as they inherited them, such as reference counts leave them)
    #[arg(long, value_name = "HOW", default_value_t = Children::Alone)]
    pub(crate) children: Children,

    /// What a child's life may have the program take in mode pool, as a multiple of what it takes with plain pages;
    /// with more, whole blocks are copied sooner (from 1 on, or any)
    #[arg(long, value_name = "TIMES", default_value_t = Memory::default())]
    pub(crate) memory: Memory,

    /// Do something only in programs whose file has this name
    #[arg(long, value_name = "NAME")]
    pub(crate) only: Option<OsString>,

    /// Print a line of statistics to standard error when the program ends
    #[arg(long)]
    pub(crate) stats: bool,

    /// Print that line whenever SIGNAL comes, unless the program has a use for it
    #[arg(long, value_name = "SIGNAL")]
    pub(crate) stats_signal: Option<StatsSignal>,

    /// If hugefork cannot be put into the program, say why and run it as it is
    #[arg(long)]
    pub(crate) or_plain: bool,

    /// Say nothing unless something fails
    #[arg(short, long)]
    pub(crate) quiet: bool,

    /// Print the environment that does the same, and run nothing
    #[arg(long, value_name = "FORMAT", num_args = 0..=1, require_equals = true, default_missing_value = "shell")]
    pub(crate) print_env: Option<EnvFormat>,

    /// The program and its arguments
    #[arg(
        value_name = "PROGRAM",
        trailing_var_arg = true,
        allow_hyphen_values = true,
        required_unless_present = "print_env"
    )]
    pub(crate) command: Vec<OsString>,
}

/// Signals that programs leave to their users.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum StatsSignal {
    #[value(name = "USR1")]
    Usr1,
    #[value(name = "USR2")]
    Usr2,
}

/// Who reads the environment that is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum EnvFormat {
    Shell,
    Systemd,
    File,
}
