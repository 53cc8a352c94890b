//! The redundancy of a tree: chunks, their fingerprints, and totals over the distinct ones.
//!
//! Arrives: files to read, or parts that other nodes made.
//! Leaves: a report, an estimate in bounded memory, or a part to be joined with others.
//! Must not know: how files were listed, how answers are shown.
//!
//! What is distinct is defined without order: a type's distinct bytes are those of chunks that differ within the
//! type, and likewise for sizes. FS-C gives a chunk to the type that has it first; the answer then hangs on the order
//! in which threads read, and parts could not be joined exactly.

mod harnik;
mod index;
mod profile;
mod read;
mod tally;
mod totals;
mod trace;
mod writer;

pub use harnik::{estimate, Estimate, CONFIDENCE};
pub use profile::{Finished, Options, Profile, Progress, Task};
pub use tally::{bin_floor, bin_of, type_of, Count, Distinct, Files, Group, BINS};
pub use totals::{merge, Repeated, Report};
pub use trace::{Parameters, SLICES};

use std::path::Path;

use crate::chunking::Method;
use crate::digest::{Digest, Fingerprint};
use crate::error::LoadError;

/// What a part asks, from its first bytes.
pub fn parameters_of(part: &Path) -> Result<Parameters, LoadError> {
    trace::parameters_of(part)
}

/// Cut `data` as a whole and take the fingerprint of every chunk, as a run does with each piece it reads; how many
/// there are.
pub fn digests(
    method: Method,
    digest: Digest,
    data: &[u8],
    mut take: impl FnMut(Fingerprint),
) -> usize {
    let (mut marks, mut ends) = (Vec::new(), Vec::new());
    let (mut start, mut count, mut until) = (0, 0, 0);
    while start < data.len() {
        until = data.len().min(until + read::PIECE);
        ends.clear();
        let piece = &data[start..until];
        let cut = method.cut(piece, until == data.len(), &mut marks, &mut ends);
        let mut from = 0;
        for end in &ends {
            take(digest.of(&piece[from..*end]));
            from = *end;
        }
        count += ends.len();
        start += cut;
    }
    count
}
