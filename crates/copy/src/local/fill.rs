//! Extents of one large file, written by one of several processes, on any hosts.
//!
//! Arrives: a file that a copy has prepared (`Options::divide`), and which extents are this process's.
//! Leaves: those extents at their places, on storage, and marked in the file's map. Must not know: who writes the
//! others, and who gives the file its name.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use parking_lot::Mutex;
use rustix::fs::fdatasync;
use waystage_catalog::Root;
use waystage_pacing::{during, Cause};

use super::contents::ContentMover;
use super::engine::EXTENT_BYTES;
use crate::counts::add;
use crate::engine::{Engine, Job};
use crate::error::{At, CopyError, End, Failure};
use crate::file_io::{forget, open_file, PIECE_BYTES};
use crate::options::Verify;
use crate::own_names::reopen;
use crate::part_set::PartSet;
use crate::plan::extents_of;
use crate::sink::extent_map;
use crate::sink::DividedFile;
use crate::stat::{has_holes, split, stat_fd, FileState};
use crate::state::CopyState;

/// What to write, and how.
#[derive(Debug, Clone)]
pub struct FillOptions {
    /// The root of the source.
    pub source: PathBuf,
    /// The root of the destination.
    pub destination: PathBuf,
    /// The file, as the copy that prepared it says; of `missing` those that this process is to write.
    pub file: DividedFile,
    /// Threads, at least one.
    pub workers: usize,
    /// Whether to read back.
    pub verify: Verify,
    /// Bytes a second; None for no limit.
    pub rate_bytes_per_s: Option<u64>,
}

/// The writing of extents in progress.
pub type Fill = Engine<FillJob>;

/// Extents of one large file.
pub struct FillJob {
    options: FillOptions,
    state: std::sync::Arc<CopyState<CopyError>>,
    mover: ContentMover,
    todo: Mutex<PartSet>,
}

impl Job for FillJob {
    const NAME: &'static str = "fill";

    fn state(&self) -> &CopyState<CopyError> {
        &self.state
    }

    fn run(&self) -> Result<(), CopyError> {
        if let Err(failure) = self.fill() {
            self.state.failed(&self.options.file.path, &failure);
        }
        if self.state.is_stopped() {
            return Err(self.state.verdict());
        }
        Ok(())
    }
}

impl Fill {
    /// Start.
    ///
    /// # Errors
    /// Where no thread can be started.
    pub fn start(mut options: FillOptions) -> Result<Self, CopyError> {
        options.workers = options.workers.clamp(1, 1024);
        let state = std::sync::Arc::new(CopyState::default());
        state.pace.gate.set_limit(options.rate_bytes_per_s);
        let pace = std::sync::Arc::clone(&state.pace);
        let mover = ContentMover::new(pace, options.workers, state.stop_flag());
        let todo = Mutex::new(options.file.missing.clone());
        Self::of(FillJob { options, state, mover, todo })
    }
}

/// Source, temporary file and map, open.
struct Ends {
    source: OwnedFd,
    temporary: OwnedFd,
    map: OwnedFd,
    sparse: bool,
}

impl FillJob {
    fn fill(&self) -> Result<(), Failure> {
        let ends = self.open()?;
        let written = extent_map::written(ends.map.as_fd(), End::Destination)?;
        written.iter().for_each(|extent| {
            self.todo.lock().remove(extent);
        });
        let result = Mutex::new(Ok(()));
        std::thread::scope(|scope| {
            for _ in 0..self.options.workers {
                scope.spawn(|| {
                    let _attached = self.state.pace.meter.attach();
                    let mut buffer = vec![0; PIECE_BYTES];
                    while let Some(extent) = self.next(&result) {
                        if let Err(failure) = self.extent(&ends, extent, &mut buffer) {
                            *result.lock() = Err(failure);
                        }
                    }
                });
            }
        });
        result.into_inner()?;
        self.is_unchanged(ends.source.as_fd())
    }

    fn next(&self, result: &Mutex<Result<(), Failure>>) -> Option<u32> {
        if self.state.is_stopped() || result.lock().is_err() {
            return None;
        }
        self.todo.lock().pop_first()
    }

    fn open(&self) -> Result<Ends, Failure> {
        let file = &self.options.file;
        let folder = |root: &PathBuf, directory: &[u8], end| {
            let root = Root::open(root);
            let root = root.map_err(|error| Failure::Call {
                end,
                doing: "open",
                errno: rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::IO),
            })?;
            root.directory(directory).at(end, "open directory")
        };
        let (above, name) = split(&file.path);
        let from = folder(&self.options.source, above, End::Source)?;
        let source = open_file(from.as_fd(), name, End::Source)?;
        self.is_unchanged(source.as_fd())?;
        let stat = stat_fd(source.as_fd()).at(End::Source, "stat")?;
        let to = folder(&self.options.destination, &file.directory, End::Destination)?;
        let extents = u64::from(extents_of(file.seen.size, EXTENT_BYTES));
        let ours = |name: &[u8], size| {
            reopen(to.as_fd(), name, size).ok_or(Failure::Clash(
                "was prepared for several processes, and its temporary file is gone: give the same command again",
            ))
        };
        let map = ours(&file.map, extents)?;
        extent_map::lock_shared(map.as_fd())?;
        let temporary = ours(&file.temporary, file.seen.size)?;
        Ok(Ends { source, temporary, map, sparse: has_holes(stat.stx_size, stat.stx_blocks) })
    }

    /// Another host may have another number for the device.
    fn is_unchanged(&self, source: BorrowedFd<'_>) -> Result<(), Failure> {
        let now = FileState::of(&stat_fd(source).at(End::Source, "stat")?);
        let seen = &self.options.file.seen;
        let same = (now.size, now.mtime, now.inode) == (seen.size, seen.mtime, seen.inode);
        same.then_some(()).ok_or(Failure::Changed("it was changed while it was copied"))
    }

    fn extent(&self, ends: &Ends, extent: u32, buffer: &mut [u8]) -> Result<(), Failure> {
        let (options, mover) = (&self.options, &self.mover);
        let start = u64::from(extent) * EXTENT_BYTES;
        let range = (start, (start + EXTENT_BYTES).min(options.file.seen.size));
        let (source, temporary) = (ends.source.as_fd(), ends.temporary.as_fd());
        let verified = options.verify != Verify::None;
        let (from, to) = (source.into(), temporary.into());
        let moved = mover.copy(buffer, from, to, range, ends.sparse, verified)?;
        if options.verify == Verify::Storage {
            during(Cause::Destination, || forget(temporary))?;
        } else {
            // The mark must not outlive what it says.
            during(Cause::Destination, || fdatasync(temporary)).at(End::Destination, "sync")?;
        }
        if verified && mover.digest(buffer, to, source, range, ends.sparse)? != moved.digest {
            return Err(Failure::Damaged);
        }
        extent_map::mark(ends.map.as_fd(), extent)?;
        add(&self.state.report.tally.bytes, moved.bytes);
        add(&self.state.report.tally.objects, 1);
        Ok(())
    }
}
