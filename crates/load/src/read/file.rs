//! Reads one piece: opens and checks the file, and handles one that changed since it was recorded.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use rustix::io::Errno;
use waystage_catalog::check::{Differences, Recorded};
use waystage_catalog::{CheckedTree, OpenFailed, Opened};

use super::region::{append, append_to_end, Region};
use crate::buffer::{Buffer, Pool};
use crate::error::{Failure, Trouble};
use crate::files::{Extent, Files};
use crate::plan::Delivery;
use crate::schedule::Rules;
use crate::stream::Item;

/// Files of up to this many bytes are read to their end, which tells their size: a file server need not be asked for
/// it. For larger files that message costs little, and the read behind the end might be a separate request.
const READ_TO_END: u64 = 512 << 10;

/// The files, and the rules for reading them.
pub(super) struct Source {
    pub(super) files: Arc<Files>,
    pub(super) tree: CheckedTree,
    pub(super) delivery: Delivery,
    pool: Arc<Pool>,
    memory_bytes: u64,
    /// Whether a file whose size differs from its entry is delivered as it is.
    resized: bool,
}

impl Source {
    pub(super) fn new(files: Arc<Files>, tree: CheckedTree, rules: &Rules) -> Self {
        Self {
            files,
            tree,
            delivery: rules.delivery,
            pool: Arc::default(),
            memory_bytes: rules.memory_bytes,
            resized: rules.resized,
        }
    }
}

/// The result of a piece.
#[derive(Debug)]
pub(super) struct Outcome {
    /// What is delivered, where this was the last piece of its item.
    pub(super) bytes: Result<Option<Buffer>, Failure>,
    /// How many bytes were read.
    pub(super) read: u64,
    /// Whether the file became shorter while it was read.
    pub(super) shrunk: bool,
}

/// An item of several pieces, which several loaders read.
#[derive(Debug)]
pub(super) struct Assembly {
    opened: OnceLock<Result<Opened, Failure>>,
    region: OnceLock<Option<Region>>,
    /// Pieces not read yet.
    left: AtomicUsize,
    /// Whether a piece was not all there: then the file is read anew as a whole.
    broken: AtomicBool,
}

impl Assembly {
    pub(super) fn new(pieces: usize) -> Self {
        Self {
            opened: OnceLock::new(),
            region: OnceLock::new(),
            left: AtomicUsize::new(pieces),
            broken: AtomicBool::new(false),
        }
    }
}

/// A file that a loader keeps open, because the next piece is often of the same.
pub(super) type OpenedFile = Option<(u32, Opened)>;

/// Read one extent of an item.
pub(super) fn read(
    source: &Source,
    item: &Item,
    extent: Extent,
    assembly: Option<&Arc<Assembly>>,
    last: &mut OpenedFile,
) -> Outcome {
    let outcome = match assembly {
        Some(assembly) => together(source, item, extent, assembly),
        None => alone(source, item, extent, last),
    };
    outcome.unwrap_or_else(|failure| Outcome { bytes: Err(failure), read: 0, shrunk: false })
}

/// An item of one extent: a file, or a piece of an object.
fn alone(
    source: &Source,
    item: &Item,
    extent: Extent,
    last: &mut OpenedFile,
) -> Result<Outcome, Failure> {
    if source.delivery == Delivery::Files {
        if source.files.size(item.file) <= READ_TO_END {
            return small(source, item.file);
        }
        return as_it_is(source, item.file, &open(source, item.file, CheckedTree::open_file)?);
    }
    if last.as_ref().is_none_or(|(file, _)| *file != item.file) {
        *last = Some((item.file, open(source, item.file, CheckedTree::open_file)?));
    }
    let Some((_, opened)) = last.as_ref() else { return Ok(nothing()) };
    let now = opened.stat.stx_size;
    as_recorded(source, item.file, now)?;
    let Some((offset, length)) = part(extent, source.files.size(item.file), now) else {
        return Ok(nothing());
    };
    if length > extent.length {
        within_memory(source, item.file, length)?;
    }
    contents(source, item.file, opened, offset, length)
}

/// A small file. Where it is not what was recorded, it is looked at again and read anew.
fn small(source: &Source, file: u32) -> Result<Outcome, Failure> {
    let mut opened = open(source, file, CheckedTree::open_as_known)?;
    let recorded = source.files.size(file);
    if opened.stat.stx_size == recorded {
        let mut buffer = memory(source, file, recorded)?;
        let wanted = recorded as usize;
        let there = append_to_end(&opened.file, &mut buffer.bytes, wanted)
            .map_err(|error| unreadable(source, file, error))?;
        if there {
            return Ok(Outcome { bytes: Ok(Some(buffer)), read: recorded, shrunk: false });
        }
        let entry = source.files.recorded(file);
        let look = |path: &[u8]| source.tree.look_again(path, entry, &mut opened);
        source.files.with_path(file, look).map_err(|error| unreadable(source, file, error))?;
    }
    as_it_is(source, file, &opened)
}

/// A whole file, of as many bytes as its attributes say.
fn as_it_is(source: &Source, file: u32, opened: &Opened) -> Result<Outcome, Failure> {
    let now = opened.stat.stx_size;
    as_recorded(source, file, now)?;
    if now > source.files.size(file) {
        within_memory(source, file, now)?;
    }
    contents(source, file, opened, 0, now)
}

/// Whether a file of `now` bytes may be delivered.
fn as_recorded(source: &Source, file: u32, now: u64) -> Result<(), Failure> {
    let recorded = source.files.size(file);
    if source.resized || now == recorded {
        return Ok(());
    }
    let message = format!(
        "it has {now} bytes, and {recorded} were recorded: refresh the catalog, or let resized files be delivered"
    );
    Err(Failure { path: source.files.path(file), trouble: Trouble::Resized, message })
}

