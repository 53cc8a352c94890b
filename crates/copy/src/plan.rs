//! What to do with an entry: decided from data alone.
//!
//! Arrives: an entry of the source, what the destination has under its name, the update policy, what the journal
//! recovered. Leaves: an action. Must not know: files, sockets, clocks.

use crate::error::Failure;
use crate::options::Update;
use crate::part_set::PartSet;
use crate::sink::journal::PartialFile;
use crate::stat::FileState;
use crate::time::Time;

/// A device, FIFO or socket is never replaced: programs depend on it.
pub const NOT_REPLACED: Failure = Failure::Clash(
    "a device, FIFO or socket has this name at the destination, and is not replaced",
);

/// A directory is never replaced.
pub const IS_DIRECTORY: Failure = Failure::Clash("a directory has this name at the destination");

/// A directory takes no file's place.
const NO_DIRECTORY: Failure =
    Failure::Clash("what has this name at the destination is no directory");

const UNKNOWN_TYPE: Failure = Failure::Clash("is of a type unknown here");

/// An entry of the source.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'a> {
    /// The letter of its type, as in [`waystage_catalog::TYPE_LETTERS`].
    pub letter: u8,
    /// Its state.
    pub seen: &'a FileState,
    /// The target of a symbolic link.
    pub target: &'a [u8],
    /// The number of a device.
    pub device: u64,
}

/// What the destination has under the same name.
#[derive(Debug, Clone)]
pub struct Found {
    /// The letter of its type.
    pub letter: u8,
    /// Its state.
    pub seen: FileState,
    /// The target of a symbolic link.
    pub target: Vec<u8>,
    /// The number of a device.
    pub device: u64,
}

/// What decides beside the two entries.
#[derive(Debug, Clone, Copy)]
pub struct Policy {
    /// When a file is copied again.
    pub update: Update,
    /// A file that changed since then may have lost its contents in a power failure.
    pub doubtful_since: Option<Time>,
    /// Longer files are cut into extents of this size.
    pub extent_bytes: u64,
    /// Whether extents of a large file are compared one by one, so that its size may differ.
    pub compares_extents: bool,
    /// Whether an earlier run may have been on another host, which may have another number for the source's device.
    pub on_other_hosts: bool,
}

/// What is done with an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Nothing: it is there, and its attributes are not touched.
    Same,
    /// It is there; attributes that differ are fixed.
    FixAttributes,
    /// Its contents are compared; where they differ it is copied.
    Compare(Transfer),
    /// Its contents are copied.
    Copy(Transfer),
    /// A directory that has to be made.
    MakeDirectory,
    /// A symbolic link that has to be made.
    MakeSymlink,
    /// A device or FIFO that has to be made.
    MakeSpecial,
    /// It cannot be made.
    Conflict(Failure),
}

/// How contents are copied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Transfer {
    /// In one piece, under its name only when complete.
    Small,
    /// Extent by extent.
    Large {
        /// Extents to be written.
        missing: PartSet,
        /// What becomes of what an earlier run wrote.
        resume: Resume,
    },
}

/// What becomes of the temporary file of an earlier run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resume {
    /// There is none.
    Fresh,
    /// It is completed.
    Continue,
    /// It is of another state of the file, and removed.
    Discard,
}

/// How many extents a file of `size` bytes has.
#[must_use]
pub fn extents_of(size: u64, extent_bytes: u64) -> u32 {
    u32::try_from(size.div_ceil(extent_bytes)).unwrap_or(u32::MAX)
}

/// Decide.
#[must_use]
pub fn plan(
    wanted: &Wanted<'_>,
    found: Option<&Found>,
    recovered: Option<&PartialFile>,
    policy: &Policy,
) -> Action {
    if let Some(found) = found {
        match (wanted.letter, found.letter) {
            (b'd', b'd') => return Action::FixAttributes,
            (b'd', _) => return Action::Conflict(NO_DIRECTORY),
            (_, b'd') => return Action::Conflict(IS_DIRECTORY),
            (b'f', b'f') => return file(wanted.seen, &found.seen, recovered, policy),
            (b'l', b'l') if found.target == wanted.target => return Action::FixAttributes,
            // A file or link is replaced by any entry.
            (_, b'f' | b'l') => {}
            (one, other) if one == other && found.device == wanted.device => {
                return Action::FixAttributes
            }
            _ => return Action::Conflict(NOT_REPLACED),
        }
    }
    match wanted.letter {
        b'f' => Action::Copy(transfer(wanted.seen, recovered, policy)),
        b'd' => Action::MakeDirectory,
        b'l' => Action::MakeSymlink,
        b'p' | b'b' | b'c' => Action::MakeSpecial,
        _ => Action::Conflict(UNKNOWN_TYPE),
    }
}

