//! What is said of a machine and of its files, on the page and in Markdown.

use crate::figures::{figure, quantity, spaced};
use crate::machines::Machine;
use crate::record::{Host, Record};

/// The machine, and the days on which it was measured, if they are known.
pub(crate) fn machine_and_days(machine: &Machine) -> String {
    let parts = [machine.name(), days(machine)];
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(", ")
}

/// What the machine has and which hugefork ran on it, by name.
pub(crate) fn facts(machine: &Machine) -> Vec<(&'static str, String)> {
    let host: &Host = &machine.records[0].host;
    let cache = host.last_cache().map(|cache| format!("L{} {}", cache.level, spaced(&cache.size)));
    // Nobody wants to know the memory to the last MiB.
    let memory = match quantity(&host.memory) {
        Some(bytes) if bytes >= 1e9 => format!("{} GiB", figure(bytes / f64::from(1 << 30))),
        _ => spaced(&host.memory),
    };
    let facts = [
        ("cache", cache.unwrap_or_default()),
        ("memory", memory),
        ("governor", host.governor.clone().unwrap_or_default()),
        ("hypervisor", host.hypervisor.clone().unwrap_or_else(|| "none seen".to_owned())),
        ("hugefork", machine.records[0].version.clone()),
        ("measured", days(machine)),
    ];
    facts.into_iter().filter(|(_, value)| !value.is_empty()).collect()
}

/// The day or days on which the machine's records were measured.
fn days(machine: &Machine) -> String {
    let mut days: Vec<&str> = machine.records.iter().filter_map(|record| record.date.split('T').next()).collect();
    days.retain(|day| !day.is_empty());
    days.sort_unstable();
    match (days.first(), days.last()) {
        (Some(first), Some(last)) if first != last => format!("{first} to {last}"),
        (Some(first), _) => (*first).to_owned(),
        _ => String::new(),
    }
}

/// When a record was measured, and with which hugefork.
pub(crate) fn origin(record: &Record) -> String {
    let commit = if record.commit.is_empty() { String::new() } else { format!("commit {}", record.commit) };
    let parts = [record.date.clone(), commit];
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" · ")
}

/// The name of a record's file, without its directory.
pub(crate) fn file_name(record: &Record) -> String {
    record.name.rsplit('/').next().unwrap_or_default().to_owned()
}

/// The settings that `--tune` and users change between runs.
pub(crate) fn settings(record: &Record) -> String {
    let thp = &record.host.thp;
    let mut settings = Vec::new();
    for (name, word) in [("THP", &thp.enabled), ("defrag", &thp.defrag), ("shmem", &thp.shmem_enabled)] {
        if !word.is_empty() {
            settings.push(format!("{name} {word}"));
        }
    }
    for pool in record.host.hugetlb.iter().filter(|pool| pool.total > 0) {
        settings.push(format!("{} hugetlb pages of {}", pool.total, spaced(&pool.page)));
    }
    settings.join(" · ")
}
