//! Files that the destination has, compared with the source: only what differs is sent.
//!
//! Arrives: wanted files with digests of the destination's. Leaves: word of what is equal, else the files. Must not
//! know: how messages travel, what is done with what is equal.

use std::os::fd::AsFd;

use waystage_copy::error::{At, End, Failure};
use waystage_copy::file_io::logical_digest;
use waystage_copy::source::{Item, OpenDirectory};
use waystage_copy::stat::{stat_fd, FileState};
use waystage_transport::wire::Writer;

use super::reading::PACK_BYTES;
use super::Sender;
use crate::entry::{kinds, Entry};
use crate::send_queue::OutgoingFile;

impl Sender<'_> {
    /// Small files: those that are equal are named, the others are sent.
    pub(super) fn compared(&self, items: Vec<(Item, u128)>) {
        let mut out = Writer::new(kinds::EQUAL);
        let (mut unequal, mut folder) = (Vec::new(), OpenDirectory::default());
        for (item, there) in items {
            if self.copy_state.is_stopped() {
                return;
            }
            let equal = folder.of(&self.origin.source, &item).and_then(|folder| {
                let file = item.open(folder)?;
                let range = (0, item.seen.size);
                if logical_digest(file.as_fd(), range, End::Source)? != there {
                    return Ok(None);
                }
                let now = stat_fd(file.as_fd()).at(End::Source, "stat")?;
                let unchanged = FileState::of(&now) == item.seen;
                Ok(unchanged.then(|| self.xattrs(file.as_fd(), &item.path())))
            });
            match equal {
                Ok(Some(xattrs)) => {
                    Entry { xattrs, ..self.origin.entry(&item) }.put(&mut out);
                    if out.written() >= PACK_BYTES {
                        let full = std::mem::replace(&mut out, Writer::new(kinds::EQUAL));
                        if !self.give(full.0) {
                            return;
                        }
                    }
                }
                // What changed or vanished meanwhile is met again, and reported, when it is read to be sent.
                Ok(None) | Err(Failure::Changed(_)) => unequal.push(item),
                Err(failure) => self.copy_state.failed(&item.path(), &failure),
            }
        }
        if out.written() > 1 && !self.give(out.0) {
            return;
        }
        self.pack(&unequal);
    }

    /// Whether a range of a large file has this digest.
    pub(super) fn is_equal(
        &self,
        large: &OutgoingFile,
        range: (u64, u64),
        there: u128,
    ) -> Result<bool, Failure> {
        let file = self.opened(large)?;
        logical_digest(file.as_fd(), range, End::Source).map(|digest| digest == there)
    }

    /// Say that a part is equal.
    pub(super) fn equal_part(&self, large: &OutgoingFile, part: u32, digest: u128) {
        let mut out = Writer::new(kinds::EQUAL_PART);
        out.u32(large.id).u32(part).u128(digest);
        if self.give(out.0) {
            self.part_is_done(large);
        }
    }
}
