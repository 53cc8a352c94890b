//! Files with several names: the first name of each is copied as a file, the others become links to it once all files
//! are there.
//!
//! Arrives: entries with more than one name. Leaves: offers of first names, then messages that name the others. Must
//! not know: which of the names lie outside the tree. However many there are, they take bounded memory.

use std::sync::Arc;

use crate::error::WanError;
use waystage_copy::source::Item;
use waystage_copy::stat::split;
use waystage_transport::wire::{Malformed, Read, Reader, Writer};

use super::{Sender, OFFER, OFFER_BYTES};
use crate::entry::{kinds, Entry};
use crate::external_sort::{ExternalSort, Record};

/// Of a record's key: device and inode.
const FILE_BYTES: usize = 16;

fn kept(error: &std::io::Error) -> WanError {
    WanError::io("keep the names of files that have several", error)
}

impl Sender<'_> {
    /// Lay a name aside. The first one of each file, by path, is the same in every run.
    pub(super) fn remember(&self, item: &Item, linked: &mut ExternalSort) {
        let mut key = Vec::with_capacity(FILE_BYTES + item.directory.len() + item.name.len() + 1);
        key.extend_from_slice(&item.seen.device.to_be_bytes());
        key.extend_from_slice(&item.seen.inode.to_be_bytes());
        key.extend_from_slice(&item.path());
        let mut body = Writer::default();
        self.origin.entry(item).put(&mut body);
        body.u32(item.links).u8(u8::from(item.sparse)).u8(u8::from(item.clamped));
        if let Err(error) = linked.put(key, body.0) {
            self.end(kept(&error));
        }
    }

    /// Offer the first name of each file; false after a stop.
    pub(super) fn firsts(&self, linked: &mut ExternalSort) -> Result<bool, WanError> {
        let (mut group, mut last) = (Vec::new(), None);
        for record in linked.sorted().map_err(|error| kept(&error))? {
            let (key, body) = record.map_err(|error| kept(&error))?;
            let (file, _) = split_key(&key)?;
            if last == Some(file) {
                continue;
            }
            last = Some(file);
            group.push(item(&body).map_err(|_| damaged())?);
            if group.len() >= OFFER && !self.offer(std::mem::take(&mut group)) {
                return Ok(false);
            }
        }
        Ok(group.is_empty() || self.offer(group))
    }

    /// Say which other names each file has; false after a stop.
    pub(super) fn links(&self, linked: &mut ExternalSort) -> Result<bool, WanError> {
        let mut first: Option<Record> = None;
        let (mut others, mut bytes) = (Vec::new(), 0);
        for record in linked.sorted().map_err(|error| kept(&error))? {
            let (key, _) = record.map_err(|error| kept(&error))?;
            let (file, path) = split_key(&key)?;
            let same = first.as_ref().is_some_and(|(held, _)| held[..] == file);
            // A file may have more names than a message holds.
            if !same || others.len() >= OFFER || bytes >= OFFER_BYTES {
                if !self.send_links(first.as_ref(), &mut others) {
                    return Ok(false);
                }
                bytes = 0;
            }
            if same {
                bytes += path.len();
                others.push(path.to_vec());
            } else {
                first = Some((file.to_vec(), path.to_vec()));
            }
        }
        Ok(self.send_links(first.as_ref(), &mut others))
    }

    fn send_links(&self, first: Option<&Record>, others: &mut Vec<Vec<u8>>) -> bool {
        let Some((_, first)) = first.filter(|_| !others.is_empty()) else { return true };
        let mut out = Writer::new(kinds::LINKS);
        out.bytes(first).count(others.len());
        for other in others.drain(..) {
            out.bytes(&other);
        }
        self.send_urgent(out.0)
    }
}

/// Which file, and the path of one of its names.
fn split_key(key: &[u8]) -> Result<([u8; FILE_BYTES], &[u8]), WanError> {
    let (file, path) = key.split_first_chunk().ok_or_else(damaged)?;
    Ok((*file, path))
}

fn damaged() -> WanError {
    kept(&std::io::ErrorKind::InvalidData.into())
}

/// What [`Sender::remember`] has written.
fn item(body: &[u8]) -> Read<Item> {
    let mut reader = Reader(body);
    let entry = Entry::read(&mut reader)?;
    let (links, sparse, clamped) = (reader.u32()?, reader.flag()?, reader.flag()?);
    reader.end().map_err(|_| Malformed)?;
    let (directory, name) = split(&entry.path);
    Ok(Item {
        directory: Arc::from(directory),
        name: name.to_vec(),
        letter: entry.letter,
        seen: entry.seen,
        metadata: entry.metadata,
        followed: false,
        links,
        sparse,
        clamped,
        objects: Box::default(),
        symlink: entry.symlink,
    })
}
