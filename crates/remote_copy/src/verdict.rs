//! What one side of a copy says to the other when it has ended: how, its counts and problems.
//!
//! Arrives: a copy's state; or bytes of the peer. Leaves: bytes; or a verdict of bounded size. Must not know:
//! connections.

use crate::error::WanError;
use waystage_copy::{Counts, Problem, ProblemKind};
use waystage_transport::wire::{Malformed, Read, Reader, Writer};

use crate::copy_state::CopyState;

/// Problems in a verdict, and their bytes: far less than a small message holds.
const MOST_PROBLEMS: usize = 1000;
const MOST_PROBLEM_BYTES: usize = 1 << 20;

/// How a side of a copy ended, its counts and problems.
#[derive(Debug, Clone)]
pub struct Verdict {
    /// Why it ended early.
    pub failed: Option<WanError>,
    /// Its counts by name.
    pub counts: Vec<(String, u64)>,
    /// What it could not copy, the first of them.
    pub problems: Vec<Problem>,
    /// The sum of the digests of all contents.
    pub sum: u128,
    /// What limited the rate, where this side sent.
    pub limit: String,
}

impl Verdict {
    /// Of a copy that has ended.
    #[must_use]
    pub fn of(copy_state: &CopyState, failed: Option<WanError>, limit: &str) -> Self {
        let counts = copy_state.report.tally.read().by_name();
        Self {
            failed,
            counts: counts.into_iter().map(|(name, count)| (name.to_owned(), count)).collect(),
            problems: listed(copy_state.report.problems()),
            sum: copy_state.sum(),
            limit: limit.to_owned(),
        }
    }

    /// As bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::default();
        let (kind, text) = match &self.failed {
            Some(error) => (error.kind(), error.to_string()),
            None => ("", String::new()),
        };
        out.bytes(kind.as_bytes()).bytes(text.as_bytes()).count(self.counts.len());
        for (name, count) in &self.counts {
            out.bytes(name.as_bytes()).u64(*count);
        }
        out.count(self.problems.len());
        for problem in &self.problems {
            out.bytes(&problem.path).u8(number_of(problem.kind)).bytes(problem.text.as_bytes());
        }
        out.u128(self.sum).bytes(self.limit.as_bytes());
        out.0
    }

    /// From the bytes of a peer.
    ///
    /// # Errors
    /// Where they are no verdict.
    pub fn read(bytes: &[u8]) -> Read<Self> {
        let mut reader = Reader(bytes);
        let (kind, text) = (reader.text()?, reader.text()?);
        let failed = (!kind.is_empty()).then(|| WanError::reported(&kind, text));
        let counts = (0..reader.count(12)?)
            .map(|_| Ok((reader.text()?, reader.u64()?)))
            .collect::<Read<_>>()?;
        let mut problems = Vec::new();
        let count = reader.count(9)?;
        if count > MOST_PROBLEMS {
            return Err(Malformed);
        }
        for _ in 0..count {
            let path = reader.bytes()?.to_vec();
            let kind = KINDS.get(usize::from(reader.u8()?)).copied().ok_or(Malformed)?;
            problems.push(Problem { path, kind, text: reader.text()? });
        }
        let verdict = Self { failed, counts, problems, sum: reader.u128()?, limit: reader.text()? };
        reader.end()?;
        Ok(verdict)
    }

    /// One of its counts.
    #[must_use]
    pub fn count(&self, name: &str) -> u64 {
        self.counts.iter().find(|(other, _)| other == name).map_or(0, |(_, count)| *count)
    }

    /// Both sides' counts together.
    pub(crate) fn joined(&self, ours: Counts) -> Vec<(&'static str, u64)> {
        ours.by_name()
            .into_iter()
            .map(|(name, count)| (name, count.saturating_add(self.count(name))))
            .collect()
    }
}

/// As many of them as a verdict holds.
fn listed(problems: Vec<Problem>) -> Vec<Problem> {
    let mut bytes = 0;
    let fits = |problem: &Problem| {
        bytes += problem.path.len() + problem.text.len();
        bytes <= MOST_PROBLEM_BYTES
    };
    problems.into_iter().take(MOST_PROBLEMS).take_while(fits).collect()
}

const KINDS: [ProblemKind; 5] = [
    ProblemKind::Error,
    ProblemKind::Changed,
    ProblemKind::Vanished,
    ProblemKind::Skipped,
    ProblemKind::Lost,
];

fn number_of(kind: ProblemKind) -> u8 {
    KINDS.iter().position(|known| *known == kind).unwrap_or(0) as u8
}

#[cfg(test)]
mod tests {

    use super::*;
    use waystage_transport::error::Error;

    #[test]
    fn a_verdict_is_read_as_it_was_written() {
        let copy_state = CopyState::default();
        copy_state.problem(b"a/b", ProblemKind::Changed, "it grew");
        copy_state.add(u128::MAX);
        copy_state.add(3);
        let verdict =
            Verdict::of(&copy_state, Some(waystage_copy::state::Fatal::stopped()), "path");
        let read = Verdict::read(&verdict.encode()).unwrap();
        assert_eq!((read.sum, read.limit.as_str()), (2, "path"));
        assert_eq!(read.problems, verdict.problems);
        let failed = read.failed.unwrap();
        assert!(
            matches!(failed, WanError::Session(Error::Lost(text)) if text.contains("the copy was stopped"))
        );
        assert!(read.counts.contains(&("changed".to_owned(), 1)));
        let joined = verdict.joined(copy_state.report.tally.read());
        assert!(joined.contains(&("changed", 2)));
    }
}
