//! The kinds of handles, under their names in C. A kind with extra data is defined in the file that
//! creates it, except the pool, which several files create.

#![allow(non_camel_case_types)]

use std::ffi::CString;
use std::sync::Arc;

use hugefork::{Imported, Operations, OwnedPin, Pool, Region, Snapshot};

use crate::handle::{Handle, Held};
use crate::words::in_words_of_c;

pub(crate) type hf_pool = Handle<PoolHandle>;
/// An `hf_changes` holds its region and its snapshots, too.
pub(crate) type hf_region = Handle<Arc<Region>>;
pub(crate) type hf_snapshot = Handle<Arc<Snapshot>>;
pub(crate) type hf_pin = Handle<OwnedPin>;
pub(crate) type hf_import = Handle<Imported>;
pub(crate) type hf_operations = Handle<Operations>;

/// A pool, with its texts in the form for C.
pub(crate) struct PoolHandle {
    pub(crate) pool: Pool,
    pub(crate) name: CString,
    pub(crate) fallback_reason: Option<CString>,
    pub(crate) no_page_grain: Option<CString>,
    pub(crate) clear_kernel: CString,
    pub(crate) copy_kernel: CString,
}

/// Converts a text for C, where a zero byte ends a string.
pub(crate) fn text(text: &str) -> CString {
    CString::new(text.replace('\0', "?")).unwrap_or_default()
}

impl PoolHandle {
    pub(crate) fn new(pool: Pool) -> PoolHandle {
        let reason = |words: &str| text(&in_words_of_c(words));
        PoolHandle {
            name: text(pool.name()),
            fallback_reason: pool.fallback_reason().map(reason),
            no_page_grain: pool.no_page_grain().as_deref().map(reason),
            clear_kernel: text(&pool.clear_kernel().to_string()),
            copy_kernel: text(&pool.copy_kernel().to_string()),
            pool,
        }
    }
}

impl Held for PoolHandle {
    const MARK: u64 = u64::from_ne_bytes(*b"hf__pool");
    const TYPE: &'static str = "hf_pool";
}

impl Held for Arc<Region> {
    const MARK: u64 = u64::from_ne_bytes(*b"hfregion");
    const TYPE: &'static str = "hf_region";
}

impl Held for Arc<Snapshot> {
    const MARK: u64 = u64::from_ne_bytes(*b"hfsnapsh");
    const TYPE: &'static str = "hf_snapshot";
}

impl Held for OwnedPin {
    const MARK: u64 = u64::from_ne_bytes(*b"hf___pin");
    const TYPE: &'static str = "hf_pin";
}

impl Held for Imported {
    const MARK: u64 = u64::from_ne_bytes(*b"hfimport");
    const TYPE: &'static str = "hf_import";
}

impl Held for Operations {
    const MARK: u64 = u64::from_ne_bytes(*b"hf_opers");
    const TYPE: &'static str = "hf_operations";
}
