//! The totals of a profile: all chunks, and the distinct ones.

use std::collections::HashSet;
use std::ops::Range;
use std::path::Path;

use waystage_sync::Mutex;

use crate::chunking::Method;
use crate::digest::{Digest, Fingerprint};

use super::index::Index;
use super::tally::{Count, Distinct, Files, Group, Types};
use super::trace::{parameters_of, Block, Chunk, Parameters, Reader, Whole, SLICES};
use crate::error::LoadError;

/// Chunks that are held at once where parts are joined: 140 MiB of index at most.
const AT_ONCE: u64 = 4 << 20;

/// Bytes of a chunk in a part.
const CHUNK_BYTES: u64 = 22;

/// Files whose complete content occurred before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Repeated {
    /// How many.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// The result of a profile.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The files, by outcome.
    pub files: Files,
    /// Every chunk.
    pub total: Distinct,
    /// Every different chunk; of a type or bin, every one different in it.
    pub distinct: Distinct,
    /// Chunks of zeros alone.
    pub zeros: Count,
    /// Files that are whole copies of another.
    pub repeated: Repeated,
    /// Names of types by their number.
    pub types: Vec<String>,
    /// Bytes of memory that the index took, at most at once.
    pub index_bytes: u64,
    /// Whether the chunk that holes are made of is among the distinct.
    pub has_hole_chunk: bool,
}

#[derive(Default)]
struct Sums {
    files: Files,
    total: Distinct,
    zeros: Count,
    repeated: Repeated,
}

/// Adds up chunks and files, from many threads at once.
pub(super) struct Totals {
    index: Index,
    pub(super) types: Types,
    sums: Mutex<Sums>,
    /// Of complete slices, whose fingerprints are no longer held.
    done: Done,
}

#[derive(Default)]
struct Done {
    distinct: Distinct,
    index_bytes: u64,
    has_hole_chunk: bool,
}

impl Totals {
    pub(super) fn new() -> Self {
        let (index, types) = (Index::new(), Types::new());
        Self { index, types, sums: Mutex::default(), done: Done::default() }
    }

    /// Forget all fingerprints: what comes next has others.
    fn end_slices(&mut self, hole: &Fingerprint) {
        self.done.distinct.merge(&self.index.distinct());
        self.done.index_bytes = self.done.index_bytes.max(self.index.bytes() as u64);
        self.done.has_hole_chunk |= self.index.has_chunk(hole);
        self.index = Index::new();
    }

    pub(super) fn chunks(&self, group: Group, zeros: bool, chunks: &[Chunk]) {
        let mut sum = Distinct::default();
        for (fingerprint, bytes) in chunks {
            self.index.add_chunk(fingerprint, u64::from(*bytes), group);
            sum.add(u64::from(*bytes), group);
        }
        self.with(|sums| {
            sums.total.merge(&sum);
            if zeros {
                sums.zeros.chunks += sum.all.chunks;
                sums.zeros.bytes += sum.all.bytes;
            }
        });
    }

    pub(super) fn whole(&self, (fingerprint, size, _): &Whole) {
        if !self.index.add_file(fingerprint) {
            self.with(|sums| {
                sums.repeated.files += 1;
                sums.repeated.bytes = sums.repeated.bytes.saturating_add(*size);
            });
        }
    }

    pub(super) fn files(&self, files: Files) {
        self.with(|sums| sums.files.merge(files));
    }

    pub(super) fn report(mut self, method: Method, digest: Digest) -> Report {
        self.end_slices(&hole_chunk(method, digest));
        let sums = self.sums.lock();
        Report {
            files: sums.files,
            total: sums.total.clone(),
            distinct: self.done.distinct.clone(),
            zeros: sums.zeros,
            repeated: sums.repeated,
            types: self.types.names(),
            index_bytes: self.done.index_bytes,
            has_hole_chunk: self.done.has_hole_chunk,
        }
    }

    fn with(&self, change: impl FnOnce(&mut Sums)) {
        change(&mut self.sums.lock());
    }
}

