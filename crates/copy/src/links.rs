//! Several names of one file: the first in order is copied, the others become links to it.

use rustix::fs::{linkat, AtFlags};
use rustix::io::Errno;

use crate::counts::add;
use crate::draft::drafted;
use crate::error::{At, End, Failure};
use crate::item::{letter, look, Item, Seen};
use crate::small::NO_ROOM;
use crate::worker::Worker;

impl Worker<'_> {
    /// Make all names but the first links to what the first became.
    pub(crate) fn links(&mut self, items: &[Item]) {
        let Some((mut first, others)) = items.split_first() else { return };
        for item in others {
            if self.shared.ways.is_stopped() {
                return;
            }
            match self.link(first, item) {
                Ok(Linked::Yes) => {}
                // It is the file that the other names are linked to.
                Ok(Linked::Alone) => first = item,
                Err(failure) => self.failed(&item.path(), &failure),
            }
        }
    }

    fn link(&mut self, first: &Item, item: &Item) -> Result<Linked, Failure> {
        let shared = self.shared;
        if shared.options.dry_run {
            if !self.linked_already(first, item)? {
                add(&shared.report.tally.hard_links, 1);
                shared.report.plan(item.path(), b'h', 0);
            }
            return Ok(Linked::Yes);
        }
        let from = shared.destination.make(&first.directory)?;
        let folder = shared.destination.make(&item.directory)?;
        let there = match look(from.fd(), &first.name) {
            Ok(there) if letter(there.stx_mode) == item.letter => there,
            // The first could not be copied, which was said; this name still can.
            _ => return Ok(self.copied_instead(item)),
        };
        match look(folder.fd(), &item.name) {
            Ok(found) if same_file(&Seen::of(&found), &Seen::of(&there)) => {
                add(&shared.report.tally.same, 1);
                return Ok(Linked::Yes);
            }
            Ok(found) => match letter(found.stx_mode) {
                b'd' => {
                    return Err(Failure::Clash("a directory bears its name at the destination"))
                }
                b'f' | b'l' => {}
                // One like it may be there by itself, from a copy that could not link.
                found if found == item.letter => return Ok(self.not_linked(item)),
                _ => return Err(NO_ROOM),
            },
            Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno).at(End::Destination, "look at"),
        }
        self.entered(&item.directory)?;
        let mut refused = false;
        let made = drafted(folder.fd(), shared.session, &item.name, |draft| {
            let linked = linkat(from.fd(), &first.name[..], folder.fd(), draft, AtFlags::empty());
            refused =
                matches!(linked, Err(Errno::MLINK | Errno::XDEV | Errno::PERM | Errno::OPNOTSUPP));
            linked.at(End::Destination, "make hard link")
        });
        if refused {
            return Ok(self.not_linked(item));
        }
        made?;
        add(&shared.report.tally.hard_links, 1);
        Ok(Linked::Yes)
    }

    /// The destination makes no link of it: its contents are kept, and that it is one is lost.
    fn not_linked(&mut self, item: &Item) -> Linked {
        self.lost(item, Some("that it is a hard link: it was copied by itself".to_owned()));
        self.copied_instead(item)
    }

    fn linked_already(&self, first: &Item, item: &Item) -> Result<bool, Failure> {
        let seen = |item: &Item| -> Result<Option<Seen>, Failure> {
            let folder = self.shared.destination.find(&item.directory)?;
            let stat = folder.and_then(|folder| look(folder.fd(), &item.name).ok());
            Ok(stat.map(|stat| Seen::of(&stat)))
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

fn same_file(one: &Seen, other: &Seen) -> bool {
    (one.device, one.inode) == (other.device, other.inode)
}
