//! The processes to keep: by number, by name, or by control group. The keeper also keeps the
//! processes that these processes start.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::proc;

/// Maximum bytes of a process name in the kernel (`TASK_COMM_LEN` without its zero).
const MAX_COMM_LEN: usize = 15;

/// The set of processes to keep.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Targets {
    pids: Vec<u32>,
    names: Vec<OsString>,
    groups: Vec<PathBuf>,
}

/// The reason why a target cannot be kept.
#[derive(Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum TargetsError {
    /// The user gave the number of no process.
    #[error("no process has the number {pid}; `pgrep -a NAME` finds numbers, or take --name")]
    NoProcess {
        /// The number.
        pid: u32,
    },
    /// A unit has no control group.
    #[error("{} has no control group below /sys/fs/cgroup; is it running? `systemctl status` says so", unit.display())]
    NoUnit {
        /// The unit's name.
        unit: PathBuf,
    },
    /// A directory is not a control group.
    #[error("{} is no control group (it has no file cgroup.procs); name a directory below /sys/fs/cgroup", path.display())]
    NoGroup {
        /// The directory.
        path: PathBuf,
    },
    /// The target is the keeper itself.
    #[error("process {pid} is this command itself; name the process of a program")]
    Itself {
        /// The process number.
        pid: u32,
    },
}

impl Targets {
    /// An empty set.
    pub fn new() -> Targets {
        Targets::default()
    }

    /// Adds a process, which is kept until it ends.
    ///
    /// # Errors
    /// No process has the number, or the number is the caller's own.
    pub fn add_process(&mut self, pid: u32) -> Result<(), TargetsError> {
        if pid == std::process::id() {
            return Err(TargetsError::Itself { pid });
        }
        proc::sample(pid).filter(|_| proc::is_process(pid)).ok_or(TargetsError::NoProcess { pid })?;
        self.pids.push(pid);
        Ok(())
    }

    /// Adds all present and future processes that have `name` as their own name or as the name of their executable.
    pub fn add_name(&mut self, name: OsString) {
        self.names.push(name);
    }

    /// Adds all present and future processes of a systemd unit (`redis-server`, `redis-server.service`).
    ///
    /// # Errors
    /// The unit has no control group.
    pub fn add_unit(&mut self, unit: &Path) -> Result<(), TargetsError> {
        let mut service = unit.as_os_str().to_owned();
        service.push(".service");
        let found =
            [unit.as_os_str(), &service].into_iter().find_map(|name| named_below(Path::new("/sys/fs/cgroup"), name));
        self.groups.push(found.ok_or_else(|| TargetsError::NoUnit { unit: unit.to_owned() })?);
        Ok(())
    }

    /// Adds all present and future processes of a control group and the groups below it.
    ///
    /// # Errors
    /// The directory is not a control group.
    pub fn add_group(&mut self, path: &Path) -> Result<(), TargetsError> {
        if !path.join("cgroup.procs").exists() {
            return Err(TargetsError::NoGroup { path: path.to_owned() });
        }
        self.groups.push(path.to_owned());
        Ok(())
    }

    /// Whether the set can gain processes that no kept process starts: later processes with a given name or in a given
    /// control group.
    pub fn may_grow(&self) -> bool {
        !self.names.is_empty() || !self.groups.is_empty()
    }

    /// The numbers of the targets that were added by number.
    pub(crate) fn pids(&self) -> &[u32] {
        &self.pids
    }

    /// The numbers of the present processes that are targets by name or control group, without the known numbers.
    pub(crate) fn found(&self, is_known: impl Fn(u32) -> bool) -> Vec<u32> {
        let mut found = Vec::new();
        if !self.names.is_empty() {
            found.extend(proc::all().filter(|pid| !is_known(*pid) && self.has_name(*pid)));
        }
        for group in &self.groups {
            add_members(group, &mut found);
        }
        found
    }

    fn has_name(&self, pid: u32) -> bool {
        let comm = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        let (comm, file) = (comm.trim_end_matches('\n'), proc::file_name(pid));
        self.names.iter().any(|name| {
            let bytes = name.as_encoded_bytes();
            comm.as_bytes() == &bytes[..bytes.len().min(MAX_COMM_LEN)]
                || file.as_deref().is_some_and(|file| name == file)
        })
    }
}

/// The directory named `name` at the least depth below `top`.
fn named_below(top: &Path, name: &OsStr) -> Option<PathBuf> {
    let mut level = vec![top.to_owned()];
    while !level.is_empty() {
        let folders = level.iter().flat_map(fs::read_dir).flatten().flatten();
        let below: Vec<PathBuf> = folders
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
            .map(|entry| entry.path())
            .collect();
        if let Some(found) = below.iter().find(|path| path.file_name() == Some(name)) {
            return Some(found.clone());
        }
        level = below;
    }
    None
}

fn add_members(group: &Path, found: &mut Vec<u32>) {
    let text = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    found.extend(text.lines().flat_map(str::parse::<u32>));
    for entry in fs::read_dir(group).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            add_members(&entry.path(), found);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_targets_are_refused() {
        let mut targets = Targets::new();
        let own = std::process::id();
        assert_eq!(targets.add_process(own), Err(TargetsError::Itself { pid: own }));
        assert_eq!(targets.add_process(u32::MAX), Err(TargetsError::NoProcess { pid: u32::MAX }));
        assert!(targets.add_unit(Path::new("no-such-unit-anywhere")).is_err());
        assert!(targets.add_group(Path::new("/proc")).is_err());
        assert_eq!(targets, Targets::new());
    }

    #[test]
    fn a_name_matches_the_process_or_its_executable() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let mut targets = Targets::new();
        targets.add_name("sleep".into());
        // Between fork and exec, the child still has the name of this test, so the test waits for the exec.
        while !targets.found(|_| false).contains(&child.id()) {
            std::thread::yield_now();
        }
        assert!(targets.may_grow() && targets.pids().is_empty());
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
