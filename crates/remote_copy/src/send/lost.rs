//! What of an entry the messages between hosts cannot say.
//!
//! Arrives: entries. Leaves: why something of one is lost. Must not know: connections, the peer.

use std::collections::HashSet;

use waystage_copy::source::Item;
use waystage_copy::Time;

/// Symbolic links, devices and FIFOs with several names of which it is remembered that one was met: 16 bytes each.
/// Beyond that each name counts as a further one.
const MOST_REMEMBERED: usize = 1 << 16;

/// Symbolic links, devices and FIFOs with several names, of which one was met.
#[derive(Default)]
pub(super) struct SpecialLinks(HashSet<(u64, u64)>);

impl SpecialLinks {
    /// Whether another name of this entry came before: hard links are sent of files alone.
    pub(super) fn is_further_name(&mut self, item: &Item) -> bool {
        if item.links < 2 || matches!(item.letter, b'f' | b'd' | b's') {
            return false;
        }
        let key = (item.seen.device, item.seen.inode);
        self.0.contains(&key) || self.0.len() >= MOST_REMEMBERED || !self.0.insert(key)
    }
}

/// Whether the time of modification does not fit into the messages' 64 bits of nanoseconds.
pub(super) fn is_time_lost(item: &Item) -> bool {
    let mtime = item.seen.mtime;
    item.clamped || Time::from_ns(mtime.ns()) != mtime
}

#[cfg(test)]
mod tests {
    use waystage_copy::stat::{FileState, Metadata};

    use super::*;

    fn item(letter: u8, inode: u64, links: u32) -> Item {
        let time = Time::from_ns(3);
        Item {
            directory: b"".as_slice().into(),
            name: b"name".to_vec(),
            letter,
            seen: FileState { device: 1, inode, size: 0, mtime: time, ctime: time },
            metadata: Metadata { mode: 0o640, uid: 5, gid: 6, mtime: time, atime: time },
            followed: false,
            links,
            sparse: false,
            symlink: Vec::new(),
            clamped: false,
            objects: Box::default(),
        }
    }

    #[test]
    fn the_first_name_is_kept_and_each_further_one_is_lost() {
        let mut links = SpecialLinks::default();
        let found = [
            item(b'l', 1, 2),
            item(b'l', 1, 2),
            item(b'p', 2, 3),
            item(b'p', 3, 1),
            item(b'p', 2, 3),
            item(b'f', 4, 2),
            item(b'f', 4, 2),
        ]
        .map(|item| links.is_further_name(&item));
        assert_eq!(found, [false, true, false, false, true, false, false]);
    }

    #[test]
    fn times_that_nanoseconds_in_64_bits_cannot_hold_are_lost() {
        for (seconds, lost) in
            [(0, false), (7_258_118_400, false), (9_300_000_000, true), (-9_300_000_000, true)]
        {
            let mut item = item(b'f', 1, 1);
            item.seen.mtime = Time { seconds, nanoseconds: 5 };
            assert_eq!(is_time_lost(&item), lost, "{seconds}");
        }
    }
}
