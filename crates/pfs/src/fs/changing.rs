//! Requests that change something: done at once, answered when the servers would have.

use std::ffi::OsStr;

use fuser::{
    Errno, FileHandle, FopenFlags, Generation, ReplyAttr, ReplyCreate, ReplyEmpty, ReplyEntry,
    ReplyWrite,
};

use super::handles::OpenFile;
use super::{done, Pfs};
use crate::model::Operation;
use crate::tree::{Changes, Making};

/// The type of a regular file in a mode (`S_IFREG`).
const REGULAR: u32 = 0o100_000;

/// The owner's rights to read and write.
const OWNERS: u32 = 0o600;

impl Pfs {
    pub(super) fn open_flags(&self) -> FopenFlags {
        if self.client.direct {
            FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES
        } else {
            FopenFlags::FOPEN_KEEP_CACHE
        }
    }

    /// A change in directory `parent` was made; the answer waits for its metadata server.
    pub(super) fn changed(&self, parent: u64, result: Result<(), Errno>, reply: ReplyEmpty) {
        self.pump.submit(
            |model, now| model.ask(now, parent, Operation::Change),
            move || done(reply, result),
        );
    }

    pub(super) fn change(&self, ino: u64, changes: &Changes, reply: ReplyAttr) {
        let result = self.tree.change(ino, changes);
        let known = self.client.attributes;
        self.ask(ino, Operation::Change, move || match result {
            Ok(attr) => reply.attr(&known, &attr),
            Err(error) => reply.error(error),
        });
    }

    pub(super) fn make(&self, parent: u64, name: &OsStr, what: Making<'_>, reply: ReplyEntry) {
        let answer = self.entry(reply, self.tree.make(parent, name, what));
        self.pump.submit(|model, now| model.ask(now, parent, Operation::Change), answer);
    }

    /// Make a file and open it: one message.
    pub(super) fn make_open(&self, parent: u64, name: &OsStr, mode: u32, reply: ReplyCreate) {
        // A file that its owner may not write is open for writing when it is made, and by the owner's rights.
        let first = REGULAR | mode | OWNERS;
        let made = self.tree.make(parent, name, Making::Node(first, 0)).and_then(|mut attr| {
            let ino = attr.ino.0;
            let tree_handle = self.tree.open(ino, true)?;
            if mode & OWNERS != OWNERS {
                attr =
                    self.tree.change(ino, &Changes { mode: Some(mode), ..Changes::default() })?;
            }
            let striping = self.tree.striping(ino)?;
            Ok((attr, self.files.add(OpenFile { ino, tree_handle, striping })))
        });
        let (names, how) = (self.client.names, self.open_flags());
        self.pump.submit(
            |model, now| model.ask(now, parent, Operation::Change),
            move || match made {
                Ok((attr, handle)) => {
                    reply.created(&names, &attr, Generation(0), FileHandle(handle), how);
                }
                Err(error) => reply.error(error),
            },
        );
    }

    pub(super) fn write_through(&self, handle: u64, offset: u64, data: &[u8], reply: ReplyWrite) {
        let Some(file) = self.files.get(handle) else { return reply.error(Errno::EBADF) };
        if let Err(error) = self.tree.write(file.tree_handle, offset, data) {
            return reply.error(error);
        }
        let parts = file.striping.parts(offset, data.len() as u64, true);
        let written = u32::try_from(data.len()).unwrap_or(u32::MAX);
        self.pump.submit(|model, now| model.transfer(now, &parts), move || reply.written(written));
    }
}
