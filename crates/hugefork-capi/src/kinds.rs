//! The kinds of handles, under their names in C. A kind with extra data is defined in the file that
//! creates it, except the pool, which several files create.

use std::ffi::CString;
use std::sync::Arc;

use hugefork::{Heap, Imported, Operations, OwnedPin, Pool, Region, Snapshot};

use crate::words::in_words_of_c;

/// Defines kinds of handles by one row each: the name in C, the value, and the mark.
macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $held:ty, $mark:literal;)*) => {$(
        $(#[$doc])*
        #[allow(non_camel_case_types)]
        pub(crate) type $name = $crate::handle::Handle<$held>;

        impl $crate::handle::Held for $held {
            const MARK: u64 = u64::from_ne_bytes(*$mark);
            const TYPE: &'static str = stringify!($name);
        }
    )*};
}

pub(crate) use kinds;

kinds! {
    hf_pool = PoolHandle, b"hf__pool";
    /// An `hf_changes` holds its region and its snapshots, too.
    hf_region = Arc<Region>, b"hfregion";
    hf_snapshot = Arc<Snapshot>, b"hfsnapsh";
    hf_pin = OwnedPin, b"hf___pin";
    hf_import = Imported, b"hfimport";
    hf_operations = Operations, b"hf_opers";
    hf_heap = Heap, b"hf__heap";
}

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
        let reason = |words: &str| text(&in_words_of_c(words).to_string());
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
