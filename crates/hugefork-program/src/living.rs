//! How many forks blocks are held for, whether some are gone, and how long they live. Who lives is found out elsewhere
//! (hugefork-preload, fork/liveness).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// The children of so many forks are told apart, and the lives of so many are remembered.
const FORKS: usize = 16;
const LIVES: usize = 8;

/// As long as one of so many did, a child will live, too.
const LIKELY_LIVES: usize = 3;

/// There is no such fork.
const NONE: u64 = 0;

/// Who holds blocks for children.
#[derive(Debug, Default)]
pub(crate) struct LivingChildren {
    living: AtomicUsize,
    /// Whether some are gone since the last round.
    have_gone: AtomicBool,
    /// When each fork was, in nanoseconds, or [`NONE`].
    forked: [AtomicU64; FORKS],
    /// Those of which nobody lives any more, but it was not seen yet.
    gone: [AtomicBool; FORKS],
}

/// What is remembered of children.
#[derive(Debug, Default)]
pub(crate) struct Lives {
    /// When it began that somebody lives.
    began: Option<u64>,
    /// How long the last ones lived, the newest first.
    last: [u64; LIVES],
}

/// Children live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Epoch {
    /// Since when, in nanoseconds.
    pub(crate) began: u64,
    /// Until when that is expected at least.
    pub(crate) until: u64,
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

impl Lives {
    /// Since when children live, and until when that is expected at least: each as long as the shortest-lived of the
    /// last three that have lived longer than it has; or no longer than until now, if there was none. To be asked again
    /// and again: who is gone has lived until it is seen here.
    pub(crate) fn epoch(&mut self, children: &LivingChildren, now: u64) -> Option<Epoch> {
        for (forked, gone) in children.forked.iter().zip(&children.gone) {
            if gone.swap(false, Ordering::Acquire) {
                self.last.rotate_right(1);
                self.last[0] = now.saturating_sub(forked.load(Ordering::Relaxed));
                forked.store(NONE, Ordering::Release);
            }
        }
        let forks = children.forked.iter().map(|forked| forked.load(Ordering::Relaxed));
        let ends = |forked: u64| {
            let age = now.saturating_sub(forked);
            forked + self.last.into_iter().filter(|lived| *lived > age).take(LIKELY_LIVES).min().unwrap_or(age)
        };
        let living = forks.filter(|forked| *forked != NONE);
        let lived = living.fold(None, |lived: Option<(u64, u64)>, forked| {
            let (first, until) = lived.unwrap_or((forked, 0));
            Some((first.min(forked), until.max(ends(forked))))
        });
        let (first, until) = lived.unzip();
        self.began = first.map(|first| self.began.unwrap_or(first));
        self.began.zip(until).map(|(began, until)| Epoch { began, until })
    }
}

/// That children of one fork live.
pub(crate) struct Living {
    children: Arc<LivingChildren>,
    /// Which fork it was, if that is told apart.
    fork: Option<usize>,
}

impl Living {
    pub(crate) fn begin(children: &Arc<LivingChildren>, now: u64) -> Living {
        children.living.fetch_add(1, Ordering::Relaxed);
        let is_free = |forked: &AtomicU64| {
            forked.compare_exchange(NONE, now.max(NONE + 1), Ordering::Acquire, Ordering::Relaxed).is_ok()
        };
        Living { fork: children.forked.iter().position(is_free), children: children.clone() }
    }
}

impl Drop for Living {
    fn drop(&mut self) {
        if let Some(fork) = self.fork {
            self.children.gone[fork].store(true, Ordering::Release);
        }
        self.children.have_gone.store(true, Ordering::Relaxed);
        self.children.living.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_is_expected_to_live_as_long_as_others_that_were_as_old() {
        let (children, mut lives) = (Arc::new(LivingChildren::default()), Lives::default());
        assert_eq!(lives.epoch(&children, 100), None);
        let first = Living::begin(&children, 100);
        assert_eq!(lives.epoch(&children, 130), Some(Epoch { began: 100, until: 130 }), "nothing is known");
        drop(first);
        assert_eq!(lives.epoch(&children, 1100), None);
        let second = Living::begin(&children, 2000);
        assert_eq!(lives.epoch(&children, 2010), Some(Epoch { began: 2000, until: 3000 }));
        // A helper that comes and goes tells nothing of those who are older.
        let helper = Living::begin(&children, 2100);
        assert_eq!(lives.epoch(&children, 2110).map(|epoch| epoch.until), Some(3100));
        drop(helper);
        assert_eq!(lives.epoch(&children, 2150), Some(Epoch { began: 2000, until: 3000 }));
        assert_eq!(lives.epoch(&children, 3010).map(|epoch| epoch.until), Some(3010), "older than any before");
        let third = Living::begin(&children, 3020);
        drop(second);
        let epoch = lives.epoch(&children, 3030).unwrap();
        assert_eq!((epoch.began, epoch.until), (2000, 3020 + 50), "somebody lives since");
        drop(third);
        assert_eq!((lives.epoch(&children, 3040), children.live()), (None, false));
    }

    #[test]
    fn more_than_are_told_apart_count_all_the_same() {
        let (children, mut lives) = (Arc::new(LivingChildren::default()), Lives::default());
        let all: Vec<_> = (0..FORKS + 5).map(|nth| Living::begin(&children, 10 + nth as u64)).collect();
        assert!(children.live() && lives.epoch(&children, 50).is_some());
        drop(all);
        assert_eq!((children.live(), lives.epoch(&children, 60)), (false, None));
        let next = Living::begin(&children, 70);
        assert_eq!((next.fork, lives.epoch(&children, 80).map(|epoch| epoch.began)), (Some(0), Some(70)));
    }
}
