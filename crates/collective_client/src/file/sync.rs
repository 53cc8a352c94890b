//! Until what was acknowledged is in the file, and on disk.
//!
//! Arrives: calls of a rank. Leaves: requests to the process of the node, its answers. Must not know: operations.

use std::time::{Duration, Instant};

use waystage_collective_wire::local::{ToNode, ToRank};
use waystage_collective_wire::Status;

use super::{File, State};
use crate::error::{Code, Result};
use crate::node::failure;
use crate::serve::{done, stale};

/// Between attempts at a sync whose aggregator was lost.
const PAUSE: Duration = Duration::from_millis(20);

impl File {
    /// Waits until all that was acknowledged is in the file. An error of such bytes is the next sync's, or the close's.
    ///
    /// # Errors
    /// [`Code::Lost`].
    pub fn settle(&self) -> Result<()> {
        self.settle_in(&mut self.state.lock())
    }

    pub(super) fn settle_in(&self, state: &mut State) -> Result<()> {
        if !state.behind {
            return Ok(());
        }
        self.repeated(state, Self::settle_once)?;
        state.behind = false;
        Ok(())
    }

    fn settle_once(&self, state: &mut State) -> Result<()> {
        let file = state.id;
        let mut session = self.attached(state)?;
        session.send(&ToNode::Settle { file })?;
        loop {
            match session.receive(Some(self.node.deadline()))? {
                ToRank::Settled { file: of, status, message } if of == file => {
                    if status != Status::Ok {
                        state.deferred = Some(failure(status, message));
                    }
                    return Ok(());
                }
                message => stale(&message)?,
            }
        }
    }

    /// fsync at every aggregator.
    ///
    /// # Errors
    /// Of the storage; [`Code::Lost`].
    pub fn sync(&self) -> Result<()> {
        let mut state = self.state.lock();
        state.syncs += 1;
        self.repeated(&mut state, |file, state| {
            file.settle_in(state)?;
            file.sync_once(state)?;
            Ok(())
        })?;
        state.deferred.take().map_or(Ok(()), Err)
    }

    /// Until it succeeds, where an aggregator was lost.
    fn repeated(
        &self,
        state: &mut State,
        attempt: impl Fn(&Self, &mut State) -> Result<()>,
    ) -> Result<()> {
        let deadline = self.node.deadline();
        loop {
            match attempt(self, state) {
                Err(error) if error.code == Code::Again && Instant::now() < deadline => {
                    std::thread::sleep(PAUSE);
                }
                result => return result,
            }
        }
    }

    fn sync_once(&self, state: &mut State) -> Result<()> {
        let (file, number) = (state.id, state.syncs);
        let mut session = self.attached(state)?;
        session.send(&ToNode::Sync { file, number })?;
        loop {
            match session.receive(Some(self.node.deadline()))? {
                ToRank::Synced { file: of, number: n, status, message }
                    if (of, n) == (file, number) =>
                {
                    return done(status, message);
                }
                message => stale(&message)?,
            }
        }
    }
}
