//! `lustre.lov` against examples worked by hand, against itself, and against damage.

use proptest::collection::vec;
use proptest::prelude::*;

use super::super::{Extent, Mirrors};
use super::*;

/// A file on targets 7 and 12 in stripes of 1 MiB.
const V1: &str = "d00bd10b0100000011000000000000000104000002000000000010000200030064000000000000000000000000000000000000000700000065000000000000000000000000000000000000000c000000";
/// A file on target 3, of pool flash, in stripes of 4 MiB.
const V3: &str = "d00bd30b01000000110000000000000001040000020000000000400001000000666c6173680000000000000000000000660000000000000000000000000000000000000003000000";

const MIB: u64 = 1 << 20;

fn hex(text: &str) -> Vec<u8> {
    let digit = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
    (0..text.len()).step_by(2).map(digit).collect()
}

fn entry(id: u32, flags: u32, start: u64, end: u64, plain: Plain) -> Entry {
    Entry { id, flags, start, end, generation: 0, timestamp: 0, body: Body::Plain(plain) }
}

fn composite(entries: Vec<Entry>) -> Md {
    Md::Composite { extendable: false, generation: 9, state: 0, extra_mirrors: 0, entries }
}

fn metadata_target(size: u32) -> Plain {
    Plain { pattern: pattern::MDT, stripe_count: 0, ..Plain::striped(size, &[], 0) }
}

fn extents(layout: &Layout, size: u64, mirrors: Mirrors) -> Vec<(String, u64, u64, u64)> {
    let target = |e: &Extent<'_>| e.target.map_or_else(|| names(e.flags), ToString::to_string);
    let row = |e: Extent<'_>| (target(&e), e.file_offset, e.object_offset, e.length);
    layout.extents(size, mirrors).map(row).collect()
}

fn names(flags: Flags) -> String {
    flags.names().collect::<Vec<_>>().join(" ")
}

fn row(target: &str, file: u64, object: u64, length: u64) -> (String, u64, u64, u64) {
    (target.into(), file, object, length)
}

#[test]
fn a_plain_file_goes_round_its_two_targets() {
    let layout = parse(&hex(V1)).unwrap();
    assert_eq!((layout.kind(), layout.generation(), layout.is_template()), ("lustre", 3, false));
    assert_eq!(layout.targets(), [&ost(7), &ost(12)]);
    assert_eq!(layout.components()[0].objects[1].id, ObjectId::Numbers(101, 0));
    let expected = vec![
        row("ost:7", 0, 0, MIB),
        row("ost:12", MIB, 0, MIB),
        row("ost:7", 2 * MIB, MIB, MIB),
        row("ost:12", 3 * MIB, MIB, 5),
    ];
    assert_eq!(extents(&layout, 3 * MIB + 5, Mirrors::All), expected);
    let shares: Vec<_> =
        layout.shares(3 * MIB + 5, Mirrors::All).map(|s| (s.object, s.bytes)).collect();
    assert_eq!(shares, [(0, 2 * MIB), (1, MIB + 5)]);
}

#[test]
fn a_pool_is_named_and_one_object_is_one_extent() {
    let layout = parse(&hex(V3)).unwrap();
    assert_eq!(layout.components()[0].pool.as_deref(), Some("flash"));
    assert_eq!(extents(&layout, 100 * MIB, Mirrors::All), [row("ost:3", 0, 0, 100 * MIB)]);
    assert_eq!(extents(&layout, 0, Mirrors::All), []);
}

#[test]
fn what_is_read_is_written_back_byte_by_byte() {
    for blob in [hex(V1), hex(V3)] {
        assert_eq!(Md::decode(&blob).unwrap().encode(), blob);
    }
}

#[test]
fn numbers_may_come_in_the_other_order() {
    let md = Md::decode(&hex(V1)).unwrap();
    let reversed = md.encode_in(Order::Big);
    assert_eq!(reversed[..4], [0x0B, 0xD1, 0x0B, 0xD0]);
    assert_eq!(Md::decode(&reversed).unwrap(), md);
}

/// Data on the metadata target, then one object, then three, of which the last was not made yet.
fn progressive() -> Md {
    composite(vec![
        entry(1, entry_flag::INIT, 0, MIB, metadata_target(1 << 20)),
        entry(2, entry_flag::INIT, MIB, 5 * MIB, Plain::striped(1 << 20, &[4], 10)),
        entry(3, entry_flag::INIT, 5 * MIB, 64 * MIB, Plain::striped(1 << 20, &[0, 1, 2], 20)),
        entry(
            4,
            0,
            64 * MIB,
            EOF,
            Plain { stripe_count: 0xFFFF, ..Plain::striped(1 << 20, &[], 0) },
        ),
    ])
}

