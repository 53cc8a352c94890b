//! Several names of one file: the first in order is copied, the others become links to it.

use super::Worker;
use crate::counts::add;
use crate::error::Failure;
use crate::sink::Linked;
use crate::source::Item;
use crate::stat::{letter, stat_at};

impl Worker<'_> {
    /// Make all names but the first links to what the first became.
    pub(super) fn links(&mut self, items: &[Item]) {
        let Some((mut first, others)) = items.split_first() else { return };
        for item in others {
            if self.context.state.is_stopped() {
                return;
            }
            match self.link(first, item) {
                Ok(Further::Linked) => {}
                // It is the file that the other names are linked to.
                Ok(Further::Alone) => first = item,
                Err(failure) => self.context.failed(&item.path(), &failure),
            }
        }
    }

    fn link(&mut self, first: &Item, item: &Item) -> Result<Further, Failure> {
        let context = self.context;
        if context.options.dry_run {
            let one = (&*first.directory, &*first.name);
            if !context.sink.are_linked(one, (&item.directory, &item.name))? {
                add(&context.state.report.tally.hard_links, 1);
                context.state.report.plan(item.path(), b'h', 0);
            }
            return Ok(Further::Linked);
        }
        let report = &context.state.report;
        let from = context.sink.destination.make(&first.directory, report)?;
        let folder = context.sink.destination.make(&item.directory, report)?;
        let there = match stat_at(from.fd(), &first.name) {
            Ok(there) if letter(there.stx_mode) == item.letter => there,
            // The first could not be copied, which was said; this name still can.
            _ => return Ok(self.copied_instead(item)),
        };
        let sink = &context.sink;
        let linked = sink.hard_link((&from, &first.name, &there), (&folder, &item.name), || {
            self.enter(&item.directory)?;
            match &context.backup {
                Some(backup) => backup.keep(folder.fd(), &item.directory, &item.name),
                None => Ok(()),
            }
        })?;
        match linked {
            Linked::Made => {
                add(&context.state.report.tally.hard_links, 1);
                context.state.report.done("linked", &item.path(), b'h', 0);
            }
            Linked::Already => add(&context.state.report.tally.same, 1),
            Linked::Alike | Linked::Refused(_) => return Ok(self.not_linked(item)),
        }
        Ok(Further::Linked)
    }

    /// The destination makes no link of it: its contents are kept, and that it is one is lost.
    fn not_linked(&mut self, item: &Item) -> Further {
        self.context
            .state
            .lost(&item.path(), Some("that it is a hard link: it was copied by itself".to_owned()));
        self.copied_instead(item)
    }

    fn copied_instead(&mut self, item: &Item) -> Further {
        let alone = Item { links: 1, ..item.clone() };
        self.items(vec![alone]);
        Further::Alone
    }
}

/// What became of a further name.
enum Further {
    /// It is a name of the first one's file.
    Linked,
    /// It was copied by itself.
    Alone,
}
