use proptest::prelude::*;

use super::*;

fn any_record() -> impl Strategy<Value = Record> {
    let bytes = || proptest::collection::vec(any::<u8>(), 0..40);
    prop_oneof![
        (bytes(), any::<[u8; 16]>(), any::<i64>(), any::<bool>())
            .prop_map(|(source, boot, time, durable)| Record::Run { source, boot, time, durable }),
        (0..4u32, bytes()).prop_map(|(worker, directory)| Record::Entered { worker, directory }),
        (0..6u32, bytes(), bytes(), any::<[u64; 5]>(), any::<u64>()).prop_map(
            |(id, directory, path, seen, extent_bytes)| Record::Begun {
                id,
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
            let _ = Past::of(records);
        }
        let _ = decode(&bytes);
    }
}

fn run(boot: u8, durable: bool) -> Record {
    Record::Run { source: b"local:/a".to_vec(), boot: [boot; 16], time: i64::from(boot), durable }
}

fn begun(id: u32, path: &str) -> Record {
    let (directory, path) = (b"d".to_vec(), path.as_bytes().to_vec());
    Record::Begun { id, directory, path, seen: [1, 2, 3, 4, 5], extent_bytes: 10 }
}

fn extent(id: u32, index: u32) -> Record {
    Record::Extent { id, index, digest: 0 }
}

fn written(past: &Past, path: &str) -> Vec<u32> {
    past.halves[path.as_bytes()].written.iter().copied().collect()
}

#[test]
fn extents_belong_to_the_last_beginning_of_their_file() {
    let past = Past::of(vec![
        run(1, false),
        begun(0, "d/x"),
        extent(0, 0),
        begun(1, "d/y"),
        extent(1, 3),
        begun(2, "d/x"),
        extent(2, 7),
        extent(0, 1),
        Record::Ended { id: 1 },
    ]);
    assert_eq!(written(&past, "d/x"), [7]);
    assert_eq!(past.halves.len(), 1);
    assert_eq!(past.next_id, 3);
}

#[test]
fn what_was_written_before_a_reboot_counts_only_where_it_was_forced_out() {
    let records = |durable| {
        vec![run(1, durable), begun(0, "d/x"), extent(0, 0), run(2, durable), extent(0, 1)]
    };
    assert_eq!(written(&Past::of(records(true)), "d/x"), [0, 1]);
    assert_eq!(written(&Past::of(records(false)), "d/x"), [1]);
    let same_boot = vec![run(1, false), begun(0, "d/x"), extent(0, 0), run(1, false)];
    assert_eq!(written(&Past::of(same_boot), "d/x"), [0]);
}
