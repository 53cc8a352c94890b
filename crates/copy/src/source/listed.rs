//! The entries that a list names, and the directories on the way to them.
//!
//! Arrives: a root, names in order. Leaves: entries, each after the directories it is in; directories that are to be
//! walked. Must not know: what is done with them.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;
use waystage_catalog::walk::unfollowed;
use waystage_catalog::{Exclude, Root};

use super::in_order::in_order;
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

/// Names that one thread looks up at once.
const PIECE: usize = 8;

/// Pieces that threads may be ahead of the entries that were handed out.
const AHEAD: usize = 128;

/// Hand each named entry to `visit`, and before it the directories that it is in; ends when that says false. Named
/// directories, whose contents a walk finds; none with `only_named`; None where it was ended.
///
/// `threads` look names up ahead of that: on a file server each takes a message.
pub fn listed(
    root: &Root,
    names: &Names,
    exclude: &Exclude,
    only_named: bool,
    threads: usize,
    visit: impl FnMut(Listed) -> bool,
) -> Option<Vec<Vec<u8>>> {
    let look = |piece: usize| {
        let first = piece * PIECE;
        let mut finder = Finder { root, folder: None };
        let before = first.checked_sub(1).and_then(|last| names.get(last));
        let mut before = before.map_or(&b""[..], |last| split(last).0);
        let found = (first..first + PIECE).map_while(|at| names.get(at)).map(|name| {
            let unwanted = name.is_empty() || exclude.covers(name);
            let directory = split(name).0;
            let above = if unwanted { Vec::new() } else { finder.new_above(directory, before) };
            before = directory;
            Looked { entry: (!unwanted).then(|| finder.entry(name)), above }
        });
        found.collect::<Vec<_>>()
    };
    in_order(names.len().div_ceil(PIECE), threads, AHEAD, look, |next| {
        let mut piece = Vec::new().into_iter();
        let looked = || loop {
            match piece.next() {
                Some(looked) => return looked,
                None => piece = next().into_iter(),
            }
        };
        in_turn(root, names, exclude, only_named, looked, visit)
    })
}

