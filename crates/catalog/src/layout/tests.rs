//! What holds for every layout: extents cover a file, shares add up to them, and the other formats'
//! examples.

use std::collections::HashMap;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

/// Extents cover [0, size) once in each mirror, and agree with a byte-by-byte rule and with shares.
pub(super) fn check_cover(layout: &Layout, size: u64) {
    let ways = layout.mirrors().into_iter().map(Mirrors::One).chain([Mirrors::Best]);
    for way in ways {
        let iterator = layout.extents(size, way);
        let promised = iterator.left();
        let extents: Vec<Extent<'_>> = iterator.collect();
        assert_eq!(promised, extents.len() as u64);
        let mut at = 0;
        let mut held: HashMap<(Option<usize>, u64), u64> = HashMap::new();
        for extent in &extents {
            assert!(extent.file_offset == at && extent.length > 0, "{way:?} {extent:?} at {at}");
            at += extent.length;
            *held.entry((extent.component, extent.object)).or_default() += extent.length;
            let silent = extent.flags == Flags::NONE;
            assert!(extent.target.is_some() || !silent, "no target and no reason: {extent:?}");
        }
        assert_eq!(at, size, "{way:?}");
        let mut shared: HashMap<(Option<usize>, u64), u64> = HashMap::new();
        for share in layout.shares(size, way) {
            let key = (share.component, share.object);
            let first = extents
                .iter()
                .find(|e| (e.component, e.object) == key && e.file_offset >= share.file_offset);
            let first = first.unwrap();
            assert_eq!(
                (share.file_offset, share.object_offset, share.target, share.flags),
                (first.file_offset, first.object_offset, first.target, first.flags)
            );
            *shared.entry(key).or_default() += share.bytes;
        }
        assert_eq!(shared, held, "{way:?}");
    }
    let all: u64 = layout.extents(size, Mirrors::All).map(|e| e.length).sum();
    assert_eq!(u128::from(all), u128::from(size) * layout.mirrors().len() as u128);
}

/// The same for the first extents of a file that may be too large to go through.
pub(super) fn check_start(layout: &Layout, size: u64) {
    let mut at = 0;
    for extent in layout.extents(size, Mirrors::Best).take(100) {
        assert!(extent.file_offset == at && extent.length > 0);
        at += extent.length;
    }
    assert!(at <= size);
    let bytes: u128 =
        layout.shares(size, Mirrors::Best).take(100).map(|s| u128::from(s.bytes)).sum();
    assert!(bytes <= u128::from(size));
}

const MIB: u64 = 1 << 20;

fn any_striping() -> impl Strategy<Value = Striping> {
    let size = prop_oneof![Just(None), (1..5_u64).prop_map(Some)];
    (1..4_u64, 1..6_u64, size).prop_map(|(unit, count, size)| {
        let unit = unit * MIN_UNIT;
        Striping { unit, count, object_size: size.map_or(EOF, |units| units * unit) }
    })
}

/// The rule as it is written in words: deal out blocks, a set of objects at a time.
fn dealt(striping: Striping, offset: u64) -> (u64, u64) {
    let Striping { unit, count, object_size } = striping;
    let rows = if object_size == EOF { u64::MAX } else { object_size / unit };
    let (mut set, mut turn, mut row) = (0, 0, 0);
    for _ in 0..offset / unit {
        turn += 1;
        if turn == count {
            (turn, row) = (0, row + 1);
        }
        if row == rows {
            (row, set) = (0, set + 1);
        }
    }
    (set * count + turn, row * unit + offset % unit)
}

