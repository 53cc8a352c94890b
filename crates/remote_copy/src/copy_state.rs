//! What one end of a copy has counted, met, and summed up, and whether it is to go on.
//!
//! Arrives: counts, problems, the reason to end. Leaves: the same, at any time. Must not know: files, connections.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::error::{WanError, WanErrorKind};
use parking_lot::Mutex;
use waystage_copy::parts::{Failure, Report};
use waystage_copy::{CopyErrorKind, Counts, Problem, ProblemKind};
use waystage_transport::wire::{Malformed, Read, Reader, Writer};

/// Problems that one end tells the other, and their bytes: far less than a small message holds.
const MOST_TOLD: usize = 1000;
const MOST_TOLD_BYTES: usize = 1 << 20;

/// The state of a copy at one end.
#[derive(Default)]
pub struct CopyState {
    pub(crate) report: Report,
    /// What the sender has given to the connection.
    pub(crate) moved_files: AtomicU64,
    pub(crate) moved_bytes: AtomicU64,
    /// Entries whose owners the other end may not give.
    pub(crate) owners_left: AtomicU64,
    sum: Mutex<u128>,
    stop: AtomicBool,
    cancelled: AtomicBool,
    fatal: Mutex<Option<WanError>>,
    /// Rate limits that hold now.
    pub limits: Limits,
}

/// Bytes a second that each end wants to be sent at most, for now; 0 for as many as were parameters.
#[derive(Default)]
pub struct Limits {
    own: AtomicU64,
    theirs: AtomicU64,
}

impl Limits {
    /// This end's schedule has come to another limit.
    pub fn set_own(&self, bytes_per_s: Option<u64>) {
        self.own.store(bytes_per_s.map_or(0, |rate| rate.max(1)), Ordering::Relaxed);
    }

    /// The other end's has.
    pub(crate) fn set_theirs(&self, bytes_per_s: u64) {
        self.theirs.store(bytes_per_s, Ordering::Relaxed);
    }

    pub(crate) fn own(&self) -> u64 {
        self.own.load(Ordering::Relaxed)
    }

    /// What both ends allow.
    pub(crate) fn both(&self) -> Option<u64> {
        [self.own(), self.theirs.load(Ordering::Relaxed)].into_iter().filter(|rate| *rate > 0).min()
    }
}

impl CopyState {
    /// Whether the copy is to end.
    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
    }

    /// Somebody wants the copy to end.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::SeqCst);
        self.stop();
    }

    /// Whether the copy was cancelled here.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::SeqCst)
    }

    /// The threads of a part of the copy have ended; what comes next may run, unless there is a reason to end.
    pub(crate) fn go_on(&self) {
        let fatal = self.fatal.lock();
        self.stop.store(fatal.is_some() || self.is_cancelled(), Ordering::SeqCst);
    }

    /// End the copy for this reason. The first one stays, but for a lost connection: what the other end said before it went explains that.
    pub(crate) fn end_for(&self, error: WanError) {
        let mut fatal = self.fatal.lock();
        if fatal.as_ref().is_none_or(|before| before.kind == WanErrorKind::Lost) {
            let first = fatal.take().filter(|_| error.kind == WanErrorKind::Lost);
            *fatal = Some(first.unwrap_or(error));
        }
        drop(fatal);
        self.stop();
    }

    /// Why it ended before its time.
    pub fn verdict(&self) -> WanError {
        let fatal = self.fatal.lock().clone();
        fatal.unwrap_or_else(WanError::stopped)
    }

    /// Contents that left here, or came to be here.
    pub(crate) fn add(&self, digest: u128) {
        let mut sum = self.sum.lock();
        *sum = sum.wrapping_add(digest);
    }

    pub(crate) fn sum(&self) -> u128 {
        *self.sum.lock()
    }

    pub(crate) fn problem(&self, path: &[u8], kind: ProblemKind, text: impl Into<String>) {
        self.report.problem(path.to_vec(), kind, text.into());
    }

    /// Count and say what became of an entry; end the copy where there is no point in going on.
    pub(crate) fn failed(&self, path: &[u8], failure: &Failure) {
        use rustix::io::Errno;
        use waystage_copy::parts::End;
        let kind = match failure {
            Failure::Stopped => return,
            Failure::Changed(_) => ProblemKind::Changed,
            Failure::Call { end: End::Source, errno: Errno::NOENT, .. } => ProblemKind::Vanished,
            // Part of its path is no directory any more, or a link by now.
            Failure::Call { end: End::Source, errno: Errno::NOTDIR | Errno::LOOP, .. } => {
                ProblemKind::Changed
            }
            _ => ProblemKind::Error,
        };
        let Some(fatal) = failure.fatal() else {
            return self.problem(path, kind, failure.to_string());
        };
        let mend = match fatal {
            CopyErrorKind::NoSpace => {
                "make room, and give the same command again: it goes on where it stopped"
            }
            _ => "the same command goes on where it stopped",
        };
        let path = String::from_utf8_lossy(path);
        self.end_for(WanError::new(
            WanErrorKind::Files(fatal),
            format!("{path}: {failure}: {mend}"),
        ));
    }
}

