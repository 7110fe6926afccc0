//! Loads checkpoints.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hugefork::{Pool, Region};

use crate::error::CheckpointError;
use crate::files::ArrayFiles;
use crate::kept::Kept;
use crate::manifest::{Manifest, NAME};

/// Loads all arrays of a checkpoint, each into a region of its own. See [`Checkpoint::load`]. These regions have no
/// [`Operations`](hugefork::Operations) until they are set.
///
/// # Errors
/// Those of [`Checkpoint::open`] and [`Checkpoint::load`].
pub fn load(directory: impl AsRef<Path>, pool: &Pool) -> Result<BTreeMap<String, Region>, CheckpointError> {
    let checkpoint = Checkpoint::open(directory)?;
    checkpoint.names().map(|name| Ok((name.to_owned(), checkpoint.load(name, pool)?))).collect()
}

/// A checkpoint that a save has written. It keeps its files while it lives: a save that replaces the checkpoint, also
/// one of another process, leaves them to the next save to remove.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use hugefork_checkpoint::{Checkpoint, Part, Save};
/// # let pool = hugefork::Pool::builder().capacity(16 << 20).build()?;
/// # let mut state = pool.region(4 << 20)?;
/// # let folder = std::env::temp_dir().join(format!("hugefork-doc-checkpoint-{}", std::process::id()));
/// state.as_mut_slice()[7] = 1;
/// Save::to(&folder).meta("{\"step\": 3}").write(&[Part::of("state", &state.snapshot()?)])?;
///
/// let checkpoint = Checkpoint::open(&folder)?;
/// let mut loaded = checkpoint.load("state", &pool)?;
/// assert_eq!((checkpoint.meta(), loaded.as_mut_slice()[7]), ("{\"step\": 3}", 1));
/// # std::fs::remove_dir_all(folder)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Checkpoint {
    directory: PathBuf,
    manifest: Manifest,
    _kept: Arc<Kept>,
}

impl Checkpoint {
    /// Reads and checks the manifest of a checkpoint.
    ///
    /// # Errors
    /// [`CheckpointError::Missing`], [`CheckpointError::Altered`], [`CheckpointError::Io`].
    pub fn open(directory: impl AsRef<Path>) -> Result<Checkpoint, CheckpointError> {
        let directory = directory.as_ref().to_owned();
        let path = directory.join(NAME);
        if let Ok(false) = path.try_exists() {
            return Err(CheckpointError::Missing { path });
        }
        let kept = Arc::new(Kept::of(&directory));
        Ok(Checkpoint { manifest: Manifest::read(&directory)?, directory, _kept: kept })
    }

    /// The names of its arrays, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.manifest.arrays.keys().map(String::as_str)
    }

    /// The text that was given to the save. JSON, if `hugefork.checkpoint` of Python has written it.
    pub fn meta(&self) -> &str {
        &self.manifest.meta
    }

    /// The manifest, as it is in the file.
    pub fn manifest(&self) -> &str {
        &self.manifest.text
    }

    /// Loads an array into a new region: its bytes as they lie in memory, and zeros up to a whole number of blocks.
    /// Zeros take no memory of the pool, and holes of the file no time. Reads each file once, at the speed of the disk
    /// or some 2 GB per second, and compares its checksum; the region is returned when all have been compared.
    ///
    /// # Errors
    /// [`CheckpointError::Altered`] names a file that is missing, truncated or altered. [`CheckpointError::Io`].
    /// [`CheckpointError::Part`] if there is no such array. [`CheckpointError::Region`] if the pool has no room for
    /// the region.
    pub fn load(&self, name: &str, pool: &Pool) -> Result<Region, CheckpointError> {
        let files = self.files(name)?;
        let (len, block) = (files.len() as usize, pool.block_size().bytes());
        let mut region = pool.region(len.max(1).next_multiple_of(block))?;
        files.stream(|offset, piece| {
            let range = offset as usize..offset as usize + piece.len();
            // In a full pool this is an error, and the write alone would end the process.
            region.prepare_write(range.clone())?;
            region.as_mut_slice()[range].copy_from_slice(piece);
            Ok(())
        })?;
        Ok(region)
    }

    /// Reads all files and compares their checksums.
    ///
    /// # Errors
    /// [`CheckpointError::Altered`], [`CheckpointError::Io`].
    pub fn verify(&self) -> Result<(), CheckpointError> {
        self.manifest
            .arrays
            .values()
            .try_for_each(|entries| ArrayFiles::open(&self.directory, entries)?.stream(|_, _| Ok(())))
    }

    fn files(&self, name: &str) -> Result<ArrayFiles<'_>, CheckpointError> {
        let entries = self.manifest.arrays.get(name).ok_or_else(|| CheckpointError::Part {
            name: name.to_owned(),
            why: "the checkpoint has none of this name: `names` lists them",
        })?;
        ArrayFiles::open(&self.directory, entries)
    }
}
