//! Content-defined chunking: equal data gives equal chunks at any offset.
//!
//! Arrives: data from the start of a chunk, in pieces of any length.
//! Leaves: the ends of chunks.
//! Must not know: files, digests, totals.
//!
//! Marks, the candidate boundaries, depend on a few bytes before them alone. They are found first, for a whole
//! buffer, by a scan that has no branch for a chunk's beginning or end, many places at once; chunks are cut at them
//! afterwards. The rejected alternative scans each chunk from its minimum on: it reads a fifth less, but each
//! position waits for the one before.

mod gear;
mod lanes;
mod matrices;
mod rabin;
#[cfg(test)]
mod tests;

/// How data is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// FS-C's `cdc8`: 2 KiB at least but for 47 bytes, 8 KiB between marks, 32 KiB at most.
    FscCdc8,
    /// The same sizes by a hash that is faster to compute.
    Fast,
    /// Fixed size: every given number of bytes, at most [`LARGEST`].
    Fixed(usize),
}

/// The most bytes of a chunk, of any method.
pub const LARGEST: usize = 1 << 16;

const SMALLEST: usize = 2 << 10;
const MOST: usize = 32 << 10;

/// FS-C begins to look for a mark one window before the minimum, with an empty window; so a chunk may have 2001
/// bytes.
const FSC_BLIND: usize = SMALLEST - rabin::WINDOW;

impl Method {
    /// The most bytes of a chunk.
    #[must_use]
    pub fn most(self) -> usize {
        match self {
            Self::FscCdc8 | Self::Fast => MOST,
            Self::Fixed(bytes) => bytes.clamp(1, LARGEST),
        }
    }

    /// Append to `ends` where the chunks of `data` end; returns the end of the last.
    ///
    /// `data` begins where a chunk begins. Unless it is `last`, what the bytes after it could change is left: never
    /// more than [`Method::most`] bytes, to be given again with more behind them. `marks` is room to work in.
    pub fn cut(
        self,
        data: &[u8],
        last: bool,
        marks: &mut Vec<u32>,
        ends: &mut Vec<usize>,
    ) -> usize {
        marks.clear();
        match self {
            Self::FscCdc8 => {
                rabin::marks(data, marks);
                cut(data, last, marks, ends, fsc_early)
            }
            Self::Fast => {
                gear::marks(data, marks);
                cut(data, last, marks, ends, |_| None)
            }
            Self::Fixed(_) => {
                let mut start = 0;
                while data.len() - start >= self.most() {
                    start += self.most();
                    ends.push(start);
                }
                if last && start < data.len() {
                    ends.push(data.len());
                    start = data.len();
                }
                start
            }
        }
    }
}

/// Cut at the first mark from the minimum on, at the maximum where there is none.
///
/// `early` reads the chunk's first bytes and finds an end before the minimum, where the method has any.
fn cut(
    data: &[u8],
    last: bool,
    marks: &[u32],
    ends: &mut Vec<usize>,
    early: impl Fn(&[u8]) -> Option<usize>,
) -> usize {
    let mut marks = marks.iter().map(|mark| *mark as usize).peekable();
    let mut start = 0;
    loop {
        let rest = &data[start..];
        let length = early(rest).or_else(|| {
            while marks.peek().is_some_and(|mark| *mark < start + SMALLEST) {
                marks.next();
            }
            let mark = marks.peek().map(|mark| mark - start).filter(|length| *length <= MOST);
            mark.or((rest.len() >= MOST).then_some(MOST))
        });
        match length {
            Some(length) => start += length,
            None if last && !rest.is_empty() => start = data.len(),
            None => return start,
        }
        ends.push(start);
    }
}

/// FS-C's marks whose windows are not yet full: from 2001 to 2047 bytes.
fn fsc_early(rest: &[u8]) -> Option<usize> {
    let until = rest.len().min(SMALLEST - 1);
    let mut fingerprint = 0;
    for (place, byte) in rest.get(FSC_BLIND..until)?.iter().enumerate() {
        fingerprint = rabin::append(fingerprint, *byte);
        if rabin::is_mark(fingerprint) {
            return Some(FSC_BLIND + place + 1);
        }
    }
    None
}