#[test]
fn components_count_their_stripes_from_the_start_of_the_file() {
    let layout = parse(&progressive().encode()).unwrap();
    assert!(!layout.is_template());
    assert_eq!(layout.generation(), 9);
    let expected = vec![
        row("mdt", 0, 0, MIB),
        row("ost:4", MIB, MIB, 4 * MIB),
        // Block 5 of the file: 5 mod 3 = 2, and one round of stripes is before it.
        row("ost:2", 5 * MIB, MIB, MIB),
        row("ost:0", 6 * MIB, 2 * MIB, MIB),
    ];
    assert_eq!(extents(&layout, 7 * MIB, Mirrors::All), expected);
    let last = extents(&layout, 70 * MIB, Mirrors::All).pop();
    assert_eq!(last, Some(row("unwritten", 64 * MIB, 64 * MIB, 6 * MIB)));
    let flags: Vec<_> = layout.components().iter().map(|c| names(c.flags)).collect();
    assert_eq!(flags, ["on-mdt", "", "", "unwritten"]);
}

#[test]
fn the_current_copy_is_read_where_the_other_is_stale() {
    let (init, stale, prefer) = (entry_flag::INIT, entry_flag::STALE, entry_flag::PREF_RD);
    let one = |ost| Plain::striped(1 << 20, &[ost], 1);
    let layout = parse(
        &composite(vec![
            entry(0x1_0001, init, 0, 2 * MIB, one(1)),
            entry(0x1_0002, init | stale, 2 * MIB, EOF, one(2)),
            entry(0x2_0003, init | prefer, 0, MIB, one(3)),
            entry(0x2_0004, init, MIB, EOF, one(4)),
        ])
        .encode(),
    )
    .unwrap();
    assert_eq!(layout.mirrors(), [1, 2]);
    let expected = vec![
        row("ost:3", 0, 0, MIB),
        row("ost:1", MIB, MIB, MIB),
        row("ost:4", 2 * MIB, 2 * MIB, 3 * MIB),
    ];
    assert_eq!(extents(&layout, 5 * MIB, Mirrors::Best), expected);
    assert_eq!(
        extents(&layout, 5 * MIB, Mirrors::One(2)),
        [row("ost:3", 0, 0, MIB), row("ost:4", MIB, MIB, 4 * MIB)]
    );
    assert_eq!(extents(&layout, 5 * MIB, Mirrors::All).len(), 4);
    assert_eq!(extents(&layout, 5 * MIB, Mirrors::One(3)), []);
    let stale: Vec<_> = layout.extents(5 * MIB, Mirrors::One(1)).map(|e| names(e.flags)).collect();
    assert_eq!(stale, ["", "stale"]);
}

#[test]
fn several_objects_may_lie_on_one_target() {
    let mut plain = Plain::striped(1 << 20, &[5, 5, 6], 1);
    plain.pattern |= pattern::OVERSTRIPED;
    let layout = parse(&Md::Plain(plain).encode()).unwrap();
    assert_eq!(layout.components()[0].objects.len(), 3);
    assert_eq!(layout.targets().len(), 2);
    assert_eq!(names(layout.components()[0].flags), "overstriped");
}

#[test]
fn archived_foreign_and_lost_data_is_on_no_target() {
    let mut released = Plain::striped(1 << 20, &[], 1);
    released.pattern |= pattern::RELEASED;
    released.stripe_count = 2;
    let layout = parse(&Md::Plain(released).encode()).unwrap();
    assert_eq!(extents(&layout, 9, Mirrors::All), [row("released", 0, 0, 9)]);
    assert!(!layout.is_template());

    let foreign = Md::Foreign { sort: 1, flags: 2, value: b"elsewhere".to_vec() };
    assert_eq!(Md::decode(&foreign.encode()), Ok(foreign.clone()));
    assert_eq!(extents(&layout_of(&foreign), 9, Mirrors::All), [row("foreign", 0, 0, 9)]);

    let mut holed = Plain::striped(1 << 16, &[1, u32::MAX], 1);
    holed.pattern |= pattern::HOLE;
    let rows = extents(&layout_of(&Md::Plain(holed)), 2 << 16, Mirrors::All);
    assert_eq!(rows, [row("ost:1", 0, 0, 1 << 16), row("lost", 1 << 16, 0, 1 << 16)]);
}

