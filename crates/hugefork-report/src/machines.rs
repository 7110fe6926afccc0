//! Brings records of one machine together. The bench may run one size or one number of tasks at a time, so that a line
//! over them takes several files.
//!
//! Records join if they have the same host and hugefork, and no entry is in both. A second run of the same thing stays
//! apart.

use std::collections::BTreeSet;

use crate::known::place;
use crate::record::{Curve, Entry, Record};

/// Records that may share a chart.
pub(crate) struct Machine<'a> {
    pub(crate) records: Vec<&'a Record>,
    pub(crate) entries: Vec<&'a Entry>,
    pub(crate) curves: Vec<&'a Curve>,
}

/// Groups `records` by machine, in their order.
pub(crate) fn machines(records: &[Record]) -> Vec<Machine<'_>> {
    let mut machines: Vec<Machine> = Vec::new();
    for record in records {
        let keys: BTreeSet<_> = record.entries.iter().map(Entry::key).collect();
        let joins = |machine: &&mut Machine| {
            let first = machine.records[0];
            first.host.same_machine(&record.host)
                && first.version == record.version
                && machine.entries.iter().all(|entry| !keys.contains(&entry.key()))
        };
        match machines.iter_mut().find(joins) {
            Some(machine) => {
                machine.records.push(record);
                machine.entries.extend(&record.entries);
                machine.curves.extend(&record.curves);
            }
            None => machines.push(Machine {
                records: vec![record],
                entries: record.entries.iter().collect(),
                curves: record.curves.iter().collect(),
            }),
        }
    }
    machines
}

impl<'a> Machine<'a> {
    /// The cases that were run: what readers ask for first, then the others in the order of the files.
    pub(crate) fn cases(&self) -> Vec<&'a str> {
        let mut cases: Vec<&str> = Vec::new();
        for entry in &self.entries {
            if !cases.contains(&entry.case.as_str()) {
                cases.push(&entry.case);
            }
        }
        cases.sort_by_key(|case| place(case));
        cases
    }

    /// CPU, number of CPUs, kernel, hypervisor.
    pub(crate) fn name(&self) -> String {
        let host = &self.records[0].host;
        let mut parts = vec![
            if host.cpu.is_empty() { "unnamed CPU".to_owned() } else { host.cpu.clone() },
            match host.cpus {
                0 => String::new(),
                1 => "1 CPU".to_owned(),
                cpus => format!("{cpus} CPUs"),
            },
            host.kernel.clone(),
            host.hypervisor.clone().unwrap_or_default(),
        ];
        parts.retain(|part| !part.is_empty());
        parts.join(" · ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::parse;

    fn record(cpu: &str, subject: &str) -> Record {
        let file = serde_json::json!({"schema": 1, "host": {"cpu": cpu, "thp": {"enabled": subject}}, "results":
            [{"case": "c", "subject": subject, "metric": "m", "median": 1}]});
        parse("x", file.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn one_machine_joins_its_files_but_not_two_runs_of_one_thing() {
        let records = [record("A", "s"), record("B", "s"), record("A", "t"), record("A", "s")];
        let sizes: Vec<usize> = machines(&records).iter().map(|machine| machine.records.len()).collect();
        assert_eq!(sizes, [2, 1, 1]);
    }
}
