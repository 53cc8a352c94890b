//! The journal: which names are being moved to a new inode together, for a run that is killed between two of them.
//!
//! A line for each group before its first name is moved, one when the last has been. A line has a digest of itself, so
//! that a torn one is known.
//!
//! ```text
//! waystage-copy-journal restripe 1
//! group KEY DEVICE OLD_INODE SIZE SECONDS NANOSECONDS NEW_INODE NAME[/NAME...] DIGEST    names in hexadecimal
//! done KEY DIGEST
//! ```

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};

use parking_lot::Mutex;
use rustix::fs::{
    fdatasync, flock, mkdirat, openat, unlinkat, AtFlags, FlockOperation, Mode, OFlags,
};
use rustix::io::{pread, Errno};
use twox_hash::XxHash3_64;
use waystage_catalog::Root;

use crate::error::{describe, At, CopyError, End, Failure};
use crate::file_io::write_all;
use crate::own_names::FOLDER_FILE;
use crate::stat::stat_fd;
use crate::time::Time;

/// The journal's folder at the top of the tree; its digits spell "waystage-restrip". Copies know such a name as theirs
/// and leave it out.
pub(super) const FOLDER: &[u8] = b".waystage-copy-77617973746167652d72657374726970";

const HEADER: &str = "waystage-copy-journal restripe 1\n";

/// A journal is never longer: groups in progress are as many as workers, and what is done is dropped at the next start.
const MOST_BYTES: u64 = 1 << 30;

/// Hard links of one file that get a new inode together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// Device of both inodes.
    pub device: u64,
    /// The inode that the names are taken from.
    pub old_inode: u64,
    /// Bytes of the file when it was read.
    pub size: u64,
    /// When its contents had changed last.
    pub mtime: Time,
    /// The inode that they are given to.
    pub new_inode: u64,
    /// The names, as paths below the top of the tree.
    pub names: Vec<Vec<u8>>,
}

/// The journal of a tree, locked for one process.
#[derive(Debug)]
pub(super) struct Journal {
    file: OwnedFd,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    end: u64,
    next: u64,
}

impl Journal {
    /// Open or make it; what earlier runs left unfinished.
    pub(super) fn open(root: &Root, shown: &str) -> Result<(Self, Vec<Group>), CopyError> {
        let failed = |errno: Errno| {
            let text = format!("{shown}: the journal in it cannot be written: {}", describe(errno));
            CopyError::Refused(text)
        };
        let file = loop {
            let file = made(root).map_err(failed)?;
            // A file system without locks answers otherwise.
            if flock(&file, FlockOperation::NonBlockingLockExclusive) == Err(Errno::AGAIN) {
                let text = format!("{shown} is being restriped by another process: wait for it");
                return Err(CopyError::Busy(text));
            }
            // The process that held the lock may have removed the file meanwhile.
            let still =
                made(root).and_then(|now| Ok((stat_fd(now.as_fd())?, stat_fd(file.as_fd())?)));
            let (now, held) = still.map_err(failed)?;
            if now.stx_ino == held.stx_ino {
                break file;
            }
        };
        let size = stat_fd(file.as_fd()).map_err(failed)?.stx_size;
        let mut bytes = vec![0; size.min(MOST_BYTES) as usize];
        let mut filled = 0;
        while filled < bytes.len() {
            match pread(&file, &mut bytes[filled..], filled as u64).map_err(failed)? {
                0 => break,
                count => filled += count,
            }
        }
        let groups = parse(&bytes[..filled]);
        let journal = Self { file, state: Mutex::default() };
        if size == 0 {
            journal.empty().map_err(|failure| CopyError::Refused(format!("{shown}: {failure}")))?;
        } else {
            // What is recovered stays in it until it has been recovered.
            *journal.state.lock() = State { end: size, next: 1 << 32 };
        }
        Ok((journal, groups))
    }

    /// Forget everything that was recorded.
    pub(super) fn empty(&self) -> Result<(), Failure> {
        let mut state = self.state.lock();
        rustix::fs::ftruncate(&self.file, 0).at(End::Destination, "write journal")?;
        write_all(self.file.as_fd(), HEADER.as_bytes(), 0)?;
        *state = State { end: HEADER.len() as u64, next: 0 };
        Ok(())
    }

    /// The names of this group are about to move. What to call it when they have.
    pub(super) fn begin(&self, group: &Group) -> Result<u64, Failure> {
        let mut state = self.state.lock();
        let key = state.next;
        state.next += 1;
        self.append(&mut state, &line_of(key, group))?;
        fdatasync(&self.file).at(End::Destination, "sync journal")?;
        Ok(key)
    }

