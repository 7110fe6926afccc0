//! `hugefork run`: the program, and what is done about its memory.

use std::ffi::OsString;

use clap::Args;

const RUN_HELP: &str = "\
Becomes the program, and leaves a process beside it that keeps it from outside, as `hugefork keep` \
does, with all that it starts: once it has forked, its memory is put into huge pages again between \
two forks. Nothing is put into the program. It needs CAP_SYS_NICE (`hugefork keep --help` says how \
to get it) and Linux 6.7; without them the program runs as it is, and a line says so.

With --pool, hugefork's library is put into the program instead, and into nothing that it starts. \
Its mappings of 2 MiB and more lie on a pool of huge pages, of which a fork(2) copies no page \
tables: memory of jemalloc, tcmalloc and mimalloc, and a server's own mappings. Memory of libc's \
malloc stays the kernel's. The program must be linked dynamically against glibc. If it is not, \
or the machine has no pool for it, it runs as it is, and a line says why. So it does from the \
moment on that it does what does not go with a pool: it filters its system calls, changes its \
user, pins memory for devices. A child that wants to can read what its parent writes later.

Examples:
  hugefork run -- redis-server redis.conf
  hugefork run --pool -- redis-server redis.conf     saves every few seconds
  hugefork run --merge -- gunicorn --preload -w 8 app:app

Exit status: that of the program; 125 there is no place for the library (nothing was run), 126 \
the program cannot be run, 127 it is not found, 2 called wrongly.";

/// Options of `run`.
#[derive(Args, Debug)]
#[command(after_help = RUN_HELP)]
pub(crate) struct RunArgs {
    /// Have the program's big memory on a pool of huge pages, of which fork(2) copies no page tables
    #[arg(long, conflicts_with = "merge")]
    pub(crate) pool: bool,

    /// Have the kernel merge equal pages of the program and of what it starts (KSM), for workers that only read
    #[arg(long)]
    pub(crate) merge: bool,

    /// Say nothing unless something fails
    #[arg(short, long)]
    pub(crate) quiet: bool,

    /// The program and its arguments
    #[arg(value_name = "PROGRAM", trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    pub(crate) command: Vec<OsString>,
}
