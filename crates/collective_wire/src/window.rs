//! The part of a file that an aggregator handles at a time.
//!
//! Arrives: bounds and a stride. Leaves: ranges of the file and their positions in the image. Must not know: views.

/// The bytes `o` of a file with `lo <= o < hi` and `(o - lo) % stride < block`: one range (`block == stride`), or
/// blocks at equal distances, as the cyclic file domains of an aggregator of a striped file. Its *image* has these
/// bytes in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Window {
    /// The first byte.
    pub lo: u64,
    /// Behind the last byte.
    pub hi: u64,
    /// Bytes of a block.
    pub block: u64,
    /// Bytes from one block's begin to the next one's.
    pub stride: u64,
}

/// Offsets above are no file offsets (`off_t`).
const MOST_OFFSET: u64 = i64::MAX as u64;

impl Window {
    /// None unless `lo < hi`, `0 < block <= stride` and all are file offsets.
    pub fn new(lo: u64, hi: u64, block: u64, stride: u64) -> Option<Self> {
        let valid = lo < hi && hi <= MOST_OFFSET && 0 < block && block <= stride;
        (valid && stride <= MOST_OFFSET).then_some(Self { lo, hi, block, stride })
    }

    /// The range `[lo, hi)`, not empty.
    pub fn range(lo: u64, hi: u64) -> Option<Self> {
        let length = hi.checked_sub(lo)?;
        Self::new(lo, hi, length, length)
    }

    /// Bytes of the image.
    pub fn bytes(&self) -> u64 {
        self.position(self.hi)
    }

    /// Bytes of the window before the offset; for an offset in the window its position in the image.
    pub fn position(&self, offset: u64) -> u64 {
        let past = offset.clamp(self.lo, self.hi) - self.lo;
        past / self.stride * self.block + (past % self.stride).min(self.block)
    }

    /// The file offset at a position below [`Window::bytes`].
    pub fn offset(&self, position: u64) -> u64 {
        self.lo + position / self.block * self.stride + position % self.block
    }

    /// The ranges of the file at positions `[from, to)` of the image, as (offset, bytes), in order, at most one a
    /// block.
    pub fn ranges(&self, from: u64, to: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        let (mut position, to) = (from, to.min(self.bytes()));
        std::iter::from_fn(move || {
            if position >= to {
                return None;
            }
            let left_in_block =
                if self.block == self.stride { to } else { self.block - position % self.block };
            let bytes = left_in_block.min(to - position);
            let found = (self.offset(position), bytes);
            position += bytes;
            Some(found)
        })
    }

    /// The part `[from, to)` of the file, a run of bytes, as far as it is in the window: (position, bytes).
    pub fn clip(&self, from: u64, to: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        // Positions of a run are consecutive: the bytes between blocks have none.
        let (first, end) = (self.position(from), self.position(to));
        (first < end).then_some((first, end - first)).into_iter()
    }
}
