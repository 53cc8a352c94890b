//! Extents of large files.

use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::{fadvise, fdatasync, Advice};
use waystage_pacing::{during, Cause};

use super::Worker;
use crate::attributes::Attributes;
use crate::counts::{add, ProblemKind};
use crate::error::{At, End, Failure};
use crate::file_io::{forget, SHRUNK};
use crate::local::direct::{DualFile, IoMode};
use crate::local::large_file::{Large, Opened, Phase};
use crate::local::striped::Part;
use crate::options::{Fsync, Verify};
use crate::sink::journal::Record;
use crate::stat::{stat_fd, FileState};

impl Worker<'_> {
    /// Write one extent; after the last one the file gets its name.
    pub(super) fn extent(&mut self, large: &Arc<Large>, index: u32) {
        let extent_bytes = self.context.policy.extent_bytes;
        let start = u64::from(index) * extent_bytes;
        let range = (start, (start + extent_bytes).min(large.item.seen.size));
        self.write(large, index, &[range], || true);
    }

    /// Write what one storage target holds of an extent.
    pub(super) fn part(&mut self, large: &Arc<Large>, part: Part) {
        let Some(striped) = &large.striped else { return };
        self.write(large, part.extent, &striped.runs(part), || striped.written(part));
    }

    /// Write ranges of an extent, which then may be `complete`.
    fn write(
        &mut self,
        large: &Large,
        index: u32,
        ranges: &[(u64, u64)],
        complete: impl FnOnce() -> bool,
    ) {
        let done = self.opened(large).and_then(|opened| {
            let Some(opened) = opened else { return Ok(()) };
            let digest = self.ranges(large, &opened, ranges)?;
            if !complete() {
                return Ok(());
            }
            let context = self.context;
            context.sink.record(&Record::Extent { id: large.file.id, index, digest })?;
            if large.left.fetch_sub(1, Ordering::SeqCst) > 1 {
                return Ok(());
            }
            self.finish(large, &opened, context.options.verify != Verify::None)
        });
        if let Err(failure) = done {
            if !failure.is_resumable() {
                self.context.sink.abandon_large(&large.file);
            }
            large.end();
            self.context.failed(&large.item.path(), &failure);
        }
    }

    fn opened(&mut self, large: &Large) -> Result<Option<Arc<Opened>>, Failure> {
        let mut phase = large.phase.lock();
        let resumed = match &mut *phase {
            Phase::Open(opened) => return Ok(Some(Arc::clone(opened))),
            Phase::Over => return Ok(None),
            Phase::Waiting(resumed) => resumed.take(),
        };
        let context = self.context;
        let item = &large.item;
        let directory = context.source.root.directory(&item.directory);
        let directory = directory.at(End::Source, "open directory")?;
        let source = item.open(directory.as_fd())?;
        let now = stat_fd(source.as_fd()).at(End::Source, "stat")?;
        if FileState::of(&now) != item.seen {
            return Err(Failure::Changed("it was changed before it could be copied"));
        }
        if large.striped.is_some() {
            // Read-ahead goes on at the next target, where others read.
            let _ = fadvise(&source, 0, None, Advice::Random);
        }
        let (folder, temporary) = match resumed {
            Some(resumed) => resumed,
            None => context.sink.create_large(&large.file, &context.state.report)?,
        };
        let verified = context.options.verify != Verify::None;
        let mover = &context.mover;
        // All of it, also where an earlier run has written a part.
        let cloned = mover.clone_file(source.as_fd(), temporary.as_fd(), verified)?;
        let opened = Arc::new(Opened::new(source, folder, temporary, cloned));
        *phase = Phase::Open(Arc::clone(&opened));
        Ok(Some(opened))
    }

    /// Copy ranges of a large file; the digest of the last one, where contents are read back.
    fn ranges(
        &mut self,
        large: &Large,
        opened: &Opened,
        ranges: &[(u64, u64)],
    ) -> Result<u128, Failure> {
        let context = self.context;
        let (source, temporary) = (opened.source.as_fd(), opened.temporary.as_fd());
        if opened.cloned {
            add(&context.state.report.tally.objects, 1);
            return Ok(0);
        }
        let verified = context.options.verify != Verify::None;
        let sparse = large.item.sparse;
        let mover = &context.mover;
        let began = Instant::now();
        let mut mode = mover.modes.pick();
        let direct = opened.directly(mode);
        if direct.is_none() && mode != IoMode::Cached {
            mover.modes.refuse();
            mode = IoMode::Cached;
        }
        let from =
            DualFile { cached: source, direct: direct.and_then(|ends| ends.source_for(mode)) };
        let to = DualFile { cached: temporary, direct: direct.map(|ends| ends.temporary.as_fd()) };
        // Without read-ahead a request is as long as the buffer.
        let buffer = match direct.is_some() || large.striped.is_some() {
            true => self.aligned.bytes(),
            false => &mut self.buffer[..],
        };
        let (mut bytes, mut held) = (0, Duration::ZERO);
        let mut digests = Vec::with_capacity(ranges.len());
        for range in ranges {
            let moved = mover.copy(buffer, from, to, *range, sparse, verified)?;
            bytes += moved.bytes;
            held += moved.held;
            digests.push(moved.digest);
        }
        if context.options.verify == Verify::Storage {
            during(Cause::Destination, || forget(temporary))?;
        } else if context.options.fsync == Fsync::Each {
            during(Cause::Destination, || fdatasync(temporary)).at(End::Destination, "sync")?;
        }
        for (range, digest) in ranges.iter().zip(&digests).filter(|_| verified) {
            if mover.digest(buffer, to, source, *range, sparse)? != *digest {
                return Err(Failure::Damaged);
            }
        }
        mover.modes.took(mode, bytes, began.elapsed().saturating_sub(held));
        add(&context.state.report.tally.bytes, bytes);
        add(&context.state.report.tally.objects, 1);
        Ok(digests.last().copied().unwrap_or_default())
    }

    fn finish(&mut self, large: &Large, opened: &Opened, verified: bool) -> Result<(), Failure> {
        let context = self.context;
        let item = &large.item;
        let (source, temporary) = (opened.source.as_fd(), opened.temporary.as_fd());
        let now = stat_fd(source).at(End::Source, "stat")?;
        if now.stx_size < item.seen.size {
            return Err(SHRUNK);
        }
        let attributes = Attributes::Of(source);
        let lost = context.sink.complete(temporary, &attributes, &item.metadata, false)?;
        context.sink.name_large(&large.file, &opened.folder)?;
        large.end();
        let tally = &context.state.report.tally;
        add(&tally.files, 1);
        context.state.report.done("copied", &item.path(), b'f', item.seen.size);
        if verified {
            add(&tally.verified, 1);
        }
        context.state.lost(&item.path(), lost);
        if FileState::of(&now) != item.seen {
            // It keeps the time of before, so that the next copy does not take it for complete.
            let text = "it was changed while it was copied";
            context.state.problem(&item.path(), ProblemKind::Changed, text);
        }
        Ok(())
    }
}
