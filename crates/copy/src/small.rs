//! One regular file that is an object by itself: looked at, copied into a draft, given its name.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{fdatasync, ftruncate, openat, FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::attributes::both;
use crate::compare::same_contents;
use crate::contents::forget;
use crate::counts::{add, ProblemKind};
use crate::destination::Folder;
use crate::draft::Draft;
use crate::error::{At, End, Failure};
use crate::item::{letter, look, look_at, About, Item, Seen};
use crate::options::{Fsync, Update, Verify};
use crate::worker::Worker;

/// What was found of a file at the destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum There {
    /// To be copied.
    No,
    /// Its contents stand.
    Yes(About),
}

impl Worker<'_> {
    /// Copy a file of at most one extent, unless it is there.
    pub(crate) fn small(
        &mut self,
        source: BorrowedFd<'_>,
        folder: &Folder,
        item: &Item,
        name: &[u8],
    ) -> Result<(), Failure> {
        let there = self.there(source, Some(folder), item, name)?;
        if let There::Yes(found) = there {
            return self.mend(source, folder, item, name, &found);
        }
        match self.sent(source, folder, item, name) {
            Err(Failure::Changed(_)) => {
                // Once more, as it is now: most files that change do so once.
                let stat = look(source, &item.name).at(End::Source, "look at")?;
                if letter(stat.stx_mode) != b'f' {
                    return Err(ANOTHER_SORT);
                }
                let now = item.renewed(&stat);
                if now.seen.size > self.shared.extent_bytes {
                    return Err(Failure::Changed("it grew while it was copied"));
                }
                self.sent(source, folder, &now, name)
            }
            other => other,
        }
    }

    /// What of `item` is at the destination already.
    pub(crate) fn there(
        &mut self,
        source: BorrowedFd<'_>,
        folder: Option<&Folder>,
        item: &Item,
        name: &[u8],
    ) -> Result<There, Failure> {
        let Some(folder) = folder.filter(|folder| !folder.fresh) else { return Ok(There::No) };
        let stat = match look(folder.fd(), name) {
            Err(Errno::NOENT) => return Ok(There::No),
            other => other.at(End::Destination, "look at")?,
        };
        match letter(stat.stx_mode) {
            b'f' => {}
            b'd' => return Err(Failure::Clash("a directory bears its name at the destination")),
            // A link makes room, as a file would.
            b'l' => return Ok(There::No),
            _ => return Err(NO_ROOM),
        }
        let (seen, found) = (Seen::of(&stat), About::of(&stat));
        let yes = There::Yes(found);
        if self.shared.doubtful(seen.ctime) {
            // Made by a run whose writes a power failure may have lost, though times and sizes stand.
            return self.same_contents(source, folder, item, name, yes);
        }
        let alike = (seen.size, seen.mtime) == (item.seen.size, item.seen.mtime);
        match self.shared.options.update {
            Update::Missing => Ok(yes),
            Update::Newer if seen.mtime > item.seen.mtime => Ok(yes),
            Update::Changed | Update::Newer if alike => Ok(yes),
            Update::Content if seen.size == item.seen.size => {
                self.same_contents(source, folder, item, name, yes)
            }
            _ => Ok(There::No),
        }
    }

    fn same_contents(
        &mut self,
        source: BorrowedFd<'_>,
        folder: &Folder,
        item: &Item,
        name: &[u8],
        yes: There,
    ) -> Result<There, Failure> {
        let one = open_file(source, &item.name, End::Source)?;
        let other = open_file(folder.fd(), name, End::Destination)?;
        let alike = same_contents(one.as_fd(), other.as_fd(), &self.shared.ways.stop)?;
        Ok(if alike { yes } else { There::No })
    }

    /// The contents stand; make the attributes stand too.
    pub(crate) fn mend(
        &mut self,
        source: BorrowedFd<'_>,
        folder: &Folder,
        item: &Item,
        name: &[u8],
        found: &About,
    ) -> Result<(), Failure> {
        let shared = self.shared;
        let tally = &shared.report.tally;
        let untouched = matches!(shared.options.update, Update::Missing)
            || (shared.options.update == Update::Newer && found.mtime > item.about.mtime);
        if untouched {
            add(&tally.same, 1);
            return Ok(());
        }
        // The one or the other may be closed to us: then its attributes stay as they are.
        let opened = open_file(source, &item.name, End::Source)
            .and_then(|one| Ok((one, open_file(folder.fd(), name, End::Destination)?)));
        let Ok((one, other)) = opened else {
            add(&tally.same, 1);
            return Ok(());
        };
        let (mended, lost) = if shared.options.dry_run {
            (false, None)
        } else {
            shared.keeper.mend(one.as_fd(), other.as_fd(), &item.about, found)?
        };
        add(if mended { &tally.mended } else { &tally.same }, 1);
        self.lost(item, lost);
        Ok(())
    }

    fn sent(
        &mut self,
        source: BorrowedFd<'_>,
        folder: &Folder,
        item: &Item,
        name: &[u8],
    ) -> Result<(), Failure> {
        let shared = self.shared;
        let from = open_file(source, &item.name, End::Source)?;
        let (mode, mode_is_final) = shared.keeper.first_mode(&item.about, folder.plain);
        let verified = shared.options.verify != Verify::None;
        let draft = Draft::begin(folder.fd(), shared.session, mode, verified)
            .at(End::Destination, "make file")?;
        let mode_is_final = mode_is_final && draft.has_mode();
        let range = (0, item.seen.size);
        let cloned = !verified && shared.ways.clone_whole(from.as_fd(), draft.fd())?;
        let mut moved = 0;
        if !cloned && item.seen.size > 0 {
            if item.sparse {
                ftruncate(draft.fd(), item.seen.size).at(End::Destination, "set size")?;
            }
            let ways = &shared.ways;
            let copied = ways.copy(
                &mut self.buffer,
                from.as_fd().into(),
                draft.fd().into(),
                range,
                item.sparse,
                verified,
            )?;
            moved = copied.bytes;
            if verified {
                if shared.options.verify == Verify::Storage {
                    forget(draft.fd())?;
                }
                let like = from.as_fd();
                let buffer = &mut self.buffer;
                if ways.digest(buffer, draft.fd().into(), like, range, item.sparse)?
                    != copied.digest
                {
                    return Err(Failure::Damaged);
                }
            }
        }
        // What the walk saw is what was copied, if it is so still.
        let now = look_at(from.as_fd()).at(End::Source, "look at")?;
        if Seen::of(&now) != item.seen {
            return Err(Failure::Changed("it was changed while it was copied"));
        }
        let lost = shared.keeper.give(from.as_fd(), draft.fd(), &item.about, mode_is_final)?;
        let lost = both(lost, shared.keeper.times(draft.fd(), &item.about)?);
        if shared.options.fsync == Fsync::Each {
            fdatasync(draft.fd()).at(End::Destination, "sync")?;
        }
        draft.keep(name).at(End::Destination, "give name")?;
        let tally = &shared.report.tally;
        add(&tally.bytes, moved);
        add(&tally.files, 1);
        add(&tally.objects, 1);
        if verified {
            add(&tally.verified, 1);
        }
        self.lost(item, lost);
        Ok(())
    }

    pub(crate) fn lost(&self, item: &Item, lost: Option<String>) {
        if let Some(lost) = lost {
            let text = format!("not kept: {lost}");
            self.shared.report.problem(item.path(), ProblemKind::Lost, text);
        }
    }
}

/// A device, FIFO or socket is never taken away: programs hang on it.
pub const NO_ROOM: Failure = Failure::Clash(
    "a device, FIFO or socket bears its name at the destination, and is not replaced",
);

/// It is no longer what the walk saw.
pub const ANOTHER_SORT: Failure = Failure::Changed("it became something else while it was copied");

/// Open a regular file for reading: never through a link, never waiting at a FIFO.
pub fn open_file(folder: BorrowedFd<'_>, name: &[u8], end: End) -> Result<OwnedFd, Failure> {
    let how = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match openat(folder, name, how, Mode::empty()) {
        Err(Errno::LOOP | Errno::NXIO) if end == End::Source => return Err(ANOTHER_SORT),
        other => other.at(end, "open")?,
    };
    if end == End::Source {
        let stat = look_at(file.as_fd()).at(end, "look at")?;
        if FileType::from_raw_mode(u32::from(stat.stx_mode)) != FileType::RegularFile {
            return Err(ANOTHER_SORT);
        }
    }
    Ok(file)
}
