//! One file, by all of its names: contents into a new inode, which then takes the names.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use rustix::fs::{fdatasync, ftruncate, renameat, renameat_with, RenameFlags};
use rustix::io::Errno;
use twox_hash::XxHash3_128;

use super::context::Context;
use super::journal::Group;
use super::lease::{Asked, Lease};
use super::stripes::Current;
use super::temporary::{layout_of, NewInode, TemporaryName};
use crate::attributes::Attributes;
use crate::counts::add;
use crate::error::{At, End, Failure};
use crate::file_io::{forget, open_file};
use crate::options::Verify;
use crate::source::Item;
use crate::stat::{has_holes, stat_at, stat_fd, FileState, Metadata};

/// Bytes that are read and written at a time: the longest request of most clients.
const PIECE_BYTES: usize = 1 << 20;

/// Bytes that are copied between two checks of the lease.
const LOOK_BYTES: u64 = 8 << 20;

/// Bytes of a range that one thread copies.
const EXTENT_BYTES: u64 = 32 << 20;

/// Larger files are copied by several threads, one such file at a time.
const LARGE_BYTES: u64 = 4 * EXTENT_BYTES;

const IN_USE: Failure = Failure::Changed("is open for writing in another process: left as it was");
const CHANGED: Failure = Failure::Changed("changed while it was read: left as it was");
const ARCHIVED: Failure =
    Failure::Clash("is archived, and reading would bring it back: restore it first");
const OTHER_FORM: Failure =
    Failure::Clash("has mirrors or data elsewhere, which a new layout would lose: left as it was");
const WITHOUT_LAYOUT: Failure = Failure::Clash("is on a file system without stripes");
const OTHER_NAMES: Failure =
    Failure::Clash("has hard links outside of what is restriped: restripe a tree with all of them");
const NOT_KEPT: Failure = Failure::Clash(
    "its owner or attributes cannot be kept by this user: left as it was; restripe it as its owner or as root",
);

/// Lay one file out anew, given by all of its names in the tree.
pub(super) fn restripe(context: &Context, names: &[Item]) -> Result<(), Failure> {
    let Some(first) = names.first() else { return Ok(()) };
    let folder =
        context.source.root.directory(&first.directory).at(End::Source, "open directory")?;
    let layout = layout_of(folder.as_fd(), &first.name).at(End::Source, "read layout")?;
    let Some(layout) = layout else { return Err(WITHOUT_LAYOUT) };
    let Some(class) = context.class_of(first.seen.size) else {
        add(&context.state.report.tally.same, names.len() as u64);
        return Ok(());
    };
    match Current::of(&layout) {
        Current::Striped(shape) if class.is_of(&shape) => {
            add(&context.state.report.tally.same, names.len() as u64);
            return Ok(());
        }
        Current::Striped(_) => {}
        Current::Archived => return Err(ARCHIVED),
        Current::Other => return Err(OTHER_FORM),
    }
    if context.options.dry_run {
        if names.len() != first.links as usize {
            return Err(OTHER_NAMES);
        }
        for item in names {
            context.state.report.plan(item.path(), b'f', item.seen.size);
        }
        add(&context.state.report.tally.files, 1);
        add(&context.state.report.tally.bytes, first.seen.size);
        return Ok(());
    }
    let source = open_file(folder.as_fd(), &first.name, End::Source)?;
    let lease = Lease::ask(source.as_fd());
    if lease.asked == Asked::InUse {
        return Err(IN_USE);
    }
    let stat = stat_fd(source.as_fd()).at(End::Source, "stat")?;
    let before = FileState::of(&stat);
    // Not the number that the walk saw: it has removed leftovers since, which may be names of this file.
    if stat.stx_nlink as usize != names.len() {
        return Err(OTHER_NAMES);
    }
    // Another size may be of another class.
    let Some(class) = context.class_of(before.size) else { return Err(CHANGED) };
    for item in names {
        context.before_change(item)?;
    }
    let new = NewInode::make(folder.as_fd(), &class.request, &context.live)?;
    let sparse = has_holes(before.size, stat.stx_blocks);
    let contents =
        Contents { context, from: source.as_fd(), to: new.file.as_fd(), lease: &lease, sparse };
    contents.copy(before.size)?;
    ftruncate(&new.file, before.size).at(End::Destination, "set size")?;
    let metadata = Metadata::of(&stat);
    let attributes = Attributes::Of(source.as_fd());
    let lost = context.preserver.apply(&attributes, new.file.as_fd(), &metadata, false)?;
    if lost.is_some() || context.preserver.times(new.file.as_fd(), &metadata)?.is_some() {
        return Err(NOT_KEPT);
    }
    if context.options.sync {
        fdatasync(&new.file).at(End::Destination, "sync")?;
    }
    let now = FileState::of(&stat_fd(source.as_fd()).at(End::Source, "stat")?);
    if lease.is_broken() || now != before {
        return Err(CHANGED);
    }
    let exchange =
        Exchange { context, names, source: &source, lease: &lease, before, links: stat.stx_nlink };
    exchange.take_names(new)?;
    add(&context.state.report.tally.files, 1);
    add(&context.state.report.tally.hard_links, names.len() as u64 - 1);
    Ok(())
}

