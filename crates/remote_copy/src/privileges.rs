//! What the peer of a copy may set on files here beyond their contents.
//!
//! Arrives: an entry as the peer described it. Leaves: the attributes that are set here, and what was left of them,
//! in words. Must not know: connections, files.
//!
//! Set-user-id bits, devices, owners and attributes of the system are rights on this machine: the peer sets them only
//! where the user or the administrator allows it (decision 0038). Each message that carries an entry goes through here.

use waystage_copy::attributes::{mode_without, Xattr};
use waystage_copy::stat::Metadata;

use crate::entry::Entry;

/// The bits of a mode that any end may give: rights to read, write and execute, and the sticky bit, which only takes
/// rights away.
const PLAIN_MODE: u16 = 0o1777;

/// Whether the peer is trusted with rights on this machine, and how the report names what it may not set.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PeerPrivileges {
    privileged: bool,
    words: &'static Words,
}

#[derive(Debug)]
struct Words {
    bits: &'static str,
    xattrs: &'static str,
    both: &'static str,
    device: &'static str,
}

const OF_CLIENT: Words = Words {
    bits: "set-user-id and set-group-id, which this server does not take",
    xattrs: "attributes of the system, which this server does not take",
    both: "set-user-id, set-group-id and attributes of the system, which this server does not take",
    device: "is a device, which this server does not take",
};

const OF_SERVER: Words = Words {
    bits: "set-user-id and set-group-id, which are taken from another host with --privileged only",
    xattrs: "attributes of the system, which are taken from another host with --privileged only",
    both: "set-user-id, set-group-id and attributes of the system, which are taken from another host with --privileged only",
    device: "is a device, which is taken from another host with --privileged only",
};

impl PeerPrivileges {
    /// A server's, in what its clients give.
    pub(crate) fn in_client(privileged: bool) -> Self {
        Self { privileged, words: &OF_CLIENT }
    }

    /// A client's, in what a server gives.
    pub(crate) fn in_server(privileged: bool) -> Self {
        Self { privileged, words: &OF_SERVER }
    }

    /// Whether the peer may set owners.
    pub(crate) fn gives_owners(&self) -> bool {
        self.privileged
    }

    /// Why a device is not made; None where it is.
    pub(crate) fn refuses_device(&self, letter: u8) -> Option<&'static str> {
        (!self.privileged && matches!(letter, b'b' | b'c')).then_some(self.words.device)
    }

    /// The attributes that are set here, and what of those that came is not.
    pub(crate) fn allowed(&self, entry: &Entry) -> (Vec<Xattr>, Metadata, Option<String>) {
        if self.privileged {
            return (entry.xattrs.clone(), entry.metadata, None);
        }
        let users = |(name, _): &&Xattr| name.starts_with(b"user.");
        let xattrs: Vec<Xattr> = entry.xattrs.iter().filter(users).cloned().collect();
        let list = entry.xattrs.iter().find(|(name, _)| name == b"system.posix_acl_access");
        // Without the list the mode's group bits mean another group.
        let mode =
            list.map_or(entry.metadata.mode, |list| mode_without(entry.metadata.mode, &list.1));
        let metadata = Metadata { mode: mode & PLAIN_MODE, ..entry.metadata };
        // A symbolic link has no mode.
        let bits = entry.metadata.mode & !PLAIN_MODE != 0 && entry.letter != b'l';
        let lost = match (bits, xattrs.len() < entry.xattrs.len()) {
            (true, true) => Some(self.words.both),
            (true, false) => Some(self.words.bits),
            (false, true) => Some(self.words.xattrs),
            (false, false) => None,
        };
        (xattrs, metadata, lost.map(str::to_owned))
    }
}

#[cfg(test)]
mod tests {
    use waystage_copy::stat::FileState;
    use waystage_copy::Time;

    use super::*;

    fn entry(letter: u8, mode: u16, xattrs: &[&str]) -> Entry {
        Entry {
            letter,
            path: b"name".to_vec(),
            seen: FileState {
                device: 1,
                inode: 2,
                size: 0,
                mtime: Time::from_ns(3),
                ctime: Time::from_ns(4),
            },
            metadata: Metadata {
                mode,
                uid: 0,
                gid: 0,
                mtime: Time::from_ns(3),
                atime: Time::from_ns(5),
            },
            symlink: Vec::new(),
            device: 0,
            xattrs: xattrs.iter().map(|name| (name.as_bytes().to_vec(), Vec::new())).collect(),
        }
    }

    #[test]
    fn no_type_of_entry_brings_a_right_with_it() {
        for trust in [PeerPrivileges::in_client(false), PeerPrivileges::in_server(false)] {
            for letter in *b"fdpbcl" {
                for bits in [0o4000, 0o2000, 0o6000] {
                    let given = entry(letter, 0o1755 | bits, &["user.a"]);
                    let (xattrs, metadata, lost) = trust.allowed(&given);
                    assert_eq!((metadata.mode, xattrs.len()), (0o1755, 1), "{letter} {bits:o}");
                    assert_eq!(lost.is_some(), letter != b'l', "it is said of {letter}");
                }
            }
            let names =
                ["security.capability", "trusted.x", "system.posix_acl_access", "user.a", "userx"];
            let (xattrs, _, lost) = trust.allowed(&entry(b'f', 0o644, &names));
            assert_eq!(xattrs, [(b"user.a".to_vec(), Vec::new())]);
            assert!(lost.is_some_and(|lost| lost.starts_with("attributes")));
            let (_, _, lost) = trust.allowed(&entry(b'd', 0o2755, &["trusted.x"]));
            assert!(lost
                .is_some_and(|lost| lost.contains("set-group-id") && lost.contains("attributes")));
            assert!(trust.refuses_device(b'c').is_some() && trust.refuses_device(b'b').is_some());
            assert!(trust.refuses_device(b'p').is_none() && !trust.gives_owners());
        }
    }

    #[test]
    fn an_end_that_is_trusted_gives_all_there_is() {
        let given = entry(b'f', 0o6755, &["security.capability", "user.a"]);
        let (xattrs, metadata, lost) = PeerPrivileges::in_server(true).allowed(&given);
        assert_eq!((xattrs, metadata, lost), (given.xattrs, given.metadata, None));
        assert!(PeerPrivileges::in_server(true).refuses_device(b'c').is_none());
    }
}