fn nothing() -> Outcome {
    Outcome { bytes: Ok(None), read: 0, shrunk: false }
}

/// What of an extent there is in a file that was recorded with `recorded` bytes and has `now`.
fn part(extent: Extent, recorded: u64, now: u64) -> Option<(u64, u64)> {
    let Extent { offset, length, .. } = extent;
    let end = if offset + length == recorded { now } else { now.min(offset + length) };
    // The first piece of a file stands for it when nothing is left of it.
    (offset < end || offset == 0 && now == 0).then(|| (offset, end - offset))
}

/// One extent of an item of several; the loader of the last one finishes the item.
fn together(
    source: &Source,
    item: &Item,
    extent: Extent,
    assembly: &Arc<Assembly>,
) -> Result<Outcome, Failure> {
    let opened = assembly.opened.get_or_init(|| open(source, item.file, CheckedTree::open_file));
    let planned = source.files.size(item.file);
    let mut read = 0;
    if let Ok(opened) = opened {
        let mut sound = opened.stat.stx_size == planned;
        if sound {
            let region = assembly.region.get_or_init(|| {
                let length = usize::try_from(planned).ok()?;
                Some(Region::new(source.pool.take(length)?, length))
            });
            let filled = region
                .as_ref()
                .map(|region| region.fill(&opened.file, extent.offset, extent.length));
            sound = matches!(filled, Some(Ok(true)));
            read = extent.length;
        }
        if !sound {
            assembly.broken.store(true, Ordering::Relaxed);
        }
    }
    if assembly.left.fetch_sub(1, Ordering::AcqRel) > 1 {
        return Ok(Outcome { read, ..nothing() });
    }
    let opened = opened.as_ref().map_err(Clone::clone)?;
    let buffer = assembly.region.get().and_then(Option::as_ref).and_then(Region::filled);
    match buffer {
        Some(buffer) if !assembly.broken.load(Ordering::Relaxed) => {
            Ok(Outcome { bytes: Ok(Some(buffer)), read, shrunk: false })
        }
        _ => {
            // It has changed since it was recorded, or while it was read: as one piece it is of one moment.
            let now =
                rustix::fs::fstat(&opened.file).map_err(|e| unreadable(source, item.file, e))?;
            let length = now.st_size.unsigned_abs();
            as_recorded(source, item.file, opened.stat.stx_size)?;
            as_recorded(source, item.file, length)?;
            if length > planned {
                within_memory(source, item.file, length)?;
            }
            let mut outcome = contents(source, item.file, opened, 0, length)?;
            outcome.shrunk |= length < opened.stat.stx_size;
            Ok(outcome)
        }
    }
}

fn contents(
    source: &Source,
    file: u32,
    opened: &Opened,
    offset: u64,
    length: u64,
) -> Result<Outcome, Failure> {
    let mut buffer = memory(source, file, length)?;
    append(&opened.file, &mut buffer.bytes, length as usize, offset)
        .map_err(|error| unreadable(source, file, error))?;
    let read = buffer.bytes.len() as u64;
    if read < length && !source.resized {
        let message = format!(
            "it was cut off while it was read: {read} bytes were there from byte {offset} on, and {length} were recorded"
        );
        return Err(Failure { path: source.files.path(file), trouble: Trouble::Resized, message });
    }
    Ok(Outcome { bytes: Ok(Some(buffer)), read, shrunk: read < length })
}

/// An empty buffer with room for `length` bytes, and for one more.
fn memory(source: &Source, file: u32, length: u64) -> Result<Buffer, Failure> {
    let room = usize::try_from(length).ok().and_then(|n| n.checked_add(1));
    room.and_then(|room| source.pool.take(room)).ok_or_else(|| Failure {
        path: source.files.path(file),
        trouble: Trouble::Grown,
        message: format!("{length} bytes are more than memory has"),
    })
}

/// A file that has grown is not to take more memory than everything together was meant to.
fn within_memory(source: &Source, file: u32, length: u64) -> Result<(), Failure> {
    if length <= source.memory_bytes {
        return Ok(());
    }
    let message = format!("it has grown to {length} bytes, more than is held in memory at once");
    Err(Failure { path: source.files.path(file), trouble: Trouble::Grown, message })
}

/// [`CheckedTree::open_file`] or [`CheckedTree::open_as_known`].
type Open = fn(&CheckedTree, &[u8], &Recorded) -> Result<Opened, OpenFailed>;

fn open(source: &Source, file: u32, open: Open) -> Result<Opened, Failure> {
    let entry = source.files.recorded(file);
    let opened = source.files.with_path(file, |path| open(&source.tree, path, entry));
    opened.map_err(|OpenFailed { differences, error }| {
        let (trouble, message) = if differences.contains(Differences::MISSING) {
            (Trouble::Vanished, "it is no longer there".to_owned())
        } else if differences.contains(Differences::TYPE) {
            (Trouble::NotAFile, "it is no regular file any more".to_owned())
        } else if differences.contains(Differences::BLOCKED) {
            let message = "a part of its path is a symbolic link or no directory now";
            (Trouble::NotAFile, message.to_owned())
        } else {
            (Trouble::Unreadable, said(error))
        };
        Failure { path: source.files.path(file), trouble, message }
    })
}

fn unreadable(source: &Source, file: u32, error: Errno) -> Failure {
    let path = source.files.path(file);
    Failure { path, trouble: Trouble::Unreadable, message: said(error) }
}

fn said(error: Errno) -> String {
    let text = std::io::Error::from(error).to_string();
    // The number in parentheses says no more than the words.
    text.split(" (os error").next().unwrap_or_default().to_owned()
}