/// What one end tells the other when it is done: how it ended, its counts and problems.
#[derive(Debug, Clone)]
pub(crate) struct Verdict {
    pub(crate) failed: Option<WanError>,
    pub(crate) counts: Vec<(String, u64)>,
    pub(crate) problems: Vec<Problem>,
    pub(crate) sum: u128,
    /// What held sending back, where this end sent.
    pub(crate) limit: String,
}

impl Verdict {
    pub(crate) fn of(copy_state: &CopyState, failed: Option<WanError>, limit: &str) -> Self {
        let counts = copy_state.report.tally.read().by_name();
        Self {
            failed,
            counts: counts.into_iter().map(|(name, count)| (name.to_owned(), count)).collect(),
            problems: told(copy_state.report.problems()),
            sum: copy_state.sum(),
            limit: limit.to_owned(),
        }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Writer::default();
        let (kind, text) = match &self.failed {
            Some(error) => (error.kind.name(), error.text.as_str()),
            None => ("", ""),
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

    pub(crate) fn read(bytes: &[u8]) -> Read<Self> {
        let mut reader = Reader(bytes);
        let (kind, text) = (reader.text()?, reader.text()?);
        let failed = (!kind.is_empty()).then(|| WanError::told(&kind, text));
        let counts = (0..reader.count(12)?)
            .map(|_| Ok((reader.text()?, reader.u64()?)))
            .collect::<Read<_>>()?;
        let mut problems = Vec::new();
        let count = reader.count(9)?;
        if count > MOST_TOLD {
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

    /// Both ends' counts together.
    pub(crate) fn joined(&self, ours: Counts) -> Vec<(&'static str, u64)> {
        let theirs = |name: &str| {
            self.counts.iter().find(|(other, _)| other == name).map_or(0, |(_, count)| *count)
        };
        ours.by_name()
            .into_iter()
            .map(|(name, count)| (name, count.saturating_add(theirs(name))))
            .collect()
    }
}

/// As many of them as are told.
fn told(problems: Vec<Problem>) -> Vec<Problem> {
    let mut bytes = 0;
    let fits = |problem: &Problem| {
        bytes += problem.path.len() + problem.text.len();
        bytes <= MOST_TOLD_BYTES
    };
    problems.into_iter().take(MOST_TOLD).take_while(fits).collect()
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

    #[test]
    fn what_the_other_end_said_explains_a_lost_connection() {
        let copy_state = CopyState::default();
        for (error, stays) in [
            (WanError::lost("one"), "one"),
            (WanError::lost("two"), "one"),
            (WanError::input("three"), "three"),
            (WanError::lost("four"), "three"),
            (WanError::input("five"), "three"),
        ] {
            copy_state.end_for(error);
            assert_eq!(copy_state.verdict().text, stays);
        }
    }

    #[test]
    fn a_verdict_is_read_as_it_was_written() {
        let copy_state = CopyState::default();
        copy_state.problem(b"a/b", ProblemKind::Changed, "it grew");
        copy_state.add(u128::MAX);
        copy_state.add(3);
        let verdict = Verdict::of(&copy_state, Some(WanError::stopped()), "path");
        let read = Verdict::read(&verdict.encode()).unwrap();
        assert_eq!((read.sum, read.limit.as_str()), (2, "path"));
        assert_eq!(read.problems, verdict.problems);
        let failed = read.failed.unwrap();
        assert!(failed.kind == WanErrorKind::Lost && failed.text.contains("the copy was stopped"));
        assert!(read.counts.contains(&("changed".to_owned(), 1)));
        let joined = verdict.joined(copy_state.report.tally.read());
        assert!(joined.contains(&("changed", 2)));
    }
}
