//! Views and file domains against lists of bytes.

use std::ops::Range;

use proptest::prelude::*;
use proptest::sample::Index;

use super::datatype::tests::{filetypes, Modelled};
use super::*;

/// File offset of each byte of data of a view, as far as `count`.
fn positions(displacement: i64, of: &Modelled, count: usize) -> Vec<u64> {
    let tiles =
        0..count.checked_div(of.bytes.len()).map_or(0, |tiles| tiles.cast_signed() as i64 + 1);
    tiles
        .flat_map(|tile| of.bytes.iter().map(move |byte| displacement + tile * of.extent() + byte))
        .take(count)
        .map(|position| position as u64)
        .collect()
}

fn extents_of(positions: &[u64]) -> Vec<Extent> {
    let mut extents: Vec<Extent> = Vec::new();
    for &offset in positions {
        match extents.last_mut() {
            Some(extent) if extent.end() == offset => extent.length += 1,
            _ => extents.push(Extent { offset, length: 1 }),
        }
    }
    extents
}

fn view_of(displacement: i64, of: &Modelled) -> View {
    View::new(displacement, 1, of.datatype.clone()).unwrap()
}

fn range(a: Index, b: Index, length: usize) -> Range<u64> {
    let (a, b) = (a.index(length + 1) as u64, b.index(length + 1) as u64);
    a.min(b)..a.max(b)
}

proptest! {
    #[test]
    fn a_view_agrees_with_a_list_of_bytes(of in filetypes(), displacement in 0i64..50, a: Index, b: Index,
                                          window in (0u64..2000, 0u64..500)) {
        let view = view_of(displacement, &of);
        let all = positions(displacement, &of, 1500);
        let data = range(a, b, all.len());
        let part = &all[data.start as usize..data.end as usize];
        prop_assert_eq!(view.extents(data.clone()).collect::<Vec<_>>(), extents_of(part));
        let hull = part.first().map(|&first| first..part[part.len() - 1] + 1);
        prop_assert_eq!(view.hull(&data).unwrap(), hull);
        let window = window.0..window.0 + window.1;
        let within = view.within(&data, &window);
        let inside: Vec<_> = part.iter().copied().filter(|at| window.contains(at)).collect();
        prop_assert_eq!(within.end - within.start, inside.len() as u64);
        let found: Vec<_> = view.extents(within).collect();
        prop_assert_eq!(found, extents_of(&inside));
        let next = part.iter().copied().find(|&at| at >= window.start);
        prop_assert_eq!(view.next(&data, window.start), next);
        let message = view.encode(1 << 20).unwrap();
        prop_assert_eq!(View::decode(&message).unwrap(), view);
    }

    #[test]
    fn damaged_views_do_no_harm(of in filetypes(), damage in prop::collection::vec((any::<Index>(), any::<u8>()), 1..4)) {
        let mut message = view_of(7, &of).encode(1 << 20).unwrap();
        for (index, byte) in damage {
            let index = index.index(message.len());
            message[index] = byte;
        }
        survives(&message);
    }

    #[test]
    fn foreign_bytes_are_a_view_or_refused(mut message in prop::collection::vec(any::<u8>(), 1..100)) {
        message[0] = 1;
        survives(&message);
    }

    #[test]
    fn a_server_map_is_read_as_it_was_written(epoch: u64, unit in 1u64..1 << 40, cyclic: bool, count in 0usize..20,
                                              cut: Index) {
        let placement = if cyclic { Placement::Cyclic } else { Placement::Blocks };
        let aggregators = (0..count).map(|index| format!("node-{index}/{index}")).collect();
        let map = ServerMap { epoch, unit, placement, aggregators };
        let message = map.encode();
        prop_assert_eq!(ServerMap::decode(&message).unwrap(), map);
        prop_assert!(ServerMap::decode(&message[..cut.index(message.len())]).is_err());
    }

    #[test]
    fn foreign_bytes_are_a_server_map_or_refused(mut message in prop::collection::vec(any::<u8>(), 2..200)) {
        (message[0], message[1]) = (1, message[1] & 1);
        if let Ok(map) = ServerMap::decode(&message) {
            prop_assert_eq!(map.encode(), message);
        }
    }

    #[test]
    fn each_byte_of_a_hull_is_in_one_window_of_its_owner(start in 0u64..500, length in 1u64..500, unit in 1u64..70,
                                                         count in 1usize..9, bytes in 0u64..200, cyclic: bool) {
        let placement = if cyclic { Placement::Cyclic } else { Placement::Blocks };
        let aggregators = (0..count).map(|index| index.to_string()).collect();
        let map = ServerMap { epoch: 0, unit, placement, aggregators };
        let hull = start..start + length;
        let domains = map.domains(&hull).unwrap();
        let mut owners = vec![usize::MAX; length as usize];
        for aggregator in 0..count {
            for window in domains.windows(aggregator, hull.clone(), bytes) {
                prop_assert!(window.start < window.end && window.end - window.start <= bytes.max(1));
                for at in window {
                    prop_assert_eq!(domains.owner(at), aggregator);
                    prop_assert_eq!(std::mem::replace(&mut owners[(at - start) as usize], aggregator), usize::MAX);
                }
            }
        }
        prop_assert!(!owners.contains(&usize::MAX));
        for at in hull.start..hull.end - 1 {
            let same_unit = at / unit == (at + 1) / unit;
            prop_assert!(!same_unit || domains.owner(at) == domains.owner(at + 1), "a unit of two writers");
        }
        // From any offset on, the windows are those that end after it.
        let from = start + length / 2;
        let rest: Vec<_> = domains.windows(0, from..hull.end, bytes).collect();
        let all: Vec<_> = domains.windows(0, hull, bytes).filter(|window| window.end > from).collect();
        prop_assert_eq!(rest, all);
    }
}

