//! Shared by requests: messages, entries, layouts, reading, statistics.

use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;

use fuser::{Errno, FileAttr, FileType, Generation, INodeNo, ReplyData, ReplyEntry};

use super::{Client, Pfs, STATISTICS_INO};
use crate::model::Operation;
use crate::statistics;

impl Pfs {
    pub(super) fn statistics(&self) -> String {
        let since = self.counted_since.load(Ordering::Relaxed);
        let dilation = self.client.dilation;
        self.pump.look(|state, now| {
            statistics::json(&state.model, &state.lateness, now, since, dilation)
        })
    }

    pub(super) fn reset(&self) {
        self.pump.look(|state, now| {
            state.model.reset_counts(now);
            state.lateness = statistics::Lateness::default();
            self.counted_since.store(now, Ordering::Relaxed);
        });
    }

    /// A message to the metadata server that knows `ino`; then the answer.
    pub(super) fn ask(
        &self,
        ino: u64,
        operation: Operation,
        answer: impl FnOnce() + Send + 'static,
    ) {
        let key = self.tree.directory_of(ino);
        self.pump.submit(|model, now| model.ask(now, key, operation), answer);
    }

    pub(super) fn remember_lookup(&self, thread: u32, ino: u64) {
        let mut looked_up = self.looked_up.lock();
        if looked_up.len() > 4096 {
            looked_up.clear(); // threads that ended; at worst an open costs a message more
        }
        looked_up.insert(thread, ino);
    }

    pub(super) fn take_lookup(&self, thread: u32) -> Option<u64> {
        self.looked_up.lock().remove(&thread)
    }

    /// Answer with an entry. The size of a file is a separate message, sent when a program asks for it and not on
    /// open.
    pub(super) fn entry(
        &self,
        reply: ReplyEntry,
        found: Result<FileAttr, Errno>,
    ) -> impl FnOnce() + Send {
        let Client { names, attributes, .. } = self.client;
        move || match found {
            Ok(attr) => {
                let known =
                    if attr.kind == FileType::RegularFile { Duration::ZERO } else { attributes };
                reply.entry_with_ttls(&known, &names, &attr, Generation(0));
            }
            Err(error) => reply.error(error),
        }
    }

    pub(super) fn statistics_attributes() -> FileAttr {
        let time = std::time::UNIX_EPOCH;
        FileAttr {
            ino: INodeNo(STATISTICS_INO),
            size: 0,
            blocks: 0,
            atime: time,
            mtime: time,
            ctime: time,
            crtime: time,
            kind: FileType::RegularFile,
            perm: 0o444,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }

    /// `lustre.lov` of a file, or of a directory the template.
    pub(super) fn layout(&self, ino: u64) -> Result<Vec<u8>, Errno> {
        let attr = self.tree.attributes(ino)?;
        match attr.kind {
            FileType::RegularFile => Ok(self.tree.striping(ino)?.encode(attr.size)),
            FileType::Directory => Ok(self.tree.template(ino)?.encode()),
            _ => Err(Errno::NO_XATTR),
        }
    }

    /// Bytes of a file, when its targets have served them.
    pub(super) fn serve_read(
        &self,
        ino: u64,
        handle: u64,
        offset: u64,
        size: u32,
        reply: ReplyData,
    ) {
        if ino == STATISTICS_INO {
            let text = self.snapshots.get(handle).unwrap_or_default();
            let from = usize::try_from(offset).unwrap_or(usize::MAX).min(text.len());
            let to = from.saturating_add(size as usize).min(text.len());
            return reply.data(&text.as_bytes()[from..to]);
        }
        let (Some(file), Ok(attr)) = (self.files.get(handle), self.tree.attributes(ino)) else {
            return reply.error(Errno::EBADF);
        };
        let length = u64::from(size).min(attr.size.saturating_sub(offset));
        let parts = file.striping.parts(offset, length, false);
        let tree = Arc::clone(&self.tree);
        let answer = move || {
            let mut reply = Some(reply);
            let mut give = |bytes: &[u8]| {
                if let Some(reply) = reply.take() {
                    reply.data(bytes);
                }
            };
            if let Err(error) = tree.read(ino, file.tree_handle, offset, size as usize, &mut give) {
                if let Some(reply) = reply {
                    reply.error(error);
                }
            }
        };
        if parts.is_empty() {
            return answer(); // past the end, which the client knows
        }
        self.pump.submit(|model, now| model.transfer(now, &parts), answer);
    }
}
