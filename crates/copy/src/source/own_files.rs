//! What an interrupted copy has left in a source, told from files of users that are only called alike.

use std::collections::HashMap;
use std::os::fd::AsFd;

use rustix::fs::{openat, Mode, OFlags};
use rustix::io::{pread, Errno};
use waystage_catalog::Root;

use super::item::Item;
use crate::own_names::{is_journal_folder, is_part, FOLDER_FILE, OWN_PREFIX};
use crate::stat::{letter, split, stat_at};

/// What every journal of any version begins with.
const ANY_JOURNAL: &[u8] = b"waystage-copy-journal ";

/// Why an entry of a source is not copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// It is inside a folder that is not copied, which has been reported.
    Within,
    /// It is a copy's own; why it is left out.
    Copy(&'static str),
    /// It is its user's, and its name is the journal's at the destination; how to fix that.
    NameTaken(&'static str),
}

/// Which folders of a source are those of journals, asked once for each.
#[derive(Default)]
pub struct OwnFiles(HashMap<Vec<u8>, bool>);

impl OwnFiles {
    /// Whether an entry is not to be copied; None where it is a user's, as nearly every one.
    pub fn of(&mut self, source: &Root, item: &Item) -> Option<Owner> {
        if self.is_in_folder(source, &item.directory) {
            return Some(Owner::Within);
        }
        if !item.name.starts_with(OWN_PREFIX) {
            return None;
        }
        if is_part(&item.name) && item.letter != b'd' {
            return Some(Owner::Copy("is a temporary file of an interrupted copy"));
        }
        if item.letter == b'd' && self.is_folder(source, &item.path()) {
            return Some(Owner::Copy("is the journal of an interrupted copy"));
        }
        // At the top it would meet the journal of this copy.
        (item.directory.is_empty() && is_journal_folder(&item.name)).then_some(Owner::NameTaken(
            "has the name of a copy's own journal: give it another name",
        ))
    }

    /// Whether a directory is a journal's folder or is inside one.
    fn is_in_folder(&mut self, source: &Root, directory: &[u8]) -> bool {
        let mut above = directory;
        while !above.is_empty() {
            let (upper, name) = split(above);
            if name.starts_with(OWN_PREFIX) && self.is_left_out(source, above) {
                return true;
            }
            above = upper;
        }
        false
    }

    fn is_left_out(&mut self, source: &Root, path: &[u8]) -> bool {
        let (upper, name) = split(path);
        is_journal_folder(name) && (upper.is_empty() || self.is_folder(source, path))
    }

    fn is_folder(&mut self, source: &Root, path: &[u8]) -> bool {
        if !is_journal_folder(split(path).1) {
            return false;
        }
        if let Some(known) = self.0.get(path) {
            return *known;
        }
        let is = holds_journal(source, path).unwrap_or(false);
        self.0.insert(path.to_vec(), is);
        is
    }
}

/// Whether the directory holds a journal, or nothing yet because its copy was killed at the very beginning.
fn holds_journal(source: &Root, path: &[u8]) -> Result<bool, Errno> {
    let folder = source.directory(path)?;
    let stat = match stat_at(folder.as_fd(), FOLDER_FILE) {
        Err(Errno::NOENT) => {
            let mut entries = rustix::fs::Dir::read_from(&folder)?;
            let is_entry = |entry: &rustix::fs::DirEntry| {
                !matches!(entry.file_name().to_bytes(), b"." | b"..")
            };
            return Ok(!entries.any(|entry| entry.is_ok_and(|entry| is_entry(&entry))));
        }
        other => other?,
    };
    if letter(stat.stx_mode) != b'f' {
        return Ok(false);
    }
    if stat.stx_size == 0 {
        return Ok(true);
    }
    let how = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = openat(&folder, FOLDER_FILE, how, Mode::empty())?;
    let mut bytes = [0; ANY_JOURNAL.len()];
    let count = pread(&file, &mut bytes, 0)?;
    Ok(count > 0 && ANY_JOURNAL.starts_with(&bytes[..count]))
}
