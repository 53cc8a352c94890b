//! A walk finds each entry once, whatever the names, threads and concurrent changes.

#![allow(clippy::unwrap_used, reason = "a test ends where something it relies on fails")]

mod common;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{symlink, MetadataExt};
use std::path::Path;
use std::time::Duration;

use waystage_catalog::walk::{Counts, Known, KnownDirectory, Options, Walk};
use waystage_catalog::{Exclude, TYPE_LETTERS};

use common::Scratch;

fn options(root: &Path) -> Options {
    Options {
        tops: vec![Vec::new()],
        root: root.to_path_buf(),
        threads: 4,
        batch_rows: 1_000,
        eager: false,
        exclude: Exclude::default(),
        one_file_system: false,
        layouts: None,
        known: Known::default(),
        follow: None,
    }
}

struct Seen {
    /// Path -> (type, size, inode).
    entries: BTreeMap<Vec<u8>, (String, i64, u64)>,
    /// Path -> (rows, total, state).
    directories: BTreeMap<Vec<u8>, (i64, i64, i8)>,
    errors: Vec<(Vec<u8>, String)>,
    counts: Counts,
    known: Vec<(Vec<u8>, KnownDirectory)>,
}

fn walk(options: Options) -> Seen {
    rest_of(&Walk::start(options).unwrap())
}

/// What no one has received yet.
fn rest_of(walk: &Walk) -> Seen {
    let mut seen = Seen {
        entries: BTreeMap::new(),
        directories: BTreeMap::new(),
        errors: Vec::new(),
        counts: Counts::default(),
        known: Vec::new(),
    };
    while let Some(batch) = walk.recv() {
        let d = &batch.directories;
        for i in 0..d.inode.len() {
            let held = seen.directories.entry(d.path.get(i).to_vec()).or_insert((0, -1, 0));
            held.0 += d.rows[i];
            held.1 = held.1.max(d.total[i]);
            held.2 = d.state[i];
            let known = KnownDirectory {
                inode: d.inode[i],
                device: d.device[i],
                mtime: d.mtime[i],
                ctime: d.ctime[i],
            };
            seen.known.push((d.path.get(i).to_vec(), known));
        }
        let e = &batch.entries;
        for i in 0..batch.len() {
            let mut path = d.path.get(usize::try_from(e.directory[i]).unwrap()).to_vec();
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(e.name.get(i));
            let letter = TYPE_LETTERS[usize::try_from(e.kind[i]).unwrap()].to_owned();
            let earlier = seen.entries.insert(path.clone(), (letter, e.size[i], e.inode[i]));
            assert!(earlier.is_none(), "{path:?} came twice");
        }
        seen.errors.extend(batch.errors.iter().cloned());
    }
    seen.counts = walk.counts();
    seen
}

#[test]
fn every_entry_is_found_once_with_its_own_inode_and_size() {
    let scratch = Scratch::new("tree");
    let mut expected = BTreeMap::new();
    for directory in ["", "a", "a/b", "a/b/c", "empty", "z"] {
        fs::create_dir_all(scratch.0.join(directory)).unwrap();
        if directory == "empty" {
            continue;
        }
        for number in 0..50 {
            let path = scratch.0.join(directory).join(format!("f{number}"));
            fs::write(&path, vec![0; number]).unwrap();
            let inode = fs::metadata(&path).unwrap().ino();
            let below = path.strip_prefix(&scratch.0).unwrap().as_os_str().as_bytes().to_vec();
            expected.insert(below, ("f".to_owned(), i64::try_from(number).unwrap(), inode));
        }
    }
    let mut seen = walk(options(&scratch.0));
    for (rows, total, state) in seen.directories.values() {
        assert_eq!((rows, *state), (total, 0));
    }
    assert_eq!(seen.directories.len(), 6);
    assert_eq!(seen.counts.entries, 255);
    seen.entries.retain(|_, (letter, _, _)| letter != "d");
    assert_eq!(seen.entries, expected);
}

#[test]
fn a_huge_directory_is_shared_and_still_complete() {
    let scratch = Scratch::new("huge");
    for number in 0..70_000 {
        fs::File::create(scratch.0.join(format!("file-with-a-long-name-{number}"))).unwrap();
    }
    for eager in [false, true] {
        let seen = walk(Options { eager, ..options(&scratch.0) });
        assert_eq!(seen.entries.len(), 70_000);
        assert_eq!(seen.directories[&b""[..]].0, 70_000);
        assert_eq!(seen.directories[&b""[..]].1, 70_000);
    }
}

#[test]
fn odd_names_pass_unharmed_and_links_are_never_followed() {
    let scratch = Scratch::new("odd");
    let long = [b'x'; 255];
    let names: [&[u8]; 5] = [b"new\nline", b"\xff\xfe", &long, b"-rf", b"sp ace"];
    for name in names {
        fs::write(scratch.0.join(OsStr::from_bytes(name)), b"1").unwrap();
    }
    symlink(".", scratch.0.join("loop")).unwrap();
    symlink("/usr", scratch.0.join("out")).unwrap();
    symlink("self", scratch.0.join("self")).unwrap();
    let seen = walk(options(&scratch.0));
    assert_eq!(seen.entries.len(), 8);
    for name in names {
        assert_eq!(seen.entries[name].0, "f");
    }
    assert_eq!(seen.entries[&b"loop"[..]].0, "l");
    assert_eq!(seen.counts.directories, 1);
    assert_eq!(seen.counts.errors, 0);
}

