//! Regions and snapshots as values of plain types: numbers, arrays of them, structures that derive bytemuck's `Pod`.
//!
//! | user of the region | its values as | by |
//! |---|---|---|
//! | one thread | `&mut [T]` | [`Region::slice_of_mut`] |
//! | several threads, each a part, beside snapshots and resets | [`Values`] | [`Region::writers_of`] |
//! | several threads, all of it, beside snapshots and resets | [`Values`] | [`Region::values_of`] |
//! | the same, in structures and threads that own the region | [`OwnedValues`] | [`OwnedValues::of`] |
//! | any number of readers of a snapshot | `&[T]` | [`Snapshot::slice_of`] |
//!
//! [`Values`] is sound because it gives out no reference to a region: so no reference can be lent
//! to a system call that goes on writing when a snapshot shares the memory, or change while it is
//! borrowed. It copies values in and out, by atomic loads and stores of one width. Any bytes are a
//! valid value of the type, so a half-written value is valid, too.
//!
//! Atomic accesses of two widths to the same bytes are a data race in Rust's memory model, so all
//! accesses to the same place must have one width. For a shared region it is 8 bytes, as in
//! [`Region::as_atomic_u64s`], so values must be whole words. For an exclusively borrowed region it
//! is the type's own alignment.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use bytemuck::{AnyBitPattern, NoUninit};

use super::region::Region;
use super::snapshot::Snapshot;
use super::stats::RegionStats;
use crate::types::error::{RegionError, ResetError};
use crate::types::options::RegionOptions;

const WORD: usize = size_of::<u64>();

/// Values of a plain type in a region, copied in and out: for threads that write while others take snapshots, without
/// `unsafe`. Made by [`Region::values_of`] and [`Region::writers_of`]. Needs the feature `bytemuck`, which is on by
/// default.
///
/// It is a reference: copies refer to the same values, and any number of threads may have one. As with any memory, the
/// program must prevent two threads from writing to the same value at once. If they do, the value may get a part from
/// each.
///
/// If a value is larger than 8 bytes (or than its alignment, with `writers_of`), a snapshot may contain a part of a
/// value that is being written. [`Operations`](crate::Operations) prevent that.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let pool = hugefork::Pool::builder().capacity(8 << 20).build()?;
/// use bytemuck::{Pod, Zeroable};
/// #[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
/// #[repr(C)]
/// struct Entry {
///     key: u64,
///     value: [f32; 4],
/// }
/// let region = pool.region(2 << 20)?;
/// let entries = region.values_of::<Entry>(0..100 * size_of::<Entry>())?;
/// let (low, high) = entries.split_at(50);
/// std::thread::scope(|scope| {
///     scope.spawn(move || low.set(7, Entry { key: 1, value: [0.5; 4] }));
///     scope.spawn(move || high.update(0, |entry| entry.key += 2));
/// });
/// assert_eq!((entries.get(7).value[3], entries.get(50).key), (0.5, 2));
/// assert_eq!(entries.iter().filter(|entry| entry.key > 0).count(), 2);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy)]
pub struct Values<'a, T> {
    at: NonNull<T>,
    len: usize,
    /// Bytes of each load and store.
    width: usize,
    _of: PhantomData<&'a [AtomicU64]>,
}

// SAFETY: it accesses its values atomically only, and hands out copies of them.
unsafe impl<T: Send> Send for Values<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Values<'_, T> {}

/// The direction of a copy between a region and the caller's memory.
#[derive(Clone, Copy)]
enum Copies {
    Out,
    In,
}

/// Copies `len` bytes out of a region or into it, piece by piece.
///
/// # Safety
/// All of `shared` is readable and writable and accessed only atomically with `width`, and `shared` and `len` are
/// multiples of it. `own` is readable, or for a copy out of the region writable, and no other code writes to it.
#[inline]
unsafe fn copy(copies: Copies, shared: *mut u8, own: *mut u8, len: usize, width: usize) {
    macro_rules! by {
        ($atomic:ty, $piece:ty) => {
            for at in (0..len).step_by(size_of::<$piece>()) {
                // SAFETY: the caller vouches for both ranges. The caller's memory may have another alignment.
                unsafe {
                    let (shared, own) = (<$atomic>::from_ptr(shared.add(at).cast()), own.add(at).cast::<$piece>());
                    match copies {
                        Copies::Out => own.write_unaligned(shared.load(Ordering::Relaxed)),
                        Copies::In => shared.store(own.read_unaligned(), Ordering::Relaxed),
                    }
                }
            }
        };
    }
    match width {
        8 => by!(AtomicU64, u64),
        4 => by!(AtomicU32, u32),
        2 => by!(AtomicU16, u16),
        _ => by!(AtomicU8, u8),
    }
}

