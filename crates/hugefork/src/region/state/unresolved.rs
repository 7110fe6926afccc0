//! Why a write could not be resolved, and what a call returns for it.

use super::core::RegionCore;
use crate::mapping::change::Refused;
use crate::pool::core::Shortage;
use crate::sys::{Sys, SystemError};
use crate::types::error::RegionError;

/// Why a block could not be made writable. What its addresses show has not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unresolved {
    PoolFull,
    /// No block has been found yet that may be dropped for it. The search goes on once signals have been delivered.
    NotYet,
    OutOfMemory(SystemError),
    TooManyMappings,
    Unmappable(SystemError),
    /// The block was taken away.
    Revoked,
    /// The forks and snapshots of the region would hold more blocks than it allows. No caller gets this: the block is
    /// taken away from them, or they are promised it.
    CowLimit,
}

impl From<Shortage> for Unresolved {
    fn from(shortage: Shortage) -> Unresolved {
        match shortage {
            Shortage::Blocks => Unresolved::PoolFull,
            Shortage::Memory(error) => Unresolved::OutOfMemory(error),
        }
    }
}

impl From<SystemError> for Unresolved {
    fn from(error: SystemError) -> Unresolved {
        Unresolved::Unmappable(error)
    }
}

impl From<Refused> for Unresolved {
    fn from(refused: Refused) -> Unresolved {
        match refused {
            Refused::TooManyMappings => Unresolved::TooManyMappings,
            Refused::Call(error) => Unresolved::Unmappable(error),
        }
    }
}

impl<S: Sys> RegionCore<S> {
    /// What a call returns where a fault prints a line. Allocates, so no lock may be held.
    pub(crate) fn error(&self, reason: Unresolved) -> RegionError {
        let pool = self.pool();
        match reason {
            Unresolved::PoolFull | Unresolved::NotYet | Unresolved::CowLimit => pool.full(),
            Unresolved::OutOfMemory(source) => RegionError::OutOfMemory { pool: pool.name.clone(), source },
            Unresolved::TooManyMappings => RegionError::too_many_mappings(2, pool.sys.budget()),
            Unresolved::Unmappable(error) => RegionError::System(error),
            Unresolved::Revoked => RegionError::Revoked,
        }
    }
}
