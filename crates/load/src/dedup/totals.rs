//! The totals of a profile: all chunks, and the distinct ones.

use std::collections::HashSet;
use std::path::Path;

use parking_lot::Mutex;

use crate::chunking::Method;
use crate::digest::Digest;

use super::index::Index;
use super::tally::{Count, Distinct, Files, Group, Types};
use super::trace::{Block, Chunk, Parameters, Reader, Whole};
use crate::error::LoadError;

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
    /// Bytes of memory that the index took.
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
}

impl Totals {
    pub(super) fn new() -> Self {
        Self { index: Index::new(), types: Types::new(), sums: Mutex::default() }
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

    pub(super) fn report(&self, method: Method, digest: Digest) -> Report {
        let hole = digest.of(&vec![0; method.most()]);
        let sums = self.sums.lock();
        Report {
            files: sums.files,
            total: sums.total.clone(),
            distinct: self.index.distinct(),
            zeros: sums.zeros,
            repeated: sums.repeated,
            types: self.types.names(),
            index_bytes: self.index.bytes() as u64,
            has_hole_chunk: self.index.has_chunk(&hole),
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
        let parameters = Reader::open(path.as_ref())?.parameters;
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
    if met.len() != first.parts as usize {
        return Err(LoadError::Option(format!(
            "{} of {} parts were given: give all, or make those that are missing",
            met.len(),
            first.parts
        )));
    }
    Ok(first)
}

/// Go through a part: chunks with the number of their type in `types`, and files.
pub(super) fn replay(
    path: &Path,
    types: &Types,
    mut chunks: impl FnMut(Group, bool, &[Chunk]) -> Result<(), LoadError>,
    mut whole: impl FnMut(&Whole),
) -> Result<Files, LoadError> {
    let mut reader = Reader::open(path)?;
    let mut numbers = vec![0];
    let known = |numbers: &[u16], group: Group| Group {
        kind: numbers.get(usize::from(group.kind)).copied().unwrap_or(0),
        ..group
    };
    loop {
        match reader.next()? {
            Block::Type(_, name) => numbers.push(types.number(&name)),
            Block::Chunks(group, zeros, block) => chunks(known(&numbers, group), zeros, &block)?,
            Block::Whole(files) => files.iter().for_each(&mut whole),
            Block::End(files) => return Ok(files),
        }
    }
}

/// Join parts into one report, exactly: the same chunks go in as if one node had read everything.
///
/// `seen` is called for every block with the number of chunks so far; it returns false to stop.
pub fn merge(
    parts: &[impl AsRef<Path>],
    mut seen: impl FnMut(u64) -> bool,
) -> Result<(Parameters, Report), LoadError> {
    let parameters = checked(parts)?;
    let totals = Totals::new();
    let mut count = 0;
    for path in parts {
        let files = replay(
            path.as_ref(),
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
        totals.files(files);
    }
    let report = totals.report(parameters.method, parameters.digest);
    Ok((parameters, report))
}
