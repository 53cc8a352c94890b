//! Pieces that a process holds, by key.
//!
//! Arrives: segments of shared memory with their writers. Leaves: segments; which of them are free.
//! Must not know: connections, directories.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};

use crate::memory::Memory;

/// A segment of a writer.
pub(super) struct Segment {
    /// Its number in this process.
    pub(super) number: u64,
    descriptor: OwnedFd,
    /// Bytes that were checked.
    pub(super) bytes: u64,
    /// Mapped once a reader of another host asks.
    mapped: OnceLock<Memory>,
    /// Mapped once a writer of another host writes to it.
    written: OnceLock<Memory>,
}

impl Segment {
    pub(super) fn new(number: u64, descriptor: OwnedFd, bytes: u64) -> Self {
        Self { number, descriptor, bytes, mapped: OnceLock::new(), written: OnceLock::new() }
    }

    pub(super) fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        use std::os::fd::AsFd;
        self.descriptor.as_fd()
    }

    /// Its bytes.
    pub(super) fn mapped(&self) -> std::io::Result<&Memory> {
        if self.mapped.get().is_none() {
            let memory = Memory::open(self.descriptor.try_clone()?, self.bytes)?;
            // Another reader may have been first.
            let _ = self.mapped.set(memory);
        }
        self.mapped.get().ok_or_else(|| std::io::ErrorKind::Other.into())
    }

    /// Its bytes, where its maker left it open to other writers.
    pub(super) fn written(&self) -> std::io::Result<&Memory> {
        if self.written.get().is_none() {
            let memory = Memory::share(self.descriptor.try_clone()?, self.bytes)?;
            let _ = self.written.set(memory);
        }
        self.written.get().ok_or_else(|| std::io::ErrorKind::Other.into())
    }
}

/// A piece.
#[derive(Clone)]
pub(super) struct Held {
    pub(super) name: String,
    pub(super) memory: Arc<Segment>,
    pub(super) bytes: u64,
    /// Its writer, and the writer's number of the segment.
    writer: (u64, u64),
}

/// All pieces.
#[derive(Default)]
pub(super) struct Pieces {
    next: u64,
    by_key: HashMap<u64, Held>,
    bytes: u64,
}

impl Pieces {
    /// Bytes of all pieces.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Holds a piece; its key.
    pub(super) fn hold(
        &mut self,
        name: &str,
        memory: Arc<Segment>,
        bytes: u64,
        writer: (u64, u64),
    ) -> u64 {
        self.next += 1;
        self.bytes += bytes;
        let held = Held { name: name.to_owned(), memory, bytes, writer };
        self.by_key.insert(self.next, held);
        self.next
    }

    /// A piece of a name.
    pub(super) fn get(&self, name: &str, key: u64) -> Option<Held> {
        self.by_key.get(&key).filter(|held| held.name == name).cloned()
    }

    /// Gives up pieces of a name; their writers and the writers' numbers of the segments.
    pub(super) fn free(&mut self, name: &str, keys: &[u64]) -> Vec<(u64, u64)> {
        let mut freed = Vec::new();
        for key in keys {
            if self.by_key.get(key).is_some_and(|held| held.name == name) {
                if let Some(held) = self.by_key.remove(key) {
                    self.bytes -= held.bytes;
                    freed.push(held.writer);
                }
            }
        }
        freed
    }

    /// Gives up all pieces of a name.
    pub(super) fn forget(&mut self, name: &str) {
        self.by_key.retain(|_, held| held.name != name);
        self.bytes = self.by_key.values().map(|held| held.bytes).sum();
    }
}
