//! The sizes of the folios of anonymous memory, and the settings that make the kernel use just one
//! of these sizes.
//!
//! Each size has a setting, `/sys/kernel/mm/transparent_hugepage/hugepages-64kB/enabled` and so on, and a fault takes
//! the largest size that is switched on and fits. So memory that asks for huge pages (`MADV_HUGEPAGE`) gets folios of
//! the largest size that is switched on, and gets a smaller size only while all larger sizes are off. These settings
//! need Linux 6.8 or newer; older kernels have only folios of 2 MiB, with one setting in the directory above.
//!
//! A sample changes settings only if the caller is sure to restore them ([`Settings::Lent`]), and only until the end of
//! the sample: the other subjects run with the settings of the machine.

use std::fs;
use std::path::PathBuf;

use hugefork::{BlockSize, ByteSize};

use crate::error::BenchError;
use crate::memory::kernel_memory::HUGE_PAGE;
use crate::memory::thp::{self, DIRECTORY, Folio, Thp, chosen_word};

/// Whether samples may change kernel settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settings {
    /// Samples leave the settings of the machine unchanged.
    Fixed,
    /// Samples may change settings: the caller restores the settings that [`paths`] names, also if this process is
    /// killed.
    Lent,
}

/// The settings that samples change under [`Settings::Lent`].
pub fn paths() -> Vec<PathBuf> {
    thp::folio_sizes().into_iter().map(|(_, path)| path).collect()
}

/// The reason why no memory in folios of `block` bytes is available, with a remedy; `None` if it is available.
pub(crate) fn lack(thp: &Thp, block: BlockSize, settings: Settings) -> Option<String> {
    // Base pages are always available: the mapping can switch huge pages off.
    if block == BlockSize::KIB_4 {
        return None;
    }
    let now = largest(thp);
    if now == block.bytes() {
        return None;
    }
    if thp.folios.iter().all(|folio| folio.size != block.to_string()) {
        return Some(format!(
            "this kernel makes no folios of {block} of anonymous memory; Linux 6.8 and newer do, from 16KiB to 2MiB"
        ));
    }
    (settings == Settings::Fixed).then(|| {
        format!(
            "anonymous memory gets folios of {} here, not of {block}; --tune as root allows only those while a sample \
             is taken",
            ByteSize(now)
        )
    })
}

/// The size in bytes of the folios of a mapping that asks for huge pages, if the machine has enough memory.
fn largest(thp: &Thp) -> usize {
    let gives = |word: &str| matches!(word, "always" | "madvise");
    let all = gives(&thp.enabled);
    if thp.folios.is_empty() {
        return if all { HUGE_PAGE } else { BlockSize::KIB_4.bytes() };
    }
    let on = |folio: &&Folio| gives(&folio.enabled) || (folio.enabled == "inherit" && all);
    let bytes = |folio: &Folio| folio.size.parse().map_or(0, |ByteSize(bytes)| bytes);
    thp.folios.iter().filter(on).map(bytes).max().unwrap_or(BlockSize::KIB_4.bytes())
}

/// Guard: while it lives, memory that asks for huge pages gets folios of one size, or base pages if no such folio is
/// free.
pub(crate) struct Only {
    /// The earlier values of the changed settings, which the drop restores.
    before: Vec<(PathBuf, String)>,
}

impl Only {
    /// Switches the size `block` on, for memory that asks for huge pages, and all other sizes off.
    pub(crate) fn size(block: BlockSize) -> Result<Only, BenchError> {
        Only::among(thp::folio_sizes(), block.bytes())
    }

    fn among(sizes: Vec<(usize, PathBuf)>, only: usize) -> Result<Only, BenchError> {
        let mut changed = Only { before: Vec::with_capacity(sizes.len()) };
        for (size, path) in sizes {
            let failed = |error| BenchError::system("setting the sizes of folios", error);
            let text = fs::read_to_string(&path).map_err(failed)?;
            let word = chosen_word(&text).unwrap_or(text.trim()).to_owned();
            let wanted = if size == only { "madvise" } else { "never" };
            if word != wanted {
                // The value is noted before the write, so that it is restored even if the write fails half-way.
                changed.before.push((path.clone(), word));
                fs::write(&path, wanted).map_err(failed)?;
            }
        }
        Ok(changed)
    }
}

impl Drop for Only {
    fn drop(&mut self) {
        for (path, word) in &self.before {
            // If this write fails, the caller that lent the settings restores the value.
            let _ = fs::write(path, word);
        }
    }
}

/// The number of folios of this size that faults on anonymous memory have received since boot, in all processes; `None`
/// if the kernel does not count these folios.
pub(crate) fn made(block: BlockSize) -> Option<u64> {
    let path = format!("{DIRECTORY}/hugepages-{}kB/stats/anon_fault_alloc", block.bytes() >> 10);
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn thp(enabled: &str, folios: &[(&str, &str)]) -> Thp {
        let folio = |&(size, enabled): &(&str, &str)| Folio { size: size.to_owned(), enabled: enabled.to_owned() };
        Thp { enabled: enabled.to_owned(), folios: folios.iter().map(folio).collect(), ..Thp::default() }
    }

    #[test]
    fn the_largest_size_that_is_on_is_what_memory_gets() {
        let usual = [("16KiB", "never"), ("64KiB", "never"), ("2MiB", "inherit")];
        assert_eq!(largest(&thp("madvise", &usual)), 2 << 20);
        assert_eq!(largest(&thp("never", &usual)), 4096);
        assert_eq!(largest(&thp("never", &[("64KiB", "madvise"), ("2MiB", "inherit")])), 64 << 10);
        assert_eq!(largest(&thp("always", &[])), 2 << 20);
    }

    #[test]
    fn who_lacks_a_size_is_told_what_would_give_it() {
        let thp = thp("madvise", &[("64KiB", "never"), ("2MiB", "inherit")]);
        let lack = |block, settings| lack(&thp, block, settings);
        for settings in [Settings::Fixed, Settings::Lent] {
            assert_eq!(lack(BlockSize::KIB_4, settings), None);
            assert_eq!(lack(BlockSize::MIB_2, settings), None);
            assert!(lack(BlockSize::GIB_1, settings).unwrap().contains("no folios of 1GiB"));
        }
        assert_eq!(lack(BlockSize::KIB_64, Settings::Lent), None);
        let why = lack(BlockSize::KIB_64, Settings::Fixed).unwrap();
        assert!(why.contains("folios of 2MiB here, not of 64KiB") && why.contains("--tune"), "{why}");
    }

    #[test]
    fn one_size_is_on_as_long_as_the_guard_lives() {
        let scratch = std::env::temp_dir().join(format!("hugefork-folios-{}", std::process::id()));
        fs::create_dir_all(&scratch).unwrap();
        let values =
            [(16, "always inherit madvise [never]"), (64, "always [inherit] madvise never"), (128, "[always]")];
        let sizes: Vec<(usize, PathBuf)> =
            values.iter().map(|(size, _)| (*size, scratch.join(size.to_string()))).collect();
        for ((_, value), (_, path)) in values.iter().zip(&sizes) {
            fs::write(path, value).unwrap();
        }
        let read = || sizes.iter().map(|(_, path)| fs::read_to_string(path).unwrap()).collect::<Vec<_>>();
        {
            let _only = Only::among(sizes.clone(), 64).unwrap();
            assert_eq!(read(), [values[0].1, "madvise", "never"], "what is right already is not written");
        }
        assert_eq!(read(), [values[0].1, "inherit", "always"]);
        fs::remove_dir_all(scratch).unwrap();
        assert!(Only::among(sizes, 64).is_err());
    }
}
