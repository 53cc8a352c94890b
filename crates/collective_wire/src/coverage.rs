//! Which bytes of an image there are: runs of positions, in order.
//!
//! Arrives: runs; foreign bytes. Leaves: bytes within a capacity; runs in order, inside the image, or an error. Must
//! not know: where the bytes lie.
//!
//! A run is two varints (LEB128): the gap since the last run's end, and its length. Eight-byte pieces at equal
//! distances cost two bytes each.

use crate::WireError;

/// Bytes of an encoded run, at most.
const MOST_RUN_BYTES: usize = 20;

/// The least capacity of a list: some runs fit, so that each request makes progress.
pub const LEAST_CAPACITY: usize = 64;

fn put(mut value: u64, into: &mut Vec<u8>) {
    while value >= 0x80 {
        into.push(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    into.push(value.to_le_bytes()[0]);
}

fn get(from: &mut &[u8]) -> Result<u64, WireError> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = from.split_first().ok_or(WireError::Short)?;
        *from = rest;
        let bits = u64::from(byte & 0x7f);
        if shift == 63 && bits > 1 {
            return Err(WireError::Wrong("number of a coverage list"));
        }
        value |= bits << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(WireError::Wrong("number of a coverage list"))
}

/// Writes runs, joining those that touch, until a capacity is reached.
pub struct Writer {
    bytes: Vec<u8>,
    capacity: usize,
    end: u64,
    open: Option<(u64, u64)>,
}

impl Writer {
    /// A list of at most `capacity` bytes.
    pub fn new(capacity: usize) -> Self {
        Self { bytes: Vec::new(), capacity, end: 0, open: None }
    }

    /// Add a run; positions ascend, and one may begin inside the last one, which it extends. False, with nothing added,
    /// where the capacity does not suffice or `position` is before the last run's begin.
    pub fn push(&mut self, position: u64, bytes: u64) -> bool {
        if bytes == 0 {
            return true;
        }
        let to = position.saturating_add(bytes);
        match &mut self.open {
            Some((from, end)) if *from <= position && position <= *end => {
                *end = to.max(*end);
                return true;
            }
            Some((from, _)) if position < *from => return false,
            _ => {}
        }
        // Room for the run that is open and for this one.
        if self.bytes.len() + 2 * MOST_RUN_BYTES > self.capacity {
            return false;
        }
        self.close();
        self.open = Some((position, to));
        true
    }

    fn close(&mut self) {
        if let Some((from, to)) = self.open.take() {
            put(from - self.end, &mut self.bytes);
            put(to - from, &mut self.bytes);
            self.end = to;
        }
    }

    /// The list.
    pub fn finish(mut self) -> Vec<u8> {
        self.close();
        self.bytes
    }
}

/// The runs of a list, as (position, bytes), in order and inside `[0, image_bytes)`. Ends with the first error.
pub fn runs(
    list: &[u8],
    image_bytes: u64,
) -> impl Iterator<Item = Result<(u64, u64), WireError>> + '_ {
    let (mut left, mut end) = (list, 0_u64);
    std::iter::from_fn(move || {
        if left.is_empty() {
            return None;
        }
        let mut next = || {
            let wrong = WireError::Wrong("run of a coverage list");
            let position = end.checked_add(get(&mut left)?).ok_or(wrong)?;
            let bytes = get(&mut left)?;
            let to = position.checked_add(bytes).ok_or(wrong)?;
            if bytes == 0 || to > image_bytes {
                return Err(wrong);
            }
            end = to;
            Ok((position, bytes))
        };
        let found = next();
        if found.is_err() {
            left = &[];
        }
        Some(found)
    })
}
