//! Damage is found in its object, and repaired from a copy without touching the others.

#![allow(clippy::unwrap_used, reason = "a test ends where something it relies on fails")]

use std::fs::{self, File, OpenOptions};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;

use proptest::prelude::*;
use twox_hash::XxHash3_128;
use waystage_catalog::checksum::{self, Rule, Sum};
use waystage_catalog::layout::{lustre::ost, Component, Layout, Object, Striping, Target, EOF};

const UNIT: u64 = 64 << 10;

fn sum(
    file: BorrowedFd<'_>,
    layout: Option<&Layout>,
    size: u64,
) -> Result<Vec<Sum>, rustix::io::Errno> {
    checksum::sum(file, layout, size, Rule::Every, &AtomicU64::new(0))
}

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("waystage-sum-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str, content: &[u8]) -> File {
        let path = self.0.join(name);
        fs::write(&path, content).unwrap();
        OpenOptions::new().read(true).write(true).open(path).unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A first component of one object up to `border`, and then stripes over `count` objects.
fn layout(border: u64, count: u32) -> Layout {
    let on = |first: u32, count: u32| (first..first + count).map(|i| Object::on(ost(i)));
    let striping = |count: u32| Striping { unit: UNIT, count: count.into(), object_size: EOF };
    let mut components = Vec::new();
    if border > 0 {
        components.push(Component {
            end: border,
            striping: striping(1),
            objects: on(0, 1).collect(),
            ..Component::whole()
        });
    }
    components.push(Component {
        start: border,
        striping: striping(count),
        objects: on(1, count).collect(),
        ..Component::whole()
    });
    Layout::new("lustre", 1, components).unwrap()
}

fn content(size: usize, seed: u8) -> Vec<u8> {
    (0..size).map(|i| (i / 7) as u8 ^ (i >> 11) as u8 ^ seed).collect()
}

/// The bytes of each OST in the file's order, by the rule for RAID 0.
fn by_ost(content: &[u8], border: u64, count: u64) -> Vec<Vec<u8>> {
    let mut held = vec![Vec::new(); usize::try_from(count).unwrap() + 1];
    for (offset, byte) in (0_u64..).zip(content) {
        let ost = if offset < border { 0 } else { 1 + offset / UNIT % count };
        held[usize::try_from(ost).unwrap()].push(*byte);
    }
    held
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    #[test]
    fn each_object_is_summed_and_repaired_alone(
        size in 0_usize..1 << 20, border in 0_u64..3, count in 1_u32..5, hit in any::<usize>()
    ) {
        let border = border * 4 * UNIT;
        let scratch = Scratch::new("each");
        let whole = content(size, 3);
        let file = scratch.file("file", &whole);
        let copy = scratch.file("copy", &whole);
        let layout = layout(border, count);
        let sums = sum(file.as_fd(), Some(&layout), size as u64).unwrap();
        let mut total = 0;
        for one in &sums {
            let ost = one.target.as_ref().and_then(Target::number).unwrap();
            let expected = &by_ost(&whole, border, count.into())[ost as usize];
            prop_assert_eq!(one.length, expected.len() as u64);
            prop_assert_eq!(one.digest, Some(XxHash3_128::oneshot(expected).to_be_bytes()));
            total += one.length;
        }
        prop_assert_eq!(total, size as u64);
        if size == 0 {
            return Ok(());
        }

        let at = (hit % size) as u64;
        file.write_all_at(&[whole[hit % size] ^ 0x40], at).unwrap();
        let after = sum(file.as_fd(), Some(&layout), size as u64).unwrap();
        let damaged: Vec<usize> =
            (0..sums.len()).filter(|i| sums[*i].digest != after[*i].digest).collect();
        prop_assert_eq!(damaged.len(), 1);

        let wanted: Vec<_> = damaged.iter().map(|i| (*i, sums[*i].digest.unwrap())).collect();
        let bad = scratch.file("bad", &content(size, 9));
        let (fd, none, rule) = (file.as_fd(), vec![false], Rule::Every);
        prop_assert_eq!(checksum::repair(fd, bad.as_fd(), Some(&layout), size as u64, rule, &wanted), Ok(none));
        prop_assert_eq!(sum(fd, Some(&layout), size as u64).unwrap(), after);
        let all = Ok(vec![true]);
        prop_assert_eq!(checksum::repair(fd, copy.as_fd(), Some(&layout), size as u64, rule, &wanted), all);
        prop_assert_eq!(fs::read(scratch.0.join("file")).unwrap(), whole);
    }
}

#[test]
fn a_file_without_a_layout_is_one_object_and_one_that_shrank_is_said_so() {
    let scratch = Scratch::new("plain");
    let whole = content(100_000, 1);
    let file = scratch.file("file", &whole);
    let sums = sum(file.as_fd(), None, 100_000).unwrap();
    assert_eq!((sums.len(), sums[0].length, sums[0].component), (1, 100_000, None));
    assert_eq!(sums[0].digest, Some(XxHash3_128::oneshot(&whole).to_be_bytes()));
    assert!(sum(file.as_fd(), None, 0).unwrap().is_empty());
    assert!(sum(file.as_fd(), None, 100_001).is_err());
}

#[test]
fn holes_are_not_read_and_the_same_bytes_have_the_same_sums_wherever_holes_are() {
    const SIZE: u64 = 1 << 40;
    let scratch = Scratch::new("holes");
    let data = content(4096, 5);
    let (sparse, other) = (scratch.file("sparse", b""), scratch.file("other", b""));
    for file in [&sparse, &other] {
        file.set_len(SIZE).unwrap();
        file.write_all_at(&data, SIZE / 2 + 100).unwrap();
    }
    // The same bytes, of which more are stored.
    other.write_all_at(&[0; 300_000], 12_345).unwrap();
    let done = AtomicU64::new(0);
    let of = |file: &File, layout: Option<&Layout>| {
        checksum::sum(file.as_fd(), layout, SIZE, Rule::Runs, &done).unwrap()
    };
    let striped = Layout::new(
        "lustre",
        1,
        vec![Component {
            striping: Striping { unit: 1 << 32, count: 3, object_size: EOF },
            objects: (0..3).map(|i| Object::on(ost(i))).collect(),
            ..Component::whole()
        }],
    )
    .unwrap();
    for layout in [None, Some(&striped)] {
        let sums = of(&sparse, layout);
        assert_eq!(sums, of(&other, layout));
        assert_eq!(sums.iter().map(|sum| sum.length).sum::<u64>(), SIZE);
    }
    assert_eq!(done.into_inner(), 4 * SIZE);

    // A repair may write zeros where there was a hole.
    let done = AtomicU64::new(0);
    let whole = checksum::sum(sparse.as_fd(), None, SIZE, Rule::Runs, &done).unwrap();
    other.write_all_at(b"damage", 1 << 38).unwrap();
    let wanted = [(0, whole[0].digest.unwrap())];
    let repaired =
        checksum::repair(other.as_fd(), sparse.as_fd(), None, SIZE, Rule::Runs, &wanted).unwrap();
    assert_eq!(repaired, [true]);
    assert_eq!(checksum::sum(other.as_fd(), None, SIZE, Rule::Runs, &done).unwrap(), whole);
}