impl<'a, T: AnyBitPattern + NoUninit> Values<'a, T> {
    /// # Safety
    /// `at` is aligned to `T` and to `width`, and the size of `T` is a multiple of `width`. From there on, `len` values
    /// are readable and writable for `'a`, and are accessed only atomically with this width.
    unsafe fn new(at: NonNull<T>, len: usize, width: usize) -> Values<'a, T> {
        Values { at, len, width, _of: PhantomData }
    }

    /// The number of values.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address of value `nth`, after a check that `count` values from there exist.
    #[inline]
    #[track_caller]
    fn place(&self, nth: usize, count: usize) -> *mut u8 {
        let is_inside = nth <= self.len && count <= self.len - nth;
        assert!(is_inside, "values {nth}.. ({count} of them) are not inside of {}", self.len);
        self.at.as_ptr().wrapping_add(nth).cast()
    }

    /// Returns a copy of a value.
    ///
    /// # Panics
    /// If `nth` is out of range.
    #[inline]
    #[track_caller]
    pub fn get(&self, nth: usize) -> T {
        let mut value = T::zeroed();
        self.read(nth, slice::from_mut(&mut value));
        value
    }

    /// Sets a value.
    ///
    /// # Panics
    /// If `nth` is out of range.
    #[inline]
    #[track_caller]
    pub fn set(&self, nth: usize, value: T) {
        self.write(nth, slice::from_ref(&value));
    }

    /// Gets a value, lets `change` change it, and sets it. Writes of other threads to it meanwhile are lost: this is
    /// not an atomic operation. If several threads change one value, they need a lock of their own.
    ///
    /// # Panics
    /// If `nth` is out of range.
    #[inline]
    #[track_caller]
    pub fn update(&self, nth: usize, change: impl FnOnce(&mut T)) {
        let mut value = self.get(nth);
        change(&mut value);
        self.set(nth, value);
    }

    /// Copies the values from `start` on into `to`.
    ///
    /// # Panics
    /// If fewer values exist.
    #[inline]
    #[track_caller]
    pub fn read(&self, start: usize, to: &mut [T]) {
        // SAFETY: `place` has checked that all values lie inside of the memory, and any bytes are a valid value of the
        // type.
        unsafe { copy(Copies::Out, self.place(start, to.len()), to.as_mut_ptr().cast(), size_of_val(to), self.width) };
    }

    /// Sets the values from `start` on to those of `from`.
    ///
    /// # Panics
    /// If fewer values exist.
    #[inline]
    #[track_caller]
    pub fn write(&self, start: usize, from: &[T]) {
        let own = from.as_ptr().cast_mut().cast();
        // SAFETY: all are inside, and all bytes of the type belong to the value.
        unsafe { copy(Copies::In, self.place(start, from.len()), own, size_of_val(from), self.width) };
    }

    /// Sets all values.
    pub fn fill(&self, value: T) {
        (0..self.len).for_each(|nth| self.set(nth, value));
    }

    /// Iterates over copies of all values, each read when the iterator reaches it.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = T> + 'a {
        let values = *self;
        (0..self.len).map(move |nth| values.get(nth))
    }

    /// The values before `mid`, and the others.
    ///
    /// # Panics
    /// If `mid` is out of range.
    #[track_caller]
    pub fn split_at(&self, mid: usize) -> (Values<'a, T>, Values<'a, T>) {
        let rest = self.len - self.len.min(mid);
        let at = NonNull::new(self.place(mid, rest).cast()).expect("no region lies at address zero");
        // SAFETY: both are parts of `self`, split between two values.
        unsafe { (Values::new(self.at, mid, self.width), Values::new(at, rest, self.width)) }
    }
}

