//! What is printed of a process. Its numbers come from memory that the process writes to: they may be any.

use hugefork_preload::stats::{Counters, PoolRefusal, Report};
use serde_json::json;

/// For programs.
pub(super) fn json(pid: u32, report: &Report) -> serde_json::Value {
    let counted = &report.counters;
    let mut all = json!({
        "schema": 1,
        "pid": pid,
        "mode": counted.mode,
        "fork_usec_histogram": counted.fork_usec_histogram,
        "promotion_usec_histogram": counted.promotion_usec_histogram,
        "write_back_usec_histogram": counted.write_back_usec_histogram,
        "resident_bytes": report.resident_bytes,
        "peak_bytes": report.peak_bytes,
        "anonymous_bytes": report.anonymous_bytes,
        "huge_bytes": report.huge_bytes,
    });
    for (name, value) in counted.named() {
        all[name] = value.into();
    }
    all
}

/// For people.
pub(super) fn table(pid: u32, report: &Report) -> String {
    let counted = &report.counters;
    let ms = |us: u64| us as f64 / 1e3;
    let mib = |bytes: u64| bytes >> 20;
    let mut text = format!("process {pid}, mode {}\n", counted.mode);
    let mut line = |name: &str, value: String| text += &format!("  {name:<16} {value}\n");
    let below = |bucket: usize| (1_u64 << bucket) as f64 / 1e3;
    line(
        "forks",
        match counted.total_forks {
            0 => "none with big memory".to_owned(),
            forks => format!(
                "{forks}: the last {:.3} ms, the longest {:.3} ms, {:.3} ms each",
                ms(counted.latest_fork_usec),
                ms(counted.longest_fork_usec),
                ms(counted.all_forks_usec / forks),
            ),
        },
    );
    for (bucket, forks) in counted.fork_usec_histogram.iter().enumerate().filter(|(_, forks)| **forks > 0) {
        line("", format!("below {} ms: {forks}", below(bucket)));
    }
    line("still alive", format!("descendants of {} forks", counted.forks_alive));
    line("collapsed again", format!("{} blocks of 2 MiB in {} passes", counted.blocks_collapsed, counted.passes));
    if counted.blocks_not_collapsed > 0 {
        line("", format!("{} blocks for which the kernel had no huge page", counted.blocks_not_collapsed));
    }
    if counted.pool_mappings > 0 {
        line("pool", format!("{} mappings, {} pages written back", counted.pool_mappings, counted.pages_written_back));
        line("", format!("{} blocks copied beside writers", counted.blocks_promoted));
        if counted.blocks_demoted > 0 {
            line("", format!("{} of them given up again for want of memory", counted.blocks_demoted));
        }
        line("", format!("{} blocks handed over to the kernel", counted.blocks_handed_over));
        let held =
            [("copied", &counted.promotion_usec_histogram), ("written back", &counted.write_back_usec_histogram)];
        for (why, times) in held.into_iter().filter(|(_, times)| times.iter().any(|times| *times > 0)) {
            line("held", format!("what was {why}; who used it waited"));
            for (bucket, times) in times.iter().enumerate().filter(|(_, times)| **times > 0) {
                line("", format!("below {} ms: {times}", below(bucket)));
            }
        }
        let kept = format!("{} of them kept for the next child", mib(counted.pool_kept_bytes));
        line("", format!("{} MiB of memory, {kept}", mib(counted.pool_bytes)));
    }
    if counted.blocks_privatised > 0 {
        line("inherited", format!("{} blocks privatised for writers", counted.blocks_privatised));
    }
    if counted.pages_given_back > 0 {
        let cost = format!("in {:.3} ms of a processor", ms(counted.sharing_usec));
        let whose = if counted.pool_mappings > 0 { "pool" } else { "inherited" };
        line(whose, format!("{} pages shared again, {cost}", counted.pages_given_back));
    }
    if counted.pool_refused > 0 {
        line("pool", format!("refused here: {}", refusal(counted)));
    }
    if counted.pool_left > 0 {
        line("", "left, because the program uses memory past its addresses: docs/run.md says how".to_owned());
    }
    if counted.blocks_unseen > 0 {
        line("", format!("{} blocks that a child could not be shown", counted.blocks_unseen));
    }
    line("mapped", format!("{} mappings, {} MiB in all", counted.mappings, mib(counted.mapped_bytes)));
    line("memory", format!("{} MiB, at its peak {} MiB", mib(report.resident_bytes), mib(report.peak_bytes)));
    line("huge", format!("{} of {} MiB that is no file's", mib(report.huge_bytes), mib(report.anonymous_bytes)));
    if counted.thp_disables_kept > 0 {
        line("kept", format!("from switching its huge pages off, {} times", counted.thp_disables_kept));
    }
    text
}

/// Why there is no pool, and what would change that.
fn refusal(counted: &Counters) -> &'static str {
    match PoolRefusal::of(counted) {
        Some(PoolRefusal::Descriptors) => "the process may have fewer than 980 descriptors; raise `ulimit -n`",
        Some(PoolRefusal::PinningLibrary) => {
            "the program has a library that pins memory (io_uring, InfiniBand or a GPU's); mode collapse is for it"
        }
        Some(PoolRefusal::Userfaults) => {
            "page faults cannot be resolved for it; `hugefork doctor`, run as it is, says why"
        }
        Some(PoolRefusal::Addresses) => "the process has no 16 GiB of addresses; raise `ulimit -v`",
        Some(PoolRefusal::Kernel) => "the kernel refused what it needs; `hugefork doctor`, run as it is, says what",
        None => "docs/run.md says what it needs",
    }
}