proptest! {
    #[test]
    fn a_byte_is_where_dealing_out_blocks_puts_it(striping in any_striping(), offset in 0..20_000_000_u64) {
        let place = striping.place(offset);
        prop_assert_eq!((place.object, place.offset), dealt(striping, offset));
        prop_assert!(place.run > 0);
    }

    #[test]
    fn objects_without_a_list_and_gaps_between_components_are_covered(
        parts in vec((0..3_u64, 1..90_u64, any_striping(), 0..4_usize, 0..3_u32), 1..7),
        size in 0..12_000_000_u64,
    ) {
        let mut ends = [0; 3];
        let components = parts.into_iter().map(|(gap, length, striping, listed, mirror)| {
            let end = &mut ends[mirror as usize];
            // Starts that are no multiple of a stripe are allowed.
            let start = *end + gap * 50_000;
            *end = start + length * 70_000;
            let objects = (0..3).take(listed).map(|i| Object::on(lustre::ost(i))).collect();
            let rest = (listed % 2 == 0).then(|| Target::named("pool", "p"));
            Component { mirror, start, end: *end, striping, objects, rest, ..Component::whole() }
        });
        let components: Vec<_> = components.map(|mut c| {
            c.flags |= Flags::when(!c.has_objects(), Flags::UNWRITTEN);
            c
        }).collect();
        check_cover(&Layout::new("lustre", 0, components).unwrap(), size);
    }

    #[test]
    fn noise_never_panics(noise in vec(any::<u8>(), 0..700), size in any::<u64>()) {
        for parse in [beegfs::parse, ceph::parse, gfarm::parse, gluster::parse, local::parse] {
            if let Ok(layout) = parse(&noise) {
                check_start(&layout, size);
            }
        }
    }

    #[test]
    fn damaged_texts_never_panic(at in any::<prop::sample::Index>(), value in any::<u8>(), cut in any::<prop::sample::Index>(), size in any::<u64>()) {
        for (parse, text) in [(ceph::parse as fn(&[u8]) -> _, CEPH), (gluster::parse, REPLICATED)] {
            let mut bytes = text.as_bytes().to_vec();
            let index = at.index(bytes.len());
            bytes[index] = value;
            bytes.truncate(bytes.len() - cut.index(bytes.len()) / 4);
            if let Ok(layout) = parse(&bytes) {
                check_start(&layout, size);
            }
        }
    }
}

#[test]
fn the_largest_file_and_the_most_stripes_cost_no_more_than_one_asks_for() {
    let component = Component {
        striping: Striping::round(MIN_UNIT, 65_535),
        rest: Some(Target::named("pool", "p")),
        ..Component::whole()
    };
    let layout = Layout::new("lustre", 0, vec![component]).unwrap();
    assert_eq!(layout.extents(EOF, Mirrors::All).left(), 1 << 48);
    assert_eq!(layout.extents(EOF, Mirrors::All).take(3).count(), 3);
    assert_eq!(layout.shares(EOF, Mirrors::All).count(), 65_535);
    assert_eq!(layout.shares(1, Mirrors::All).count(), 1);
    let shares = layout.shares(EOF, Mirrors::All).map(|s| u128::from(s.bytes)).sum::<u128>();
    assert_eq!(shares, u128::from(EOF));
}

#[test]
fn components_that_contradict_each_other_are_refused() {
    let range = |start, end| Component { start, end, ..Component::whole() };
    let refused = |parts| Layout::new("lustre", 0, parts).unwrap_err().text.into_owned();
    assert!(refused(vec![range(5, 9), range(0, 6)]).contains("overlap"));
    assert!(refused(vec![range(5, 4)]).contains("before its start"));
    let none = Component { striping: Striping::round(MIN_UNIT, 0), ..Component::whole() };
    assert!(refused(vec![none]).contains("no object"));
    let uneven = Striping { unit: 2 * MIN_UNIT, count: 1, object_size: 3 * MIN_UNIT };
    assert!(
        refused(vec![Component { striping: uneven, ..Component::whole() }]).contains("multiple")
    );
}

const CEPH: &str =
    "stripe_unit=1048576 stripe_count=2 object_size=2097152 pool=cephfs_data pool_namespace=lab";
const REPLICATED: &str = "(<DISTRIBUTE:v-dht> (<REPLICATE:v-replicate-1> <POSIX(/bricks/b2):n1:/bricks/b2/d/file> <POSIX(/bricks/b3):fd00::7:/bricks/b3/d/file>))";

#[test]
fn cephfs_fills_a_set_of_objects_before_the_next() {
    let layout = ceph::parse(CEPH.as_bytes()).unwrap();
    let rows: Vec<_> = layout
        .extents(6 * MIB, Mirrors::All)
        .map(|e| (ceph::object_name(0x0100_0000_03e8, e.object), e.object_offset / MIB))
        .collect();
    let name = |object: u64| format!("100000003e8.{object:08x}");
    assert_eq!(
        rows,
        [(name(0), 0), (name(1), 0), (name(0), 1), (name(1), 1), (name(2), 0), (name(3), 0)]
    );
    assert_eq!(layout.targets()[0].to_string(), "pool:cephfs_data/lab");
    let Striping { unit, count, object_size } = layout.components()[0].striping;
    assert_eq!((unit, count, object_size), (MIB, 2, 2 * MIB));
    assert!(CEPH.starts_with(&ceph::encode(layout.components()[0].striping, "cephfs_data")));
    for (text, part) in [
        ("stripe_unit=4194304 stripe_count=1 pool=p", "object_size is missing"),
        ("stripe_unit=4194304 stripe_count=1 object_size=4194304", "pool is missing"),
        ("stripe_unit=-1 stripe_count=1 object_size=4194304 pool=p", "not a number"),
        ("stripe_unit=4194304 stripe_count=1 object_size=6291456 pool=p", "multiple"),
        ("stripe_unit=0 stripe_count=1 object_size=6291456 pool=p", "multiple"),
    ] {
        let error = ceph::parse(text.as_bytes()).unwrap_err();
        assert!(error.text.contains(part), "{error}");
    }
}