fn in_turn(
    root: &Root,
    names: &Names,
    exclude: &Exclude,
    only_named: bool,
    mut looked: impl FnMut() -> Looked,
    mut visit: impl FnMut(Listed) -> bool,
) -> Option<Vec<Vec<u8>>> {
    let mut tops: Vec<Vec<u8>> = Vec::new();
    let mut way = Way { finder: Finder { root, folder: None }, visited: Vec::new() };
    for (position, name) in names.iter().enumerate() {
        let looked = looked();
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
            match way.lead_to(name, looked) {
                Err(NOT_THERE) if only_named => visit(Listed::Vanished(name.to_vec())),
                Err(failure) => visit(Listed::Failed(name.to_vec(), failure)),
                Ok(_) if covered => true,
                Ok(mut items) => {
                    if let Some(item) = items.last_mut() {
                        item.objects = names.objects(position).into();
                    }
                    if items.last().is_some_and(|item| item.letter == b'd') {
                        let list = if only_named { &mut way.visited } else { &mut tops };
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

/// A name that was looked up ahead: its entry, unless it is not wanted, and directories above it that the name before
/// it in the list is not in.
struct Looked {
    entry: Option<Result<Item, Failure>>,
    above: Vec<(Vec<u8>, Item)>,
}

struct Way<'a> {
    finder: Finder<'a>,
    /// The directories on the way to the last name, the highest first: they come before it and not again.
    visited: Vec<Vec<u8>>,
}

impl Way<'_> {
    /// The entry, and before it those directories on the way to it that were not handed out yet.
    fn lead_to(&mut self, name: &[u8], looked: Looked) -> Result<Vec<Item>, Failure> {
        let (directory, _) = split(name);
        let entry = looked.entry.unwrap_or_else(|| self.finder.entry(name))?;
        self.visited.retain(|above| is_or_is_above(above, directory));
        let mut ahead = looked.above;
        let mut items = Vec::new();
        for above in way_to(directory) {
            if self.visited.iter().any(|known| known == above) {
                continue;
            }
            let known = ahead.iter().position(|(path, _)| path == above);
            items.push(match known {
                Some(at) => ahead.swap_remove(at).1,
                None => self.finder.entry(above)?,
            });
            self.visited.push(above.to_vec());
        }
        items.push(entry);
        Ok(items)
    }
}

/// Each directory on the way to this one, and itself.
fn way_to(directory: &[u8]) -> impl Iterator<Item = &[u8]> {
    let slashes = directory.iter().enumerate().filter(|(_, byte)| **byte == b'/');
    let whole = (!directory.is_empty()).then_some(directory);
    slashes.map(|(at, _)| &directory[..at]).chain(whole)
}

fn is_or_is_above(above: &[u8], directory: &[u8]) -> bool {
    above == directory
        || (directory.starts_with(above) && directory.get(above.len()) == Some(&b'/'))
}

struct Finder<'a> {
    root: &'a Root,
    /// The directory of the last name, as a place for names.
    folder: Option<(Arc<[u8]>, OwnedFd)>,
}

impl Finder<'_> {
    /// The directories on the way to `directory` that are not on the way to `before`. Those that cannot be looked at
    /// are left out.
    fn new_above(&mut self, directory: &[u8], before: &[u8]) -> Vec<(Vec<u8>, Item)> {
        let new = way_to(directory).filter(|above| !is_or_is_above(above, before));
        new.filter_map(|above| Some((above.to_vec(), self.entry(above).ok()?))).collect()
    }

    fn entry(&mut self, name: &[u8]) -> Result<Item, Failure> {
        let (directory, last) = split(name);
        if self.folder.as_ref().is_none_or(|(path, _)| **path != *directory) {
            let opened = self.root.place(directory).map_err(|errno| match errno {
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
        item.links = stat.stx_nlink;
        if item.letter == b'l' {
            let target = rustix::fs::readlinkat(folder, last, Vec::new());
            item.symlink = target.at(End::Source, "read link")?.into_bytes();
            if self.root.follows() {
                let target = std::mem::take(&mut item.symlink);
                item.followed = true;
                let stat = item.stat(folder.as_fd()).map_err(|errno| match errno {
                    Errno::NOENT | Errno::NOTDIR | Errno::LOOP => {
                        Failure::Said(unfollowed(&target, errno))
                    }
                    errno => Failure::Call { end: End::Source, doing: "stat", errno },
                })?;
                item = Item { letter: letter(stat.stx_mode), ..item.renewed(&stat) };
                item.links = 1;
            }
        }
        item.directory = Arc::clone(path);
        Ok(item)
    }
}

const NOT_THERE: Failure = Failure::Clash("is in the list and not at the source");

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn what_several_threads_look_up_is_handed_out_as_by_one() {
        let top = std::env::temp_dir().join(format!("waystage-listed-{}", std::process::id()));
        let _ = fs::remove_dir_all(&top);
        let mut list = String::new();
        for folder in 0..40 {
            let path = format!("d{}/e{}/f{folder}", folder % 3, folder % 7);
            fs::create_dir_all(top.join(&path)).expect("made");
            for file in 0..6 {
                fs::write(top.join(&path).join(format!("{file}")), "x").expect("written");
                list += &format!("{path}/{file}\n");
            }
            list += &format!("{path}/missing\n{path}/5/below\n");
        }
        list += "d1/e1\nd9/gone\nd2/e2/f2\n";
        let names = Names::parse(list.as_bytes(), false).expect("a list");
        let root = Root::open(&top).expect("a root");
        let exclude = Exclude::new(vec![b"4".to_vec()]);
        let handed_out = |only_named: bool, threads: usize| {
            let mut seen = Vec::new();
            let tops = listed(&root, &names, &exclude, only_named, threads, |found| {
                seen.push(match found {
                    Listed::Item(item) => format!("{} {}", item.letter, show(&item.path())),
                    Listed::Excluded => "excluded".to_owned(),
                    Listed::Vanished(path) => format!("vanished {}", show(&path)),
                    Listed::Failed(path, failure) => format!("{} {failure}", show(&path)),
                });
                true
            });
            (seen, tops)
        };
        for only_named in [false, true] {
            let one = handed_out(only_named, 1);
            assert!(one.0.len() > 200);
            assert_eq!(handed_out(only_named, 4), one);
        }
        fs::remove_dir_all(top).expect("removed");
    }

    fn show(path: &[u8]) -> String {
        String::from_utf8_lossy(path).into_owned()
    }
}
