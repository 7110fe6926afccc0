//! The reasons why the engine could not resolve a write, and the errors that calls return for them.

use super::core::RegionCore;
use crate::mapping::change::Refused;
use crate::pool::core::Shortage;
use crate::sys::{Sys, SystemError};
use crate::types::error::RegionError;

/// Why a block could not be made writable. Its addresses show the same bytes as before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unresolved {
    PoolFull,
    /// The search for a block that may be dropped has found none yet. It goes on once signals have been delivered.
    NotYet,
    OutOfMemory(SystemError),
    TooManyMappings,
    Unmappable(SystemError),
    /// Another region took the block away.
    Revoked,
    /// One more copy would exceed the limit on the blocks that forks and snapshots may cost the region. No caller gets
    /// this: the engine writes another block back, revokes this one from the other holders, or copies it beyond the
    /// limit.
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
    /// The error that a call returns where a fault prints a line. Allocates, so the caller must hold no lock.
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
