use proptest::prelude::*;

use super::recovered::HELD_BYTES;
use super::*;
use crate::time::Time;

fn any_record() -> impl Strategy<Value = Record> {
    let bytes = || proptest::collection::vec(any::<u8>(), 0..40);
    prop_oneof![
        (bytes(), any::<[u8; 16]>(), any::<(i64, u32)>(), any::<bool>()).prop_map(
            |(source, boot, (seconds, nanoseconds), durable)| Record::Run {
                source,
                boot,
                time: Time { seconds, nanoseconds },
                durable
            }
        ),
        (0..4u32, bytes()).prop_map(|(worker, directory)| Record::Entered { worker, directory }),
        (0..6u32, any::<u64>(), bytes(), bytes(), any::<[u64; 7]>(), any::<u64>()).prop_map(
            |(id, key, directory, path, seen, extent_bytes)| Record::Begun {
                id,
                key,
                directory,
                path,
                seen,
                extent_bytes
            }
        ),
        (0..6u32, 0..9u32, any::<u128>()).prop_map(|(id, index, digest)| Record::Extent {
            id,
            index,
            digest
        }),
        (0..6u32).prop_map(|id| Record::Ended { id }),
    ]
}

fn bytes_of(records: &[Record]) -> Vec<u8> {
    records.iter().fold(FIRST_LINE.to_vec(), |mut bytes, record| {
        bytes.extend(encode(record));
        bytes
    })
}

/// The records that a journal holds, and how many bytes they take.
fn decode(bytes: &[u8]) -> Option<(Vec<Record>, usize)> {
    let mut records = Vec::new();
    let whole = super::decode(bytes, |record| records.push(record)).unwrap()?;
    Some((records, usize::try_from(whole).unwrap()))
}

fn recovered_of(records: Vec<Record>, most_bytes: usize) -> Recovered {
    let mut fold = Fold::new(most_bytes);
    records.into_iter().for_each(|record| fold.add(record));
    fold.end()
}

proptest! {
    #[test]
    fn a_journal_cut_anywhere_gives_the_records_before_the_cut(
        records in proptest::collection::vec(any_record(), 0..12), cut in any::<prop::sample::Index>()
    ) {
        let bytes = bytes_of(&records);
        let (all, whole) = decode(&bytes).unwrap();
        prop_assert_eq!(&all, &records);
        prop_assert_eq!(whole, bytes.len());
        let length = FIRST_LINE.len() + cut.index(bytes.len() - FIRST_LINE.len() + 1);
        let (some, whole) = decode(&bytes[..length]).unwrap();
        prop_assert!(whole <= length);
        prop_assert_eq!(&records[..some.len()], &some[..]);
        prop_assert_eq!(whole, bytes_of(&some).len());
    }

    #[test]
    fn damage_is_noticed_and_nothing_after_it_is_believed(
        records in proptest::collection::vec(any_record(), 1..12),
        place in any::<prop::sample::Index>(),
        flip in 1..=255u8,
    ) {
        let mut bytes = bytes_of(&records);
        let at = FIRST_LINE.len() + place.index(bytes.len() - FIRST_LINE.len());
        bytes[at] ^= flip;
        let (found, _) = decode(&bytes).unwrap();
        prop_assert!(found.len() < records.len());
        prop_assert_eq!(&found[..], &records[..found.len()]);
    }

    #[test]
    fn any_bytes_are_read_without_harm(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let mut journal = FIRST_LINE.to_vec();
        journal.extend(&bytes);
        if let Some((records, whole)) = decode(&journal) {
            prop_assert!(whole <= journal.len());
            let _ = recovered_of(records, 2000);
        }
        let _ = decode(&bytes);
    }
}

fn run(boot: u8, durable: bool) -> Record {
    Record::Run {
        source: b"local:/a".to_vec(),
        boot: [boot; 16],
        time: Time::from_ns(boot.into()),
        durable,
    }
}

fn begun(id: u32, path: &str) -> Record {
    let (directory, path) = (b"d".to_vec(), path.as_bytes().to_vec());
    Record::Begun { id, key: 9, directory, path, seen: [1, 2, 3, 4, 5, 6, 7], extent_bytes: 10 }
}

fn extent(id: u32, index: u32) -> Record {
    Record::Extent { id, index, digest: 0 }
}

fn written(recovered: &Recovered, path: &str) -> Vec<u32> {
    recovered.partial_files[path.as_bytes()].written.iter().collect()
}

#[test]
fn extents_belong_to_the_last_beginning_of_their_file() {
    let recovered = recovered_of(
        vec![
            run(1, false),
            begun(0, "d/x"),
            extent(0, 0),
            begun(1, "d/y"),
            extent(1, 3),
            begun(2, "d/x"),
            extent(2, 7),
            extent(0, 1),
            Record::Ended { id: 1 },
        ],
        usize::MAX,
    );
    assert_eq!(written(&recovered, "d/x"), [7]);
    assert_eq!(recovered.partial_files.len(), 1);
    assert_eq!(recovered.next_id, 3);
}

#[test]
fn what_was_written_before_a_reboot_counts_only_where_it_was_forced_out() {
    let records = |durable| {
        vec![run(1, durable), begun(0, "d/x"), extent(0, 0), run(2, durable), extent(0, 1)]
    };
    assert_eq!(written(&recovered_of(records(true), usize::MAX), "d/x"), [0, 1]);
    assert_eq!(written(&recovered_of(records(false), usize::MAX), "d/x"), [1]);
    let same_boot = vec![run(1, false), begun(0, "d/x"), extent(0, 0), run(1, false)];
    assert_eq!(written(&recovered_of(same_boot, usize::MAX), "d/x"), [0]);
}

#[test]
fn what_a_journal_says_takes_no_more_memory_than_it_may() {
    // Every second extent of one file: as many runs.
    let scattered = (0..1_000_000).map(|index| extent(0, 2 * index));
    let files = (0..100_000).map(|id| begun(id, &format!("d/{id}")));
    let mut fold = Fold::new(1 << 20);
    fold.add(run(1, false));
    fold.add(begun(0, "d/0"));
    scattered.for_each(|record| fold.add(record));
    assert!(fold.held_bytes <= 1 << 20);
    let runs = fold.recovered.partial_files["d/0".as_bytes()].written.runs();
    assert!((10_000..=(1 << 20) / crate::part_set::RUN_BYTES).contains(&runs), "{runs}");
    files.for_each(|record| fold.add(record));
    assert!(fold.held_bytes <= 1 << 20);
    for worker in 0..100_000 {
        fold.add(Record::Entered { worker, directory: vec![b'd'; 100] });
    }
    assert!(fold.held_bytes <= 1 << 20);
    let ends: Vec<Record> = (0..100_000).map(|id| Record::Ended { id }).collect();
    ends.into_iter().for_each(|record| fold.add(record));
    let workers = fold.recovered.entered.values().map(|directory| HELD_BYTES + directory.len());
    assert_eq!(fold.held_bytes, workers.sum::<usize>(), "what has ended takes nothing");
    let recovered = fold.end();
    assert_eq!((recovered.partial_files.len(), recovered.next_id), (0, 100_000));
}
