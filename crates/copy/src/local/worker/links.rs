//! Several names of one file: the first in order is copied, the others become links to it.

use rustix::fs::{linkat, AtFlags};
use rustix::io::Errno;

use super::Worker;
use crate::counts::add;
use crate::error::{At, End, Failure};
use crate::plan::{IS_DIRECTORY, NOT_REPLACED};
use crate::sink::with_temporary_name;
use crate::source::Item;
use crate::stat::{letter, stat_at, FileState};

impl Worker<'_> {
    /// Make all names but the first links to what the first became.
    pub(super) fn links(&mut self, items: &[Item]) {
        let Some((mut first, others)) = items.split_first() else { return };
        for item in others {
            if self.context.state.is_stopped() {
                return;
            }
            match self.link(first, item) {
                Ok(Linked::Yes) => {}
                // It is the file that the other names are linked to.
                Ok(Linked::Alone) => first = item,
                Err(failure) => self.context.failed(&item.path(), &failure),
            }
        }
    }

    fn link(&mut self, first: &Item, item: &Item) -> Result<Linked, Failure> {
        let context = self.context;
        if context.options.dry_run {
            if !self.linked_already(first, item)? {
                add(&context.state.report.tally.hard_links, 1);
                context.state.report.plan(item.path(), b'h', 0);
            }
            return Ok(Linked::Yes);
        }
        let from = context.sink.destination.make(&first.directory)?;
        let folder = context.sink.destination.make(&item.directory)?;
        let there = match stat_at(from.fd(), &first.name) {
            Ok(there) if letter(there.stx_mode) == item.letter => there,
            // The first could not be copied, which was said; this name still can.
            _ => return Ok(self.copied_instead(item)),
        };
        match stat_at(folder.fd(), &item.name) {
            Ok(found) if same_file(&FileState::of(&found), &FileState::of(&there)) => {
                add(&context.state.report.tally.same, 1);
                return Ok(Linked::Yes);
            }
            Ok(found) => match letter(found.stx_mode) {
                b'd' => return Err(IS_DIRECTORY),
                b'f' | b'l' => {}
                // One like it may be there by itself, from a copy that could not link.
                found if found == item.letter => return Ok(self.not_linked(item)),
                _ => return Err(NOT_REPLACED),
            },
            Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno).at(End::Destination, "stat"),
        }
        self.enter(&item.directory)?;
        let mut refused = false;
        let made =
            with_temporary_name(folder.fd(), context.sink.session, &item.name, |temporary| {
                let linked =
                    linkat(from.fd(), &first.name[..], folder.fd(), temporary, AtFlags::empty());
                refused = matches!(
                    linked,
                    Err(Errno::MLINK | Errno::XDEV | Errno::PERM | Errno::OPNOTSUPP)
                );
                linked.at(End::Destination, "make hard link")
            });
        if refused {
            return Ok(self.not_linked(item));
        }
        made?;
        add(&context.state.report.tally.hard_links, 1);
        Ok(Linked::Yes)
    }

    /// The destination makes no link of it: its contents are kept, and that it is one is lost.
    fn not_linked(&mut self, item: &Item) -> Linked {
        self.context
            .state
            .lost(&item.path(), Some("that it is a hard link: it was copied by itself".to_owned()));
        self.copied_instead(item)
    }

    fn linked_already(&self, first: &Item, item: &Item) -> Result<bool, Failure> {
        let seen = |item: &Item| -> Result<Option<FileState>, Failure> {
            let folder = self.context.sink.destination.find(&item.directory)?;
            let stat = folder.and_then(|folder| stat_at(folder.fd(), &item.name).ok());
            Ok(stat.map(|stat| FileState::of(&stat)))
        };
        let pair = seen(first)?.zip(seen(item)?);
        Ok(pair.is_some_and(|(one, other)| same_file(&one, &other)))
    }

    fn copied_instead(&mut self, item: &Item) -> Linked {
        let alone = Item { links: 1, ..item.clone() };
        self.items(vec![alone]);
        Linked::Alone
    }
}

/// What became of a further name.
enum Linked {
    /// It is a name of the first one's file.
    Yes,
    /// It was copied by itself.
    Alone,
}

fn same_file(one: &FileState, other: &FileState) -> bool {
    (one.device, one.inode) == (other.device, other.inode)
}