/// Decodes a view, and uses it.
fn survives(message: &[u8]) {
    let Ok(view) = View::decode(message) else { return };
    let limit = view.limit();
    for begin in [0, limit / 2, limit.saturating_sub(5)] {
        let data = begin..limit;
        let mut last = 0;
        for extent in view.extents(data.clone()).take(50) {
            assert!(extent.offset >= last && extent.end() <= i64::MAX as u64);
            last = extent.end();
        }
        let _ = (view.hull(&data), view.next(&data, u64::MAX), view.within(&data, &(5..u64::MAX)));
    }
}

#[test]
fn views_that_mpi_forbids_are_refused_with_a_reason() {
    let byte = Datatype::bytes(1).unwrap();
    let backwards = Datatype::hindexed_block(1, &[8, 0], &byte).unwrap();
    assert_eq!(View::new(0, 1, backwards), Err(ViewError::NotMonotone));
    let twice = Datatype::hindexed_block(4, &[0, 2], &byte).unwrap();
    assert_eq!(View::new(0, 1, twice), Err(ViewError::NotMonotone));
    let before = Datatype::hindexed_block(1, &[-1], &byte).unwrap();
    assert_eq!(View::new(4, 1, before), Err(ViewError::BeforeOrigin(1)));
    assert_eq!(View::new(-4, 1, byte.clone()), Err(ViewError::Displacement(-4)));
    let eight = Datatype::bytes(8).unwrap();
    assert_eq!(View::new(0, 3, eight.clone()), Err(ViewError::Etype { etype: 3, filetype: 8 }));
    let tight = Datatype::resized(0, 4, &eight).unwrap();
    assert_eq!(View::new(0, 8, tight), Err(ViewError::Interleaves { span: 8, extent: 4 }));
    assert!(matches!(View::new(i64::MAX - 3, 8, eight), Err(ViewError::TooFar { .. })));
}

#[test]
fn a_view_without_bytes_is_a_view() {
    let empty = View::new(10, 1, Datatype::bytes(0).unwrap()).unwrap();
    assert_eq!((empty.limit(), empty.hull(&(0..0))), (0, Ok(None)));
    assert!(matches!(empty.hull(&(0..1)), Err(ViewError::TooFar { .. })));
    let holes = Datatype::resized(0, 64, &Datatype::bytes(0).unwrap()).unwrap();
    assert_eq!(View::new(0, 0, holes).unwrap().extents(0..9).count(), 0);
}

#[test]
fn a_view_reaches_to_the_largest_offset() {
    let view = View::stream(5).unwrap();
    assert!(view.is_contiguous());
    let far = view.limit() - 8..view.limit();
    assert!(view.hull(&far).unwrap().unwrap().end > i64::MAX as u64 - 16);
    assert!(view.hull(&(0..view.limit() + 1)).is_err());
}

#[test]
fn the_exchange_follows_fragmentation() {
    let strided = Datatype::hvector(100_000_000, 1, 64, &Datatype::bytes(8).unwrap()).unwrap();
    let view = View::new(0, 8, strided).unwrap();
    assert_eq!(exchange::choose(&view, None).0, Exchange::View, "regular: a few bytes");
    assert!(view.footprint() < 2048, "{}", view.footprint());
    let at: Vec<i64> = (0..100_000).map(|index| index * 32 + index % 7).collect();
    let scattered = Datatype::hindexed_block(1, &at, &Datatype::bytes(8).unwrap()).unwrap();
    let view = View::new(0, 8, scattered).unwrap();
    assert_eq!(exchange::choose(&view, None), (Exchange::List, None), "irregular, small extents");
    assert_eq!(exchange::choose(&view, Some(Exchange::View)).0, Exchange::View);
    let at: Vec<i64> = at.iter().map(|at| at * 1000).collect();
    let pages = Datatype::hindexed_block(1, &at, &Datatype::bytes(8192).unwrap()).unwrap();
    assert_eq!(exchange::choose(&View::new(0, 1, pages).unwrap(), None).0, Exchange::View);
}