/// Contents on their way.
struct Contents<'a> {
    context: &'a Context,
    from: BorrowedFd<'a>,
    to: BorrowedFd<'a>,
    lease: &'a Lease<'a>,
    sparse: bool,
}

impl Contents<'_> {
    fn copy(&self, size: u64) -> Result<(), Failure> {
        let verify = self.context.options.verify;
        let digests = Mutex::new(std::collections::BTreeMap::new());
        self.each_extent(size, |range| {
            let digest = self.copy_range(range)?;
            digests.lock().insert(range.0, digest);
            Ok(())
        })?;
        if verify == Verify::None {
            return Ok(());
        }
        if verify == Verify::Storage {
            forget(self.to)?;
        }
        self.each_extent(size, |range| {
            let found = self.read_back(range)?;
            let wanted = digests.lock().get(&range.0).copied();
            (wanted == Some(found)).then_some(()).ok_or(Failure::Damaged)
        })?;
        add(&self.context.state.report.tally.verified, 1);
        Ok(())
    }

    /// Call `each` for every extent: of a large file in several threads.
    fn each_extent(
        &self,
        size: u64,
        each: impl Fn((u64, u64)) -> Result<(), Failure> + Sync,
    ) -> Result<(), Failure> {
        let range = |start: u64| (start, (start + EXTENT_BYTES).min(size));
        if size <= LARGE_BYTES {
            return (0..size)
                .step_by(EXTENT_BYTES as usize)
                .try_for_each(|start| each(range(start)));
        }
        let _alone = self.context.large.lock();
        let (next, failed) = (AtomicU64::new(0), Mutex::new(None));
        let extents = size.div_ceil(EXTENT_BYTES);
        std::thread::scope(|scope| {
            for _ in 0..(self.context.options.workers as u64).min(extents) {
                scope.spawn(|| loop {
                    let extent = next.fetch_add(1, Ordering::Relaxed);
                    if extent >= extents || failed.lock().is_some() {
                        return;
                    }
                    if let Err(failure) = each(range(extent * EXTENT_BYTES)) {
                        failed.lock().get_or_insert(failure);
                    }
                });
            }
        });
        failed.into_inner().map_or(Ok(()), Err)
    }

    fn copy_range(&self, range: (u64, u64)) -> Result<u128, Failure> {
        let (context, sparse) = (self.context, self.sparse);
        let mut buffer = vec![0; PIECE_BYTES.min((range.1 - range.0) as usize)];
        let mut digests = XxHash3_128::new();
        for piece in pieces(range) {
            if self.lease.is_broken() {
                return Err(IN_USE);
            }
            let verified = context.options.verify != Verify::None;
            let (from, to) = (self.from.into(), self.to.into());
            let moved = context.mover.copy(&mut buffer, from, to, piece, sparse, verified)?;
            digests.write(&moved.digest.to_le_bytes());
            add(&context.state.report.tally.bytes, moved.bytes);
        }
        Ok(digests.finish_128())
    }

    fn read_back(&self, range: (u64, u64)) -> Result<u128, Failure> {
        let mut buffer = vec![0; PIECE_BYTES.min((range.1 - range.0) as usize)];
        let mut digests = XxHash3_128::new();
        for piece in pieces(range) {
            let mover = &self.context.mover;
            let found = mover.digest(&mut buffer, self.to.into(), self.from, piece, self.sparse)?;
            digests.write(&found.to_le_bytes());
        }
        Ok(digests.finish_128())
    }
}

