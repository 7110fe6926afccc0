//! How many forks blocks are held for, and whether some are gone. Who lives is found out elsewhere (hugefork-preload,
//! fork/liveness).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Who holds blocks for children.
#[derive(Debug, Default)]
pub(crate) struct LivingChildren {
    living: AtomicUsize,
    /// Whether some are gone since the last round.
    have_gone: AtomicBool,
}

impl LivingChildren {
    /// Whether any lives.
    pub(crate) fn live(&self) -> bool {
        self.living.load(Ordering::Relaxed) > 0
    }

    /// Whether some are gone since this was asked last.
    pub(crate) fn have_gone(&self) -> bool {
        self.have_gone.swap(false, Ordering::Relaxed)
    }
}

/// That children of one fork live.
pub(crate) struct Living(Arc<LivingChildren>);

impl Living {
    pub(crate) fn begin(children: &Arc<LivingChildren>) -> Living {
        children.living.fetch_add(1, Ordering::Relaxed);
        Living(children.clone())
    }
}

impl Drop for Living {
    fn drop(&mut self) {
        self.0.have_gone.store(true, Ordering::Relaxed);
        self.0.living.fetch_sub(1, Ordering::Relaxed);
    }
}
