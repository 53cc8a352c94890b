//! The journal of a copy in progress: what the names at the destination cannot tell.
//!
//! Arrives: records, in the order in which they became true.
//! Leaves: a file that is right up to its last whole record wherever the process or the machine stopped, and what an
//! earlier run left, read from it.
//! Must not know: how files are copied.
//!
//! The form is in docs/reference/copy-journal.md. Each record is one write, checked by a hash: a record cut
//! short ends the journal, and is overwritten by the next run.

mod format;
mod recovered;

use std::fs::File;
use std::io::{BufReader, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use parking_lot::Mutex;
use rustix::fs::{flock, mkdirat, openat, unlinkat, AtFlags, FlockOperation, Mode, OFlags, Statx};
use rustix::io::Errno;

use crate::error::{describe, CopyError};
use crate::own_names::{is_ours, FOLDER_FILE, OWN_PREFIX};
use crate::stat::{letter, stat_fd};

pub use format::{decode, encode, Record, FIRST_LINE};
use recovered::Fold;
pub use recovered::{PartialFile, Recovered};

/// Beyond this a journal is no journal: a million extents make some 40 MB. It is read piece by piece.
const LONGEST_BYTES: u64 = 4 << 30;

/// Which of the copies to a destination a journal is of.
#[derive(Debug, Clone, Copy, Default)]
pub struct JournalOf<'a> {
    /// The file's name, where the copy is of one file and its directory is shared with others.
    pub single: Option<&'a [u8]>,
    /// The number of this process, where several copy to this destination at once.
    pub share: Option<u128>,
}

impl JournalOf<'_> {
    /// The name of the journal's folder.
    fn folder(self) -> Vec<u8> {
        let mut folder = OWN_PREFIX.to_vec();
        // A name may have all of the 255 bytes that the folder's name may have.
        let hash = self.share.or_else(|| self.single.map(twox_hash::XxHash3_128::oneshot));
        folder.extend(hash.map(|hash| format!("-{hash:032x}")).unwrap_or_default().into_bytes());
        folder
    }
}

/// A journal held against other processes.
#[derive(Debug)]
pub struct Journal {
    root: OwnedFd,
    folder: Vec<u8>,
    file: Mutex<File>,
}