    /// They have moved, or are where they were.
    pub(super) fn end(&self, key: u64) -> Result<(), Failure> {
        let mut state = self.state.lock();
        self.append(&mut state, &sealed(format!("done {key}")))
    }

    fn append(&self, state: &mut State, line: &str) -> Result<(), Failure> {
        write_all(self.file.as_fd(), line.as_bytes(), state.end)?;
        state.end += line.len() as u64;
        Ok(())
    }

    /// Remove it: nothing is unfinished.
    pub(super) fn remove(&self, root: &Root) -> Result<(), Errno> {
        let folder = root.directory(FOLDER)?;
        unlinkat(&folder, FOLDER_FILE, AtFlags::empty())?;
        unlinkat(root.directory(b"")?, FOLDER, AtFlags::REMOVEDIR)
    }
}

fn made(root: &Root) -> Result<OwnedFd, Errno> {
    match mkdirat(root.directory(b"")?, FOLDER, Mode::from_raw_mode(0o700)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(errno),
    }
    let how = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match root.directory(FOLDER) {
        Ok(folder) => openat(folder, FOLDER_FILE, how, Mode::from_raw_mode(0o600)),
        Err(errno) => Err(errno),
    }
}

fn line_of(key: u64, group: &Group) -> String {
    let names: Vec<String> = group.names.iter().map(|name| hex(name)).collect();
    let Group { device, old_inode, size, mtime, new_inode, .. } = group;
    let (seconds, nanoseconds) = (mtime.seconds, mtime.nanoseconds);
    let names = names.join("/");
    sealed(format!(
        "group {key} {device} {old_inode} {size} {seconds} {nanoseconds} {new_inode} {names}"
    ))
}

fn sealed(text: String) -> String {
    let digest = XxHash3_64::oneshot(text.as_bytes());
    format!("{text} {digest:016x}\n")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes();
    if !digits.len().is_multiple_of(2) || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    let byte = |at: usize| u8::from_str_radix(text.get(at..at + 2)?, 16).ok();
    (0..digits.len()).step_by(2).map(byte).collect()
}

/// The groups that a journal does not say are done. Lines that are damaged are left out.
#[must_use]
pub fn parse(bytes: &[u8]) -> Vec<Group> {
    let mut groups = BTreeMap::new();
    let text = String::from_utf8_lossy(bytes);
    for line in text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')) {
        let Some((text, _)) = line.rsplit_once(' ') else { continue };
        if sealed(text.to_owned()).trim_end() != line {
            continue;
        }
        let words: Vec<&str> = text.split(' ').collect();
        match &words[..] {
            ["group", key, rest @ ..] => {
                if let (Ok(key), Some(group)) = (key.parse::<u64>(), group_of(rest)) {
                    groups.insert(key, group);
                }
            }
            ["done", key] => {
                if let Ok(key) = key.parse() {
                    groups.remove(&key);
                }
            }
            _ => {}
        }
    }
    groups.into_values().collect()
}

fn group_of(words: &[&str]) -> Option<Group> {
    let [device, old_inode, size, seconds, nanoseconds, new_inode, names] = words else {
        return None;
    };
    let names: Option<Vec<Vec<u8>>> = names.split('/').map(unhex).collect();
    Some(Group {
        device: device.parse().ok()?,
        old_inode: old_inode.parse().ok()?,
        size: size.parse().ok()?,
        mtime: Time { seconds: seconds.parse().ok()?, nanoseconds: nanoseconds.parse().ok()? },
        new_inode: new_inode.parse().ok()?,
        names: names.filter(|names| names.iter().all(|name| !name.is_empty()))?,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn group(names: Vec<Vec<u8>>) -> Group {
        let mtime = Time { seconds: -7, nanoseconds: 5 };
        Group { device: 1, old_inode: 2, size: 3, mtime, new_inode: 4, names }
    }

    proptest! {
        #[test]
        fn a_group_is_found_until_it_is_done_and_a_torn_line_is_none(
            names in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 1..20), 1..5),
            cut in 1usize..60,
        ) {
            let group = group(names);
            let mut text = format!("{HEADER}{}", line_of(9, &group));
            prop_assert_eq!(parse(text.as_bytes()), vec![group.clone()]);
            prop_assert_eq!(parse(&text.as_bytes()[..text.len() - cut]), vec![]);
            text += &sealed("done 8".to_owned());
            prop_assert_eq!(parse(text.as_bytes()), vec![group]);
            text += &sealed("done 9".to_owned());
            prop_assert_eq!(parse(text.as_bytes()), vec![]);
        }

        #[test]
        fn damaged_journals_are_read(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = parse(&bytes);
            let line = sealed(String::from_utf8_lossy(&bytes).replace('\n', " "));
            let _ = parse(format!("group {line}").as_bytes());
        }
    }
}
