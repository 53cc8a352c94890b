//! One thread of a walk: reads directories, calls stat(2) on entries, fills batches.

use std::collections::HashMap;
use std::ffi::CStr;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::{readlinkat, FileType, RawDir};
use rustix::io::Errno;

use super::follow::{Way, TOO_MANY};
use super::shared::Shared;
use super::task::{Block, OpenDirectory, Task};
use crate::batch::{device, Attributes, Batch, DirectoryState};
use crate::exclude::join;
use crate::layouts::WorkerLayouts;
use crate::stat::{stat_name, stat_open};

/// What getdents64(2) may fill at once: some 2,000 names, the unit of sorting and of sharing a huge directory.
const NAMES_BYTES: usize = 64 * 1024;

/// Blocks of one directory that may wait for other workers; further ones are done by the one that reads.
const SHARED_BLOCKS: usize = 32;

/// Entries of a block between two looks whether other workers wait.
const LOOK_ENTRIES: usize = 4;

/// A block is shared with workers that wait once it has taken this long: less than that a thread takes to wake up.
const SHARED_AFTER: Duration = Duration::from_micros(200);

/// Entries leave for a consumer that waits, at most this often.
const EAGER_INTERVAL: Duration = Duration::from_millis(1);

pub(super) struct Worker<'a> {
    number: usize,
    shared: &'a Shared,
    batch: Batch,
    /// Positions of directories in the batch, by id; the last one apart, as most entries are in it.
    places: HashMap<u64, usize>,
    last: Option<(u64, usize)>,
    buffer: Vec<u8>,
    layouts: Option<WorkerLayouts<'a>>,
    flushed: Instant,
    /// The walk was stopped: no more batches are taken.
    unwanted: bool,
}

/// Also after a panic: the consumer must not wait for this worker for ever.
impl Drop for Worker<'_> {
    fn drop(&mut self) {
        self.shared.batches.worker_ended();
    }
}

impl<'a> Worker<'a> {
    pub(super) fn new(number: usize, shared: &'a Shared) -> Self {
        Self {
            number,
            shared,
            batch: Batch::default(),
            places: HashMap::new(),
            last: None,
            buffer: Vec::with_capacity(NAMES_BYTES),
            layouts: shared.options.layouts.as_ref().map(WorkerLayouts::new),
            flushed: Instant::now(),
            unwanted: false,
        }
    }

    pub(super) fn run(mut self) {
        while let Some(task) = self.next() {
            match task {
                Task::Directory(path, above) => self.directory(path, above),
                Task::Block(directory, block) => {
                    self.block(&directory, block);
                    self.finish(&directory);
                }
            }
            self.shared.queue.done();
            if self.unwanted {
                return;
            }
        }
        if !self.shared.queue.is_stopped() {
            self.flush();
        }
    }

    /// The next task, unless it is for others.
    fn next(&mut self) -> Option<Task> {
        loop {
            match self.taken()? {
                Task::Directory(path, _) if self.shared.given_away.is_asked() => {
                    self.shared.given_away.add(path);
                    self.shared.queue.done();
                }
                task => return Some(task),
            }
        }
    }

    /// What an eager consumer may have is not kept while this worker waits for a task.
    fn taken(&mut self) -> Option<Task> {
        let (queue, number) = (&self.shared.queue, self.number);
        if !self.shared.options.eager {
            return queue.take(number);
        }
        queue.try_take(number).or_else(|| {
            if !queue.is_stopped() {
                self.flush();
            }
            queue.take(number)
        })
    }

    fn directory(&mut self, path: Vec<u8>, above: Option<Arc<Way>>) {
        let opened =
            self.shared.root.directory(&path).and_then(|fd| stat_open(&fd).map(|stat| (fd, stat)));
        let (fd, stat) = match opened {
            Ok(opened) => opened,
            Err(error) => return self.failed(path, "open directory", error),
        };
        if let Some(children) = self.shared.options.known.unchanged(&path, &stat) {
            self.shared.counters.unchanged.fetch_add(1, Ordering::Relaxed);
            let at = self.batch.directories.push(&path, &stat);
            self.batch.directories.state[at] = DirectoryState::Unchanged as i8;
            let tasks = children.iter().cloned().map(|path| Task::Directory(path, None));
            self.shared.queue.push(self.number, tasks);
            return self.flush_if_full();
        }
        let mut way = None;
        if let Some(follow) = &self.shared.options.follow {
            if let Some(why) = follow.refuses(&fd, &stat, above.as_ref()) {
                return self.note(path, || why.to_owned());
            }
            way = Some(Way::of(&stat, above));
        }
        self.shared.counters.directories.fetch_add(1, Ordering::Relaxed);
        let directory = Arc::new(OpenDirectory {
            id: self.shared.next_id.fetch_add(1, Ordering::Relaxed),
            fd,
            path,
            stat,
            way,
            rows: AtomicI64::new(0),
            left: AtomicUsize::new(1),
        });
        self.read(&directory);
        self.finish(&directory);
    }

