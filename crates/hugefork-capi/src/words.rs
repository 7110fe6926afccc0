//! Translates texts of the engine into C terms: Rust names become C names. `tests/words.rs` checks
//! all texts.

use std::fmt;

/// Phrases of the engine, and their replacements for C.
const WORDS: [(&str, &str); 16] = [
    ("Backing::ShmemHuge", "HF_BACKING_SHMEM_HUGE"),
    ("Commit::Upfront", "HF_COMMIT_UPFRONT"),
    ("Region::reset_to", "hf_region_reset_to"),
    ("Reserve::Full", "HF_RESERVE_FULL"),
    ("Reserve::None", "HF_RESERVE_NONE"),
    ("that is, drop its guard", "with hf_operations_leave"),
    ("make the Operations with more patience", "create the hf_operations with more `patience_ns`"),
    ("make one Operations", "create one hf_operations"),
    ("take the text as `Extents` prints it", "take that of hf_export_extents"),
    ("take the one that `Export` gives", "take that of hf_export_fd"),
    ("keep its `Export`", "keep its hf_export"),
    ("an `export_copy`", "hf_snapshot_export_copy"),
    ("take export_copy", "take hf_snapshot_export_copy"),
    ("exports(true)", "`exports` = 1"),
    ("children(Children::Inherit)", "`children` = HF_CHILDREN_INHERIT"),
    ("the method without `_at`", "the function without `_at`"),
];

/// Translates a text of the engine for programs in C.
pub(crate) fn in_words_of_c(text: &str) -> impl fmt::Display {
    fmt::from_fn(move |to| {
        let mut rest = text;
        while let Some(letter) = rest.chars().next() {
            let phrase = WORDS.iter().find(|(of_engine, _)| rest.starts_with(of_engine));
            let (len, of_c) = match phrase {
                Some((of_engine, of_c)) => (of_engine.len(), *of_c),
                None => (letter.len_utf8(), &rest[..letter.len_utf8()]),
            };
            to.write_str(of_c)?;
            rest = &rest[len..];
        }
        Ok(())
    })
}
