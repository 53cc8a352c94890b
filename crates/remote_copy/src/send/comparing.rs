//! What the other end has already, held against the source: only what differs is sent.
//!
//! Arrives: wanted files with digests of what is there. Leaves: word of what is alike, else the files. Must not know: how messages
//! travel, what is done with what is alike.

use std::os::fd::AsFd;

use waystage_copy::parts::{look_at, open_file, At, End, Failure, Item, Seen};
use waystage_transport::wire::Writer;

use super::reading::PACK_BYTES;
use super::{entry, Sender};
use crate::digest::logical_digest;
use crate::entry::{kinds, Entry};
use crate::sending::LargeOut;

impl Sender<'_> {
    /// Small files: what is alike is said, the others are sent.
    pub(super) fn compared(&self, items: Vec<(Item, u128)>) {
        let mut out = Writer::new(kinds::ALIKE);
        let (mut unlike, mut folder) = (Vec::new(), None);
        for (item, there) in items {
            if self.copy_state.is_stopped() {
                return;
            }
            let alike = self.folder(&mut folder, &item).and_then(|folder| {
                let file = open_file(folder, &item.name, End::Source)?;
                let range = (0, item.seen.size);
                if logical_digest(file.as_fd(), range, End::Source)? != there {
                    return Ok(None);
                }
                let now = look_at(file.as_fd()).at(End::Source, "look at")?;
                let unchanged = Seen::of(&now) == item.seen;
                Ok(unchanged.then(|| self.xattrs(file.as_fd(), &item.path())))
            });
            match alike {
                Ok(Some(xattrs)) => {
                    Entry { xattrs, ..entry(&item) }.put(&mut out);
                    if out.written() >= PACK_BYTES {
                        let full = std::mem::replace(&mut out, Writer::new(kinds::ALIKE));
                        if !self.give(full.0) {
                            return;
                        }
                    }
                }
                // What changed or vanished meanwhile is met again, and said, when it is read to be sent.
                Ok(None) | Err(Failure::Changed(_)) => unlike.push(item),
                Err(failure) => self.copy_state.failed(&item.path(), &failure),
            }
        }
        if out.written() > 1 && !self.give(out.0) {
            return;
        }
        self.pack(&unlike);
    }

    /// Whether a range of a large file has this digest.
    pub(super) fn is_alike(
        &self,
        large: &LargeOut,
        range: (u64, u64),
        there: u128,
    ) -> Result<bool, Failure> {
        let file = self.opened(large)?;
        logical_digest(file.as_fd(), range, End::Source).map(|digest| digest == there)
    }

    /// Say that a part is alike.
    pub(super) fn alike_part(&self, large: &LargeOut, part: u32, digest: u128) {
        let mut out = Writer::new(kinds::ALIKE_PART);
        out.u32(large.id).u32(part).u128(digest);
        if self.give(out.0) {
            self.part_is_done(large);
        }
    }
}