    /// Read the names, block by block. This worker does the first block; later ones are tasks for all.
    fn read(&mut self, directory: &Arc<OpenDirectory>) {
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.clear();
        let mut names = RawDir::new(&directory.fd, buffer.spare_capacity_mut());
        let mut block = Block::default();
        let mut first = true;
        loop {
            match names.next() {
                None => break,
                Some(Err(error)) => {
                    self.failed(directory.path.clone(), "read directory", error);
                    break;
                }
                Some(Ok(entry)) => {
                    let name = entry.file_name();
                    let bytes = name.to_bytes();
                    if bytes != b"." && bytes != b".." {
                        block.push(entry.ino(), name);
                    }
                }
            }
            if names.is_buffer_empty() && !block.entries.is_empty() {
                if self.unwanted || self.shared.queue.is_stopped() {
                    break;
                }
                let full = std::mem::take(&mut block);
                if first || directory.left.load(Ordering::Relaxed) > SHARED_BLOCKS {
                    self.block(directory, full);
                } else {
                    directory.left.fetch_add(1, Ordering::SeqCst);
                    let task = Task::Block(Arc::clone(directory), full);
                    self.shared.queue.push(self.number, [task].into_iter());
                }
                first = false;
            }
        }
        self.buffer = buffer;
    }

    /// Record the entries of a block in the order of their inodes, which is that of a disk's inode table.
    fn block(&mut self, directory: &Arc<OpenDirectory>, mut block: Block) {
        block.entries.sort_unstable_by_key(|entry| entry.0);
        let began = Instant::now();
        let mut found = Vec::new();
        let mut bytes = 0;
        let mut recorded = 0;
        let mut at = 0;
        while let Some(&(_, start, end)) = block.entries.get(at) {
            at += 1;
            if at % LOOK_ENTRIES == 0
                && self.shared.queue.has_idle()
                && began.elapsed() >= SHARED_AFTER
            {
                self.share(directory, &mut block, at, &mut found);
            }
            let (start, end) = (start as usize, end as usize);
            let Ok(name) = CStr::from_bytes_with_nul(&block.names[start..end]) else { continue };
            if let Some((is_directory, size)) = self.entry(directory, name) {
                recorded += 1;
                bytes += size;
                if is_directory {
                    let path = join(&directory.path, name.to_bytes());
                    found.push(Task::Directory(path, directory.way.clone()));
                }
            }
        }
        directory.rows.fetch_add(recorded, Ordering::SeqCst);
        self.shared.counters.entries.fetch_add(recorded.unsigned_abs(), Ordering::Relaxed);
        self.shared.counters.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.shared.queue.push(self.number, found.into_iter());
    }

    /// Give workers that wait the directories found so far, and half of what is left of a block whose entries take
    /// long: each waits for a server.
    fn share(
        &self,
        directory: &Arc<OpenDirectory>,
        block: &mut Block,
        at: usize,
        found: &mut Vec<Task>,
    ) {
        let queue = &self.shared.queue;
        queue.push(self.number, std::mem::take(found).into_iter());
        let kept = at + (block.entries.len() - at) / 2;
        if block.entries.len() - kept < LOOK_ENTRIES {
            return;
        }
        let mut rest = Block::default();
        for &(inode, start, end) in &block.entries[kept..] {
            let name = CStr::from_bytes_with_nul(&block.names[start as usize..end as usize]);
            if let Ok(name) = name {
                rest.push(inode, name);
            }
        }
        block.entries.truncate(kept);
        directory.left.fetch_add(1, Ordering::SeqCst);
        queue.push(self.number, [Task::Block(Arc::clone(directory), rest)].into_iter());
    }

