//! Pages of answers on their way to a client, and how a request ends.
//!
//! Arrives: pages, errors. Leaves: at most as many pages ahead of the client as are allowed; sentences. Must not know:
//! what the pages hold.

use std::path::PathBuf;

use rustix::io::Errno;
use waystage_copy::error::describe;
use waystage_copy::CopyError;
use waystage_transport::control::Control;
use waystage_transport::control_messages::{expect, kinds};

use crate::error::WanError;
use crate::tree_messages::TreeAnswer;

/// Pages of entries that the client has not taken.
pub(crate) const AHEAD: usize = 4;

/// Bytes of the paths of problems.
pub(crate) const MOST_PROBLEM_BYTES: usize = 1 << 20;

/// Why a request has no answer.
pub(crate) enum Refusal {
    /// The next one may have.
    Here(WanError),
    /// The session ends.
    Ends(WanError),
}

impl From<WanError> for Refusal {
    fn from(error: WanError) -> Self {
        Self::Here(error)
    }
}

/// Pages on their way to the client.
pub(crate) struct Pages<'a> {
    pub(crate) control: &'a Control,
    pub(crate) most: usize,
    pub(crate) ahead: usize,
}

impl Pages<'_> {
    pub(crate) fn send(&mut self, page: &TreeAnswer) -> Result<(), Refusal> {
        if self.ahead == self.most {
            self.taken()?;
        }
        let body = page.encode(false);
        if page.data.is_empty() {
            self.control.send(kinds::TREE, &body);
        } else {
            self.control.send_paced(kinds::TREE, &body);
        }
        self.ahead += 1;
        Ok(())
    }

    pub(crate) fn taken(&mut self) -> Result<(), Refusal> {
        expect(self.control, kinds::LISTED).map_err(|error| Refusal::Ends(error.into()))?;
        self.ahead -= 1;
        Ok(())
    }

    /// The last one; returns when the client has taken all.
    pub(crate) fn last(mut self, page: &TreeAnswer) -> Result<(), Refusal> {
        self.control.send(kinds::TREE, &page.encode(true));
        self.ahead += 1;
        while self.ahead > 0 {
            self.taken()?;
        }
        Ok(())
    }

    /// An error: between pages it ends the session.
    pub(crate) fn failed(&self, error: WanError) -> Refusal {
        if self.ahead == 0 {
            Refusal::Here(error)
        } else {
            Refusal::Ends(error)
        }
    }
}

/// What was done, for the log.
pub(crate) enum Done {
    Line(String),
    Read(u64),
    Asked,
}

/// A path for a sentence.
pub(crate) fn shown(path: &[u8]) -> PathBuf {
    PathBuf::from(String::from_utf8_lossy(path).into_owned())
}

/// Why something cannot be done with a path.
pub(crate) fn refused(shown: &std::path::Path, doing: &str, errno: Errno) -> WanError {
    let shown = shown.display();
    let text = match errno {
        Errno::LOOP | Errno::XDEV => format!(
            "{shown} cannot be {doing}: it leads through a symbolic link or to another file system, which is not followed"
        ),
        Errno::NOTEMPTY => format!("{shown} cannot be {doing}: it is not empty; --recursive removes what is in it"),
        Errno::EXIST => format!("{shown} cannot be {doing}: the name is taken"),
        Errno::BUSY => format!("{shown} cannot be {doing}: it is a directory that the server shares or mounts"),
        Errno::ISDIR => format!("{shown} cannot be {doing}: it is a directory"),
        Errno::OPNOTSUPP => format!("{shown} cannot be {doing}: it is no regular file"),
        errno => format!("{shown} cannot be {doing}: {}", describe(errno)),
    };
    CopyError::Ends(text).into()
}
