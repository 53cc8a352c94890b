//! One thread of a copy: takes groups of entries and extents, and copies them.

mod large;
mod links;
mod small;
mod special;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use super::context::Context;
use super::direct::Aligned;
use super::large_file::Large;
use super::task::Task;
use crate::counts::{add, ProblemKind};
use crate::error::{At, End, Failure};
use crate::file_io::PIECE_BYTES;
use crate::plan::{plan, Action, Transfer, Wanted};
use crate::sink::{Folder, Sink};
use crate::source::Item;

pub(super) struct Worker<'a> {
    number: usize,
    context: &'a Context,
    buffer: Vec<u8>,
    aligned: Aligned,
    /// The directory in which this worker's temporary file may be, as the journal has it.
    entered: Option<Vec<u8>>,
    /// The directory of the last entries: often the next ones are in it as well.
    opened: Option<Opened>,
}

/// A directory at both ends.
struct Opened {
    directory: Arc<[u8]>,
    source: OwnedFd,
    /// None in a dry run of what is not there yet.
    folder: Option<Folder>,
}

impl<'a> Worker<'a> {
    pub(super) fn new(number: usize, context: &'a Context) -> Self {
        let (buffer, aligned) = (vec![0; PIECE_BYTES], Aligned::default());
        Self { number, context, buffer, aligned, entered: None, opened: None }
    }

    pub(super) fn run(mut self) {
        while let Some(task) = self.context.queue.take(self.number) {
            let mut large = None;
            match task {
                Task::Items(items) => self.items(items),
                Task::Links(items) => self.links(&items),
                Task::Extent(file, index) => {
                    self.extent(&file, index);
                    large = Some(file);
                }
                Task::Part(file, part) => self.part(&file, part),
            }
            self.context.queue.done(self.number, large.as_ref());
        }
    }

    /// Copy entries of one directory.
    fn items(&mut self, items: Vec<Item>) {
        let Some(first) = items.first() else { return };
        let context = self.context;
        let directory = Arc::clone(&first.directory);
        let opened = match self.opened.take() {
            Some(opened) if opened.directory == directory => Ok(opened),
            _ => self.open(&directory),
        };
        let opened = match opened {
            Ok(opened) => opened,
            Err(failure) => {
                return items.iter().for_each(|item| context.failed(&item.path(), &failure))
            }
        };
        let (source, folder) = (opened.source.as_fd(), opened.folder.as_ref());
        for item in items {
            // Entries without contents pause as well.
            if context.state.is_stopped() || context.state.pass(0).is_err() {
                return;
            }
            let path = item.path();
            if let Err(failure) = self.item(source, folder, &path, item) {
                context.failed(&path, &failure);
            }
        }
        if let Some(folder) = folder {
            if let Err(failure) = context.sink.sync_names(folder) {
                context.failed(&directory, &failure);
            }
        }
        self.opened = Some(opened);
    }

    fn open(&self, directory: &Arc<[u8]>) -> Result<Opened, Failure> {
        let context = self.context;
        let source = context.source.root.directory(directory).at(End::Source, "open directory")?;
        let folder = if context.options.dry_run {
            context.sink.destination.find(directory)?
        } else {
            Some(context.sink.destination.make(directory, &context.state.report)?)
        };
        Ok(Opened { directory: Arc::clone(directory), source, folder })
    }