fn file(
    wanted: &FileState,
    found: &FileState,
    recovered: Option<&PartialFile>,
    policy: &Policy,
) -> Action {
    let same_size = found.size == wanted.size;
    let same = same_size && found.mtime == wanted.mtime;
    let is_newer = found.mtime > wanted.mtime;
    let is_doubtful = policy.doubtful_since.is_some_and(|since| found.ctime >= since);
    if !is_doubtful {
        match policy.update {
            Update::Missing => return Action::Same,
            Update::Newer if is_newer => return Action::Same,
            Update::Changed | Update::Newer if same => return Action::FixAttributes,
            _ => {}
        }
    }
    let transfer = transfer(wanted, recovered, policy);
    let compares = is_doubtful || policy.update == Update::Content;
    let by_extent = policy.compares_extents && transfer != Transfer::Small;
    if compares && (same_size || by_extent) {
        Action::Compare(transfer)
    } else {
        Action::Copy(transfer)
    }
}

fn transfer(wanted: &FileState, recovered: Option<&PartialFile>, policy: &Policy) -> Transfer {
    if wanted.size <= policy.extent_bytes {
        return Transfer::Small;
    }
    let mut missing = PartSet::below(extents_of(wanted.size, policy.extent_bytes));
    let resume = match recovered {
        None => Resume::Fresh,
        Some(partial)
            if is_same_state(&partial.seen, &wanted.numbers(), policy)
                && partial.extent_bytes == policy.extent_bytes =>
        {
            partial.written.iter().for_each(|index| {
                missing.remove(index);
            });
            Resume::Continue
        }
        Some(_) => Resume::Discard,
    };
    Transfer::Large { missing, resume }
}

