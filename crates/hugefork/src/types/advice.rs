//! The program's announced use of written blocks.

/// The program's use of each block of a region after its first write, see [`Region::advise`](crate::Region::advise).
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let pool = hugefork::Pool::builder().capacity(8 << 20).build()?;
/// let mut index = pool.region(4 << 20)?;
/// index.advise(hugefork::Advice::Near); // small records at random places
/// index.as_mut_slice()[123_456] = 1;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
#[non_exhaustive]
pub enum Advice {
    /// Unknown: hugefork judges by the recent faults of the region.
    #[default]
    Unknown = 0,
    /// Bytes near the first write: they remain in the cache, and no fault prepares other blocks.
    Near = 1,
    /// The whole block, soon.
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
