//! Further names of a file at the destination.
//!
//! Arrives: a file that is there, a name. Leaves: the name as a link to the file, or why it is none. Must not know:
//! how the file came there.

use rustix::fs::{linkat, AtFlags, Statx};
use rustix::io::Errno;

use super::{with_temporary_name, Folder, Sink};
use crate::error::{At, End, Failure};
use crate::plan::{IS_DIRECTORY, NOT_REPLACED};
use crate::stat::{letter, stat_at, FileState};

/// What became of a further name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Linked {
    /// It is a link now.
    Made,
    /// It was one already.
    Already,
    /// Another special file of the same type has the name, perhaps of a copy that could not link.
    Alike,
    /// The file system makes no such link.
    Refused(Errno),
}

impl Sink {
    /// Make `name` a link to the file `first`, which is `there`. A regular file or symbolic link of that name is
    /// replaced; `prepare` is called before anything is made.
    ///
    /// # Errors
    /// Where something else has the name; those of statx(2) and linkat(2).
    pub fn hard_link(
        &self,
        (from, first, there): (&Folder, &[u8], &Statx),
        (folder, name): (&Folder, &[u8]),
        prepare: impl FnOnce() -> Result<(), Failure>,
    ) -> Result<Linked, Failure> {
        match stat_at(folder.fd(), name) {
            Ok(found) if same_file(&FileState::of(&found), &FileState::of(there)) => {
                return Ok(Linked::Already);
            }
            Ok(found) => match letter(found.stx_mode) {
                b'd' => return Err(IS_DIRECTORY),
                b'f' | b'l' => {}
                found if found == letter(there.stx_mode) => return Ok(Linked::Alike),
                _ => return Err(NOT_REPLACED),
            },
            Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno).at(End::Destination, "stat"),
        }
        prepare()?;
        let mut refused = None;
        let made = with_temporary_name(folder.fd(), self.session, name, |temporary| {
            let linked = linkat(from.fd(), first, folder.fd(), temporary, AtFlags::empty());
            if let Err(errno @ (Errno::MLINK | Errno::XDEV | Errno::PERM | Errno::OPNOTSUPP)) =
                linked
            {
                refused = Some(errno);
            }
            linked.at(End::Destination, "make hard link")
        });
        match refused {
            Some(errno) => Ok(Linked::Refused(errno)),
            None => made.map(|()| Linked::Made),
        }
    }

    /// Whether two names, each of a directory, are of one file now; false where one is missing.
    ///
    /// # Errors
    /// Those of opening the directories.
    pub fn are_linked(&self, one: (&[u8], &[u8]), other: (&[u8], &[u8])) -> Result<bool, Failure> {
        let seen = |(directory, name): (&[u8], &[u8])| -> Result<Option<FileState>, Failure> {
            let folder = self.destination.find(directory)?;
            let stat = folder.and_then(|folder| stat_at(folder.fd(), name).ok());
            Ok(stat.map(|stat| FileState::of(&stat)))
        };
        let pair = seen(one)?.zip(seen(other)?);
        Ok(pair.is_some_and(|(one, other)| same_file(&one, &other)))
    }
}

fn same_file(one: &FileState, other: &FileState) -> bool {
    (one.device, one.inode) == (other.device, other.inode)
}