/// Whether the file that an earlier run began is as it was then. The device is the first of the numbers.
fn is_same_state(before: &[u64; 7], now: &[u64; 7], policy: &Policy) -> bool {
    let first = usize::from(policy.on_other_hosts);
    before[first..] == now[first..]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const EXTENT: u64 = 10;

    fn state(size: u64, mtime: i64) -> FileState {
        let mtime = Time::from_ns(mtime);
        FileState { device: 1, inode: 2, size, mtime, ctime: Time::from_ns(50) }
    }

    fn wanted(letter: u8, seen: &FileState) -> Wanted<'_> {
        Wanted { letter, seen, target: b"to", device: 7 }
    }

    fn found(letter: u8, size: u64, mtime: i64) -> Found {
        Found { letter, seen: state(size, mtime), target: b"to".to_vec(), device: 7 }
    }

    fn policy(update: Update) -> Policy {
        Policy {
            update,
            doubtful_since: None,
            extent_bytes: EXTENT,
            compares_extents: false,
            on_other_hosts: false,
        }
    }

    fn partial(seen: &FileState, extent_bytes: u64, written: &[u32]) -> PartialFile {
        PartialFile {
            id: 3,
            key: 4,
            directory: b"d".to_vec(),
            seen: seen.numbers(),
            extent_bytes,
            written: written.iter().copied().collect(),
        }
    }

    #[test]
    fn each_update_policy_decides_about_a_file_that_is_there() {
        use Action::{Copy, FixAttributes, Same};
        let small = || Copy(Transfer::Small);
        let seen = state(5, 20);
        // Found: the same, newer, older, of another size.
        let cases = [(5, 20), (5, 30), (5, 10), (6, 20)];
        let compare = || Action::Compare(Transfer::Small);
        for (update, expected) in [
            (Update::Changed, [FixAttributes, small(), small(), small()]),
            (Update::Newer, [FixAttributes, Same, small(), small()]),
            (Update::Missing, [Same, Same, Same, Same]),
            (Update::Content, [compare(), compare(), compare(), small()]),
            (Update::Always, [small(), small(), small(), small()]),
        ] {
            for ((size, mtime), expected) in cases.into_iter().zip(expected) {
                let found = found(b'f', size, mtime);
                let action = plan(&wanted(b'f', &seen), Some(&found), None, &policy(update));
                assert_eq!(action, expected, "{update:?} {size} {mtime}");
            }
        }
    }

    #[test]
    fn contents_that_a_power_failure_may_have_taken_are_compared() {
        let seen = state(5, 20);
        for (since, expected) in
            [(50, Action::Compare(Transfer::Small)), (51, Action::FixAttributes)]
        {
            let doubtful_since = Some(Time::from_ns(since));
            let policy = Policy { doubtful_since, ..policy(Update::Changed) };
            let action = plan(&wanted(b'f', &seen), Some(&found(b'f', 5, 20)), None, &policy);
            assert_eq!(action, expected);
        }
    }

    #[test]
    fn a_large_file_continues_only_from_extents_of_this_very_file() {
        let seen = state(35, 20);
        let large = |partial: Option<&PartialFile>| match plan(
            &wanted(b'f', &seen),
            None,
            partial,
            &policy(Update::Changed),
        ) {
            Action::Copy(Transfer::Large { missing, resume }) => {
                (missing.iter().collect::<Vec<_>>(), resume)
            }
            other => panic!("{other:?}"),
        };
        assert_eq!(large(None), (vec![0, 1, 2, 3], Resume::Fresh));
        let same = partial(&seen, EXTENT, &[0, 2]);
        assert_eq!(large(Some(&same)), (vec![1, 3], Resume::Continue));
        let changed = partial(&state(35, 21), EXTENT, &[0, 2]);
        assert_eq!(large(Some(&changed)), (vec![0, 1, 2, 3], Resume::Discard));
        let other_extents = partial(&seen, EXTENT + 1, &[0, 2]);
        assert_eq!(large(Some(&other_extents)), (vec![0, 1, 2, 3], Resume::Discard));
    }

    #[test]
    fn extents_are_compared_one_by_one_only_where_the_transport_can() {
        let seen = state(35, 20);
        for (compares_extents, compares) in [(true, true), (false, false)] {
            let policy = Policy { compares_extents, ..policy(Update::Content) };
            let action = plan(&wanted(b'f', &seen), Some(&found(b'f', 45, 20)), None, &policy);
            assert_eq!(matches!(action, Action::Compare(_)), compares);
        }
    }

    #[test]
    fn links_and_devices_stay_where_they_are_the_same() {
        let seen = state(0, 20);
        let changed = policy(Update::Changed);
        for (letter, made) in [(b'l', Action::MakeSymlink), (b'b', Action::MakeSpecial)] {
            let there = found(letter, 0, 10);
            let action = |found| plan(&wanted(letter, &seen), found, None, &changed);
            assert_eq!(action(Some(&there)), Action::FixAttributes);
            assert_eq!(action(None), made);
            assert_eq!(action(Some(&found(b'f', 3, 3))), made);
        }
        let target = b"elsewhere".to_vec();
        let link = Found { target, ..found(b'l', 0, 20) };
        assert_eq!(plan(&wanted(b'l', &seen), Some(&link), None, &changed), Action::MakeSymlink);
        let device = Found { device: 8, ..found(b'b', 0, 20) };
        let action = plan(&wanted(b'b', &seen), Some(&device), None, &changed);
        assert_eq!(action, Action::Conflict(NOT_REPLACED));
    }

    proptest! {
        #[test]
        fn nothing_but_files_and_links_is_ever_replaced(
            one in prop::sample::select(b"fdlpbcs?".to_vec()),
            other in prop::sample::select(b"fdlpbcs?".to_vec()),
            same_device: bool,
        ) {
            let seen = state(5, 20);
            let device = if same_device { 7 } else { 8 };
            let found = Found { device, target: b"other".to_vec(), ..found(other, 9, 9) };
            let action = plan(&wanted(one, &seen), Some(&found), None, &policy(Update::Always));
            let replaces = matches!(
                action,
                Action::Copy(_) | Action::MakeSymlink | Action::MakeSpecial | Action::MakeDirectory
            );
            prop_assert!(!replaces || matches!(other, b'f' | b'l'), "{action:?}");
            prop_assert!(!replaces || one != b'd');
        }

        #[test]
        fn missing_and_written_extents_make_up_the_file(
            size in 11..500_u64, written in prop::collection::btree_set(0..60_u32, 0..20),
        ) {
            let seen = state(size, 20);
            let written: Vec<u32> = written.into_iter().collect();
            let partial = partial(&seen, EXTENT, &written);
            let action = plan(&wanted(b'f', &seen), None, Some(&partial), &policy(Update::Changed));
            let Action::Copy(Transfer::Large { missing, .. }) = action else {
                return Err(TestCaseError::fail("no large file"));
            };
            for index in 0..extents_of(size, EXTENT) {
                prop_assert_ne!(missing.contains(index), written.contains(&index));
            }
            prop_assert!(missing.iter().all(|index| index < extents_of(size, EXTENT)));
        }
    }

    #[test]
    fn a_run_of_another_host_is_continued_where_hosts_share_the_copy() {
        let seen = state(35, 20);
        let elsewhere = FileState { device: 9, ..seen };
        let begun = partial(&elsewhere, EXTENT, &[0, 2]);
        for (on_other_hosts, continued) in [(true, Resume::Continue), (false, Resume::Discard)] {
            let policy = Policy { on_other_hosts, ..policy(Update::Changed) };
            let action = plan(&wanted(b'f', &seen), None, Some(&begun), &policy);
            let Action::Copy(Transfer::Large { resume, .. }) = action else { panic!("{action:?}") };
            assert_eq!(resume, continued);
        }
    }
}
