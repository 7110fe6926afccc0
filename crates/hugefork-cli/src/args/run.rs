//! `hugefork run`: the program, and the treatment of its memory.

use std::ffi::OsString;

use clap::Args;

const RUN_HELP: &str = "\
Becomes the program, and starts a second process that keeps the program and its children in huge \
pages from outside, like `hugefork keep`: after a fork, it puts their memory into huge pages again \
before the next one. Nothing is loaded into the program. It needs CAP_SYS_NICE (`hugefork keep \
--help` explains how to get it) and Linux 6.7; without them the program runs unchanged, and a line \
says so.

With --pool, hugefork's library is loaded into the program instead, but not into programs that it \
starts. Its mappings of 2 MiB and more lie on a pool of huge pages, and a fork(2) copies no page \
tables of them. These are the memory of jemalloc, tcmalloc and mimalloc, and a server's own \
mappings; memory of libc's malloc still comes from the kernel. The program must be linked \
dynamically against glibc. If it is not, or if the machine cannot have a pool, it runs unchanged, \
and a line gives the reason. The pool is given up when the program does something incompatible: \
when it filters its system calls, changes its user, or pins memory for devices. A child could read \
its parent's later writes if it means to.

Examples:
  hugefork run -- redis-server redis.conf
  hugefork run --pool -- redis-server redis.conf     saves every few seconds
  hugefork run --merge -- gunicorn --preload -w 8 app:app

Exit status: that of the program; 125 the library cannot be stored (nothing was run), 126 the \
program cannot be run, 127 it is not found, 2 wrong arguments.";

/// Options of `run`.
#[derive(Args, Debug)]
#[command(after_help = RUN_HELP)]
pub(crate) struct RunArgs {
    /// Put the program's big memory on a pool of huge pages, so that fork(2) copies no page tables of it
    #[arg(long, conflicts_with = "merge")]
    pub(crate) pool: bool,

    /// Let the kernel merge equal pages of the program and of programs that it starts (KSM), for workers that only read
    #[arg(long)]
    pub(crate) merge: bool,

    /// Print nothing unless something fails
    #[arg(short, long)]
    pub(crate) quiet: bool,

    /// The program and its arguments
    #[arg(value_name = "PROGRAM", trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    pub(crate) command: Vec<OsString>,
}
