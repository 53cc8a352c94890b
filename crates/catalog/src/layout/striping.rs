//! Where a byte of a component is: round robin over objects, in sets where objects are of limited size.
//!
//! One rule serves all file systems. Lustre and BeeGFS have objects without limit, so one set; CephFS
//! starts a new set of objects when those of the last are full; a GlusterFS shard is a set of one.

use super::LayoutError;

/// The end of a component that goes on to the end of the file, however far that is.
pub const EOF: u64 = u64::MAX;

/// The smallest stripe that Lustre (`LOV_MIN_STRIPE_SIZE`), CephFS (`CEPH_MIN_STRIPE_UNIT`) and BeeGFS
/// (`STRIPEPATTERN_MIN_CHUNKSIZE`) make; every stripe is a multiple of it. It bounds how many extents
/// a hostile layout can cut a file into.
pub const MIN_UNIT: u64 = 64 << 10;

/// How bytes go round objects. Offsets count from the start of the file, also in a component that
/// begins later, as they do in Lustre.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Striping {
    /// Bytes put into one object before the next has its turn.
    pub unit: u64,
    /// Objects that take turns.
    pub count: u64,
    /// Bytes after which an object is full, or [`EOF`].
    pub object_size: u64,
}

/// The position of a byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The number of its object.
    pub object: u64,
    /// Its offset there.
    pub offset: u64,
    /// How many bytes, this one included, follow one another in the file and in the object.
    pub run: u64,
}

impl Striping {
    /// One object holds everything.
    pub const WHOLE: Self = Self { unit: EOF, count: 1, object_size: EOF };

    /// Stripes of `unit` bytes round `count` objects without limit.
    #[must_use]
    pub fn round(unit: u64, count: u64) -> Self {
        Self { unit, count, object_size: EOF }
    }

    pub(crate) fn check(&self) -> Result<(), LayoutError> {
        let Self { unit, count, object_size } = *self;
        if unit == 0 || unit != EOF && unit % MIN_UNIT != 0 {
            return Err(LayoutError::invalid(format!(
                "a stripe of {unit} bytes is not a multiple of {MIN_UNIT}"
            )));
        }
        if count == 0 {
            return Err(LayoutError::invalid("stripes go round no object"));
        }
        if object_size == 0 || object_size != EOF && object_size % unit != 0 {
            return Err(LayoutError::invalid(format!(
                "an object of {object_size} bytes is not a multiple of its stripe of {unit}"
            )));
        }
        Ok(())
    }

    /// The position of byte `offset` of the file; `offset` is less than [`EOF`].
    #[must_use]
    pub fn place(&self, offset: u64) -> Place {
        let Self { unit, count, object_size } = *self;
        let (block, within) = (offset / unit, offset % unit);
        let (stripe, turn) = (block / count, block % count);
        let (set, row) = if object_size == EOF {
            (0, stripe)
        } else {
            (stripe / (object_size / unit), stripe % (object_size / unit))
        };
        // No product exceeds `offset`: each undoes a division of it.
        let at = row * unit + within;
        let run = if count == 1 { object_size - at } else { unit - within };
        Place { object: set * count + turn, offset: at, run }
    }

    /// Into how many extents it cuts the bytes from `start` to `end`.
    #[must_use]
    pub fn extents_between(&self, start: u64, end: u64) -> u64 {
        if start >= end {
            return 0;
        }
        let piece = if self.count == 1 { self.object_size } else { self.unit };
        (end - 1) / piece - start / piece + 1
    }
}