    fn item(
        &mut self,
        source: BorrowedFd<'_>,
        folder: Option<&Folder>,
        path: &[u8],
        mut item: Item,
    ) -> Result<(), Failure> {
        let context = self.context;
        item.refresh(source).at(End::Source, "stat")?;
        if item.letter == b's' {
            let text = "is a socket, which only its own program can make";
            context.state.problem(path, ProblemKind::Skipped, text);
            return Ok(());
        }
        let (_, name) = context.sink.place(path);
        let device = Self::device_of(source, &item)?;
        let found = folder.map(|folder| Sink::found(folder, name)).transpose()?.flatten();
        let wanted =
            Wanted { letter: item.letter, seen: &item.seen, target: &item.symlink, device };
        let is_large = item.seen.size > context.policy.extent_bytes;
        let recovered = is_large.then(|| context.sink.recovered(path)).flatten();
        let there = found.as_ref().map(|(found, _)| found);
        let mut action = plan(&wanted, there, recovered.as_ref(), &context.policy);
        if let (Action::Compare(transfer), Some(folder)) = (&action, folder) {
            let is_same = self.has_same_contents(source, folder, &item, name)?;
            let transfer = transfer.clone();
            action = if is_same { Action::FixAttributes } else { Action::Copy(transfer) };
        }
        let replaces =
            matches!(action, Action::Copy(_) | Action::MakeSymlink | Action::MakeSpecial);
        if let (Some(backup), true, true, Some(folder)) =
            (&context.backup, replaces, found.is_some(), folder)
        {
            self.enter(&item.directory)?;
            backup.keep(folder.fd(), &item.directory, name)?;
        }
        match (action, folder) {
            (Action::Conflict(failure), _) => return Err(failure),
            (Action::MakeDirectory, _) => return self.make_directory(folder, &item),
            (Action::FixAttributes, _) if item.letter == b'd' => context.remember_directory(&item),
            (Action::Same, _) => add(&context.state.report.tally.same, 1),
            (Action::FixAttributes, Some(folder)) => match found {
                Some((_, found)) if item.letter == b'f' => {
                    self.repair(source, folder, &item, name, &found)?;
                }
                _ => self.repair_special(source, folder, &item, name)?,
            },
            (_, None) => return self.only_planned(source, &item),
            _ if context.options.dry_run => return self.only_planned(source, &item),
            (Action::MakeSymlink | Action::MakeSpecial, Some(folder)) => {
                self.make_special(source, folder, &item, name, device)?;
            }
            (Action::Copy(Transfer::Large { missing, resume }), Some(_)) => {
                let extent_bytes = context.policy.extent_bytes;
                let (sink, report) = (&context.sink, &context.state.report);
                let planned = (missing, resume);
                let expected =
                    sink.expect_large(path, &item.seen, extent_bytes, planned, report)?;
                if context.options.divide {
                    context.divided.lock().push(sink.divide(expected, &context.state.report)?);
                    return Ok(());
                }
                let large = Large::new(item, expected, extent_bytes, context.by_target);
                context.queue.push_large(Arc::new(large));
            }
            (Action::Copy(Transfer::Small) | Action::Compare(_), Some(folder)) => {
                self.enter(&item.directory)?;
                self.small(source, folder, &item, name)?;
            }
        }
        Ok(())
    }

    /// Report what a copy would make. Its contents are read where the source's speed is asked for.
    fn only_planned(&mut self, source: BorrowedFd<'_>, item: &Item) -> Result<(), Failure> {
        let context = self.context;
        let tally = &context.state.report.tally;
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
        context.state.report.plan(item.path(), item.letter, bytes);
        if item.letter != b'f' || !context.options.read_sources {
            return Ok(());
        }
        let file = item.open(source)?;
        let range = (0, item.seen.size);
        context.mover.read(&mut self.buffer, file.as_fd(), range, item.sparse)
    }

    fn make_directory(&self, folder: Option<&Folder>, item: &Item) -> Result<(), Failure> {
        let context = self.context;
        // Where a pattern selects files, a directory is made with the first file in it.
        if context.options.include.is_none() {
            if context.options.dry_run {
                add(&context.state.report.tally.directories, 1);
            } else if let Some(folder) = folder {
                context.sink.destination.make_in(folder, &item.path(), &context.state.report)?;
            }
        }
        context.remember_directory(item);
        Ok(())
    }

    fn enter(&mut self, directory: &[u8]) -> Result<(), Failure> {
        self.context.sink.enter(&mut self.entered, self.number, directory)
    }
}
