use proptest::prelude::*;

use super::*;

/// All chunk lengths of `data`, given to `cut` in pieces of `piece` new bytes.
fn lengths(method: Method, data: &[u8], piece: usize) -> Vec<usize> {
    let (mut marks, mut ends, mut found) = (Vec::new(), Vec::new(), Vec::new());
    let (mut start, mut until) = (0, 0);
    loop {
        until = data.len().min(until + piece);
        let last = until == data.len();
        ends.clear();
        let done = method.cut(&data[start..until], last, &mut marks, &mut ends);
        let mut before = 0;
        for end in &ends {
            found.push(end - before);
            before = *end;
        }
        assert_eq!(done, before);
        assert!(until - start - done <= method.most());
        start += done;
        if last {
            assert_eq!(start, data.len());
            return found;
        }
    }
}

/// FS-C's loop, byte by byte: the fingerprint by polynomial division of the window, no table, no lanes.
fn fsc_plain(data: &[u8]) -> Vec<usize> {
    const P: u128 = 0xBFE6_B8A5_BF37_8D83;
    let fingerprint = |window: &[u8]| {
        window.iter().fold(0_u128, |value, byte| {
            let mut value = (value << 8) | u128::from(*byte);
            for bit in (63..71).rev() {
                if (value >> bit) & 1 == 1 {
                    value ^= P << (bit - 63);
                }
            }
            value
        })
    };
    let mut found = Vec::new();
    let mut start = 0;
    while start < data.len() {
        let rest = &data[start..];
        let end = (2001..=rest.len().min(32768))
            .find(|end| fingerprint(&rest[2000.max(end - 48.min(*end))..*end]) & 0x1FFF == 0x1FFF);
        let length = end.unwrap_or(rest.len().min(32768));
        found.push(length);
        start += length;
    }
    found
}

fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut state = seed | 1;
    (0..bytes)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 24) as u8
        })
        .collect()
}

/// Noise, runs of one byte and repeated pieces, as files have them.
fn content() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        (any::<u64>(), 0..30_000_usize).prop_map(|(seed, bytes)| noise(seed, bytes)),
        (any::<u8>(), 0..70_000_usize).prop_map(|(byte, bytes)| vec![byte; bytes]),
        (any::<u64>(), 1..200_usize, 1..200_usize)
            .prop_map(|(seed, bytes, times)| noise(seed, bytes).repeat(times)),
    ];
    prop::collection::vec(piece, 0..5).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn chunks_of_fs_c_are_those_of_its_plain_loop(data in content(), piece in 1..80_000_usize) {
        prop_assert_eq!(lengths(Method::FscCdc8, &data, piece), fsc_plain(&data));
    }

    #[test]
    fn chunks_do_not_depend_on_how_the_data_arrives(data in content(), piece in 1..80_000_usize) {
        for method in [Method::Fast, Method::Fixed(4096), Method::Fixed(LARGEST)] {
            let whole = lengths(method, &data, usize::MAX / 2);
            prop_assert_eq!(whole.iter().sum::<usize>(), data.len());
            prop_assert!(whole.iter().all(|length| (1..=method.most()).contains(length)));
            prop_assert_eq!(lengths(method, &data, piece), whole);
        }
    }
}

/// Both scans, of whatever the machine has and by tables, from any length on.
fn both<const WINDOW: usize, R: lanes::Rolling<WINDOW>>(
    data: &[u8],
    scan: fn(&[u8], &mut Vec<u32>),
) -> (Vec<u32>, Vec<u32>) {
    let (mut quick, mut plain) = (Vec::new(), Vec::new());
    scan(data, &mut quick);
    lanes::marks::<WINDOW, R>(data, 0, &mut plain);
    (quick, plain)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn matrices_find_the_marks_that_tables_find(data in content()) {
        let (quick, plain) = both::<48, rabin::Rabin>(&data, rabin::marks);
        prop_assert_eq!(quick, plain);
        let (quick, plain) = both::<32, gear::Gear>(&data, gear::marks);
        prop_assert_eq!(quick, plain);
    }
}

#[test]
fn a_byte_put_in_changes_few_chunks() {
    let data = noise(7, 1 << 20);
    let mut shifted = data.clone();
    shifted.insert(1000, 42);
    for method in [Method::FscCdc8, Method::Fast] {
        let ends = |data: &[u8]| -> Vec<usize> {
            let end = |at: &mut usize, length| {
                *at += length;
                Some(data.len() - *at)
            };
            lengths(method, data, 1 << 18).into_iter().scan(0, end).collect()
        };
        let (before, after) = (ends(&data), ends(&shifted));
        let kept = before.iter().filter(|end| after.contains(end)).count();
        assert!(kept + 4 >= before.len(), "{method:?}: {kept} of {} chunks kept", before.len());
        assert!((80..170).contains(&before.len()), "{method:?}: {} chunks of 1 MiB", before.len());
    }
}

#[test]
fn zeros_are_cut_at_the_maximum() {
    for method in [Method::FscCdc8, Method::Fast, Method::Fixed(8192)] {
        let most = method.most();
        assert_eq!(lengths(method, &vec![0; 3 * most + 10], 50_000), [most, most, most, 10]);
    }
}

#[test]
fn no_data_has_no_chunk() {
    for method in [Method::FscCdc8, Method::Fast, Method::Fixed(1)] {
        assert!(lengths(method, &[], 1).is_empty());
    }
}
