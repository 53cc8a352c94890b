//! The journal of a copy under way: what the names at the destination cannot tell.
//!
//! Arrives: records, in the order in which they became true.
//! Leaves: a file that is right up to its last whole record wherever the process or the machine stopped, and what an
//! earlier run left, read from it.
//! Must not know: how files are copied.
//!
//! The form is in docs/reference/copy-journal.md. Each record is one write of its own, checked by a hash: a record cut
//! short ends the journal, and is overwritten by the next run.

mod format;
mod past;

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use rustix::fs::{flock, fstat, mkdirat, openat, unlinkat, AtFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use crate::error::{said, CopyError, CopyErrorKind};

pub use format::{decode, encode, Record, FIRST_LINE};
pub use past::{Half, Past};

/// Beyond this a journal is no journal: a million extents make some 40 MB.
const LONGEST_BYTES: u64 = 4 << 30;

/// What every name begins with that this program makes at a destination for itself.
pub const OWN_PREFIX: &[u8] = b".waystage-copy";

const FILE: &[u8] = b"journal";

/// A journal held against other processes.
#[derive(Debug)]
pub struct Journal {
    root: OwnedFd,
    folder: Vec<u8>,
    file: Mutex<File>,
}

impl Journal {
    /// Open the journal in `root`, or begin one; what earlier runs left comes with it. `single` names the file where
    /// the copy is of one file and its directory is shared with others.
    pub fn open(
        root: OwnedFd,
        single: Option<&[u8]>,
        shown: &Path,
    ) -> Result<(Self, Past), CopyError> {
        let mut folder = OWN_PREFIX.to_vec();
        if let Some(name) = single {
            // A name may have all of the 255 bytes that the folder's name may have.
            let hash = twox_hash::XxHash3_128::oneshot(name);
            folder.extend_from_slice(format!("-{hash:032x}").as_bytes());
        }
        let refused = |errno: Errno| {
            let kind = match errno {
                Errno::NOSPC | Errno::DQUOT => CopyErrorKind::NoSpace,
                _ => CopyErrorKind::Refused,
            };
            let text = format!(
                "{} cannot be written: {}: choose a destination that can",
                shown.display(),
                said(errno)
            );
            CopyError::new(kind, text)
        };
        // A name that was removed by the process that just ended is made anew.
        for _ in 0..100 {
            match mkdirat(&root, &folder[..], Mode::from_raw_mode(0o700)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(refused(errno)),
            }
            let how = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let held = match openat(&root, &folder[..], how, Mode::empty()) {
                Err(Errno::NOENT) => continue,
                other => other.map_err(refused)?,
            };
            let how = OFlags::RDWR
                | OFlags::CREATE
                | OFlags::APPEND
                | OFlags::NOFOLLOW
                | OFlags::NONBLOCK
                | OFlags::CLOEXEC;
            let file = match openat(&held, FILE, how, Mode::from_raw_mode(0o600)) {
                Err(Errno::NOENT) => continue,
                other => other.map_err(refused)?,
            };
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Err(Errno::WOULDBLOCK) => {
                    let text = format!(
                        "another process is copying to {}: wait for it to end",
                        shown.display()
                    );
                    return Err(CopyError::new(CopyErrorKind::Busy, text));
                }
                other => other.map_err(refused)?,
            }
            if fstat(&file).map_err(refused)?.st_nlink == 0 {
                continue;
            }
            let mut file = File::from(file);
            let past = past_of(&mut file, shown)?;
            return Ok((Self { root, folder, file: Mutex::new(file) }, past));
        }
        Err(refused(Errno::BUSY))
    }

    /// Forget all that earlier runs left.
    pub fn empty(&self) -> std::io::Result<()> {
        let file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.set_len(0)?;
        (&*file).write_all(FIRST_LINE)
    }

    /// Append a record; when this returns, it outlives this process.
    pub fn append(&self, record: &Record) -> std::io::Result<()> {
        let bytes = encode(record);
        self.file.lock().unwrap_or_else(PoisonError::into_inner).write_all(&bytes)
    }

    /// The copy is complete: the journal is no longer needed.
    pub fn remove(&self) {
        // What cannot be removed does no harm: the next copy takes it for the end of this one.
        let path = waystage_catalog::join(&self.folder, FILE);
        let _ = unlinkat(self.root.as_fd(), &path[..], AtFlags::empty());
        let _ = unlinkat(self.root.as_fd(), &self.folder[..], AtFlags::REMOVEDIR);
    }
}

fn past_of(file: &mut File, shown: &Path) -> Result<Past, CopyError> {
    let failed = |error: std::io::Error| {
        let text = format!("the journal in {} cannot be read: {error}", shown.display());
        CopyError::new(CopyErrorKind::Failed, text)
    };
    let about = file.metadata().map_err(failed)?;
    let foreign = || {
        let text = format!(
            "{}/{} is no journal of this version of Waystage: remove it, or give --restart",
            shown.display(),
            String::from_utf8_lossy(OWN_PREFIX)
        );
        CopyError::new(CopyErrorKind::OtherJournal, text)
    };
    if !about.is_file() || about.len() > LONGEST_BYTES {
        return Err(foreign());
    }
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).map_err(failed)?;
    // A process that was killed at once may have left less than the first line.
    if bytes.is_empty() || (bytes.len() < FIRST_LINE.len() && FIRST_LINE.starts_with(&bytes)) {
        file.set_len(0).map_err(failed)?;
        file.write_all(FIRST_LINE).map_err(failed)?;
        return Ok(Past::default());
    }
    let Some((records, whole)) = decode(&bytes) else {
        return Ok(Past { foreign: true, ..Past::default() });
    };
    file.set_len(whole as u64).map_err(failed)?;
    Ok(Past::of(records))
}

#[cfg(test)]
mod tests;
