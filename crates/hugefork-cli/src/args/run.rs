//! `hugefork run`: the program, and what is done about its memory.

use std::ffi::OsString;

use clap::Args;

const RUN_HELP: &str = "\
With --pool, hugefork's library is put into the program, and into nothing that it starts. The \
program's own mappings of 8 MiB and more lie on a pool of huge pages, of which a fork(2) copies \
no page tables: memory of jemalloc, tcmalloc and mimalloc, and what servers map themselves. What \
libc's malloc has stays the kernel's. The program needs no change; it must be linked dynamically \
against glibc. If it is not, or the machine has no pool for it, it runs as it is, and a line says \
why. So it does from the moment on that it does what does not go with a pool: it filters its \
system calls, changes its user, pins memory for devices.

Example:
  hugefork run --pool -- redis-server redis.conf

Exit status: that of the program; 125 there is no place for the library (nothing was run), 126 \
the program cannot be run, 127 it is not found, 2 called wrongly.";

/// Options of `run`.
#[derive(Args, Debug)]
#[command(after_help = RUN_HELP)]
pub(crate) struct RunArgs {
    /// Have the program's big memory on a pool of huge pages, of which fork(2) copies no page tables
    #[arg(long)]
    pub(crate) pool: bool,

    /// Say nothing unless something fails
    #[arg(short, long)]
    pub(crate) quiet: bool,

    /// The program and its arguments
    #[arg(value_name = "PROGRAM", trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    pub(crate) command: Vec<OsString>,
}
