//! Made-up files: found by name and by number, the same each time, with bytes that do not depend on how they are
//! read.

use waystage_catalog::layout::EOF;

use super::*;
use crate::layout::{Dealing, TemplateComponent};

fn tree(seed: u64) -> Generated {
    let made = Made {
        sizes: (0..25).map(|i| i * 300_000).collect(),
        files_per_directory: 10,
        seed,
        changed_s: 1_000,
    };
    let component = TemplateComponent { end: EOF, stripe_size: 1 << 20, stripes: 1, pool: None };
    let template = Template::new(vec![component]).unwrap();
    Generated::new(made, template, Striper::new(4, vec![], Dealing::RoundRobin, 1).unwrap())
        .unwrap()
}

fn bytes(tree: &Generated, ino: u64, offset: u64, length: usize) -> Vec<u8> {
    let mut got = Vec::new();
    tree.read(ino, 0, offset, length, &mut |part| got.extend_from_slice(part)).unwrap();
    got
}

#[test]
fn every_entry_is_found_by_its_name_and_no_other_is() {
    let tree = tree(1);
    let mut files = 0;
    for directory in tree.entries(ROOT).unwrap() {
        assert_eq!(tree.lookup(ROOT, &directory.name).unwrap().ino.0, directory.ino);
        for item in tree.entries(directory.ino).unwrap() {
            let found = tree.lookup(directory.ino, &item.name).unwrap();
            assert_eq!((found.ino.0, found.kind), (item.ino, FileType::RegularFile));
            assert_eq!(tree.directory_of(item.ino), directory.ino);
            files += 1;
        }
    }
    assert_eq!(files, 25);
    for (parent, name) in
        [(ROOT, "d00003"), (ROOT, "d0"), (2, "f000000010"), (2, "f00000000"), (2, "f+00000001")]
    {
        assert!(tree.lookup(parent, OsStr::new(name)).is_err(), "{name}");
    }
}

#[test]
fn a_directory_is_not_given_out_in_the_order_of_placing() {
    let numbers: Vec<u64> = tree(1).entries(2).unwrap().iter().map(|item| item.ino).collect();
    assert!(!numbers.is_sorted());
}

#[test]
fn bytes_do_not_depend_on_how_they_are_read_but_on_file_and_seed() {
    let (one, other) = (tree(1), tree(2));
    let ino = FIRST_FILE + 24;
    let whole = bytes(&one, ino, 0, 8 << 20);
    assert_eq!(whole.len(), 24 * 300_000);
    let pieces: Vec<u8> = (0..72).flat_map(|i| bytes(&one, ino, i * 100_000, 100_000)).collect();
    assert!(whole == pieces);
    assert!(whole != bytes(&other, ino, 0, 8 << 20));
    assert!(whole[..1000] != bytes(&one, ino - 1, 0, 1000));
    assert!(bytes(&one, ino, 24 * 300_000, 10).is_empty());
}
