//! Batches of a synthetic tree: for measurements at sizes that no disk here holds.
//!
//! Arrives: which entries, by number.
//! Leaves: their columns, the same for the same numbers.
//! Must not know: what is measured.
//!
//! Entry n is file n of directory n / 1,000, as one program after the other writes them: names, times and inodes
//! count up, sizes are log-normal around 256 KiB, four stripes of a MiB over 24 targets above a MiB and one object
//! below.

use std::io::Write;

use crate::batch::{position, signed, Batch};
use crate::layout::{lustre, reader_index, LayoutReader};

/// Files of one directory.
const PER_DIRECTORY: u64 = 1_000;

const STRIPE: u64 = 1 << 20;
const STRIPES: u64 = 4;
const TARGETS: u64 = 24;

/// 2023-11-14, from when on files were written, one every 3 ms.
const START_NS: i64 = 1_700_000_000_000_000_000;
const EVERY_NS: i64 = 3_000_000;

/// Entries `first` to `first + count`, `count` being at most [`crate::walk::BATCH_ROWS`].
#[must_use]
pub fn generate(first: u64, count: u64) -> Batch {
    let mut batch = Batch::default();
    let mut name = Vec::new();
    let mut folder = None;
    for number in first..first + count.min(crate::walk::BATCH_ROWS as u64) {
        let directory = number / PER_DIRECTORY;
        if folder != Some(directory) {
            folder = Some(directory);
            push_directory(&mut batch, directory, &mut name);
        }
        push_entry(&mut batch, number, &mut name);
    }
    batch
}

fn push_directory(batch: &mut Batch, number: u64, name: &mut Vec<u8>) {
    let folders = &mut batch.directories;
    format_into(name, format_args!("project-{:03}/run-{:07}", number / 1_000, number));
    folders.path.push(name);
    folders.inode.push(1 << 40 | number);
    folders.device.push(66_306);
    folders.mtime.push(START_NS);
    folders.ctime.push(START_NS);
    folders.mode.push(0o750);
    folders.uid.push(1_000 + (number % 50) as u32);
    folders.gid.push(100);
    folders.rows.push(0);
    folders.total.push(-1);
    folders.state.push(0);
}

fn push_entry(batch: &mut Batch, number: u64, name: &mut Vec<u8>) {
    let place = batch.directories.inode.len() - 1;
    batch.directories.rows[place] += 1;
    if (number + 1).is_multiple_of(PER_DIRECTORY) {
        batch.directories.total[place] = signed(PER_DIRECTORY);
    }
    let chance = mixed(number);
    let size = size_of_file(chance);
    let entries = &mut batch.entries;
    entries.directory.push(position(place));
    format_into(name, format_args!("particles-{number:09}.h5"));
    entries.name.push(name);
    entries.kind.push(0);
    entries.size.push(signed(size));
    let time = START_NS + signed(number) * EVERY_NS;
    entries.mtime.push(time);
    entries.ctime.push(time);
    entries.atime.push(time);
    entries.mode.push(0o640);
    entries.uid.push(batch.directories.uid[place]);
    entries.gid.push(100);
    entries.inode.push(1_000_000 + number);
    entries.device.push(66_306);
    entries.links.push(1);
    entries.blocks.push(signed(size.div_ceil(4096) * 8));
    entries.symlink.push(b"");
    entries.layout_kind.push(reader_index(lustre::Reader.name()));
    entries.stripe_size.push(signed(STRIPE));
    entries.generation.push(0);
    if entries.objects.is_empty() {
        entries.objects.push(0);
    }
    let count = if size > STRIPE { size.div_ceil(STRIPE).min(STRIPES) } else { 1 };
    for turn in 0..count {
        entries.object_target.push(((chance >> 32) + turn).rem_euclid(TARGETS) as u32);
        entries.object_offset.push(signed(turn * STRIPE));
        // Whole rounds over the stripes, and this one's share of the last round.
        let round = STRIPE * STRIPES;
        let rest = (size % round).saturating_sub(turn * STRIPE).min(STRIPE);
        let held = if count == 1 { size } else { size / round * STRIPE + rest };
        entries.object_length.push(signed(held));
    }
    entries.objects.push(position(entries.object_target.len()));
}

fn format_into(name: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    name.clear();
    // Writing into memory does not fail.
    let _ = name.write_fmt(text);
}

/// SplitMix64 (Steele, Lea, Flood 2014), by its published constants.
fn mixed(number: u64) -> u64 {
    let mut z = number.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Log-normal: the sum of four uniform numbers stands for the normal one, within what a size needs.
fn size_of_file(chance: u64) -> u64 {
    let sum: u64 = (0..4).map(|i| chance >> (16 * i) & 0xFFFF).sum();
    // Four uniform numbers of 16 bits have a mean of 131,070 and a deviation of 37,837.
    let normal = (sum as f64 - 131_070.0) / 37_837.0;
    (f64::from(256 << 10) * (1.5 * normal).exp()) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_whole_whatever_their_borders() {
        let whole = generate(0, 3_000);
        assert_eq!(whole.len(), 3_000);
        assert_eq!(whole.directories.rows, [1_000; 3]);
        assert_eq!(whole.directories.total, [1_000; 3]);
        let part = generate(500, 1_000);
        assert_eq!(part.directories.rows, [500; 2]);
        assert_eq!(part.directories.total, [1_000, -1]);
        assert_eq!(part.entries.size, whole.entries.size[500..1_500]);
        assert_eq!(part.entries.name.get(0), whole.entries.name.get(500));
        for row in 0..whole.len() {
            let at = |i: usize| usize::try_from(whole.entries.objects[i]).unwrap_or(0);
            let held: i64 = whole.entries.object_length[at(row)..at(row + 1)].iter().sum();
            assert_eq!(held, whole.entries.size[row], "{row}");
        }
    }
}
