//! One thread of a copy: takes groups of entries and extents, and sees to it that each is there.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use rustix::fs::fsync;
use rustix::io::Errno;

use crate::contents::PIECE_BYTES;
use crate::counts::{add, ProblemKind};
use crate::destination::Folder;
use crate::direct::Aligned;
use crate::engine::Shared;
use crate::error::{At, End, Failure};
use crate::item::{letter, look, Item};
use crate::journal::Record;
use crate::large::{is_half_of, Large};
use crate::leftovers;
use crate::options::Fsync;
use crate::own::random;
use crate::queue::Task;
use crate::small::{open_file, There};

pub(crate) struct Worker<'a> {
    number: usize,
    pub(crate) shared: &'a Shared,
    pub(crate) buffer: Vec<u8>,
    pub(crate) aligned: Aligned,
    /// The directory in which this worker's draft may lie, as the journal has it.
    entered: Option<Vec<u8>>,
}

impl<'a> Worker<'a> {
    pub(crate) fn new(number: usize, shared: &'a Shared) -> Self {
        Self {
            number,
            shared,
            buffer: vec![0; PIECE_BYTES],
            aligned: Aligned::default(),
            entered: None,
        }
    }

    pub(crate) fn run(mut self) {
        while let Some(task) = self.shared.queue.take() {
            let mut large = None;
            match task {
                Task::Items(items) => self.items(items),
                Task::Links(items) => self.links(&items),
                Task::Extent(file, index) => {
                    self.extent(&file, index);
                    large = Some(file);
                }
            }
            self.shared.queue.done(large.as_ref());
        }
    }

    /// Copy entries of one directory.
    pub(crate) fn items(&mut self, items: Vec<Item>) {
        let Some(first) = items.first() else { return };
        let shared = self.shared;
        let directory = Arc::clone(&first.directory);
        let opened = shared.source.directory(&directory).at(End::Source, "open directory");
        let source = match opened {
            Ok(source) => source,
            Err(failure) => return items.iter().for_each(|i| self.failed(&i.path(), &failure)),
        };
        let folder = if shared.options.dry_run {
            shared.destination.find(&directory)
        } else {
            shared.destination.make(&directory).map(Some)
        };
        let folder = match folder {
            Ok(folder) => folder,
            Err(failure) => return items.iter().for_each(|i| self.failed(&i.path(), &failure)),
        };
        for item in items {
            if shared.ways.is_stopped() {
                return;
            }
            let path = item.path();
            if let Err(failure) = self.item(source.as_fd(), folder.as_ref(), item) {
                self.failed(&path, &failure);
            }
        }
        if let (Fsync::Each, Some(folder)) = (shared.options.fsync, &folder) {
            // Names are as durable as the directory they are in.
            if let Err(failure) = fsync(folder.fd()).at(End::Destination, "sync directory") {
                self.failed(&directory, &failure);
            }
        }
    }

    fn item(
        &mut self,
        source: BorrowedFd<'_>,
        folder: Option<&Folder>,
        mut item: Item,
    ) -> Result<(), Failure> {
        let shared = self.shared;
        item.look_again(source).at(End::Source, "look at")?;
        let name = shared.rename.clone().unwrap_or_else(|| item.name.clone());
        match item.letter {
            b's' => {
                let text = "is a socket, which only its own program can make".to_owned();
                shared.report.problem(item.path(), ProblemKind::Skipped, text);
                return Ok(());
            }
            b'?' => return Err(Failure::Clash("is of a type unknown here")),
            b'd' => return self.directory(folder, &item, &name),
            _ => {}
        }
        let Some(folder) = folder else {
            self.only_planned(&item);
            return self.only_read(source, &item);
        };
        if item.letter == b'f' && shared.options.dry_run {
            match self.there(source, Some(folder), &item, &name)? {
                There::Yes(found) => return self.mend(source, folder, &item, &name, &found),
                There::No => self.only_planned(&item),
            };
            return self.only_read(source, &item);
        }
        let directory = &item.directory.clone()[..];
        match item.letter {
            b'f' if item.seen.size > shared.extent_bytes => self.large(source, folder, item, name),
            b'f' => {
                self.entered(directory)?;
                self.small(source, folder, &item, &name)
            }
            b'l' => {
                self.entered(directory)?;
                self.symlink(source, folder, &item, &name)
            }
            _ => {
                self.entered(directory)?;
                self.special(source, folder, &item, &name)
            }
        }
    }

