//! A directory at a server, for what follows a copy.
//!
//! Arrives: requests, and what answers to them may hold. Leaves: answers that hold nothing else. Must not know: what is
//! done with them.
//!
//! Requests are in turn and of bounded size. One that was lost with its connection may be repeated: what is gone is not
//! missed.

use std::sync::Arc;

use waystage_copy::CopyError;

use crate::error::{protocol_violation, WanError};
use crate::tree_client::TreeSession;
use crate::tree_messages::{TreeAnswer, TreeRequest};

/// Paths of a request, and their bytes about.
pub(crate) const PATHS: usize = 4096;
const PATH_BYTES: usize = 256 << 10;

/// A directory at a server.
pub(crate) struct Far {
    pub(crate) session: Arc<TreeSession>,
    pub(crate) path: Vec<u8>,
}

impl Far {
    /// A byte for each of `count` things, one of those that are `known`, and why some failed.
    pub(crate) fn ask(
        &self,
        request: &TreeRequest,
        count: usize,
        known: &[u8],
    ) -> Result<TreeAnswer, CopyError> {
        let answer = self.session.ask(request).map_err(here)?;
        if answer.data.len() != count || !answer.data.iter().all(|byte| known.contains(byte)) {
            return Err(broken());
        }
        Ok(answer)
    }
}

/// The server answered what was not asked.
pub(crate) fn broken() -> CopyError {
    here(protocol_violation())
}

/// An error of the session as one of files.
pub(crate) fn here(error: WanError) -> CopyError {
    match error {
        WanError::Files(error) => error,
        WanError::Session(error) => CopyError::Failed(format!(
            "what follows the copy was interrupted: {error}: the same command completes it"
        )),
    }
}

/// As much of `items` at once as a request holds, and where it is in them.
pub(crate) fn requests<T>(items: &[T], path: impl Fn(&T) -> &[u8]) -> Vec<&[T]> {
    let (mut groups, mut begin, mut bytes) = (Vec::new(), 0, 0);
    for (at, item) in items.iter().enumerate() {
        bytes += path(item).len();
        if at + 1 - begin >= PATHS || bytes >= PATH_BYTES {
            groups.push(&items[begin..=at]);
            (begin, bytes) = (at + 1, 0);
        }
    }
    if begin < items.len() {
        groups.push(&items[begin..]);
    }
    groups
}

#[cfg(test)]
pub(crate) mod testing;
