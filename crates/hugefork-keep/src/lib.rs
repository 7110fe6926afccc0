//! Keeps the memory of running programs in huge pages, from outside the programs.
//!
//! `fork(2)` copies a page-table entry for each 4 KiB page of a process, but only one entry for
//! each 2 MiB huge page. While a child lives, the first write to a huge page makes the kernel split
//! that page, so a program that forks again and again (Redis and Valkey `BGSAVE`, simulators) soon
//! has only 4 KiB pages. The [`Keeper`] watches such programs and collapses their pages into huge
//! pages again. Nothing runs in the program: no library, thread, descriptor or symbol.
//!
//! ```text
//! targets   which processes: by number, name, control group      proc   what /proc says of a process
//! keeper    the loop: finds processes, looks at them, collapses  room   whether memory is short
//! process   one process: its forks, its blocks, its account      pace   how many blocks a second
//! blocks    which blocks of 2 MiB are dense, and its own         report what is known of all
//! warm      a huge page that is ready for a collapse             units  the sizes of pages
//! ```
//!
//! # Effects on a program
//! * Only a process that has forked gets huge pages; the keeper changes no other process.
//! * The keeper collapses a block of 2 MiB if at least [`MIN_PAGES`] of its 512 pages are in
//!   memory, as base pages that no other process maps. So a program grows by at most 2 %, and no
//!   page that a child shares is copied.
//! * A thread of the program that has a page fault in the same mapping waits during the collapse,
//!   about 0.2 ms. So the keeper collapses blocks one by one, spread over the usual time until the
//!   program's next fork.
//! * The keeper may exit at any moment; only the huge pages, which belong to the kernel, outlive
//!   the keeper.
//!
//! # Requirements
//! Linux 6.7 (`PAGEMAP_SCAN`), the capability `CAP_SYS_NICE`, and the right to read the process
//! (the same user, or `CAP_SYS_PTRACE` and `CAP_DAC_READ_SEARCH`).

mod blocks;
mod keeper;
mod pace;
mod proc;
mod process;
mod report;
mod room;
mod targets;
mod units;
mod warm;

pub use blocks::MIN_PAGES;
pub use keeper::{KeepError, Keeper};
pub use report::{ProcessReport, Report, Trouble};
pub use room::has_room_for_a_task;
pub use targets::{Targets, TargetsError};