#[test]
fn a_path_longer_than_the_kernel_takes_at_once_is_walked() {
    let scratch = Scratch::new("deep");
    let name = "d".repeat(200);
    let mut at = rustix::fs::open(
        &scratch.0,
        rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::DIRECTORY,
        rustix::fs::Mode::empty(),
    )
    .unwrap();
    let mut descents = Vec::new();
    for _ in 0..30 {
        rustix::fs::mkdirat(&at, name.as_str(), rustix::fs::Mode::RWXU).unwrap();
        let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::DIRECTORY;
        let next =
            rustix::fs::openat(&at, name.as_str(), flags, rustix::fs::Mode::empty()).unwrap();
        descents.push(std::mem::replace(&mut at, next));
    }
    let seen = walk(options(&scratch.0));
    assert_eq!(seen.counts.entries, 30);
    assert_eq!(seen.counts.directories, 31);
    assert_eq!(seen.counts.errors, 0);
    // fs::remove_dir_all cannot go that deep by path either; take it down from the bottom.
    for parent in descents.into_iter().rev() {
        rustix::fs::unlinkat(&parent, name.as_str(), rustix::fs::AtFlags::REMOVEDIR).unwrap();
    }
}

#[test]
fn what_is_excluded_is_neither_recorded_nor_entered() {
    let scratch = Scratch::new("exclude");
    fs::create_dir_all(scratch.0.join("keep/.git/objects")).unwrap();
    fs::write(scratch.0.join("keep/.git/objects/x"), b"1").unwrap();
    fs::write(scratch.0.join("keep/a.tmp"), b"1").unwrap();
    fs::write(scratch.0.join("keep/a"), b"1").unwrap();
    let exclude = Exclude::new([b".git".to_vec(), b"*.tmp".to_vec()]);
    let seen = walk(Options { exclude, ..options(&scratch.0) });
    let paths: Vec<_> = seen.entries.keys().map(Vec::as_slice).collect();
    assert_eq!(paths, [&b"keep"[..], b"keep/a"]);
    assert_eq!(seen.counts.excluded, 2);
}

#[test]
fn directories_that_have_not_changed_are_not_read_but_those_below_are_looked_at() {
    let scratch = Scratch::new("known");
    fs::create_dir_all(scratch.0.join("a/b")).unwrap();
    fs::write(scratch.0.join("a/b/x"), b"1").unwrap();
    let known = walk(options(&scratch.0)).known;
    std::thread::sleep(Duration::from_millis(20));
    fs::write(scratch.0.join("a/b/y"), b"1").unwrap();
    let seen = walk(Options { known: Known::new(known), ..options(&scratch.0) });
    let paths: Vec<_> = seen.entries.keys().map(Vec::as_slice).collect();
    assert_eq!(paths, [&b"a/b/x"[..], b"a/b/y"]);
    assert_eq!((seen.counts.unchanged, seen.counts.directories), (2, 1));
    assert_eq!(seen.directories[&b"a"[..]].2, 1);
}

#[test]
fn a_tree_that_changes_meanwhile_ends_the_walk_without_errors() {
    let scratch = Scratch::new("changes");
    for directory in 0..40 {
        fs::create_dir(scratch.0.join(format!("d{directory}"))).unwrap();
        for file in 0..50 {
            fs::write(scratch.0.join(format!("d{directory}/f{file}")), b"1").unwrap();
        }
    }
    let root = scratch.0.clone();
    let changer = std::thread::spawn(move || {
        for directory in (0..40).rev() {
            let path = root.join(format!("d{directory}"));
            fs::remove_dir_all(&path).unwrap();
            match directory % 3 {
                0 => fs::write(&path, b"now a file").unwrap(),
                1 => symlink("/usr", &path).unwrap(),
                _ => {}
            }
        }
    });
    while !changer.is_finished() {
        let seen = walk(options(&scratch.0));
        assert!(seen.errors.is_empty(), "{:?}", seen.errors);
        assert!(seen.entries.keys().all(|path| !path.starts_with(b"usr")));
        assert!(seen.entries.len() <= 2040);
    }
    changer.join().unwrap();
}

#[test]
fn no_directory_is_begun_once_those_that_wait_were_asked_for() {
    let scratch = Scratch::new("given-away");
    for number in 0..500 {
        fs::write(scratch.0.join(format!("f{number}")), "").unwrap();
    }
    for name in ["a", "b", "c"] {
        fs::create_dir_all(scratch.0.join(name).join("below")).unwrap();
    }
    // Few batches of one entry are waited for: the root is begun, and not all of it read.
    let walk = Walk::start(Options { threads: 1, batch_rows: 1, ..options(&scratch.0) }).unwrap();
    let begun = walk.recv().unwrap().len();
    let mut given = walk.take_waiting();
    let seen = rest_of(&walk);
    given.extend(walk.take_waiting());
    given.sort_unstable();
    assert_eq!(given, [b"a", b"b", b"c"]);
    assert_eq!(seen.directories.keys().collect::<Vec<_>>(), [b""]);
    assert_eq!(begun + seen.entries.len(), 503);
}

#[test]
fn a_walk_without_a_consumer_ends_when_it_is_dropped() {
    let scratch = Scratch::new("dropped");
    for number in 0..1_000 {
        fs::create_dir(scratch.0.join(number.to_string())).unwrap();
    }
    let walk = Walk::start(options(&scratch.0)).unwrap();
    drop(walk);
}

#[test]
fn a_root_that_is_no_directory_is_refused() {
    let scratch = Scratch::new("file");
    let path = scratch.0.join("file");
    fs::write(&path, b"1").unwrap();
    assert!(Walk::start(options(&path)).is_err());
    assert!(Walk::start(options(&scratch.0.join("absent"))).is_err());
}
