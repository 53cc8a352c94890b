//! Entries of the destination that the source lacks are deleted.
//!
//! Arrives: who knows the source ([`Origin`]) and the destination ([`Target`]), on this machine or another. Leaves:
//! fewer entries at the destination; counts and problems. Must not know: where either is.
//!
//! Nothing is deleted before every entry of the destination was seen and asked about; the source is asked once more
//! right before an entry goes.

use crate::counts::{add, ProblemKind};
use crate::engine::{Engine, Job};
use crate::error::{CopyError, Failure};
use crate::state::CopyState;

use super::in_parallel;

/// What is deleted, and how.
#[derive(Debug, Clone)]
pub struct Deletion {
    /// What its user calls the destination.
    pub shown: String,
    /// Where there are more, none is deleted.
    pub most: Option<u64>,
    /// Threads that delete.
    pub workers: usize,
    /// Only say what would be deleted.
    pub dry_run: bool,
    /// Keep what is done with each entry, to be taken.
    pub log: bool,
}

/// Bytes of the paths that are to go: a server may name any number.
const MOST_PATH_BYTES: usize = 1 << 30;

/// An entry of the destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Victim {
    /// Its path below the root.
    pub path: Vec<u8>,
    /// The letter of its type.
    pub letter: u8,
    /// Bytes of a regular file.
    pub bytes: u64,
}

/// Knows what the source has.
pub trait Origin: Send + Sync {
    /// One thread's way to ask.
    fn asker(&self) -> Box<dyn Asker + '_>;

    /// Entries that are best asked about together.
    fn at_once(&self) -> usize;

    /// Let threads that wait for an answer end.
    fn stop(&self) {}

    /// Nothing more is asked.
    fn close(&self) {}
}

/// Asks what the source has.
pub trait Asker {
    /// Whether it has entries at these paths, and what is behind a symbolic link, which is not this copy's.
    ///
    /// # Errors
    /// Where that cannot be known: nothing is deleted then.
    fn has(&mut self, paths: &[&[u8]]) -> Result<Vec<bool>, CopyError>;
}

/// Knows and deletes the destination's entries.
pub trait Target: Send + Sync {
    /// Give every entry that the copy would have put there to `take`, some at a time; false where that, or a stop,
    /// ended it. What cannot be read is a problem in `state`.
    ///
    /// # Errors
    /// Where they cannot be listed.
    fn entries(
        &self,
        state: &CopyState<CopyError>,
        take: &mut dyn FnMut(Vec<Victim>) -> bool,
    ) -> Result<bool, CopyError>;

    /// One thread's way to delete.
    fn deleter(&self) -> Box<dyn Deleter + '_>;

    /// Entries that are best deleted together.
    fn at_once(&self) -> usize;

    /// Let threads that wait for an answer end.
    fn stop(&self) {}

    /// Nothing more is deleted.
    fn close(&self) {}
}

/// What became of an entry that was to be deleted.
pub type Deleted = Result<bool, Failure>;

/// Deletes.
pub trait Deleter {
    /// Delete these, one after the other, and tell of each whether it is gone by this; it stays where it is another by
    /// now, or a directory that is not empty.
    ///
    /// # Errors
    /// Where no more can be deleted.
    fn delete(&mut self, victims: &[&Victim]) -> Result<Vec<Deleted>, CopyError>;
}

/// A deletion in progress.
pub type Delete = Engine<DeleteJob>;

/// See [`Delete`].
pub struct DeleteJob {
    how: Deletion,
    origin: Box<dyn Origin>,
    target: Box<dyn Target>,
    state: CopyState<CopyError>,
}

impl Delete {
    /// Start.
    ///
    /// # Errors
    /// Where no thread can be started.
    pub fn between(
        origin: Box<dyn Origin>,
        target: Box<dyn Target>,
        how: Deletion,
    ) -> Result<Self, CopyError> {
        let state = CopyState::default();
        if how.log {
            state.report.log();
        }
        Self::of(DeleteJob { how, origin, target, state })
    }
}

impl Job for DeleteJob {
    const NAME: &'static str = "delete";

    fn state(&self) -> &CopyState<CopyError> {
        &self.state
    }

    fn stop(&self) {
        self.state.cancel();
        self.origin.stop();
        self.target.stop();
    }

    fn run(&self) -> Result<(), CopyError> {
        let ended = self.delete_all();
        self.origin.close();
        self.target.close();
        // What threads met that were stopped is no reason.
        if self.state.is_cancelled() {
            return Err(self.state.verdict());
        }
        ended
    }
}

type Own<'a> = (Box<dyn Asker + 'a>, Box<dyn Deleter + 'a>);