/// The parameters of the parts; an error where they differ, one is missing, or one is given twice.
pub(super) fn checked(parts: &[impl AsRef<Path>]) -> Result<Parameters, LoadError> {
    let mut first: Option<Parameters> = None;
    let mut met = HashSet::new();
    for path in parts {
        let parameters = parameters_of(path.as_ref())?;
        let bad = |what: &str| {
            let name = path.as_ref().display().to_string();
            Err(LoadError::Option(format!("{name} {what}")))
        };
        if !met.insert(parameters.part) {
            return bad("is a part that was given before");
        }
        if first.as_ref().is_some_and(|first| !first.joins(&parameters)) {
            return bad("is of another tree, method or number of parts than the first");
        }
        first.get_or_insert(parameters);
    }
    let first = first.ok_or_else(|| LoadError::Option("no part was given".to_owned()))?;
    if first.parts != 0 && met.len() != first.parts as usize {
        return Err(LoadError::Option(format!(
            "{} of {} parts were given: give all, or make those that are missing",
            met.len(),
            first.parts
        )));
    }
    Ok(first)
}

/// The chunk that holes are made of.
fn hole_chunk(method: Method, digest: Digest) -> Fingerprint {
    digest.of(&vec![0; method.most()])
}

/// Go through some slices of a part: chunks with the number of their type in `types`, and files.
pub(super) fn replay(
    path: &Path,
    slices: Range<usize>,
    types: &Types,
    mut chunks: impl FnMut(Group, bool, &[Chunk]) -> Result<(), LoadError>,
    mut whole: impl FnMut(&Whole),
) -> Result<Files, LoadError> {
    let mut reader = Reader::open(path)?;
    let numbers: Vec<u16> = reader.types.iter().map(|name| types.number(name)).collect();
    let known = |group: Group| Group {
        kind: numbers.get(usize::from(group.kind)).copied().unwrap_or(0),
        ..group
    };
    reader.slices(slices, |block| match block {
        Block::Chunks(group, zeros, block) => chunks(known(group), zeros, &block),
        Block::Whole(files) => {
            files.iter().for_each(&mut whole);
            Ok(())
        }
    })?;
    Ok(reader.files)
}

/// Join some slices of parts into one report, exactly: the same chunks go in as if one node had read everything.
///
/// Counts of files are in the report that has the first slice. Groups of slices are joined one after another, each in
/// the memory of some [`AT_ONCE`] chunks where a slice has fewer. `seen` is called for every block with the number of
/// chunks so far; it returns false to stop.
pub fn merge(
    parts: &[impl AsRef<Path>],
    slices: Range<usize>,
    mut seen: impl FnMut(u64) -> bool,
) -> Result<(Parameters, Report), LoadError> {
    let parameters = checked(parts)?;
    if slices.start >= slices.end || slices.end > SLICES {
        return Err(LoadError::Option(format!("slices are from 0 to {SLICES}, not {slices:?}")));
    }
    let hole = hole_chunk(parameters.method, parameters.digest);
    let each = slices_at_once(parts);
    let mut totals = Totals::new();
    let mut count = 0;
    for start in slices.clone().step_by(each) {
        let group = start..slices.end.min(start + each);
        for path in parts {
            let files = replay(
                path.as_ref(),
                group.clone(),
                &totals.types,
                |group, zeros, chunks| {
                    totals.chunks(group, zeros, chunks);
                    count += chunks.len() as u64;
                    if seen(count) {
                        Ok(())
                    } else {
                        Err(LoadError::Stopped)
                    }
                },
                |file| totals.whole(file),
            )?;
            if start == 0 {
                totals.files(files);
            }
        }
        totals.end_slices(&hole);
    }
    let report = totals.report(parameters.method, parameters.digest);
    Ok((parameters, report))
}

/// How many slices have some [`AT_ONCE`] chunks together, by the size of the parts; one at least.
fn slices_at_once(parts: &[impl AsRef<Path>]) -> usize {
    let size = |path: &Path| std::fs::metadata(path).map_or(0, |found| found.len());
    let bytes: u64 = parts.iter().map(|path| size(path.as_ref())).sum();
    let groups = (bytes / CHUNK_BYTES).div_ceil(AT_ONCE).clamp(1, SLICES as u64);
    SLICES.div_ceil(usize::try_from(groups).unwrap_or(SLICES))
}
