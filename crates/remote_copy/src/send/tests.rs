//! A sender and a receiver over a channel in memory, without sockets.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{openat, Mode, OFlags, CWD};
use waystage_catalog::Root;
use waystage_copy::{Counts, Fsync, Limits, Update, Verify};

use super::*;
use crate::channel::testing::pair;
use crate::endpoints;
use crate::privileges::PeerPrivileges;
use crate::receive::receive;
use crate::receiver_state::Target;
use crate::request_filter::RequestFilter;
use crate::session::Dry;

struct Trees(PathBuf);

impl Trees {
    fn new(name: &str) -> Self {
        let top = std::env::temp_dir().join(format!("waystage-{name}-{}", std::process::id()));
        std::fs::create_dir_all(top.join("from/sub")).unwrap();
        std::fs::create_dir_all(top.join("to")).unwrap();
        Self(top)
    }

    fn path(&self, below: &str) -> PathBuf {
        self.0.join(below)
    }
}

impl Drop for Trees {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn options(update: Update) -> CopyOptions {
    CopyOptions {
        exclude: Vec::new(),
        include: None,
        copy_links: false,
        backup: None,
        limits: Limits::default(),
        listed: false,
        one_file_system: false,
        update,
        fsync: Fsync::None,
        verify: Verify::None,
        dry: Dry::No,
        restart: false,
        xattrs: false,
        owners: false,
        hard_links: true,
    }
}

fn opened(path: &Path) -> OwnedFd {
    openat(CWD, path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap()
}

/// What the receiver counted of a copy of `from` to `to`.
fn copied(trees: &Trees, options: &CopyOptions, names: Option<&Names>, flat: bool) -> Counts {
    let path = trees.path("from");
    let root = Root::open(&path).unwrap();
    let held = opened(&path);
    let origin = Origin { source: Source { root, path, single: None }, _held: held, flat };
    let to = trees.path("to");
    let bytes = std::os::unix::ffi::OsStrExt::as_bytes(to.as_os_str());
    let held = endpoints::target(&endpoints::of_this_machine, bytes, None, &to, Dry::No).unwrap();
    let target = Target {
        root: held.root,
        _held: held.held,
        rename: None,
        shown: to.clone(),
        from: b"test".to_vec(),
        privileges: PeerPrivileges::in_client(false),
        filter: RequestFilter::anything(),
    };
    let (one, other) = pair();
    let (sends, receives) = (CopyState::default(), CopyState::default());
    std::thread::scope(|scope| {
        let sending = scope.spawn(|| send(&origin, names, options, &one, &sends, 2));
        receive(&target, options, &other, &receives, 2).unwrap();
        sending.join().unwrap().unwrap();
    });
    receives.report.tally.read()
}

#[test]
fn a_tree_arrives_and_a_second_copy_sends_nothing() {
    let trees = Trees::new("send-tree");
    let large: Vec<u8> = (0..9_000_000_u32).map(|at| (at / 7) as u8).collect();
    std::fs::write(trees.path("from/sub/small"), b"small").unwrap();
    std::fs::write(trees.path("from/large"), &large).unwrap();
    std::fs::hard_link(trees.path("from/large"), trees.path("from/sub/linked")).unwrap();
    std::os::unix::fs::symlink("large", trees.path("from/link")).unwrap();
    let counts = copied(&trees, &options(Update::Changed), None, false);
    assert_eq!((counts.files, counts.symlinks, counts.hard_links), (2, 1, 1));
    assert!(std::fs::read(trees.path("to/sub/linked")).unwrap() == large);
    assert!(!trees.path("to/.waystage-copy").exists());
    let again = copied(&trees, &options(Update::Changed), None, false);
    assert_eq!((again.files, again.bytes, again.same), (0, 0, 3));
}

#[test]
fn only_parts_that_differ_are_sent() {
    let trees = Trees::new("send-parts");
    let mut large: Vec<u8> = (0..13_000_000_u32).map(|at| (at / 5) as u8).collect();
    std::fs::write(trees.path("to/large"), &large).unwrap();
    large[5_000_000] ^= 1;
    std::fs::write(trees.path("from/large"), &large).unwrap();
    let counts = copied(&trees, &options(Update::Content), None, false);
    assert_eq!((counts.files, counts.bytes), (1, 4 << 20));
    assert!(std::fs::read(trees.path("to/large")).unwrap() == large);
}

#[test]
fn listed_files_can_be_sent_under_their_last_names_alone() {
    let trees = Trees::new("send-flat");
    std::fs::write(trees.path("from/sub/deep"), b"deep").unwrap();
    std::fs::write(trees.path("from/top"), b"top").unwrap();
    let names = Names::parse(b"sub/deep\ntop\n", false).unwrap();
    let options = CopyOptions { listed: true, hard_links: false, ..options(Update::Always) };
    for _ in 0..2 {
        let counts = copied(&trees, &options, Some(&names), true);
        assert_eq!((counts.files, counts.directories), (2, 0));
    }
    let mut names: Vec<_> = std::fs::read_dir(trees.path("to")).unwrap().flatten().collect();
    names.sort_by_key(std::fs::DirEntry::file_name);
    assert!(names.iter().map(|entry| entry.file_name()).eq(["deep", "top"]));
}

#[test]
fn an_answer_to_nothing_ends_the_copy() {
    let trees = Trees::new("send-answer");
    let path = trees.path("from");
    let (root, held) = (Root::open(&path).unwrap(), opened(&path));
    let origin = Origin { source: Source { root, path, single: None }, _held: held, flat: false };
    let (one, other) = pair();
    other.send(Answer { batch: 77, ..Answer::default() }.encode()).unwrap();
    let state = CopyState::default();
    let error = send(&origin, None, &options(Update::Changed), &one, &state, 1).unwrap_err();
    assert!(error.to_string().contains("it answered what was not asked"), "{error}");
}

#[test]
fn a_channel_that_ends_ends_the_copy() {
    let trees = Trees::new("send-end");
    let path = trees.path("from");
    let (root, held) = (Root::open(&path).unwrap(), opened(&path));
    let origin = Origin { source: Source { root, path, single: None }, _held: held, flat: false };
    let (one, _other) = pair();
    one.end();
    let state = CopyState::default();
    assert!(send(&origin, None, &options(Update::Changed), &one, &state, 1).is_err());
}