impl DeleteJob {
    fn delete_all(&self) -> Result<(), CopyError> {
        let Some(mut victims) = self.victims()? else { return Err(self.state.verdict()) };
        if self.state.report.tally.read().errors > 0 {
            return Ok(()); // A directory that cannot be read may hold what nothing is known of.
        }
        if self.how.most.is_some_and(|most| victims.len() as u64 > most) {
            return Err(CopyError::TooMany(format!(
                "{} entries of {} are not in the source, more than --max-delete allows: nothing was deleted",
                victims.len(),
                self.how.shown
            )));
        }
        // Directories last, the deepest first.
        victims.sort_by(|one, other| {
            (one.letter == b'd', &other.path).cmp(&(other.letter == b'd', &one.path))
        });
        let files = victims.partition_point(|victim| victim.letter != b'd');
        let at_once = self.origin.at_once().max(self.target.at_once()).max(1);
        let own = || (self.origin.asker(), self.target.deleter());
        let some = |(asker, deleter): &mut Own<'_>, victims: &&[Victim]| {
            if self.state.is_stopped() || self.state.pass(0).is_err() {
                return;
            }
            if let Err(error) = self.delete(asker.as_mut(), deleter.as_mut(), victims) {
                self.state.end_for(error);
            }
        };
        let groups: Vec<&[Victim]> = victims[..files].chunks(at_once).collect();
        in_parallel(&groups, self.how.workers.max(1), own, some);
        // One after the other, since those above wait for those below.
        let groups: Vec<&[Victim]> = victims[files..].chunks(at_once).collect();
        in_parallel(&groups, 1, own, some);
        if self.state.is_stopped() {
            return Err(self.state.verdict());
        }
        Ok(())
    }

    /// What the source lacks; None after a stop.
    fn victims(&self) -> Result<Option<Vec<Victim>>, CopyError> {
        let (mut victims, mut waiting) = (Vec::<Victim>::new(), Vec::new());
        let mut bytes = 0;
        let mut asker = self.origin.asker();
        let at_once = self.origin.at_once().max(1);
        let mut ask = |entries: Vec<Victim>| match lacked(asker.as_mut(), entries) {
            Ok(lacked) => {
                bytes += lacked.iter().map(|victim| victim.path.len()).sum::<usize>();
                victims.extend(lacked);
                if bytes > MOST_PATH_BYTES {
                    let shown = &self.how.shown;
                    self.state.end_for(CopyError::TooMany(format!(
                        "the entries of {shown} that are not in the source take more than 1 GiB to name: nothing was deleted"
                    )));
                }
                !self.state.is_stopped()
            }
            Err(error) => {
                self.state.end_for(error);
                false
            }
        };
        let walked = self.target.entries(&self.state, &mut |entries| {
            waiting.extend(entries);
            waiting.len() < at_once || ask(std::mem::take(&mut waiting))
        })?;
        let asked = walked && (waiting.is_empty() || ask(waiting));
        Ok((asked && !self.state.is_stopped()).then_some(victims))
    }

    fn delete(
        &self,
        asker: &mut dyn Asker,
        deleter: &mut dyn Deleter,
        victims: &[Victim],
    ) -> Result<(), CopyError> {
        // What the source has by now stays.
        let victims = lacked(asker, victims.iter().collect())?;
        let report = &self.state.report;
        if self.how.dry_run {
            for victim in victims {
                add(&report.tally.deleted, 1);
                report.plan(victim.path.clone(), victim.letter, victim.bytes);
            }
            return Ok(());
        }
        if victims.is_empty() {
            return Ok(());
        }
        let deleted = deleter.delete(&victims)?;
        for (victim, deleted) in victims.iter().zip(deleted) {
            match deleted {
                Ok(true) => {
                    add(&report.tally.deleted, 1);
                    report.done("deleted", &victim.path, victim.letter, victim.bytes);
                }
                Ok(false) => {}
                Err(Failure::Said(text)) => {
                    self.state.problem(&victim.path, ProblemKind::Error, text);
                }
                Err(failure) => self.state.failed(&victim.path, &failure),
            }
        }
        Ok(())
    }
}

/// Those of `entries` that the source lacks.
fn lacked<V: std::borrow::Borrow<Victim>>(
    asker: &mut dyn Asker,
    entries: Vec<V>,
) -> Result<Vec<V>, CopyError> {
    let paths: Vec<&[u8]> = entries.iter().map(|entry| &entry.borrow().path[..]).collect();
    let has = asker.has(&paths)?;
    Ok(entries.into_iter().zip(has).filter(|(_, has)| !has).map(|(entry, _)| entry).collect())
}
