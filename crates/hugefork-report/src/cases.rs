//! The tables of this crate: each case, each picture and each figure of the README is one row. If the bench renames a
//! case, a metric or a parameter, only this file changes.

/// A case of the bench, with its table.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    /// The work, in a sentence.
    pub(crate) work: &'static str,
    /// The columns of the case's table, in order.
    pub(crate) metrics: &'static [&'static str],
    /// The metrics that decide whether hugefork loses.
    pub(crate) judged: &'static [&'static str],
}

/// Every case that this hugefork measures. The page and `docs/measurements.md` have a section for each, in this order;
/// cases of other versions follow with all their metrics.
pub(crate) const CASES: [Case; 10] = [
    Case {
        name: "snapshot",
        title: "Snapshot, then writes",
        work: "A snapshot of a populated region while other snapshots are held; then 8-byte writes anywhere, at a fixed \
               rate. The lateness of a write counts from the moment at which it was due.",
        metrics: &["call", "p50", "p99", "p99.9", "max", "cpu", "memory"],
        judged: &["call", "p99", "p99.9", "cpu", "memory"],
    },
    Case {
        name: "reset",
        title: "Reset to a snapshot",
        work: "One word is written in each of some pages, then the region gets the bytes of a snapshot again. Each round \
               writes the same pages, or others.",
        metrics: &["reset", "cpu"],
        judged: &["reset", "cpu"],
    },
    Case {
        name: "changes",
        title: "Finding changed pages",
        work: "The pages that differ between a live region and a snapshot of it.",
        metrics: &["find", "cpu"],
        judged: &["find", "cpu"],
    },
    Case {
        name: "first-touch",
        title: "First write to memory",
        work: "The first write to each 2 MiB of the area; the pass is all of them together.",
        metrics: &["pass", "p50", "p99", "cpu"],
        judged: &["pass", "p99", "cpu"],
    },
    Case {
        name: "read-after",
        title: "Reads around a snapshot",
        work: "Random reads before a snapshot, while it is held and the region is written, and after its drop.",
        metrics: &["read", "p99"],
        judged: &["read", "p99"],
    },
    Case {
        name: "anon-w-seq",
        title: "Fill new memory",
        work: "Each task writes every 8-byte word of its area in order, as vm-scalability's case of this name.",
        metrics: &["throughput", "create", "cpu"],
        judged: &["throughput", "cpu"],
    },
    Case {
        name: "anon-cow-seq",
        title: "Fill copy-on-write copies",
        work: "Each task writes every 8-byte word of its own fork of a populated area, as vm-scalability's case of this \
               name.",
        metrics: &["throughput", "create", "cpu"],
        judged: &["throughput", "create", "cpu"],
    },
    Case {
        name: "lazy-free",
        title: "Lazy free",
        work: "The area is freed lazily, by folio size: the call; the call and a rewrite; populated memory to free
               memory; the same and the touch after it.",
        metrics: &["mark", "mark+rewrite", "mark+reclaim", "mark+reclaim+touch", "cpu"],
        judged: &["mark", "mark+rewrite", "mark+reclaim", "mark+reclaim+touch", "cpu"],
    },
    Case {
        name: "clear",
        title: "Clear a block",
        work: "One block is cleared around a random target, which is then used.",
        metrics: &["op", "use", "total", "victim_slowdown"],
        judged: &["total"],
    },
    Case {
        name: "copy",
        title: "Copy a block",
        work: "One block is copied around a random target, which is then used.",
        metrics: &["op", "use", "total"],
        judged: &["total"],
    },
];

/// Parameter values that an entry must have.
pub(crate) type Only = &'static [(&'static str, &'static str)];

/// A picture: a line for each subject.
pub(crate) struct Picture {
    pub(crate) case: &'static str,
    pub(crate) title: &'static str,
    /// With a parameter, the picture shows one metric over it. Without one, it shows several metrics side by side.
    pub(crate) metrics: &'static [&'static str],
    pub(crate) over: Option<&'static str>,
    pub(crate) only: Only,
}

