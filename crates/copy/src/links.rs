//! Several names of one file: the first in order is copied, the others become links to it.

use rustix::fs::{linkat, AtFlags};
use rustix::io::Errno;

use crate::counts::add;
use crate::error::{At, End, Failure};
use crate::item::{look, Item, Seen};
use crate::worker::Worker;

impl Worker<'_> {
    /// Make all names but the first links to what the first became.
    pub(crate) fn links(&mut self, items: &[Item]) {
        let Some((first, others)) = items.split_first() else { return };
        for item in others {
            if self.shared.ways.is_stopped() {
                return;
            }
            if let Err(failure) = self.link(first, item) {
                self.failed(&item.path(), &failure);
            }
        }
    }

    fn link(&mut self, first: &Item, item: &Item) -> Result<(), Failure> {
        let shared = self.shared;
        if shared.options.dry_run {
            if !self.linked_already(first, item)? {
                add(&shared.report.tally.hard_links, 1);
                shared.report.plan(item.path(), b'h', 0);
            }
            return Ok(());
        }
        let from = shared.destination.make(&first.directory)?;
        let folder = shared.destination.make(&item.directory)?;
        let Ok(there) = look(from.fd(), &first.name) else {
            // The first could not be copied, which was said; this name still can.
            return self.copied_instead(item);
        };
        match look(folder.fd(), &item.name) {
            Ok(found) if same_file(&Seen::of(&found), &Seen::of(&there)) => {
                add(&shared.report.tally.same, 1);
                return Ok(());
            }
            Ok(_) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno).at(End::Destination, "look at"),
        }
        self.entered(&item.directory)?;
        let mut refused = false;
        let made = self.draft(&folder, &item.name, |draft| {
            let linked = linkat(from.fd(), &first.name[..], folder.fd(), draft, AtFlags::empty());
            refused =
                matches!(linked, Err(Errno::MLINK | Errno::XDEV | Errno::PERM | Errno::OPNOTSUPP));
            linked.at(End::Destination, "make hard link")
        });
        if refused {
            return self.copied_instead(item);
        }
        made?;
        add(&shared.report.tally.hard_links, 1);
        Ok(())
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

    fn copied_instead(&mut self, item: &Item) -> Result<(), Failure> {
        let alone = Item { links: 1, ..item.clone() };
        self.items(vec![alone]);
        Ok(())
    }
}

fn same_file(one: &Seen, other: &Seen) -> bool {
    (one.device, one.inode) == (other.device, other.inode)
}