impl<T> fmt::Debug for Values<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Values").field("len", &self.len).field("of", &std::any::type_name::<T>()).finish()
    }
}

/// Values of a region together with a share of the region: for structures that have both, and for threads that outlive
/// the function that starts them. Needs the feature `bytemuck`, which is on by default.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let pool = hugefork::Pool::builder().capacity(8 << 20).build()?;
/// use std::sync::Arc;
/// use hugefork::{OwnedValues, Region};
/// struct Table {
///     memory: Arc<Region>,
///     counters: OwnedValues<u64>,
/// }
/// let memory = Arc::new(pool.region(2 << 20)?);
/// let table = Table { counters: OwnedValues::of(memory.clone(), 0..800)?, memory };
/// let counters = table.counters.clone();
/// let thread = std::thread::spawn(move || counters.values().set(7, 1));
/// let saved = table.memory.snapshot()?; // meanwhile
/// thread.join().unwrap();
/// assert!(saved.slice_of::<u64>(0..800)?[7] <= table.counters.values().get(7));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct OwnedValues<T> {
    region: Arc<Region>,
    /// Not given out with this lifetime: the values exist as long as the region.
    values: Values<'static, T>,
}

impl<T: AnyBitPattern + NoUninit> OwnedValues<T> {
    /// The bytes of `range` of a region as values, as by [`Region::values_of`].
    ///
    /// # Errors
    /// Those of [`Region::values_of`].
    pub fn of(region: Arc<Region>, range: Range<usize>) -> Result<OwnedValues<T>, RegionError> {
        let Values { at, len, width, .. } = region.values_of::<T>(range)?;
        // SAFETY: `values_of` vouches for the values as long as the region lives, and the field beside this one holds
        // the region. `values` shortens the lifetime to that of a borrow of both.
        let values = unsafe { Values::new(at, len, width) };
        Ok(OwnedValues { region, values })
    }

    /// The values. Takes some nanoseconds: loops should keep the result.
    ///
    /// # Panics
    /// In a child of `fork(2)` that does not inherit the region.
    #[inline]
    pub fn values(&self) -> Values<'_, T> {
        if let Err(error) = self.region.check_memory() {
            panic!("a region cannot be borrowed: {error}");
        }
        self.values
    }

    /// The region.
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }
}

// `T` needs not be `Clone`: the clone has the same values.
impl<T> Clone for OwnedValues<T> {
    fn clone(&self) -> OwnedValues<T> {
        let Values { at, len, width, _of } = self.values;
        OwnedValues { region: Arc::clone(&self.region), values: Values { at, len, width, _of } }
    }
}

/// Takes forks and snapshots of a region, and resets it, while threads write to its parts: see [`Region::writers_of`].
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let pool = hugefork::Pool::builder().capacity(8 << 20).build()?;
/// use hugefork::{RegionError, Snapshot, Snapshotter};
/// /// Runs beside the writers.
/// fn save(state: Snapshotter<'_>) -> Result<Snapshot, RegionError> {
///     println!("{} blocks", state.stats().blocks_present);
///     state.snapshot()
/// }
/// let mut state = pool.region(4 << 20)?;
/// let (snapshots, parts) = state.writers_of::<u8>(2)?;
/// parts[1].set(7, 1);
/// let saved = save(snapshots)?;
/// parts[1].set(7, 2);
/// assert_eq!(saved[(2 << 20) + 7], 1);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Snapshotter<'a> {
    // Methods here must change no byte of the region, except by resets, and return no reference to any.
    region: &'a Region,
}