/// Every picture of the page. The first one that a record has the figures for is the README's.
pub(crate) const PICTURES: [Picture; 9] = [
    Picture {
        case: "snapshot",
        title: "Time of the snapshot call, by size",
        metrics: &["call"],
        over: Some("size"),
        only: &[("held", "0")],
    },
    Picture {
        case: "snapshot",
        title: "Time of the snapshot call, by snapshots held",
        metrics: &["call"],
        over: Some("held"),
        only: &[],
    },
    Picture {
        case: "snapshot",
        title: "How late writes are after a snapshot",
        metrics: &["p50", "p99", "p99.9", "max"],
        over: None,
        only: &[("held", "0")],
    },
    Picture {
        case: "snapshot",
        title: "Lateness of one write in 1 000, by snapshots held",
        metrics: &["p99.9"],
        over: Some("held"),
        only: &[],
    },
    Picture {
        case: "snapshot",
        title: "CPU time of all threads, by snapshots held",
        metrics: &["cpu"],
        over: Some("held"),
        only: &[],
    },
    Picture {
        case: "snapshot",
        title: "Memory added, by snapshots held",
        metrics: &["memory"],
        over: Some("held"),
        only: &[],
    },
    Picture {
        case: "reset",
        title: "Reset of the same pages, by pages written",
        metrics: &["reset"],
        over: Some("written"),
        only: &[("pages", "same")],
    },
    Picture {
        case: "reset",
        title: "Reset of other pages each time, by pages written",
        metrics: &["reset"],
        over: Some("written"),
        only: &[("pages", "others")],
    },
    Picture {
        case: "changes",
        title: "Finding the changed pages, by their part of the area",
        metrics: &["find"],
        over: Some("changed"),
        only: &[],
    },
];

/// A figure of the README: hugefork's entry of the largest size among those that match.
pub(crate) struct Highlight {
    pub(crate) case: &'static str,
    pub(crate) metric: &'static str,
    pub(crate) only: Only,
    /// The rest of the sentence that begins with the figure; it names the work. `{name}` stands for a parameter.
    pub(crate) says: &'static str,
}

/// The README's figures.
pub(crate) const HIGHLIGHTS: [Highlight; 6] = [
    Highlight {
        case: "snapshot",
        metric: "call",
        only: &[("held", "0")],
        says: "is the time that a snapshot of {size} takes, with no other snapshot held",
    },
    Highlight {
        case: "snapshot",
        metric: "p99.9",
        only: &[("held", "10")],
        says: "is the lateness of one write of a thousand after a snapshot of {size}, with {held} others held and {rate} \
               writes a second to pages anywhere",
    },
    Highlight {
        case: "reset",
        metric: "reset",
        only: &[("pages", "others"), ("written", "100")],
        says: "is the time that one thread takes to reset {size} after writes to {written} pages, others each round",
    },
    Highlight {
        case: "changes",
        metric: "find",
        only: &[("changed", "1%")],
        says: "is the time to find the pages of {size} that differ from a snapshot, when {changed} of them do",
    },
    Highlight {
        case: "first-touch",
        metric: "pass",
        only: &[("memory", "fresh"), ("cpus", "all")],
        says: "is the time of the first write to each 2 MiB of {size} of new memory, the whole pass, on all CPUs",
    },
    Highlight {
        case: "anon-cow-seq",
        metric: "throughput",
        only: &[],
        says: "is the rate at which {tasks} threads fill copy-on-write copies of {size}",
    },
];

/// The number of losses that the README names. Each is the worst loss of its case; the README takes the cases with the
/// worst ones.
pub(crate) const LOSSES: usize = 4;

/// Parameters that say how a subject did the work, and not what the work was.
pub(crate) const HOW: [&str; 5] = ["backing", "kernel", "order", "near", "window"];

/// Whether a subject is hugefork.
pub(crate) fn is_ours(subject: &str) -> bool {
    subject == "hugefork" || subject.starts_with("hugefork-")
}

/// Whether a program could have this subject in hugefork's place. Single kernels of `clear` and `copy` are no
/// choice of a program, except for the kernel that Linux has; `limit` does nothing at all.
pub(crate) fn is_rival(subject: &str) -> bool {
    !is_ours(subject) && subject != "limit" && (!subject.contains('/') || subject == "target-last/rep")
}

/// A rival in a sentence.
pub(crate) fn in_words(subject: &str) -> &str {
    match subject {
        "fork-4k" => "`fork(2)` with 4 KiB pages",
        "fork-thp" => "`fork(2)` with transparent huge pages",
        "fork-hugetlb" => "`fork(2)` with hugetlb pages",
        "kernel-4k" => "4 KiB pages",
        "kernel-thp" => "transparent huge pages",
        "kernel-hugetlb" => "hugetlb pages",
        "memcpy" => "a copy",
        "shadow-copy" => "a copy of the pages that write tracking finds",
        "memfd-private" => "a private mapping of a file, mapped anew",
        "pagemap-scan" => "`PAGEMAP_SCAN`",
        "known-pages" => "a program that knows the pages",
        other => other,
    }
}