fn layout_of(md: &Md) -> Layout {
    parse(&md.encode()).unwrap()
}

#[test]
fn room_to_grow_holds_nothing() {
    let Md::Composite { generation, state, extra_mirrors, .. } = progressive() else {
        unreachable!();
    };
    let extension = Plain { stripe_size: 64 << 10, ..Plain::striped(0, &[], 0) };
    let md = Md::Composite {
        extendable: true,
        generation,
        state,
        extra_mirrors,
        entries: vec![
            entry(1, entry_flag::INIT, 0, MIB, Plain::striped(1 << 20, &[1], 1)),
            entry(2, entry_flag::EXTENSION, MIB, 8 * MIB, extension.clone()),
            // An extension that is used up has no bytes left.
            entry(3, entry_flag::INIT, 8 * MIB, EOF, Plain::striped(1 << 20, &[2], 1)),
            entry(4, entry_flag::EXTENSION, EOF, EOF, extension),
        ],
    };
    let rows = extents(&layout_of(&md), 9 * MIB, Mirrors::All);
    let expected = [
        row("ost:1", 0, 0, MIB),
        row("unwritten extension", MIB, MIB, 7 * MIB),
        row("ost:2", 8 * MIB, 8 * MIB, MIB),
    ];
    assert_eq!(rows, expected);
}

#[test]
fn a_directory_tells_what_its_files_will_get() {
    let layout =
        layout_of(&Md::Plain(Plain { stripe_count: 4, ..Plain::striped(1 << 20, &[], 0) }));
    assert!(layout.is_template() && layout.targets().is_empty());
    let fresh = |start, end| entry(1, 0, start, end, Plain::striped(1 << 20, &[], 0));
    assert!(layout_of(&composite(vec![fresh(0, MIB), fresh(MIB, EOF)])).is_template());
}

fn error(bytes: &[u8]) -> (super::super::ErrorKind, String) {
    let error = parse(bytes).unwrap_err();
    (error.kind, error.text.into_owned())
}

#[test]
fn hostile_structures_are_refused_with_a_reason() {
    use super::super::ErrorKind::{Invalid, Truncated, Unsupported};

    let refused = |bytes: &[u8], kind, part: &str| {
        let (found, text) = error(bytes);
        assert!(found == kind && text.contains(part), "{found:?} {text}");
    };
    refused(&[], Truncated, "fewer than 4");
    refused(b"\0\0\0\0", Unsupported, "unknown magic");
    refused(&hex("d00bd20b"), Unsupported, "joined");
    refused(&hex(V1)[..40], Truncated, "objects");
    let mut many = hex(V1);
    many[28..30].copy_from_slice(&0xFFDF_u16.to_le_bytes());
    refused(&many, Truncated, "1572104 bytes");
    let mut thin = hex(V1);
    thin[24..28].copy_from_slice(&1_u32.to_le_bytes());
    refused(&thin, Invalid, "not a multiple");
    let mut odd = hex(V1);
    odd[4..8].copy_from_slice(&0x804_u32.to_le_bytes());
    refused(&odd, Unsupported, "pattern 0x804");

    let blob = progressive().encode();
    let patched = |at: usize, value: u32| {
        let mut blob = blob.clone();
        blob[at..at + 4].copy_from_slice(&value.to_le_bytes());
        blob
    };
    refused(&patched(4, u32::MAX), Truncated, "composite layout");
    refused(&patched(12, 0xFFFF_0000), Truncated, "65535 components");
    refused(&patched(12, 0), Invalid, "without components");
    refused(&patched(32 + 24, u32::MAX), Invalid, "outside");
    refused(&patched(32 + 24, 0), Invalid, "outside");
    refused(&patched(32 + 48 + 28, u32::MAX), Invalid, "outside");
    refused(&patched(32 + 48 + 8, 0), Invalid, "overlap");
    refused(&patched(32 + 48 + 16, 0), Invalid, "before its start");
    // Each entry points to most of what there is.
    let one = entry(1, entry_flag::INIT, 0, MIB, Plain::striped(1 << 20, &[1], 1));
    let mut shared = composite(vec![one.clone(), one]).encode();
    let offset: [u8; 4] = shared[32 + 24..32 + 28].try_into().unwrap();
    let size: [u8; 4] = 104_u32.to_le_bytes();
    for index in 0..2 {
        let at = 32 + 48 * index + 24;
        shared[at..at + 4].copy_from_slice(&offset);
        shared[at + 4..at + 8].copy_from_slice(&size);
    }
    refused(&shared, Invalid, "shares bytes");
    let mirrors = (0..65).map(|m| entry(m << 16, 0, 0, EOF, Plain::striped(1 << 20, &[], 0)));
    refused(&composite(mirrors.collect()).encode(), Invalid, "65 mirrors");
}

