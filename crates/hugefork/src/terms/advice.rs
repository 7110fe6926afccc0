//! What a program says of its writes to a region.

/// How a region's blocks will be used after the first write to each, see [`Region::advise`](crate::Region::advise).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
#[non_exhaustive]
pub enum Advice {
    /// Nobody knows: hugefork goes by the region's recent faults.
    #[default]
    Unknown = 0,
    /// The neighbourhood of the byte that was written: what is near it stays in the cache, and nothing is prepared ahead.
    Near = 1,
    /// All of the block, soon.
    Whole = 2,
}

impl Advice {
    pub(crate) fn from_u8(value: u8) -> Advice {
        match value {
            1 => Advice::Near,
            2 => Advice::Whole,
            _ => Advice::Unknown,
        }
    }
}
