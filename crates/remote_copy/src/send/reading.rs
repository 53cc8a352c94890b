//! What the threads of a sender do: read what is wanted, and give it to the connection.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use twox_hash::XxHash3_128;
use waystage_copy::add;
use waystage_copy::error::{At, End, Failure};
use waystage_copy::file_io::{for_data, read_full};
use waystage_copy::source::{Item, OpenDirectory};
use waystage_copy::stat::{stat_fd, FileState};
use waystage_transport::message::{CONTENT_BYTES, MOST_BYTES};
use waystage_transport::tls::random;
use waystage_transport::wire::Writer;

use super::Sender;
use crate::entry::{kinds, piece_digest, put_runs, Entry, Runs, MOST_XATTR_BYTES};
use crate::send_queue::{OutgoingFile, Task};
use crate::session::Dry;

/// A pack of this size is sent: enough that a call of the kernel costs little, few enough that several threads write.
pub(super) const PACK_BYTES: usize = 1 << 20;

/// What an entry may take besides its contents.
const MOST_ENTRY_BYTES: usize = MOST_XATTR_BYTES + (128 << 10);

impl Sender<'_> {
    pub(super) fn work(&self, large_first: bool) {
        while let Some(task) = self.queue.take(large_first) {
            match task {
                Task::Small(items) => self.pack(&items),
                Task::Compared(items) => self.compared(items),
                Task::Part(large, part, digest) => self.part(&large, part, digest),
                Task::Close(large) => self.close(&large),
            }
            self.queue.done();
        }
    }

    /// Small files, one behind the other in as few messages as hold them.
    pub(super) fn pack(&self, items: &[Item]) {
        let mut out = Writer::new(kinds::PACK);
        let mut folder = OpenDirectory::default();
        for item in items {
            // A pause holds what is not read yet; what was read waits in the connection.
            if self.copy_state.pass(0).is_err() {
                return;
            }
            let room = item.seen.size as usize + MOST_ENTRY_BYTES;
            if out.written() > 1
                && (out.written() >= PACK_BYTES || out.written() + room > MOST_BYTES)
            {
                let full = std::mem::replace(&mut out, Writer::new(kinds::PACK));
                if !self.give_contents(full.0) {
                    return;
                }
            }
            let before = out.written();
            if self.options.dry == Dry::Network {
                self.small_made_up(item, &mut out);
                continue;
            }
            let read = folder.of(&self.origin.source, item).and_then(|folder| {
                self.small(folder, item, &mut out).or_else(|failure| match failure {
                    Failure::Changed(_) => {
                        // Once more, as it is now: most files that change do so once.
                        out.0.truncate(before);
                        let stat = item.stat(folder).at(End::Source, "stat")?;
                        self.small(folder, &item.renewed(&stat), &mut out)
                    }
                    failure => Err(failure),
                })
            });
            if let Err(failure) = read {
                out.0.truncate(before);
                self.copy_state.failed(&item.path(), &failure);
            }
        }
        if out.written() > 1 {
            self.give_contents(out.0);
        }
    }

    /// Send contents, unless this only tries how fast they are read.
    fn give_contents(&self, message: Vec<u8>) -> bool {
        if self.options.dry == Dry::Disk {
            return true;
        }
        let shorter = self.copy_state.compression.shorter(&message);
        self.give(shorter.unwrap_or(message))
    }

    /// Count files and bytes that have been read, or made up, and sent.
    fn moved(&self, files: u64, bytes: u64) {
        self.copy_state.moved_files.fetch_add(files, Ordering::Relaxed);
        self.copy_state.moved_bytes.fetch_add(bytes, Ordering::Relaxed);
        if self.options.dry == Dry::Disk {
            // The peer sees nothing of them.
            add(&self.copy_state.report.tally.files, files);
            add(&self.copy_state.report.tally.bytes, bytes);
        }
    }

    /// Both ends sum up what crosses the path.
    fn sum(&self, digest: u128) {
        if self.options.dry != Dry::Disk {
            self.copy_state.add(digest);
        }
    }

    fn small(&self, folder: BorrowedFd<'_>, item: &Item, out: &mut Writer) -> Result<(), Failure> {
        let file = item.open(folder)?;
        let size = item.seen.size;
        if size > CONTENT_BYTES as u64
            || out.written() + size as usize + MOST_ENTRY_BYTES > MOST_BYTES
        {
            return Err(Failure::Changed("it grew while it was copied"));
        }
        let xattrs = self.xattrs(file.as_fd(), &item.path());
        Entry { xattrs, ..self.origin.entry(item) }.put(out);
        let digest = contents(file.as_fd(), (0, size), item.sparse, out)?;
        let now = stat_fd(file.as_fd()).at(End::Source, "stat")?;
        if FileState::of(&now) != item.seen {
            return Err(Failure::Changed("it was changed while it was copied"));
        }
        self.sum(piece_digest(&self.origin.path_of(item), 0, digest));
        self.moved(1, size);
        Ok(())
    }

    fn small_made_up(&self, item: &Item, out: &mut Writer) {
        let size = item.seen.size;
        self.origin.entry(item).put(out);
        let digest = made_up((0, size), out);
        self.sum(piece_digest(&self.origin.path_of(item), 0, digest));
        self.moved(1, size);
    }

    fn part(&self, large: &OutgoingFile, part: u32, there: Option<u128>) {
        if large.over.load(Ordering::SeqCst) || self.copy_state.pass(0).is_err() {
            return;
        }
        let start = u64::from(part) * CONTENT_BYTES as u64;
        let end = (start + CONTENT_BYTES as u64).min(large.item.seen.size);
        if let Some(there) = there {
            match self.is_equal(large, (start, end), there) {
                Ok(true) => return self.equal_part(large, part, there),
                Ok(false) => {}
                Err(failure) => return self.abort(large, &failure),
            }
        }
        let mut out = Writer::within(self.channel.buffer(), kinds::PART);
        out.0.reserve((end - start) as usize + 256);
        out.u32(large.id).u32(part);
        let read = if self.options.dry == Dry::Network {
            Ok(made_up((start, end), &mut out))
        } else {
            self.opened(large)
                .and_then(|file| contents(file.as_fd(), (start, end), large.item.sparse, &mut out))
        };
        match read {
            Ok(digest) => {
                if !self.give_contents(out.0) {
                    return;
                }
                self.sum(piece_digest(&self.origin.path_of(&large.item), part, digest));
                self.moved(0, end - start);
                self.part_is_done(large);
            }
            Err(failure) => self.abort(large, &failure),
        }
    }

    pub(super) fn part_is_done(&self, large: &OutgoingFile) {
        if large.left.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.close(large);
        }
    }

    pub(super) fn opened(&self, large: &OutgoingFile) -> Result<Arc<OwnedFd>, Failure> {
        let mut held = large.file.lock();
        if let Some(file) = &*held {
            return Ok(Arc::clone(file));
        }
        let item = &large.item;
        let folder =
            self.origin.source.root.directory(&item.directory).at(End::Source, "open directory")?;
        let file = item.open(folder.as_fd())?;
        let now = stat_fd(file.as_fd()).at(End::Source, "stat")?;
        if FileState::of(&now) != item.seen {
            return Err(Failure::Changed("it was changed before it could be copied"));
        }
        let file = Arc::new(file);
        *held = Some(Arc::clone(&file));
        Ok(file)
    }

    /// All its parts were sent: with its attributes it is whole, unless it changed.
    fn close(&self, large: &OutgoingFile) {
        let checked = if self.options.dry == Dry::Network {
            Ok(Vec::new())
        } else {
            self.opened(large).and_then(|file| {
                let now = stat_fd(file.as_fd()).at(End::Source, "stat")?;
                if FileState::of(&now) != large.item.seen {
                    return Err(Failure::Changed("it was changed while it was copied"));
                }
                Ok(self.xattrs(file.as_fd(), &large.item.path()))
            })
        };
        match checked {
            Ok(xattrs) => {
                let mut out = Writer::new(kinds::CLOSE);
                out.u32(large.id);
                Entry { xattrs, ..self.origin.entry(&large.item) }.put(&mut out);
                if self.give_contents(out.0) {
                    self.moved(1, 0);
                }
                large.file.lock().take();
            }
            Err(failure) => self.abort(large, &failure),
        }
    }

    fn abort(&self, large: &OutgoingFile, failure: &Failure) {
        if large.over.swap(true, Ordering::SeqCst) {
            return;
        }
        self.copy_state.failed(&large.item.path(), failure);
        let mut out = Writer::new(kinds::ABORT);
        out.u32(large.id);
        self.give(out.0);
    }
}

