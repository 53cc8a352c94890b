//! Extents of large files.

use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Instant;

use rustix::fs::fdatasync;
use waystage_pacing::{during, Cause};

use super::Worker;
use crate::attributes::Attributes;
use crate::counts::{add, ProblemKind};
use crate::error::{At, End, Failure};
use crate::file_io::{forget, open_file, SHRUNK};
use crate::local::direct::{DualFile, IoMode};
use crate::local::large_file::{Large, Opened, Phase};
use crate::options::{Fsync, Verify};
use crate::sink::journal::Record;
use crate::stat::{stat_fd, FileState};

impl Worker<'_> {
    /// Write one extent; after the last one the file gets its name.
    pub(super) fn extent(&mut self, large: &Arc<Large>, index: u32) {
        let done = self.opened(large).and_then(|opened| match opened {
            Some(opened) => self.extent_of(large, &opened, index),
            None => Ok(()),
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
        let source = open_file(directory.as_fd(), &item.name, End::Source)?;
        let now = stat_fd(source.as_fd()).at(End::Source, "stat")?;
        if FileState::of(&now) != item.seen {
            return Err(Failure::Changed("it was changed before it could be copied"));
        }
        let (folder, temporary) = match resumed {
            Some(resumed) => resumed,
            None => context.sink.create_large(&large.file)?,
        };
        let opened = Arc::new(Opened::new(source, folder, temporary));
        *phase = Phase::Open(Arc::clone(&opened));
        Ok(Some(opened))
    }

    fn extent_of(&mut self, large: &Large, opened: &Opened, index: u32) -> Result<(), Failure> {
        let context = self.context;
        let (source, temporary) = (opened.source.as_fd(), opened.temporary.as_fd());
        let verified = context.options.verify != Verify::None;
        let extent_bytes = context.policy.extent_bytes;
        let start = u64::from(index) * extent_bytes;
        let range = (start, (start + extent_bytes).min(large.item.seen.size));
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
        let buffer = match direct {
            Some(_) => self.aligned.bytes(),
            None => &mut self.buffer,
        };
        let moved = mover.copy(buffer, from, to, range, sparse, verified)?;
        if context.options.verify == Verify::Storage {
            during(Cause::Destination, || forget(temporary))?;
        } else if context.options.fsync == Fsync::Each {
            during(Cause::Destination, || fdatasync(temporary)).at(End::Destination, "sync")?;
        }
        if verified && mover.digest(buffer, to, source, range, sparse)? != moved.digest {
            return Err(Failure::Damaged);
        }
        mover.modes.took(mode, moved.bytes, began.elapsed().saturating_sub(moved.held));
        let record = Record::Extent { id: large.file.id, index, digest: moved.digest };
        context.sink.record(&record)?;
        add(&context.state.report.tally.bytes, moved.bytes);
        add(&context.state.report.tally.objects, 1);
        if large.left.fetch_sub(1, Ordering::SeqCst) > 1 {
            return Ok(());
        }
        self.finish(large, opened, verified)
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