#[test]
fn each_brick_of_a_gluster_replica_set_has_a_copy() {
    let layout = gluster::parse(REPLICATED.as_bytes()).unwrap();
    assert_eq!(layout.mirrors(), [0, 1]);
    let targets: Vec<_> = layout.targets().into_iter().map(ToString::to_string).collect();
    assert_eq!(targets, ["brick:fd00::7:/bricks/b3", "brick:n1:/bricks/b2"]);
    let path = ObjectId::Path(b"/bricks/b3/d/file"[..].into());
    assert_eq!(layout.components()[0].objects[0].id, path);
    assert_eq!(layout.extents(10, Mirrors::Best).count(), 1);
}

#[test]
fn gluster_tells_distributed_coded_and_odd_names() {
    for name in ["a>b (c)", "a> (1)", "a>)", "<a> <b>", "\u{e4}> ("] {
        let text = format!("(<DISTRIBUTE:v-dht> <POSIX(/b):h:/b/{name}>)\0");
        let one = gluster::parse(text.as_bytes()).unwrap();
        let path = format!("/b/{name}").into_bytes();
        assert_eq!(one.components()[0].objects[0].id, ObjectId::Path(path.into()));
    }
    let coded =
        b"(<DISTRIBUTE:v-dht> (<EC:v-disperse-0> <POSIX(/b/0):h:/b/0/f> <POSIX(/b/1):h:/b/1/f>))";
    let coded = gluster::parse(coded).unwrap();
    let extent = coded.extents(9, Mirrors::All).next().unwrap();
    assert_eq!(extent.target.unwrap().to_string(), "disperse:v-disperse-0");
    assert!(extent.flags.contains(Flags::CODED));
    let directory = b"((<DISTRIBUTE:v-dht> <POSIX(/b/0):h:/b/0/> <POSIX(/b/1):h:/b/1/>) (v-dht-layout (v-client-0 0 2147483646) (v-client-1 2147483647 4294967295)))";
    let directory = gluster::parse(directory).unwrap();
    assert!(directory.is_template());
    assert_eq!(directory.targets().len(), 2);
}

#[test]
fn a_sharded_gluster_file_is_where_each_block_says() {
    let block = |name: &str| format!("(<DISTRIBUTE:v-dht> <POSIX(/b/{name}):h:/b/{name}/x>)");
    let (first, second) = (block("0"), block("3"));
    let layout =
        gluster::parse_sharded(&[Some(first.as_bytes()), None, Some(second.as_bytes())], 4 * MIB)
            .unwrap();
    let rows: Vec<_> = layout.extents(17 * MIB, Mirrors::All).collect();
    let places: Vec<_> = rows.iter().map(|e| e.target.map(ToString::to_string)).collect();
    let (zero, three) = (Some("brick:h:/b/0".to_owned()), Some("brick:h:/b/3".to_owned()));
    assert_eq!(places, [zero, None, three, None, None]);
    assert_eq!((rows[4].object, rows[4].object_offset, rows[4].length), (4, 0, MIB));
    let flags: Vec<_> = rows.iter().map(|e| e.flags).collect();
    let (none, hole, untold) = (Flags::NONE, Flags::UNWRITTEN, Flags::UNLOCATED);
    assert_eq!(flags, [none, hole, none, untold, untold]);
    let refused = |blocks: &[Option<&[u8]>], size| {
        gluster::parse_sharded(blocks, size).unwrap_err().text.into_owned()
    };
    assert!(refused(&[], 4 * MIB).contains("first block"));
    assert!(refused(&[None, Some(first.as_bytes())], 4 * MIB).contains("first block"));
    assert!(refused(&[Some(first.as_bytes())], 0).contains("multiple"));
    let two = [Some(REPLICATED.as_bytes()), Some(first.as_bytes())];
    assert!(refused(&two, 4 * MIB).contains("block 1 is on 1 bricks"));
}

