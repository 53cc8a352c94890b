//! The entries that a list names, and the directories on the way to them.
//!
//! Arrives: a root, names in order. Leaves: entries, each after the directories it is in; directories that are to be
//! walked. Must not know: what is done with them.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;
use waystage_catalog::{Exclude, Root};

use super::item::Item;
use super::names::Names;
use crate::error::{At, End, Failure};
use crate::stat::{letter, split, stat_at};

/// What became of a name.
pub enum Listed {
    /// An entry: of a directory only itself.
    Item(Item),
    /// A pattern leaves it out.
    Excluded,
    /// It was in the tree when it was listed, and is no longer.
    Vanished(Vec<u8>),
    /// It cannot be copied: its path, and why.
    Failed(Vec<u8>, Failure),
}

/// Hand each named entry to `visit`, and before it the directories that it is in; ends when that says false. Named
/// directories, whose contents a walk finds; none with `only_named`; None where it was ended.
pub fn listed(
    root: &Root,
    names: &Names,
    exclude: &Exclude,
    only_named: bool,
    mut visit: impl FnMut(Listed) -> bool,
) -> Option<Vec<Vec<u8>>> {
    let mut tops: Vec<Vec<u8>> = Vec::new();
    let mut mover = ContentMover { root, folder: None, visited: Vec::new() };
    for (position, name) in names.iter().enumerate() {
        if name.is_empty() {
            tops.push(Vec::new());
            continue;
        }
        let below = |top: &Vec<u8>| {
            top.is_empty() || (name.starts_with(top) && name.get(top.len()) == Some(&b'/'))
        };
        // Its walk comes to it.
        let covered = tops.last().is_some_and(below);
        let going = if exclude.covers(name) {
            covered || visit(Listed::Excluded)
        } else {
            match mover.find(name) {
                Err(NOT_THERE) if only_named => visit(Listed::Vanished(name.to_vec())),
                Err(failure) => visit(Listed::Failed(name.to_vec(), failure)),
                Ok(_) if covered => true,
                Ok(mut items) => {
                    if let Some(item) = items.last_mut() {
                        item.objects = names.objects(position).into();
                    }
                    if items.last().is_some_and(|item| item.letter == b'd') {
                        let list = if only_named { &mut mover.visited } else { &mut tops };
                        list.push(name.to_vec());
                    }
                    items.into_iter().all(|item| visit(Listed::Item(item)))
                }
            }
        };
        if !going {
            return None;
        }
    }
    Some(tops)
}

struct ContentMover<'a> {
    root: &'a Root,
    /// The directory of the last name, open.
    folder: Option<(Arc<[u8]>, OwnedFd)>,
    /// The directories on the way to the last name, the highest first: they come before it and not again.
    visited: Vec<Vec<u8>>,
}

impl ContentMover<'_> {
    /// The entry, and before it those directories on the way to it that were not handed out yet.
    fn find(&mut self, name: &[u8]) -> Result<Vec<Item>, Failure> {
        let (directory, _) = split(name);
        let entry = self.entry(name)?;
        self.visited.retain(|above| {
            above == directory || directory.starts_with(&[&above[..], b"/"].concat())
        });
        let mut items = Vec::new();
        let slashes = directory.iter().enumerate().filter(|(_, byte)| **byte == b'/');
        let mut ends: Vec<usize> = slashes.map(|(at, _)| at).collect();
        ends.extend((!directory.is_empty()).then_some(directory.len()));
        for end in ends {
            let above = &directory[..end];
            if self.visited.iter().any(|known| known == above) {
                continue;
            }
            items.push(self.entry(above)?);
            self.visited.push(above.to_vec());
        }
        items.push(entry);
        Ok(items)
    }

    fn entry(&mut self, name: &[u8]) -> Result<Item, Failure> {
        let (directory, last) = split(name);
        if self.folder.as_ref().is_none_or(|(path, _)| **path != *directory) {
            let opened = self.root.directory(directory).map_err(|errno| match errno {
                Errno::LOOP => Failure::Clash(
                    "is in the list, and a symbolic link on the way to it is not followed",
                ),
                Errno::NOENT | Errno::NOTDIR => NOT_THERE,
                errno => Failure::Call { end: End::Source, doing: "open directory", errno },
            })?;
            self.folder = Some((directory.into(), opened));
        }
        let Some((path, folder)) = &self.folder else { return Err(Failure::Stopped) };
        let stat = match stat_at(folder.as_fd(), last) {
            Err(Errno::NOENT) => return Err(NOT_THERE),
            other => other.at(End::Source, "stat")?,
        };
        let mut item = Item { letter: letter(stat.stx_mode), ..Item::file(&stat, b"", last) };
        item.directory = Arc::clone(path);
        item.links = stat.stx_nlink;
        if item.letter == b'l' {
            let target = rustix::fs::readlinkat(folder, last, Vec::new());
            item.symlink = target.at(End::Source, "read link")?.into_bytes();
        }
        Ok(item)
    }
}

const NOT_THERE: Failure = Failure::Clash("is in the list and not at the source");