impl Journal {
    /// Open the journal in `root`, or begin one; what earlier runs left comes with it, in `most_bytes` of memory at
    /// most: what is beyond that is forgotten, which costs time and nothing else.
    pub fn open(
        root: OwnedFd,
        of: JournalOf<'_>,
        shown: &Path,
        most_bytes: usize,
    ) -> Result<(Self, Recovered), CopyError> {
        let folder = of.folder();
        let refused = |errno: Errno| {
            let text = format!(
                "{} cannot be written: {}: choose a destination that can",
                shown.display(),
                describe(errno)
            );
            match errno {
                Errno::NOSPC | Errno::DQUOT => CopyError::NoSpace(text),
                _ => CopyError::Refused(text),
            }
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
            let safe = |stat: &Statx, sort: u8, mode: u16| {
                letter(stat.stx_mode) == sort
                    && stat.stx_mode & 0o7777 & !mode == 0
                    && (sort == b'd' || stat.stx_nlink <= 1)
                    && is_ours(root.as_fd(), stat)
            };
            let metadata = stat_fd(held.as_fd()).map_err(refused)?;
            // A directory that hands its group down hands that on, too.
            if !safe(&metadata, b'd', 0o2700) {
                return Err(not_ours(shown, &folder));
            }
            let how = OFlags::RDWR
                | OFlags::APPEND
                | OFlags::NOFOLLOW
                | OFlags::NONBLOCK
                | OFlags::CLOEXEC;
            let new = how | OFlags::CREATE | OFlags::EXCL;
            let (file, found) = match openat(&held, FOLDER_FILE, new, Mode::from_raw_mode(0o600)) {
                Err(Errno::EXIST) => match openat(&held, FOLDER_FILE, how, Mode::empty()) {
                    Err(Errno::NOENT) => continue,
                    Err(Errno::LOOP) => return Err(not_ours(shown, &folder)),
                    other => (other.map_err(refused)?, true),
                },
                Err(Errno::NOENT) => continue,
                other => (other.map_err(refused)?, false),
            };
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Err(Errno::WOULDBLOCK) => {
                    let text = format!(
                        "another process is copying to {}: wait for it to end",
                        shown.display()
                    );
                    return Err(CopyError::Busy(text));
                }
                other => other.map_err(refused)?,
            }
            let metadata = stat_fd(file.as_fd()).map_err(refused)?;
            if !safe(&metadata, b'f', 0o600) {
                return Err(not_ours(shown, &folder));
            }
            if metadata.stx_nlink == 0 {
                continue;
            }
            let mut file = File::from(file);
            let recovered = Recovered { found, ..recovered_of(&mut file, shown, most_bytes)? };
            return Ok((Self { root, folder, file: Mutex::new(file) }, recovered));
        }
        Err(refused(Errno::BUSY))
    }

    /// Forget all that earlier runs left.
    pub fn empty(&self) -> std::io::Result<()> {
        let file = self.file.lock();
        file.set_len(0)?;
        (&*file).write_all(FIRST_LINE)
    }

    /// Append a record; when this returns, it outlives this process.
    pub fn append(&self, record: &Record) -> std::io::Result<()> {
        let bytes = encode(record);
        self.file.lock().write_all(&bytes)
    }

    /// The copy is complete: the journal is no longer needed.
    pub fn remove(&self) {
        // What cannot be removed does no harm: the next copy takes it for the end of this one.
        let path = waystage_catalog::join(&self.folder, FOLDER_FILE);
        let _ = unlinkat(self.root.as_fd(), &path[..], AtFlags::empty());
        let _ = unlinkat(self.root.as_fd(), &self.folder[..], AtFlags::REMOVEDIR);
    }
}

/// The folder, or what is called the journal in it, is none that this user's copy has made.
fn not_ours(shown: &Path, folder: &[u8]) -> CopyError {
    let text = format!(
        "{}/{} is not of a copy by this user: remove it, or choose another destination",
        shown.display(),
        String::from_utf8_lossy(folder)
    );
    CopyError::OtherJournal(text)
}

fn recovered_of(file: &mut File, shown: &Path, most_bytes: usize) -> Result<Recovered, CopyError> {
    let failed = |error: std::io::Error| {
        let text = format!("the journal in {} cannot be read: {error}", shown.display());
        CopyError::Failed(text)
    };
    let metadata = file.metadata().map_err(failed)?;
    let foreign = || {
        let text = format!(
            "{}/{} is no journal of this version of Waystage: remove it, or give --restart",
            shown.display(),
            String::from_utf8_lossy(OWN_PREFIX)
        );
        CopyError::OtherJournal(text)
    };
    if metadata.len() > LONGEST_BYTES {
        return Err(foreign());
    }
    // A process that was killed at once may have left less than the first line.
    if metadata.len() < FIRST_LINE.len() as u64 {
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(failed)?;
        if FIRST_LINE.starts_with(&bytes) {
            file.set_len(0).map_err(failed)?;
            file.write_all(FIRST_LINE).map_err(failed)?;
            return Ok(Recovered::default());
        }
        return Ok(Recovered { foreign: true, ..Recovered::default() });
    }
    let mut fold = Fold::new(most_bytes);
    let whole = decode(BufReader::new(&*file), |record| fold.add(record)).map_err(failed)?;
    let Some(whole) = whole else {
        return Ok(Recovered { foreign: true, ..Recovered::default() });
    };
    file.set_len(whole).map_err(failed)?;
    Ok(fold.end())
}

#[cfg(test)]
mod tests;