#[test]
fn copies_keep_their_numbers_whichever_brick_answers_first() {
    let swapped = "(<DISTRIBUTE:v-dht> (<REPLICATE:v-replicate-1> <POSIX(/bricks/b3):fd00::7:/bricks/b3/d/file> <POSIX(/bricks/b2):n1:/bricks/b2/d/file>))";
    assert_eq!(gluster::parse(swapped.as_bytes()), gluster::parse(REPLICATED.as_bytes()));
}

#[test]
fn gluster_texts_that_are_none_are_refused() {
    for (text, part) in [
        ("", "no brick"),
        ("(<DISTRIBUTE:v-dht>", "( without )"),
        (")", ") without ("),
        ("(<DISTRIBUTE:v-dht", "< without >"),
        ("hello", "outside of"),
        ("(<TIER:v> <POSIX(/b):h:/b/x>)", "unknown <TIER:v>"),
        (
            "(<DISTRIBUTE:v> (<TIER:t> (<REPLICATE:r> <POSIX(/b):h:/b/x>)))",
            "unknown <DISTRIBUTE:v> (<TIER",
        ),
        ("(<DISTRIBUTE:v-dht> <POSIX(/b)>)", "not of the form"),
        ("(<DISTRIBUTE:v> <POSIX(/b):h:/b/x> <POSIX(/c):h:/c/x>)", "more than one set"),
    ] {
        let error = gluster::parse(text.as_bytes()).unwrap_err();
        assert!(error.text.contains(part), "{text}: {error}");
    }
}

#[test]
fn each_gfarm_host_has_a_copy() {
    let layout = gfarm::parse(b"gfarm:/d/file:\n node1.example  node2.example\n").unwrap();
    assert_eq!(layout.mirrors(), [0, 1]);
    assert_eq!(layout.targets()[1].to_string(), "host:node2.example");
    assert!(gfarm::parse(b"\n").unwrap_err().text.contains("no host"));
    assert!(gfarm::parse(b"gfwhere: no such file (os)\n")
        .unwrap_err()
        .text
        .contains("not the name"));
}

#[test]
fn beegfs_goes_round_its_targets() {
    let bytes = beegfs::encode(512 << 10, &[(101, 1, "stor-1"), (201, 2, "stor-2")]);
    assert_eq!(bytes.len(), 12 + 2 * 262);
    let layout = beegfs::parse(&bytes).unwrap();
    let rows: Vec<_> = layout
        .extents(3 * 512 * 1024, Mirrors::All)
        .map(|e| (e.target.unwrap().to_string(), e.object_offset))
        .collect();
    let place = |name: &str, at: u64| (name.to_owned(), at);
    let expected = [
        place("beegfs:101@stor-1", 0),
        place("beegfs:201@stor-2", 0),
        place("beegfs:101@stor-1", 512 << 10),
    ];
    assert_eq!(rows, expected);
    assert_eq!(beegfs::parse(&bytes[..20]).unwrap_err().kind, ErrorKind::Truncated);
    assert_eq!(beegfs::parse(&[9; 12]).unwrap_err().kind, ErrorKind::Unsupported);
    assert!(beegfs::parse(&beegfs::encode(1 << 16, &[])).unwrap_err().text.contains("no target"));
}

#[test]
fn a_local_device_is_named_by_its_numbers() {
    let layout = local::parse(b"259:1\n").unwrap();
    assert_eq!(layout.targets()[0].to_string(), "device:259:1");
    assert_eq!(layout, local::layout(259, 1));
    assert!(local::parse(b"259").is_err());
}

#[test]
fn readers_and_flags_have_names() {
    // Catalogs on disk number layouts in this order.
    let names = READERS.map(LayoutReader::name);
    assert_eq!(names, ["lustre", "ceph", "gluster", "gfarm", "beegfs", "local"]);
    for (index, name) in (0_i8..).zip(names) {
        assert_eq!(reader_index(name), index);
        assert_eq!(reader_at(index).unwrap().name(), name);
        assert_eq!(reader_named(name).unwrap().name(), name);
    }
    assert!(reader_named("ext4").is_none() && reader_at(-1).is_none());
    let flags = Flags::STALE | Flags::CODED;
    assert_eq!(flags.names().collect::<Vec<_>>(), ["stale", "coded"]);
}
