//! `hugefork tune-guardian`: hidden, since only `bench --tune` starts it.

use std::path::PathBuf;

use clap::Args;

/// Options of the guardian.
#[derive(Args, Debug)]
pub(crate) struct GuardianArgs {
    /// The file that only one guardian can lock; it stores the values to restore
    #[arg(long, value_name = "FILE")]
    pub(crate) lock: PathBuf,
    /// The settings to restore
    #[arg(value_name = "SETTING")]
    pub(crate) settings: Vec<PathBuf>,
}