    /// Whether this is a dry run, which then has noted what would be made.
    pub(crate) fn only_planned(&self, item: &Item) -> bool {
        let shared = self.shared;
        if !shared.options.dry_run {
            return false;
        }
        let tally = &shared.report.tally;
        let mut bytes = 0;
        match item.letter {
            b'f' => {
                bytes = item.seen.size;
                add(&tally.files, 1);
                add(&tally.bytes, bytes);
            }
            b'l' => add(&tally.symlinks, 1),
            _ => add(&tally.specials, 1),
        }
        shared.report.plan(item.path(), item.letter, bytes);
        true
    }

    /// In a dry run that is to tell how fast the source is: read what would be copied.
    fn only_read(&mut self, source: BorrowedFd<'_>, item: &Item) -> Result<(), Failure> {
        if item.letter != b'f' || !self.shared.options.read_sources {
            return Ok(());
        }
        let file = open_file(source, &item.name, End::Source)?;
        let range = (0, item.seen.size);
        self.shared.ways.read(&mut self.buffer, file.as_fd(), range, item.sparse)
    }

    fn directory(
        &mut self,
        folder: Option<&Folder>,
        item: &Item,
        name: &[u8],
    ) -> Result<(), Failure> {
        let shared = self.shared;
        let there = folder.map(|folder| look(folder.fd(), name));
        let made = match there {
            Some(Ok(stat)) if letter(stat.stx_mode) == b'd' => false,
            Some(Ok(_)) => {
                return Err(Failure::Clash("at the destination its name is borne by no directory"))
            }
            Some(Err(Errno::NOENT)) | None => true,
            Some(Err(errno)) => return Err(errno).at(End::Destination, "look at"),
        };
        if shared.options.include.is_some() && made {
            // Made when something that is wanted lies in it.
            shared.remember_directory(item);
            return Ok(());
        }
        if made {
            // Another worker may have made it for what lies in it: the destination counts them.
            if !shared.options.dry_run {
                if let Some(folder) = folder {
                    shared.destination.make_in(folder, name)?;
                }
            } else {
                add(&shared.report.tally.directories, 1);
            }
        }
        shared.remember_directory(item);
        Ok(())
    }

    fn large(
        &mut self,
        source: BorrowedFd<'_>,
        folder: &Folder,
        item: Item,
        name: Vec<u8>,
    ) -> Result<(), Failure> {
        let shared = self.shared;
        if let There::Yes(found) = self.there(source, Some(folder), &item, &name)? {
            return self.mend(source, folder, &item, &name, &found);
        }
        let half = match shared.take_half(&item.path()) {
            Some(stale) if !is_half_of(&stale, &item, shared.extent_bytes) => {
                leftovers::larges(
                    &shared.destination,
                    [stale].into_iter(),
                    shared.session,
                    &shared.report,
                );
                None
            }
            half => half,
        };
        let key = random().at(End::Destination, "find a name")?;
        let ids = (shared.next_id(), key);
        let large = Large::new(item, name, ids, shared.session, shared.extent_bytes, half);
        shared.queue.push_large(Arc::new(large));
        Ok(())
    }

    /// Tell the journal where this worker's draft may lie from now on.
    pub(crate) fn entered(&mut self, directory: &[u8]) -> Result<(), Failure> {
        if self.shared.options.dry_run || self.entered.as_deref() == Some(directory) {
            return Ok(());
        }
        let worker = u32::try_from(self.number).unwrap_or(u32::MAX);
        self.record(&Record::Entered { worker, directory: directory.to_vec() })?;
        self.entered = Some(directory.to_vec());
        Ok(())
    }

    pub(crate) fn record(&self, record: &Record) -> Result<(), Failure> {
        let Some(journal) = &self.shared.journal else { return Ok(()) };
        journal.append(record).map_err(|error| {
            let errno = error.raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error);
            Failure::Call { end: End::Destination, doing: "write the journal", errno }
        })
    }

    /// Count and say what became of an entry; end the copy where there is no point in going on.
    pub(crate) fn failed(&self, path: &[u8], failure: &Failure) {
        let kind = match failure {
            Failure::Stopped => return,
            Failure::Changed(_) => ProblemKind::Changed,
            Failure::Call { end: End::Source, errno: Errno::NOENT, .. } => ProblemKind::Vanished,
            // Part of its path is no directory any more, or a link by now.
            Failure::Call { end: End::Source, errno: Errno::NOTDIR | Errno::LOOP, .. } => {
                ProblemKind::Changed
            }
            _ => ProblemKind::Error,
        };
        if let Some(fatal) = failure.fatal() {
            self.shared.end_for(fatal, path, failure);
            return;
        }
        self.shared.report.problem(path.to_vec(), kind, failure.to_string());
    }
}
