//! What a copy makes for itself at a destination: names that are known as ours and not to be guessed, files opened
//! safely.
//!
//! Others may write in the directories that are copied to. A file of ours is therefore always new (`O_EXCL`), for our
//! eyes only until it is whole, and one that an earlier run left is believed only where its inode says that it is
//! ours.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{openat, unlinkat, AtFlags, Mode, OFlags, Statx};
use rustix::io::Errno;

use crate::stat::{letter, stat_fd};

/// What every name begins with that this program makes at a destination for itself.
pub const OWN_PREFIX: &[u8] = b".waystage-copy";

/// What the journal is called in its folder.
pub(crate) const FOLDER_FILE: &[u8] = b"journal";

/// For the copying user alone, until the file is whole.
const PRIVATE: u16 = 0o600;

/// A number that cannot be guessed.
///
/// # Errors
/// Where the system gives none.
pub fn random() -> Result<u64, Errno> {
    let mut bytes = [0; 8];
    let mut filled = 0;
    while filled < bytes.len() {
        match rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty()) {
            Ok(count) => filled += count,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(u64::from_le_bytes(bytes))
}

/// A new name for what gets its final one at once.
///
/// # Errors
/// Where the system gives no random number.
pub fn fresh_name(session: u64) -> Result<Vec<u8>, Errno> {
    let prefix = String::from_utf8_lossy(OWN_PREFIX);
    Ok(format!("{prefix}-{session:016x}-{:016x}.part", random()?).into_bytes())
}

/// The name of a large file in progress; the journal remembers its random number.
#[must_use]
pub fn large_name(session: u64, key: u64) -> Vec<u8> {
    let prefix = String::from_utf8_lossy(OWN_PREFIX);
    format!("{prefix}-{session:016x}-large-{key:016x}.part").into_bytes()
}

/// The name of the map of a large file whose extents several processes write: a byte each, 1 for a written one.
#[must_use]
pub fn map_name(session: u64, key: u64) -> Vec<u8> {
    let prefix = String::from_utf8_lossy(OWN_PREFIX);
    format!("{prefix}-{session:016x}-large-{key:016x}ffff.part").into_bytes()
}

/// Whether a copy to the destination that `session` stands for, of this version or an earlier one, has given this name.
pub(crate) fn is_of_session(name: &[u8], session: u64) -> bool {
    split(name).is_some_and(|(of, _)| of == format!("{session:016x}").as_bytes())
}

/// The same, and it is no large file that could be gone on with.
pub(crate) fn is_small_of_session(name: &[u8], session: u64) -> bool {
    is_of_session(name, session)
        && split(name).is_some_and(|(_, rest)| !rest.starts_with(b"large-"))
}

/// Whether temporary files of copies have such names.
#[must_use]
pub fn is_part(name: &[u8]) -> bool {
    split(name).is_some()
}

/// Whether folders of copies' journals have such names.
#[must_use]
pub fn is_journal_folder(name: &[u8]) -> bool {
    match name.strip_prefix(OWN_PREFIX) {
        Some(b"") => true,
        Some([b'-', hash @ ..]) => hash.len() == 32 && hash.iter().all(u8::is_ascii_hexdigit),
        _ => false,
    }
}

/// The session, and what tells one name of it from another.
fn split(name: &[u8]) -> Option<(&[u8], &[u8])> {
    let middle = name.strip_prefix(OWN_PREFIX)?.strip_prefix(b"-")?.strip_suffix(b".part")?;
    let (session, rest) = middle.split_at_checked(16)?;
    let rest = rest.strip_prefix(b"-")?;
    let number = rest.strip_prefix(b"large-").unwrap_or(rest);
    let all_hex = |text: &[u8]| !text.is_empty() && text.iter().all(u8::is_ascii_hexdigit);
    (all_hex(session) && all_hex(number) && number.len() <= 20).then_some((session, rest))
}

/// Make a file that was not there, for our eyes only.
///
/// # Errors
/// EXIST where the name is taken, by an entry of any sort.
pub fn create(folder: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd, Errno> {
    let how = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(folder, name, how, Mode::from_raw_mode(PRIVATE.into()))
}

/// Open a file of ours that an earlier run left; None where it is gone, or its name is not of what we made: another
/// sort of entry, another's, with a second name, or open to others.
#[must_use]
pub fn reopen(folder: BorrowedFd<'_>, name: &[u8], size: u64) -> Option<OwnedFd> {
    let how = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = openat(folder, name, how, Mode::empty()).ok()?;
    let stat = stat_fd(file.as_fd()).ok()?;
    let fits = letter(stat.stx_mode) == b'f'
        && stat.stx_size == size
        && stat.stx_nlink == 1
        && stat.stx_mode & 0o7777 == PRIVATE
        && is_ours(folder, &stat);
    fits.then_some(file)
}

/// Whether this process's user owns it. A server of files may give files to another than who asked (`root_squash`):
/// there a new file tells whose ours are.
pub(crate) fn is_ours(folder: BorrowedFd<'_>, stat: &Statx) -> bool {
    stat.stx_uid == rustix::process::geteuid().as_raw()
        || owner_of_new_files(folder).is_ok_and(|uid| uid == stat.stx_uid)
}

fn owner_of_new_files(folder: BorrowedFd<'_>) -> Result<u32, Errno> {
    let name = fresh_name(0)?;
    let file = create(folder, &name)?;
    let stat = stat_fd(file.as_fd());
    unlinkat(folder, &name[..], AtFlags::empty())?;
    Ok(stat?.stx_uid)
}

/// Open what was just made under a name of ours, without following it; STALE where another process has put something
/// else there.
pub(crate) fn made(folder: BorrowedFd<'_>, name: &[u8], sort: u8) -> Result<OwnedFd, Errno> {
    let how = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let node = openat(folder, name, how, Mode::empty())?;
    let stat = stat_fd(node.as_fd())?;
    let fits = letter(stat.stx_mode) == sort && stat.stx_nlink == 1 && is_ours(folder, &stat);
    if fits {
        Ok(node)
    } else {
        Err(Errno::STALE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_that_a_copy_gives_are_its_own() {
        let fresh = fresh_name(5).expect("a name");
        assert_ne!(fresh, fresh_name(5).expect("another"));
        assert!(is_part(&fresh) && is_small_of_session(&fresh, 5) && !is_of_session(&fresh, 6));
        let large = large_name(5, 7);
        assert!(is_part(&large) && is_of_session(&large, 5) && !is_small_of_session(&large, 5));
        let map = map_name(5, 7);
        assert!(is_part(&map) && is_of_session(&map, 5) && !is_small_of_session(&map, 5));
        assert!(is_of_session(b".waystage-copy-0000000000000005-12.part", 5), "of version 1");
        for other in [
            &b".waystage-copy"[..],
            b".waystage-copying",
            b".waystage-copy.txt",
            b".waystage-copy-notes.part",
            b".waystage-copy-0000000000000005-.part",
            b".waystage-copy-0000000000000005-large-.part",
            b".waystage-copy-000000000000000g-1.part",
            b".waystage-copy-0000000000000005-1.part2",
        ] {
            assert!(!is_part(other), "{}", String::from_utf8_lossy(other));
        }
        assert!(is_journal_folder(b".waystage-copy"));
        assert!(is_journal_folder(b".waystage-copy-0123456789abcdef0123456789abcdef"));
        assert!(!is_journal_folder(b".waystage-copy-notes"));
    }
}
