use std::path::Path;

use proptest::prelude::*;

use super::*;
use crate::testing::files_of;

/// Where each object of a file in stripes begins and how much it holds, the plain way: byte range by byte range.
fn striped(start: u64, end: u64, unit: u64, count: usize) -> Vec<(u64, u64)> {
    let mut objects: Vec<(u64, u64)> = Vec::new();
    let mut at = start;
    let mut turn = 0;
    while at < end {
        let length = unit.min(end - at);
        match objects.get_mut(turn) {
            Some(object) => object.1 += length,
            None => objects.push((at, length)),
        }
        at += length;
        turn = (turn + 1) % count;
    }
    objects
}

proptest! {
    /// Whatever the components of a file, its extents cover it, each byte on the target that holds it.
    #[test]
    fn extents_cover_the_file_and_lie_where_their_object_does(
        components in prop::collection::vec((1_u64..40, 1_u64..9, 1_usize..5), 1..4),
        most in 1_u64..50,
    ) {
        let mut objects = Vec::new();
        let mut owner: Vec<u32> = Vec::new();
        let mut start = 0;
        for (length, unit, count) in components {
            let first = u32::try_from(objects.len()).unwrap();
            let held = striped(start, start + length, unit, count);
            let turns = u64::try_from(held.len()).unwrap();
            owner.extend((0..length).map(|at| first + u32::try_from(at / unit % turns).unwrap()));
            objects.extend(held);
            start += length;
        }
        let numbered: Vec<_> = (0..).zip(&objects).map(|(n, &(at, bytes))| (n, at, bytes)).collect();
        let files = files_of(&[("a/b", start, &numbered)]);
        for object in 0..files.objects() as u32 {
            let extents = files.extents_of(object, most);
            prop_assert_eq!(extents.total(), extents.count() as u64);
        }
        let mut seen = vec![None; owner.len()];
        for extent in files.extents(0, most) {
            prop_assert!(extent.length <= most);
            for at in extent.offset..extent.offset + extent.length {
                let target = files.targets()[usize::from(extent.target)];
                prop_assert_eq!(seen[at as usize].replace(target), None, "byte {} twice", at);
            }
        }
        prop_assert_eq!(seen.into_iter().map(Option::unwrap).collect::<Vec<_>>(), owner);
    }
}

#[test]
fn a_file_whose_objects_do_not_cover_it_is_read_as_one_run() {
    for objects in [&[(0, 0, 4), (1, 6, 4)][..], &[(0, 2, 8)], &[(0, 0, 4)], &[(0, 0, 11)]] {
        let files = files_of(&[("f", 10, objects)]);
        let extents: Vec<_> = files.extents(0, 100).collect();
        assert_eq!(extents, [Extent { target: 0, offset: 0, length: 10 }], "{objects:?}");
    }
}

#[test]
fn an_empty_file_has_one_empty_extent() {
    for objects in [&[][..], &[(7, 0, 0)]] {
        let files = files_of(&[("f", 0, objects)]);
        assert_eq!(files.extents(0, 9).map(|e| (e.offset, e.length)).collect::<Vec<_>>(), [(0, 0)]);
    }
}

#[test]
fn paths_are_bytes_below_the_root() {
    let files = files_of(&[("a/b", 1, &[]), ("c", 1, &[])]);
    assert_eq!((files.path(0), files.path(1)), ("a/b".into(), "c".into()));
    assert_eq!(files.root(), Path::new("/nowhere"));
    assert_eq!(files.targets(), [Files::UNKNOWN]);
}

#[test]
fn columns_that_do_not_fit_are_refused() {
    let columns = Columns {
        directories: (&[0, 0], b""),
        directory: &[0],
        kind: &[0],
        names: (&[0, 1], b"x"),
        size: &[1],
        mtime: &[0],
        ctime: &[0],
        inode: &[0],
        layout: &[-1],
        generation: &[0],
        objects: &[0, 0],
        object_target: &[],
        object_offset: &[],
        object_length: &[],
    };
    let refused = |columns: &Columns<'_>| Files::new("/".into()).extend(columns).is_err();
    assert!(!refused(&columns));
    assert!(refused(&Columns { directory: &[1], ..columns }));
    assert!(refused(&Columns { names: (&[0, 2], b"x"), ..columns }));
    assert!(refused(&Columns { names: (&[0], b"x"), ..columns }));
    assert!(refused(&Columns { size: &[-1], ..columns }));
    assert!(refused(&Columns { objects: &[0, 1], ..columns }));
    assert!(refused(&Columns { objects: &[-1, 0], ..columns }));
    assert!(refused(&Columns { inode: &[], ..columns }));
}

#[test]
fn what_is_no_regular_file_is_left_out() {
    let columns = Columns {
        directories: (&[0, 0], b""),
        directory: &[0, 0, 0],
        kind: &[0, 1, 0],
        names: (&[0, 1, 2, 3], b"abc"),
        size: &[1, 0, 2],
        mtime: &[0; 3],
        ctime: &[0; 3],
        inode: &[0; 3],
        layout: &[-1; 3],
        generation: &[0; 3],
        objects: &[0, 0, 0, 0],
        object_target: &[],
        object_offset: &[],
        object_length: &[],
    };
    let mut files = Files::new("/".into());
    files.extend(&columns).unwrap();
    assert_eq!((files.len(), files.path(1), files.size(1)), (2, "c".into(), 2));
}

#[test]
fn sorted_files_are_the_same_however_they_were_found() {
    let (a, b, c) =
        (("x/a", 3, &[][..]), ("x/b", 8, &[(4, 0, 4), (2, 4, 4)][..]), ("c", 1, &[][..]));
    let one = files_of(&[a, b, c]).sorted();
    let other = files_of(&[c, b, a]).sorted();
    let paths = |files: &Files| (0..3).map(|n| files.path(n)).collect::<Vec<_>>();
    assert_eq!(paths(&one), ["c", "x/a", "x/b"].map(PathBuf::from));
    assert_eq!(paths(&one), paths(&other));
    assert_eq!(one.extents(2, 9).collect::<Vec<_>>(), other.extents(2, 9).collect::<Vec<_>>());
    assert_eq!(one.fingerprint(), other.fingerprint());
    assert_ne!(one.fingerprint(), files_of(&[a, b]).fingerprint());
}
