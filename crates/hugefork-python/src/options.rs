//! Converts words to options of the engine.

use hugefork::{Advice, CopyGrain, RegionOptions, Reserve};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// The value that `word` names; otherwise an error that lists the words.
pub(crate) fn choose<T: Copy>(what: &str, word: &str, from: &[(&str, T)]) -> PyResult<T> {
    let found = from.iter().find(|(name, _)| *name == word);
    found.map(|(_, value)| *value).ok_or_else(|| {
        let words: Vec<&str> = from.iter().map(|(name, _)| *name).collect();
        PyValueError::new_err(format!("{what}={word:?}: take one of {}", words.join(", ")))
    })
}

/// The options of a region, fork or snapshot: reservation, limit, copy grain.
pub(crate) fn region_options(
    reserve: bool,
    max_cow_bytes: Option<usize>,
    copy_grain: &str,
    calls_wait: bool,
) -> PyResult<RegionOptions> {
    let grains = [("auto", CopyGrain::Auto), ("page", CopyGrain::Page), ("block", CopyGrain::Block)];
    let options = RegionOptions::new().reserve(if reserve { Reserve::Full } else { Reserve::None }).copy_grain(choose(
        "copy_grain",
        copy_grain,
        &grains,
    )?);
    let options = options.calls_wait(calls_wait);
    Ok(max_cow_bytes.map_or(options, |bytes| options.max_cow_bytes(bytes)))
}

pub(crate) fn advice(word: &str) -> PyResult<Advice> {
    choose("advice", word, &[("unknown", Advice::Unknown), ("near", Advice::Near), ("whole", Advice::Whole)])
}
