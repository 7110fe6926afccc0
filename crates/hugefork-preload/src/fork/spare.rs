//! The files that tell who lives (`liveness`), and one that is kept ready for a fork that gets no descriptor: without
//! any, what its child holds of the pool's memory would be held for ever.

use rustix::io::Errno;

use crate::descriptors::Kept;
use crate::threads::lock::Guarded;

struct Spare {
    is_wanted: bool,
    file: Option<Kept>,
}

static SPARE: Guarded<Spare> = Guarded::new(Spare { is_wanted: false, file: None });

/// A new file.
///
/// # Errors
/// The process has no descriptor left.
pub(crate) fn new_file() -> Result<Kept, Errno> {
    Kept::memory(c"hugefork-token")
}

/// From now on, one is kept ready.
pub(crate) fn keep() {
    SPARE.with(|spare| spare.is_wanted = true);
    find();
}

/// Gets one ready, if it is wanted and can be had.
pub(crate) fn find() {
    SPARE.with(|spare| {
        if spare.is_wanted && spare.file.is_none() {
            spare.file = new_file().ok();
        }
    });
}

/// Whether there is one.
pub(crate) fn is_there() -> bool {
    SPARE.with(|spare| spare.file.is_some_and(|file| file.get().is_some())).unwrap_or(false)
}

/// The one that is kept ready.
pub(crate) fn take() -> Option<Kept> {
    SPARE.with(|spare| spare.file.take()).flatten()
}

/// In the child of a fork, which has no pool.
pub(crate) fn in_child() {
    SPARE.reset();
    SPARE.with(|spare| {
        spare.is_wanted = false;
        spare.file.take().into_iter().for_each(Kept::close);
    });
}