/// A range in pieces, between which it is looked whether another process wants to write to the file.
fn pieces((start, end): (u64, u64)) -> impl Iterator<Item = (u64, u64)> {
    let starts = (start..end).step_by(LOOK_BYTES as usize);
    starts.map(move |at| (at, (at + LOOK_BYTES).min(end)))
}

/// The names of one inode on their way to another.
struct Exchange<'a> {
    context: &'a Context,
    names: &'a [Item],
    source: &'a OwnedFd,
    lease: &'a Lease<'a>,
    before: FileState,
    links: u32,
}

impl Exchange<'_> {
    /// Give the new inode every name; after a failure all have the old one again.
    fn take_names(&self, new: NewInode<'_>) -> Result<(), Failure> {
        let several = self.names.len() > 1;
        let key =
            if several { Some(self.context.journal()?.begin(&self.group(&new)?)?) } else { None };
        let NewInode { name, file } = new;
        let mut moved: Vec<(TemporaryName<'_>, &Item)> = Vec::with_capacity(self.names.len());
        let mut first = Some(name);
        let mut result = self.names.iter().try_for_each(|item| {
            let temporary = match first.take() {
                Some(name) => name,
                None => {
                    let folder = self.context.source.root.directory(&item.directory);
                    let folder = folder.at(End::Destination, "open directory")?;
                    TemporaryName::of(folder.as_fd(), file.as_fd(), &self.context.live)
                        .at(End::Destination, "link")?
                }
            };
            self.exchange(&temporary, &item.name)?;
            moved.push((temporary, item));
            Ok(())
        });
        if result.is_ok() {
            result = self.is_unchanged(&moved);
        }
        if result.is_err() {
            for (temporary, item) in moved.iter().rev() {
                let (folder, name) = (temporary.folder(), &item.name[..]);
                // What fails here stays as it is: both inodes are complete.
                let _ =
                    renameat_with(folder, &temporary.name[..], folder, name, RenameFlags::EXCHANGE);
            }
        }
        drop(moved);
        if let Some(key) = key {
            self.context.journal()?.end(key)?;
        }
        result?;
        for item in self.names {
            self.context.after_change(item);
        }
        Ok(())
    }

    fn group(&self, new: &NewInode<'_>) -> Result<Group, Failure> {
        let stat = stat_fd(new.file.as_fd()).at(End::Destination, "stat")?;
        Ok(Group {
            device: self.before.device,
            old_inode: self.before.inode,
            size: self.before.size,
            mtime: self.before.mtime,
            new_inode: stat.stx_ino,
            names: self.names.iter().map(Item::path).collect(),
        })
    }

    /// Exchange a temporary name of the new inode with a name of the old one.
    fn exchange(&self, temporary: &TemporaryName<'_>, name: &[u8]) -> Result<(), Failure> {
        let (folder, new) = (temporary.folder(), &temporary.name[..]);
        let found = stat_at(folder, name).at(End::Source, "stat")?;
        if found.stx_ino != self.before.inode {
            return Err(CHANGED);
        }
        match renameat_with(folder, new, folder, name, RenameFlags::EXCHANGE) {
            Ok(()) => {}
            // A file system that cannot exchange: the old inode loses this name at once.
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                return renameat(folder, new, folder, name).at(End::Destination, "give name");
            }
            Err(errno) => return Err(errno).at(End::Destination, "give name"),
        }
        let taken = stat_at(folder, new).at(End::Source, "stat")?;
        if taken.stx_ino != self.before.inode {
            // Another process put another file there in between, which gets its name again.
            renameat_with(folder, new, folder, name, RenameFlags::EXCHANGE)
                .at(End::Destination, "give name back")?;
            return Err(CHANGED);
        }
        Ok(())
    }

    /// No process has changed the old inode, and none waits for doing so.
    fn is_unchanged(&self, moved: &[(TemporaryName<'_>, &Item)]) -> Result<(), Failure> {
        let stat = stat_fd(self.source.as_fd()).at(End::Source, "stat")?;
        let now = FileState::of(&stat);
        // Its names are the temporary ones by now, or none where they could not be exchanged.
        let same = (now.size, now.mtime) == (self.before.size, self.before.mtime)
            && (stat.stx_nlink == self.links || stat.stx_nlink == 0)
            && !moved.is_empty();
        (same && !self.lease.is_broken()).then_some(()).ok_or(CHANGED)
    }
}
