//! Settings of the kernel that are changed, and put back: for `bench --tune`, and for `doctor --fix`.

pub(crate) mod guardian;
pub(crate) mod lock;
pub(crate) mod setting;
pub(crate) mod tune;
