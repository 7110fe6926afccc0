//! Reads `/proc` and `/sys` of this machine, or of a copy of another machine's files.

use std::fs;
use std::path::PathBuf;

use crate::settings::setting::value;

/// The directory that contains `proc` and `sys`. An unreadable file counts as missing, and is never guessed.
#[derive(Debug)]
pub(super) struct Root(pub(super) PathBuf);

impl Root {
    /// The path below the root for a path of a running machine.
    pub(super) fn at(&self, path: &str) -> PathBuf {
        self.0.join(path.trim_start_matches('/'))
    }

    /// The contents of a file, trimmed.
    pub(super) fn text(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.at(path)).ok().map(|text| text.trim().to_owned())
    }

    /// A setting's value.
    pub(super) fn value(&self, path: &str) -> Option<String> {
        value(&self.at(path)).ok()
    }

    /// The contents of a file, as a number.
    pub(super) fn number(&self, path: &str) -> Option<u64> {
        self.text(path)?.parse().ok()
    }

    /// The names in a directory, sorted.
    pub(super) fn names(&self, path: &str) -> Vec<String> {
        let entries = fs::read_dir(self.at(path)).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
    }

    /// Bytes of a field in `/proc/meminfo`.
    pub(super) fn memory(&self, field: &str) -> Option<u64> {
        let text = self.text("/proc/meminfo")?;
        let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib << 10)
    }

    /// The soft limit with that name in `/proc/self/limits`; `u64::MAX` for unlimited.
    pub(super) fn limit(&self, name: &str) -> Option<u64> {
        let text = self.text("/proc/self/limits")?;
        match text.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()? {
            "unlimited" => Some(u64::MAX),
            number => number.parse().ok(),
        }
    }
}

/// A number of bytes as text for people.
pub(super) fn size(bytes: u64) -> String {
    let (unit, shift) = match bytes {
        0..0x4000_0000 => ("MiB", 20),
        0x4000_0000..0x100_0000_0000 => ("GiB", 30),
        _ => ("TiB", 40),
    };
    let number = format!("{:.1}", bytes as f64 / (1_u64 << shift) as f64);
    format!("{} {unit}", number.strip_suffix(".0").unwrap_or(&number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_use_the_largest_unit_that_fits() {
        let told = [0, 3 << 19, (1 << 30) - 1, 1 << 30, 5 << 29, 1 << 40, 16 << 40].map(size);
        assert_eq!(told, ["0 MiB", "1.5 MiB", "1024 MiB", "1 GiB", "2.5 GiB", "1 TiB", "16 TiB"]);
    }
}
