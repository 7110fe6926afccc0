//! The present settings of the kernel for transparent huge pages.

use std::fs;
use std::path::{Path, PathBuf};

use hugefork::ByteSize;
use serde::{Deserialize, Serialize};

pub(crate) const DIRECTORY: &str = "/sys/kernel/mm/transparent_hugepage";

/// The kernel's settings for transparent huge pages. Each field is the word in effect; for a size of folios, the word
/// that is set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Thp {
    /// `always`, `madvise` or `never`, for anonymous memory.
    pub enabled: String,
    /// The setting for the effort of a fault to get a huge page.
    pub defrag: String,
    /// For shmem: `always`, `within_size`, `advise`, `never`, `deny` or `force`.
    pub shmem_enabled: String,
    /// The setting for each size of folios of anonymous memory, smallest first; empty before Linux 6.8.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub folios: Vec<Folio>,
}

/// One size of folios of anonymous memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Folio {
    /// The size.
    pub size: String,
    /// `always`, `inherit` (the setting for all sizes), `madvise` or `never`.
    pub enabled: String,
}

impl Thp {
    /// Reads the settings of the running system; a setting that this kernel lacks is `unavailable`.
    pub(crate) fn read() -> Thp {
        let setting = |name| {
            let text = fs::read_to_string(format!("{DIRECTORY}/{name}")).unwrap_or_default();
            chosen_word(&text).unwrap_or("unavailable").to_owned()
        };
        Thp {
            enabled: setting("enabled"),
            defrag: setting("defrag"),
            shmem_enabled: setting("shmem_enabled"),
            folios: folios(),
        }
    }
}

/// The word in brackets of `always [madvise] never`.
pub fn chosen_word(setting: &str) -> Option<&str> {
    let (_, rest) = setting.split_once('[')?;
    rest.split_once(']').map(|(word, _)| word)
}

/// The sizes of folios of this kernel, smallest first; empty before Linux 6.8.
fn folios() -> Vec<Folio> {
    let word = |path: &Path| Some(chosen_word(&fs::read_to_string(path).ok()?)?.to_owned());
    let folio =
        |(bytes, path): (usize, PathBuf)| Some(Folio { size: ByteSize(bytes).to_string(), enabled: word(&path)? });
    folio_sizes().into_iter().filter_map(folio).collect()
}

/// Each size of folios in bytes, with the path of its setting.
pub(crate) fn folio_sizes() -> Vec<(usize, PathBuf)> {
    let mut sizes: Vec<(usize, PathBuf)> = fs::read_dir(DIRECTORY)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name();
            let kib: usize = name.to_str()?.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
            // Some sizes exist for shmem only.
            Some((kib << 10, entry.path().join("enabled"))).filter(|(_, path)| path.exists())
        })
        .collect();
    sizes.sort_unstable();
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_word_in_brackets_is_in_effect() {
        assert_eq!(chosen_word("always [madvise] never"), Some("madvise"));
        assert_eq!(chosen_word("always madvise never"), None);
    }

    #[test]
    fn this_kernels_sizes_are_read_in_order() {
        let sizes = folio_sizes();
        assert!(sizes.is_sorted());
        assert_eq!(Thp::read().folios.len(), sizes.len());
    }
}
