//! What a check says of an entry, whatever became of its file.

#![allow(clippy::unwrap_used, reason = "a test ends where something it relies on fails")]

mod common;

use std::fs;
use std::os::unix::fs::MetadataExt;

use proptest::prelude::*;
use rustix::fs::{Statx, StatxFlags};
use waystage_catalog::check::{as_recorded, compare, Differences, Recorded};
use waystage_catalog::layout::READERS;
use waystage_catalog::{CheckedTree, Columns};

use common::Scratch;

fn stat_of(path: &std::path::Path) -> Statx {
    let how = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
    rustix::fs::statx(rustix::fs::CWD, path, how, StatxFlags::BASIC_STATS).unwrap()
}

proptest! {
    /// Exactly what was altered is named, whatever else is.
    #[test]
    fn a_check_names_exactly_what_differs(
        altered in 0_u16..64, by in 1_i64..1 << 40, generation in 1_u32..u32::MAX
    ) {
        let scratch = Scratch::new("pure");
        let now = stat_of(&scratch.0);
        let has = |one: Differences| altered & one.bits() != 0;
        let mut recorded = Recorded { generation: Some(generation), ..as_recorded(&now) };
        prop_assert!(compare(&recorded, &now, Some(generation)).is_empty());
        recorded.kind = if has(Differences::TYPE) { (recorded.kind + 1) % 7 } else { recorded.kind };
        recorded.size += if has(Differences::SIZE) { by } else { 0 };
        recorded.mtime -= if has(Differences::MTIME) { by } else { 0 };
        recorded.ctime -= if has(Differences::CTIME) { by } else { 0 };
        recorded.inode ^= if has(Differences::INODE) { by.unsigned_abs() } else { 0 };
        let laid_out = if has(Differences::LAYOUT) { None } else { Some(generation) };
        prop_assert_eq!(compare(&recorded, &now, laid_out).bits(), altered);
    }
}

#[test]
fn only_file_systems_that_number_their_layouts_are_asked_for_the_number() {
    for (index, reader) in (0_i8..).zip(READERS) {
        let expected = (reader.name() == "lustre").then_some(7);
        assert_eq!(Recorded::generation_of(index, 7), expected, "{}", reader.name());
    }
    assert_eq!(Recorded::generation_of(-1, 7), None);
    assert_eq!(Recorded::generation_of(100, 7), None);
}

#[test]
fn a_layout_that_is_no_longer_told_is_a_difference() {
    let scratch = Scratch::new("layout");
    fs::write(scratch.0.join("f"), b"abc").unwrap();
    let tree = CheckedTree::open(&scratch.0).unwrap();
    let now = as_recorded(&stat_of(&scratch.0.join("f")));
    assert!(tree.open_file(b"f", &now).unwrap().differences.is_empty());
    // A local file system's layouts have no number but 0.
    let recorded = Recorded { generation: Some(3), ..now };
    let opened = tree.open_file(b"f", &recorded).unwrap();
    assert_eq!(opened.differences.names().collect::<Vec<_>>(), ["layout_generation"]);
    assert_eq!(opened.layout.unwrap().objects[0].length, 3);
}

#[test]
fn columns_that_do_not_fit_together_are_refused() {
    let scratch = Scratch::new("columns");
    fs::write(scratch.0.join("f"), b"").unwrap();
    let tree = CheckedTree::open(&scratch.0).unwrap();
    let inode = fs::metadata(scratch.0.join("f")).unwrap().ino();
    let look = |directory: &[i32], directories: &[i32], names: (&[i32], &[u8]), inode: &[u64]| {
        tree.compare_entries(&Columns {
            directories: (directories, b""),
            directory,
            names,
            kind: &[0],
            size: &[0],
            mtime: &[0],
            ctime: &[0],
            inode,
        })
    };
    let found = look(&[0], &[0, 0], (&[0, 1], b"f"), &[inode]).unwrap();
    assert_eq!(found[0].names().collect::<Vec<_>>(), ["mtime", "ctime"]);
    for (directory, directories, names, inodes) in [
        (&[1][..], &[0, 0][..], (&[0, 1][..], &b"f"[..]), &[inode][..]),
        (&[-1], &[0, 0], (&[0, 1], b"f"), &[inode]),
        (&[0], &[0, 5], (&[0, 1], b"f"), &[inode]),
        (&[0], &[0, 0], (&[0, 9], b"f"), &[inode]),
        (&[0], &[0, 0], (&[1, 0], b"f"), &[inode]),
        (&[0], &[0, 0], (&[0, 1], b"f"), &[]),
        (&[0], &[0, 0], (&[0, 0], b"f"), &[inode]),
        (&[0], &[0, 0], (&[0, 4], b"../f"), &[inode]),
    ] {
        assert!(look(directory, directories, names, inodes).is_err());
    }
}