/// Puts bytes that nothing can compress, in the form of a range of a file; their digest.
fn made_up((start, end): (u64, u64), out: &mut Writer) -> u128 {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    let bytes = BYTES.get_or_init(|| {
        let mut bytes = Vec::with_capacity(CONTENT_BYTES);
        while bytes.len() < CONTENT_BYTES {
            bytes.extend_from_slice(&random::<4096>());
        }
        bytes
    });
    let bytes = &bytes[..(end - start) as usize];
    let digest = XxHash3_128::oneshot(bytes);
    out.u128(digest);
    let runs = if start < end { vec![(start, end - start)] } else { Runs::new() };
    put_runs(&runs, out);
    out.0.extend_from_slice(bytes);
    digest
}

/// Puts a range of a file: the digest of its data, where its data is, the data.
fn contents(
    file: BorrowedFd<'_>,
    range: (u64, u64),
    sparse: bool,
    out: &mut Writer,
) -> Result<u128, Failure> {
    let mut runs = Runs::new();
    if range.0 < range.1 {
        for_data(file, range, sparse, |start, end| {
            runs.push((start, end - start));
            Ok(())
        })?;
    }
    let digest_at = out.written();
    out.u128(0);
    put_runs(&runs, out);
    let begin = out.written();
    let total: u64 = runs.iter().map(|(_, length)| length).sum();
    out.0.resize(begin + total as usize, 0);
    let mut at = begin;
    for (offset, length) in runs {
        let end = at + length as usize;
        read_full(file, offset, &mut out.0[at..end], End::Source)?;
        at = end;
    }
    let digest = XxHash3_128::oneshot(&out.0[begin..]);
    out.set_u128(digest_at, digest);
    Ok(digest)
}