impl Snapshotter<'_> {
    /// Like [`Region::snapshot`].
    ///
    /// # Errors
    /// Those of [`Region::fork`].
    pub fn snapshot(&self) -> Result<Snapshot, RegionError> {
        self.region.snapshot()
    }

    /// Like [`Region::snapshot_with`].
    ///
    /// # Errors
    /// Those of [`Region::snapshot_with`].
    pub fn snapshot_with(&self, options: RegionOptions) -> Result<Snapshot, RegionError> {
        self.region.snapshot_with(options)
    }

    /// Like [`Region::fork`].
    ///
    /// # Errors
    /// Those of [`Region::fork`].
    pub fn fork(&self) -> Result<Region, RegionError> {
        self.region.fork()
    }

    /// Like [`Region::fork_with`].
    ///
    /// # Errors
    /// Those of [`Region::fork_with`].
    pub fn fork_with(&self, options: RegionOptions) -> Result<Region, RegionError> {
        self.region.fork_with(options)
    }

    /// Like [`Region::reset_to`].
    ///
    /// # Errors
    /// Those of [`Region::reset_to`].
    pub fn reset_to(&self, snapshot: &Snapshot) -> Result<(), ResetError> {
        self.region.reset_to(snapshot)
    }

    /// Like [`Region::stats`].
    pub fn stats(&self) -> RegionStats {
        self.region.stats()
    }
}

impl Region {
    /// The bytes of `range` as values of a plain type, for which any bytes are valid: numbers, arrays of them, and
    /// structures that derive bytemuck's `Pod`. For a caller with exclusive access to the region; [`Region::values_of`]
    /// and [`Region::writers_of`] are for several threads, and for use beside snapshots. Needs the feature `bytemuck`,
    /// which is on by default.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let pool = hugefork::Pool::builder().capacity(8 << 20).build()?;
    /// let mut region = pool.region(2 << 20)?;
    /// region.slice_of_mut::<f32>(4096..8192)?.fill(0.5);
    /// let saved = region.snapshot()?;
    /// assert_eq!(saved.slice_of::<f32>(4092..4100)?, [0.0, 0.5]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`RegionError::NotAView`] unless the range holds a whole number of values and starts at a multiple of their
    /// alignment. [`RegionError::OutOfRange`], [`RegionError::ForkedChild`].
    pub fn slice_of_mut<T: AnyBitPattern + NoUninit>(&mut self, range: Range<usize>) -> Result<&mut [T], RegionError> {
        RegionError::check_range(&range, self.len())?;
        bytemuck::try_cast_slice_mut(&mut self.bytes_mut()?[range.clone()])
            .map_err(|_| not_a_view::<T>(range, align_of::<T>()))
    }