    /// Record an entry; whether it is a directory to go into, and the bytes it has as a regular file.
    fn entry(&mut self, directory: &OpenDirectory, name: &CStr) -> Option<(bool, u64)> {
        let shared = self.shared;
        if shared.options.exclude.matches(&directory.path, name.to_bytes()) {
            shared.counters.excluded.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        let mut stat = match stat_name(&directory.fd, name) {
            Ok(stat) => stat,
            Err(error) => {
                self.failed(join(&directory.path, name.to_bytes()), "stat", error);
                return None;
            }
        };
        let mut link = Vec::new();
        if let Some(follow) = &shared.options.follow {
            match follow.target((&directory.fd, directory.way.as_ref()), name, stat) {
                Ok(found) => (stat, link) = found,
                Err(why) => {
                    self.note(join(&directory.path, name.to_bytes()), || why);
                    return None;
                }
            }
        }
        let elsewhere = shared.options.one_file_system && device(&stat) != shared.root_device;
        if elsewhere {
            shared.counters.excluded.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        let kind = FileType::from_raw_mode(u32::from(stat.stx_mode));
        if kind == FileType::Symlink {
            match readlinkat(&directory.fd, name, Vec::new()) {
                Ok(target) => link = target.into_bytes(),
                // It is something else by now: what stat saw stands, without a target.
                Err(error) => {
                    self.failed(join(&directory.path, name.to_bytes()), "read link", error)
                }
            }
        }
        let is_file = kind == FileType::RegularFile;
        let place = self.place(directory);
        let layouts = self.layouts.as_mut().filter(|_| is_file && link.is_empty());
        let asked = layouts.map_or(Ok(None), |layouts| {
            layouts.objects_of(directory.fd.as_fd(), name, stat.stx_size, device(&stat))
        });
        let (layout, error) = asked.map_or_else(|error| (None, Some(error)), |found| (found, None));
        self.batch.directories.rows[place] += 1;
        self.batch.entries.push(place, name.to_bytes(), &Attributes::from(&stat), &link, layout);
        if let Some(error) = error {
            self.note(join(&directory.path, name.to_bytes()), || format!("layout: {error}"));
        }
        self.flush_if_full();
        Some((kind == FileType::Directory, if is_file { stat.stx_size } else { 0 }))
    }

    /// One of a directory's parts is done; after the last one, its number of entries is final.
    fn finish(&mut self, directory: &OpenDirectory) {
        if directory.left.fetch_sub(1, Ordering::SeqCst) > 1
            || self.unwanted
            || self.shared.queue.is_stopped()
        {
            return;
        }
        let place = self.place(directory);
        self.batch.directories.total[place] = directory.rows.load(Ordering::SeqCst);
        self.flush_if_full();
    }

    fn place(&mut self, directory: &OpenDirectory) -> usize {
        if let Some((id, place)) = self.last {
            if id == directory.id {
                return place;
            }
        }
        let directories = &mut self.batch.directories;
        let place = *self
            .places
            .entry(directory.id)
            .or_insert_with(|| directories.push(&directory.path, &directory.stat));
        self.last = Some((directory.id, place));
        place
    }

    fn failed(&mut self, path: Vec<u8>, doing: &str, error: Errno) {
        let follows = self.shared.options.follow.is_some();
        if follows && error == Errno::LOOP {
            return self.note(path, || TOO_MANY.to_owned());
        }
        // NOENT: gone. NOTDIR, LOOP, INVAL: a directory or link that became something else.
        if matches!(error, Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::INVAL) {
            self.shared.counters.vanished.fetch_add(1, Ordering::Relaxed);
        } else {
            let text = std::io::Error::from(error);
            self.note(path, || format!("{doing}: {text}"));
        }
    }

    fn note(&mut self, path: Vec<u8>, text: impl FnOnce() -> String) {
        if self.shared.count_error() {
            self.batch.errors.push((path, text()));
        }
    }

    fn flush_if_full(&mut self) {
        let most = self.shared.options.batch_rows;
        let is_full = self.batch.len() >= most || self.batch.directories.inode.len() >= most;
        if is_full || self.is_awaited() {
            self.flush();
        }
    }

    fn is_awaited(&self) -> bool {
        self.shared.options.eager
            && self.shared.batches.is_awaited()
            && self.flushed.elapsed() >= EAGER_INTERVAL
    }

    fn flush(&mut self) {
        let batch = std::mem::take(&mut self.batch);
        self.places.clear();
        self.last = None;
        if self.shared.options.eager {
            self.flushed = Instant::now();
        }
        if !batch.is_empty() && !self.shared.batches.send(batch) {
            self.unwanted = true;
        }
    }
}
