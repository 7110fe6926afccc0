//! Changes and restores kernel settings, for `bench --tune` and `doctor --fix`.

pub(crate) mod guardian;
pub(crate) mod lock;
pub(crate) mod setting;
pub(crate) mod tune;