    /// The bytes of `range` as values of a type, for any number of threads that read and write, while others fork,
    /// snapshot and reset. Like [`Region::as_atomic_u64s`], for values: the size of the type must be a multiple of 8
    /// bytes. For `f32` use `[f32; 2]`, or [`Region::writers_of`]. Needs the feature `bytemuck`, which is on by
    /// default.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let pool = hugefork::Pool::builder().capacity(8 << 20).build()?;
    /// let region = pool.region(2 << 20)?;
    /// let points = region.values_of::<[f64; 2]>(0..region.len())?;
    /// points.set(3, [0.5, 1.5]);
    /// let saved = region.snapshot()?;
    /// points.set(3, [0.0, 0.0]);
    /// assert_eq!(saved.slice_of::<[f64; 2]>(0..region.len())?[3], [0.5, 1.5]);
    /// region.reset_to(&saved)?;
    /// assert_eq!(points.get(3), [0.5, 1.5]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`RegionError::NotWords`] unless values are whole words of 8 bytes. [`RegionError::NotAView`] unless the range
    /// holds a whole number of them and starts at a multiple of 8 and of their alignment. [`RegionError::OutOfRange`],
    /// [`RegionError::ForkedChild`].
    pub fn values_of<T: AnyBitPattern + NoUninit>(&self, range: Range<usize>) -> Result<Values<'_, T>, RegionError> {
        self.check_memory()?;
        RegionError::check_range(&range, self.len())?;
        let (size, align) = (size_of::<T>(), align_of::<T>().max(WORD));
        if !size.is_multiple_of(WORD) {
            return Err(RegionError::NotWords { of: std::any::type_name::<T>(), size });
        }
        if size == 0 || !range.len().is_multiple_of(size) || !range.start.is_multiple_of(align) {
            return Err(not_a_view::<T>(range, align));
        }
        let at = NonNull::new(self.as_mut_ptr().wrapping_add(range.start).cast()).expect("no region lies at zero");
        // SAFETY: regions are aligned to blocks, so the address has the alignment of its offset, and values are whole
        // words. The range is mapped while `self` is borrowed, and safe code that shares the region accesses it in
        // words only.
        Ok(unsafe { Values::new(at, range.len() / size, WORD) })
    }

    /// Splits the region into disjoint parts, as values of any plain type for as many threads, and a handle that forks,
    /// snapshots and resets the whole region while they write. There are `count` parts, or fewer if the region has
    /// fewer blocks, but at least one. Each begins with the first value of a block, so that two threads fault on the
    /// same block only if a value lies across its end, and their lengths differ by at most a block. The bytes after the
    /// last whole value belong to no part. Needs the feature `bytemuck`, which is on by default.
    ///
    /// While no thread takes snapshots, `chunks_mut` of [`Region::as_mut_slice`] gives parts that are slices.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let pool = hugefork::Pool::builder().capacity(32 << 20).build()?;
    /// let mut grid = pool.region(8 << 20)?;
    /// let (handle, parts) = grid.writers_of::<f32>(4)?;
    /// let before = handle.snapshot()?;
    /// let saved = std::thread::scope(|scope| {
    ///     for part in parts {
    ///         scope.spawn(move || part.fill(1.0));
    ///     }
    ///     handle.snapshot() // while they write
    /// })?;
    /// assert!(saved.slice_of::<f32>(0..saved.len())?.iter().all(|&value| value == 0.0 || value == 1.0));
    /// handle.reset_to(&before)?;
    /// assert!(grid.as_mut_slice().iter().all(|&byte| byte == 0));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`RegionError::NotAView`] for a type without a size. [`RegionError::ForkedChild`].
    pub fn writers_of<T: AnyBitPattern + NoUninit>(
        &mut self,
        count: usize,
    ) -> Result<(Snapshotter<'_>, Vec<Values<'_, T>>), RegionError> {
        let size = size_of::<T>();
        if size == 0 {
            return Err(not_a_view::<T>(0..self.len(), align_of::<T>()));
        }
        // As for every exclusive slice: no bytes may change under the parts.
        self.bytes_mut()?;
        let region: &Region = self;
        let (base, values) = (region.as_mut_ptr().cast::<T>(), region.len() / size);
        let block = region.pool().block_size().bytes();
        let blocks = region.len() / block;
        let count = count.clamp(1, blocks);
        // The first value of a part. The rest after the last value belongs to no part.
        let first = |part: usize| {
            let before = blocks / count * part + part.min(blocks % count);
            values.min((before * block).div_ceil(size))
        };
        let parts = (0..count).map(|part| {
            let (first, len) = (first(part), first(part + 1) - first(part));
            let at = NonNull::new(base.wrapping_add(first)).expect("no region lies at address zero");
            // SAFETY: regions are aligned to blocks, and values follow each other from there on. The range is mapped
            // while the region is borrowed. The borrow is exclusive, so only these parts access its bytes; the handle
            // gives no access.
            unsafe { Values::new(at, len, align_of::<T>().min(WORD)) }
        });
        Ok((Snapshotter { region }, parts.collect()))
    }
}

impl Snapshot {
    /// The bytes of `range` as values of a type, see [`Region::slice_of_mut`]. Needs the feature `bytemuck`, which is
    /// on by default.
    ///
    /// # Errors
    /// [`RegionError::NotAView`] unless the range holds a whole number of values and starts at a multiple of their
    /// alignment. [`RegionError::OutOfRange`], and those of [`Snapshot::map`].
    pub fn slice_of<T: AnyBitPattern>(&self, range: Range<usize>) -> Result<&[T], RegionError> {
        RegionError::check_range(&range, self.len())?;
        bytemuck::try_cast_slice(&self.map()?[range.clone()]).map_err(|_| not_a_view::<T>(range, align_of::<T>()))
    }
}

fn not_a_view<T>(range: Range<usize>, align: usize) -> RegionError {
    let (of, size) = (std::any::type_name::<T>(), size_of::<T>());
    RegionError::NotAView { start: range.start, end: range.end, of, size, align }
}
