//! The cases that the reader knows, each with everything that is said of it. A case that is not here is shown under its
//! own name, and with the first metric that it has.

/// What is known of a case.
pub(crate) struct Known {
    name: &'static str,
    /// What it is about, in plain words.
    pub(crate) title: &'static str,
    /// What was done, for people.
    pub(crate) description: &'static str,
    /// The metrics that it is about: the first of these that was measured.
    pub(crate) leads: &'static [&'static str],
    /// Metrics that only explain others, and get no chart.
    pub(crate) explains: &'static [&'static str],
    /// Subjects that do not do the same service, and why they do not.
    pub(crate) aside: &'static [(&'static str, &'static str)],
}

/// A subject of several cases.
const LIMIT: (&str, &str) = ("limit", "has nothing to clear, copy or map: the best that is possible");

/// In the order in which readers ask for them.
const KNOWN: [Known; 17] = [
    Known {
        name: "snapshot",
        title: "Taking a snapshot",
        description: "The pause to take a fork or snapshot of populated memory.",
        leads: &["pause"],
        explains: &[],
        aside: &[("memcpy", "a whole second copy, though nothing to pay later")],
    },
    Known {
        name: "writer-latency",
        title: "Writing after a snapshot",
        description: "Writes of 8 bytes to a populated area, while a fork or snapshot of it is held.",
        // Older files have no `taken`.
        leads: &["taken", "total"],
        explains: &["call", "all"],
        aside: &[("memcpy", "copies everything in its pause, and needs memory for all of it")],
    },
    Known {
        name: "history",
        title: "A snapshot while many are held",
        description: "Snapshots of a populated area, all held, with writes to some pages between two of them.",
        leads: &["each"],
        explains: &["call", "between", "worst"],
        aside: &[],
    },
    Known {
        name: "paced",
        title: "Writing at a fixed rate while snapshots are taken",
        description: "Puts of 64 bytes at a fixed rate, each timed from the moment at which it was due, while forks or \
                      snapshots of the area are taken and held.",
        leads: &["p99.9"],
        explains: &["p50", "p99", "own_max"],
        aside: &[],
    },
    Known {
        name: "fork",
        title: "Forking a program as it is",
        description: "fork(2) of a program, and its writes of 8 bytes while the child lives.",
        leads: &["pause"],
        explains: &[],
        aside: &[],
    },
    Known {
        name: "anon-cow-seq",
        title: "Filling a copy-on-write copy",
        description: "Each task writes every word of its own fork of one populated area, in order.",
        leads: &["throughput"],
        explains: &["overhead", "zeroing", "faults_per_gib"],
        aside: &[LIMIT],
    },
    Known {
        name: "anon-cow-rand",
        title: "Filling a copy-on-write copy in random order",
        description: "Each task writes every word of its own fork of one populated area, in random order.",
        leads: &["throughput"],
        explains: &["overhead", "zeroing", "faults_per_gib"],
        aside: &[],
    },
    Known {
        name: "zero-fault",
        title: "First write to new memory",
        description: "First write at a random offset of each stretch of memory, and the use of what lies around it.",
        leads: &["latency"],
        explains: &["fault", "overhead", "zeroing"],
        aside: &[("kernel-4k", "makes 64 KiB of each stretch present, not all of it"), LIMIT],
    },
    Known {
        name: "anon-w-seq",
        title: "Filling new memory",
        description: "Each task writes every word of its own new memory, in order.",
        leads: &["throughput"],
        explains: &["create", "overhead", "zeroing", "faults_per_gib"],
        aside: &[LIMIT],
    },
    Known {
        name: "anon-w-rand",
        title: "Filling new memory in random order",
        description: "Each task writes every word of its own new memory, in random order.",
        leads: &["throughput"],
        explains: &["create", "overhead", "zeroing", "faults_per_gib"],
        aside: &[],
    },
    Known {
        name: "lazy-free",
        title: "Freeing lazily",
        description: "A populated area is lazily freed; then written to again, or reclaimed.",
        leads: &["mark"],
        explains: &[],
        aside: &[],
    },
    Known {
        name: "changes",
        title: "Finding what has changed",
        description: "Finding the pages of a populated area that were written since a snapshot of it.",
        leads: &["pages"],
        explains: &["live", "mark"],
        aside: &[("soft-dirty", "finds pages that were written, and has nothing of what was there before")],
    },
    Known {
        name: "reset",
        title: "Going back",
        description: "Putting a populated area back to what it was, after a word was written in some of its pages.",
        leads: &["round"],
        explains: &["reset", "p99", "faults"],
        aside: &[("fork-thp", "the whole round: the child does the writing")],
    },
    Known {
        name: "clear",
        title: "Clearing a block",
        description: "One block is cleared around a random target, which is then used.",
        leads: &["total"],
        explains: &["op", "use"],
        aside: &[LIMIT],
    },
    Known {
        name: "copy",
        title: "Copying a block",
        description: "One block is copied around a random target, which is then used.",
        leads: &["total"],
        explains: &["op", "use"],
        aside: &[LIMIT],
    },
    Known {
        name: "model-clear",
        title: "Foretold: blocks cleared and then written",
        description: "Nothing was measured: a model of the machine of Linux's patches, where so many threads share 45 \
                      MiB of cache, foretells what comes of each plan when blocks are then written in order. A window \
                      is what goes through the cache, after the rest; reversed, it is written from its far end.",
        leads: &["throughput"],
        explains: &[],
        aside: &[],
    },
    Known {
        name: "model-copy",
        title: "Foretold: blocks copied and then written",
        description: "Nothing was measured: the same model, where blocks are copied first.",
        leads: &["throughput"],
        explains: &[],
        aside: &[],
    },
];

/// What is known of `case`; nothing if it is from a later hugefork.
pub(crate) fn known(case: &str) -> Option<&'static Known> {
    KNOWN.iter().find(|known| known.name == case)
}

/// The place of a case on the page; those from a later hugefork come last.
pub(crate) fn place(case: &str) -> usize {
    KNOWN.iter().position(|known| known.name == case).unwrap_or(KNOWN.len())
}
