//! Names of one file that a killed run had given to two inodes: all get the new one, or the old one again.

use std::os::fd::AsFd;

use rustix::fs::renameat;

use super::context::Context;
use super::journal::Group;
use super::lease::{Asked, Lease};
use super::temporary::TemporaryName;
use crate::counts::{add, ProblemKind};
use crate::error::{At, End, Failure};
use crate::file_io::open_file;
use crate::stat::{split, stat_at, FileState};

/// Bring the names of each group together again.
pub(super) fn rejoin(context: &Context, groups: &[Group]) {
    for group in groups {
        match rejoin_one(context, group) {
            Ok(false) => {}
            Ok(true) => add(&context.state.report.tally.mended, 1),
            Err(failure) => {
                let path = group.names.first().map_or(&b""[..], |name| &name[..]);
                context.state.problem(path, ProblemKind::Error, failure.to_string());
            }
        }
    }
}

/// Whether names had to move.
fn rejoin_one(context: &Context, group: &Group) -> Result<bool, Failure> {
    let (mut old, mut new) = (Vec::new(), Vec::new());
    for path in &group.names {
        let (directory, name) = split(path);
        // A name that is gone, or another file's by now, is none of this file.
        let Ok(folder) = context.source.root.directory(directory) else { continue };
        let Ok(stat) = stat_at(folder.as_fd(), name) else { continue };
        let state = FileState::of(&stat);
        if state.device == group.device && state.inode == group.old_inode {
            old.push((folder, name, state));
        } else if state.device == group.device && state.inode == group.new_inode {
            new.push((folder, name, state));
        }
    }
    let (Some((old_folder, old_name, _)), Some((new_folder, new_name, _))) =
        (old.first(), new.first())
    else {
        return Ok(false);
    };
    let as_recorded =
        |(_, _, state): &(_, _, FileState)| (state.size, state.mtime) == (group.size, group.mtime);
    let old_file = open_file(old_folder.as_fd(), old_name, End::Source)?;
    let lease = Lease::ask(old_file.as_fd());
    let settled = lease.asked != Asked::InUse && old.iter().all(as_recorded);
    let (from, to) = if settled {
        (open_file(new_folder.as_fd(), new_name, End::Source)?, &old)
    } else if new.iter().all(as_recorded) {
        (old_file.try_clone().at(End::Source, "open")?, &new)
    } else {
        return Err(Failure::Clash(
            "its hard links became two files when a restripe was killed, and both have changed since: link them by hand",
        ));
    };
    for (folder, name, _) in to {
        let link = TemporaryName::of(folder.as_fd(), from.as_fd(), &context.live)
            .at(End::Destination, "link")?;
        renameat(folder, &link.name[..], folder, *name).at(End::Destination, "give name")?;
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::MetadataExt;
    use std::path::PathBuf;
    use std::time::{Duration, SystemTime};

    use super::super::journal::{Group, Journal, FOLDER};
    use super::super::{Restripe, RestripeOptions};
    use crate::options::Verify;
    use crate::time::Time;

    /// Two names of a file, between the renames of both; as a killed run leaves them. Then another run starts.
    fn after_a_kill(name: &str, change: impl Fn(&PathBuf)) -> (PathBuf, u64, u64) {
        let tree = std::env::temp_dir().join(format!("waystage-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&tree);
        fs::create_dir(&tree).expect("a tree");
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(5);
        for file in ["one", "new"] {
            fs::write(tree.join(file), "contents").expect("written");
            let file = fs::File::options().write(true).open(tree.join(file)).expect("opened");
            file.set_modified(at).expect("its time");
        }
        fs::hard_link(tree.join("one"), tree.join("two")).expect("a link");
        let inode = |name: &str| fs::metadata(tree.join(name)).expect("there");
        let (old, new) = (inode("one"), inode("new"));
        let root = waystage_catalog::Root::open(&tree).expect("a root");
        let (journal, _) = Journal::open(&root, "tree").expect("a journal");
        let mtime = Time { seconds: 5, nanoseconds: 0 };
        let names = vec![b"one".to_vec(), b"two".to_vec()];
        let (device, old_inode, new_inode) = (old.dev(), old.ino(), new.ino());
        let group = Group { device, old_inode, size: 8, mtime, new_inode, names };
        journal.begin(&group).expect("recorded");
        drop(journal);
        fs::rename(tree.join("new"), tree.join("one")).expect("renamed");
        change(&tree);
        let restripe = Restripe::start(RestripeOptions {
            tree: tree.clone(),
            classes: Vec::new(),
            workers: 1,
            exclude: waystage_catalog::Exclude::default(),
            one_file_system: false,
            verify: Verify::None,
            sync: false,
            rate_bytes_per_s: None,
            dry_run: false,
        });
        let restripe = restripe.expect("started");
        while restripe.wait(Duration::from_secs(1)).is_none() {}
        assert!(!tree.join(std::str::from_utf8(FOLDER).expect("text")).exists());
        let inode = |name: &str| fs::metadata(tree.join(name)).expect("there").ino();
        assert_eq!(inode("one") == inode("two"), restripe.counts().mended == 1);
        let found = (inode("one"), inode("two"));
        assert_eq!(fs::read_dir(&tree).expect("read").count(), 2);
        (tree, u64::from(found.0 == new_inode), u64::from(found.1 == new_inode))
    }

    #[test]
    fn links_that_a_kill_had_separated_get_the_new_inode() {
        let (tree, one, two) = after_a_kill("joined", |_| {});
        assert_eq!((one, two), (1, 1));
        fs::remove_dir_all(tree).expect("removed");
    }

    #[test]
    fn they_get_the_old_one_where_it_was_changed_since() {
        let (tree, one, two) =
            after_a_kill("old", |tree| fs::write(tree.join("two"), "changed").expect("written"));
        assert_eq!((one, two), (0, 0));
        assert_eq!(fs::read(tree.join("one")).expect("read"), b"changed");
        fs::remove_dir_all(tree).expect("removed");
    }

    #[test]
    fn where_both_were_changed_both_stay() {
        let (tree, one, two) = after_a_kill("both", |tree| {
            fs::write(tree.join("one"), "one").expect("written");
            fs::write(tree.join("two"), "two two").expect("written");
        });
        assert_eq!((one, two), (1, 0));
        fs::remove_dir_all(tree).expect("removed");
    }
}