fn any_plain() -> impl Strategy<Value = Plain> {
    let patterns = prop_oneof![
        Just(pattern::RAID0),
        Just(pattern::RAID0 | pattern::OVERSTRIPED),
        Just(pattern::RAID0 | pattern::HOLE),
        Just(pattern::RAID0 | pattern::RELEASED),
        Just(pattern::MDT),
    ];
    let pool = proptest::option::of(any::<[u8; 16]>());
    let osts = vec(any::<u32>(), 1..9);
    (patterns, any::<(u64, u64)>(), 1..64_u32, any::<u16>(), pool, any::<bool>(), osts).prop_map(
        |(pattern, file_id, units, generation, pool, specific, osts)| {
            let none = pattern & (pattern::RELEASED | pattern::MDT) != 0;
            let osts = if none { &[] } else { &osts[..] };
            Plain {
                pattern,
                file_id,
                generation,
                specific: specific && pool.is_some(),
                pool,
                ..Plain::striped(units << 16, osts, file_id.0 >> 1)
            }
        },
    )
}

/// Components one after the other, in up to three mirrors.
fn any_composite() -> impl Strategy<Value = Md> {
    let part = (1..100_u64, any_plain(), 0..0x80_u32);
    let mirror = vec(part, 1..5);
    (vec(mirror, 1..4), any::<u32>(), any::<bool>()).prop_map(
        |(mirrors, generation, extendable)| {
            let mut entries = Vec::new();
            for (number, parts) in (0..).zip(&mirrors) {
                let mut start = 0;
                for (index, (length, plain, flags)) in (1..).zip(parts) {
                    let last = index as usize == parts.len();
                    let end = if last { EOF } else { start + (length << 16) };
                    let mut plain = plain.clone();
                    if flags & entry_flag::INIT == 0 {
                        plain.objects.clear();
                    }
                    entries.push(entry(number << 16 | index, *flags, start, end, plain));
                    start = end;
                }
            }
            let extra_mirrors = u16::try_from(mirrors.len() - 1).unwrap();
            Md::Composite { extendable, generation, state: 0, extra_mirrors, entries }
        },
    )
}

fn any_md() -> impl Strategy<Value = Md> {
    let foreign = (any::<u32>(), any::<u32>(), vec(any::<u8>(), 0..40))
        .prop_map(|(sort, flags, value)| Md::Foreign { sort, flags, value });
    prop_oneof![any_plain().prop_map(Md::Plain), any_composite(), foreign]
}

proptest! {
    #[test]
    fn whatever_is_written_is_read_back(md in any_md(), big in any::<bool>()) {
        let order = if big { Order::Big } else { Order::Little };
        prop_assert_eq!(Md::decode(&md.encode_in(order)), Ok(md));
    }

    #[test]
    fn real_structures_cover_every_byte_once_in_every_mirror(md in any_md(), size in 0..30_000_000_u64) {
        super::super::tests::check_cover(&parse(&md.encode()).unwrap(), size);
    }

    #[test]
    fn damage_never_panics_and_never_grows(
        md in any_md(),
        damage in vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut in any::<prop::sample::Index>(),
        size in any::<u64>(),
    ) {
        let mut bytes = md.encode();
        for (at, value) in damage {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        let kept = bytes.len() - cut.index(bytes.len() + 1) / 7;
        if let Ok(layout) = parse(&bytes[..kept]) {
            let objects: usize = layout.components().iter().map(|c| c.objects.len()).sum();
            prop_assert!(objects * 24 <= kept.max(32));
            prop_assert!(layout.components().len() <= 1 + kept / 48);
            super::super::tests::check_start(&layout, size);
        }
    }

    #[test]
    fn noise_never_panics(magic in prop::sample::select(vec![1_u8, 3, 5, 6, 7, 8]), noise in vec(any::<u8>(), 0..300)) {
        let mut bytes = vec![0xD0, 0x0B, 0xD0 | magic, 0x0B];
        bytes.extend(noise);
        let _ = parse(&bytes);
    }
}
