//! Every constructor against a list of all bytes.

use proptest::prelude::*;

use super::*;
use crate::error::DecodeError;

/// A bound, and whether it is marked.
type Bound = Option<(i64, bool)>;

/// A datatype and what MPI says it is, byte by byte: positions in the order of data, and bounds with their markers.
#[derive(Debug, Clone)]
pub(crate) struct Modelled {
    pub(crate) datatype: Datatype,
    pub(crate) bytes: Vec<i64>,
    /// None in an empty type map.
    lower: Bound,
    upper: Bound,
}

impl Modelled {
    pub(crate) fn extent(&self) -> i64 {
        self.upper.map_or(0, |(at, _)| at) - self.lower.map_or(0, |(at, _)| at)
    }

    /// Blocks of elements of several types, one by one: what each constructor comes down to.
    fn elements(parts: &[(i64, &Self)]) -> (Vec<i64>, Bound, Bound) {
        let bytes =
            parts.iter().flat_map(|(at, of)| of.bytes.iter().map(move |byte| at + byte)).collect();
        let bound = |pick: fn(&Self) -> Bound, outer: fn(i64, i64) -> i64| {
            let all: Vec<_> = parts
                .iter()
                .filter_map(|(at, of)| pick(of).map(|(bound, mark)| (at + bound, mark)))
                .collect();
            let any_mark = all.iter().any(|&(_, mark)| mark);
            all.into_iter()
                .filter(|&(_, mark)| mark == any_mark)
                .reduce(|a, b| (outer(a.0, b.0), any_mark))
        };
        (bytes, bound(|of| of.lower, i64::min), bound(|of| of.upper, i64::max))
    }

    fn build(
        datatype: Result<Datatype, DatatypeError>,
        parts: &[(i64, &Self)],
    ) -> Result<Self, DatatypeError> {
        let (bytes, lower, upper) = Self::elements(parts);
        Ok(Self { datatype: datatype?, bytes, lower, upper })
    }
}

fn blocks_of(pairs: &[(i64, i64)], of: &Modelled) -> Vec<i64> {
    pairs
        .iter()
        .flat_map(|&(block, at)| (0..block).map(move |index| (index, at)))
        .map(|(index, at)| at + index * of.extent())
        .collect()
}

fn at_each<'a>(places: &[i64], of: &'a Modelled) -> Vec<(i64, &'a Modelled)> {
    places.iter().map(|&at| (at, of)).collect()
}

fn of_blocks(pairs: &[(i64, i64)], of: &Modelled) -> Modelled {
    let (blocks, at): (Vec<_>, Vec<_>) = pairs.iter().copied().unzip();
    let places = blocks_of(pairs, of);
    Modelled::build(Datatype::hindexed(&blocks, &at, &of.datatype), &at_each(&places, of)).unwrap()
}

fn structure(fields: &[(i64, i64)], of: &[&Modelled]) -> Modelled {
    let (blocks, at): (Vec<_>, Vec<_>) = fields.iter().copied().unzip();
    let types: Vec<_> = of.iter().map(|of| &of.datatype).collect();
    let parts: Vec<_> = fields
        .iter()
        .zip(of)
        .flat_map(|(&pair, of)| blocks_of(&[pair], of).into_iter().map(move |at| (at, *of)))
        .collect();
    Modelled::build(Datatype::structure(&blocks, &at, &types), &parts).unwrap()
}

fn array(datatype: Datatype, size: i64, indices: &[i64], of: &Modelled) -> Modelled {
    let places: Vec<_> = indices.iter().map(|index| index * of.extent()).collect();
    let mut built = Modelled::build(Ok(datatype), &at_each(&places, of)).unwrap();
    built.lower = Some((0, true));
    built.upper = Some((size * of.extent(), true));
    built
}

/// Row-major index of each element for which all dimensions agree; Fortran's arrays are given back to front.
fn indices(sizes: &[i64], order: Order, inside: impl Fn(usize, i64) -> bool) -> Vec<i64> {
    let total: i64 = sizes.iter().product();
    let dimensions = sizes.len();
    let slowest_first: Vec<usize> = match order {
        Order::C => (0..dimensions).collect(),
        Order::Fortran => (0..dimensions).rev().collect(),
    };
    (0..total)
        .filter(|&index| {
            let mut left = index;
            slowest_first.iter().rev().all(|&dimension| {
                let coordinate = left % sizes[dimension];
                left /= sizes[dimension];
                inside(dimension, coordinate)
            })
        })
        .collect()
}

fn subarray(shape: &[(i64, i64, i64)], order: Order, of: &Modelled) -> Modelled {
    let sizes: Vec<_> =
        shape.iter().map(|&(before, length, after)| before + length + after).collect();
    let lengths: Vec<_> = shape.iter().map(|&(_, length, _)| length).collect();
    let starts: Vec<_> = shape.iter().map(|&(before, _, _)| before).collect();
    let datatype = Datatype::subarray(&sizes, &lengths, &starts, order, &of.datatype).unwrap();
    let inside = indices(&sizes, order, |dimension, at| {
        at >= starts[dimension] && at < starts[dimension] + lengths[dimension]
    });
    array(datatype, sizes.iter().product(), &inside, of)
}

fn darray(rank: i64, shape: &[(i64, i64, Distribution)], order: Order, of: &Modelled) -> Modelled {
    let sizes: Vec<_> = shape.iter().map(|&(size, _, _)| size).collect();
    let grid: Vec<_> = shape.iter().map(|&(_, grid, _)| grid).collect();
    let kinds: Vec<_> = shape.iter().map(|&(_, _, kind)| kind).collect();
    let rank = rank % grid.iter().product::<i64>();
    let datatype = Datatype::darray(rank, &sizes, &kinds, &grid, order, &of.datatype).unwrap();
    let mut own = vec![0; grid.len()];
    let mut left = rank;
    for dimension in (0..grid.len()).rev() {
        own[dimension] = left % grid[dimension];
        left /= grid[dimension];
    }
    let inside = indices(&sizes, order, |dimension, at| {
        let block = match kinds[dimension] {
            Distribution::None => sizes[dimension],
            Distribution::Cyclic(block) => block.unwrap_or(1),
            Distribution::Block(block) => {
                block.unwrap_or_else(|| (sizes[dimension] + grid[dimension] - 1) / grid[dimension])
            }
        };
        at / block % grid[dimension] == own[dimension]
    });
    array(datatype, sizes.iter().product(), &inside, of)
}

fn order() -> impl Strategy<Value = Order> {
    prop_oneof![Just(Order::C), Just(Order::Fortran)]
}

fn dealt() -> impl Strategy<Value = (i64, i64, Distribution)> {
    (1i64..6, 1i64..4, 0i64..3, 0..5).prop_map(|(size, grid, more, kind)| match kind {
        0 => (size, 1, Distribution::None),
        1 => (size, grid, Distribution::Cyclic(None)),
        2 => (size, grid, Distribution::Cyclic(Some(1 + more))),
        3 => (size, grid, Distribution::Block(None)),
        _ => (size, grid, Distribution::Block(Some((size + grid - 1) / grid + more))),
    })
}

/// Any datatype of a few hundred bytes.
pub(crate) fn modelled() -> impl Strategy<Value = Modelled> {
    let leaf = (0i64..9).prop_map(|count| Modelled {
        datatype: Datatype::bytes(count).unwrap(),
        bytes: (0..count).collect(),
        lower: (count > 0).then_some((0, false)),
        upper: (count > 0).then_some((count, false)),
    });
    let tree = leaf.prop_recursive(4, 24, 3, |inner| {
        let blocks = prop::collection::vec((0i64..3, -30i64..60), 0..4);
        prop_oneof![
            (0i64..4, inner.clone()).prop_map(|(count, of)| {
                let places = blocks_of(&[(count, 0)], &of);
                let built = Datatype::contiguous(count, &of.datatype);
                Modelled::build(built, &at_each(&places, &of)).unwrap()
            }),
            (0i64..4, 0i64..3, -20i64..40, inner.clone()).prop_map(|(count, block, stride, of)| {
                let pairs: Vec<_> = (0..count).map(|index| (block, index * stride)).collect();
                let places = blocks_of(&pairs, &of);
                let built = Datatype::hvector(count, block, stride, &of.datatype);
                Modelled::build(built, &at_each(&places, &of)).unwrap()
            }),
            (blocks.clone(), inner.clone()).prop_map(|(pairs, of)| of_blocks(&pairs, &of)),
            (0i64..3, prop::collection::vec(-30i64..60, 0..4), inner.clone()).prop_map(
                |(block, at, of)| {
                    let pairs: Vec<_> = at.iter().map(|&at| (block, at)).collect();
                    let places = blocks_of(&pairs, &of);
                    let built = Datatype::hindexed_block(block, &at, &of.datatype);
                    Modelled::build(built, &at_each(&places, &of)).unwrap()
                }
            ),
            (blocks, prop::collection::vec(inner.clone(), 3)).prop_map(|(fields, of)| {
                let of: Vec<_> = of.iter().take(fields.len()).collect();
                structure(&fields, &of)
            }),
            (-9i64..9, -5i64..60, inner.clone()).prop_map(|(lower, extent, of)| {
                let datatype = Datatype::resized(lower, extent, &of.datatype).unwrap();
                let (lower, upper) = (Some((lower, true)), Some((lower + extent, true)));
                Modelled { datatype, bytes: of.bytes, lower, upper }
            }),
            (prop::collection::vec((0i64..3, 1i64..4, 0i64..3), 1..4), order(), inner.clone())
                .prop_map(|(shape, order, of)| subarray(&shape, order, &of)),
            (0i64..64, prop::collection::vec(dealt(), 1..4), order(), inner)
                .prop_map(|(rank, shape, order, of)| darray(rank, &shape, order, &of)),
        ]
    });
    tree.prop_filter("small enough for a list of bytes", |of| of.bytes.len() < 3000)
}

/// Any filetype that a view takes: displacements increase, and repetitions do not interleave.
pub(crate) fn filetypes() -> impl Strategy<Value = Modelled> {
    let leaf = (1i64..9).prop_map(|count| Modelled {
        datatype: Datatype::bytes(count).unwrap(),
        bytes: (0..count).collect(),
        lower: Some((0, false)),
        upper: Some((count, false)),
    });
    let tree = leaf.prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            (prop::collection::vec((0i64..3, 0i64..9), 1..4), inner.clone()).prop_map(
                |(gaps, of)| {
                    let mut end = 0;
                    let pairs: Vec<_> = gaps
                        .iter()
                        .map(|&(block, gap)| {
                            let at = end + gap;
                            end = at + block * of.extent();
                            (block, at)
                        })
                        .collect();
                    of_blocks(&pairs, &of)
                }
            ),
            (0i64..9, 0i64..9, inner.clone(), inner.clone()).prop_map(|(gap, more, one, two)| {
                structure(&[(1, gap), (2, gap + one.extent() + more)], &[&one, &two])
            }),
            (prop::collection::vec((0i64..3, 1i64..4, 0i64..3), 1..4), order(), inner.clone())
                .prop_map(|(shape, order, of)| subarray(&shape, order, &of)),
            (0i64..64, prop::collection::vec(dealt(), 1..4), order(), inner)
                .prop_map(|(rank, shape, order, of)| darray(rank, &shape, order, &of)),
        ]
    });
    let whole = |of: &Modelled| of.bytes.len() < 600 && of.bytes.is_sorted_by(|a, b| a < b);
    (tree, 0i64..20).prop_filter("monotone and small", move |(of, _)| whole(of)).prop_map(
        |(of, gap)| {
            let end =
                of.upper.map_or(0, |(at, _)| at).max(of.bytes.last().map_or(0, |last| last + 1));
            let datatype = Datatype::resized(0, end + gap, &of.datatype).unwrap();
            Modelled { datatype, upper: Some((end + gap, true)), lower: Some((0, true)), ..of }
        },
    )
}

/// The runs of a list of bytes.
fn runs_of(bytes: &[i64]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for &byte in bytes {
        match runs.last_mut() {
            Some(run) if run.offset + run.length.cast_signed() == byte => run.length += 1,
            _ => runs.push(Run { offset: byte, length: 1 }),
        }
    }
    runs
}

proptest! {
    #[test]
    fn every_constructor_agrees_with_a_list_of_bytes(of in modelled(), a in any::<prop::sample::Index>(),
                                                     b in any::<prop::sample::Index>()) {
        let Modelled { datatype, bytes, lower, .. } = &of;
        prop_assert_eq!(datatype.size(), bytes.len() as u64);
        prop_assert_eq!(datatype.extent(), of.extent());
        prop_assert_eq!(datatype.lower(), lower.map_or(0, |(at, _)| at));
        let low = bytes.iter().min().map_or(0, |&low| low);
        let high = bytes.iter().max().map_or(0, |&high| high + 1);
        prop_assert_eq!(datatype.true_bounds(), low..high);
        prop_assert_eq!(datatype.is_monotone(), bytes.windows(2).all(|pair| pair[0] < pair[1]));
        let (a, b) = (a.index(bytes.len() + 1), b.index(bytes.len() + 1));
        let (begin, end) = (a.min(b), a.max(b));
        let found: Vec<_> = datatype.runs(begin as u64..end as u64).collect();
        prop_assert_eq!(found, runs_of(&bytes[begin..end]));
        prop_assert!(datatype.run_count() >= runs_of(bytes).len() as u64);
        for (offset, &byte) in bytes.iter().enumerate() {
            prop_assert_eq!(datatype.position(offset as u64), Some(byte));
        }
        prop_assert_eq!(datatype.position(bytes.len() as u64), None);
        if datatype.is_monotone() {
            for position in low - 3..high + 3 {
                let before = bytes.iter().filter(|&&byte| byte < position).count();
                prop_assert_eq!(datatype.below(position), before as u64);
            }
        }
    }

    #[test]
    fn a_datatype_is_read_as_it_was_written(of in modelled(), cut in any::<prop::sample::Index>()) {
        let message = of.datatype.encode(usize::MAX).unwrap();
        let read = Datatype::decode(&message).unwrap();
        prop_assert_eq!(&read, &of.datatype);
        prop_assert_eq!(read.encode(message.len()).unwrap(), message.clone());
        prop_assert_eq!(of.datatype.encode(message.len() - 1), None);
        prop_assert!(Datatype::decode(&message[..cut.index(message.len())]).is_err());
    }

    #[test]
    fn foreign_bytes_are_a_datatype_or_refused(message in prop::collection::vec(any::<u8>(), 0..200)) {
        survives(&message);
    }

    #[test]
    fn damaged_datatypes_do_no_harm(of in modelled(), damage in prop::collection::vec(
            (any::<prop::sample::Index>(), any::<u8>()), 1..4)) {
        let mut message = of.datatype.encode(usize::MAX).unwrap();
        for (index, byte) in damage {
            let index = index.index(message.len());
            message[index] = byte;
        }
        survives(&message);
    }
}

/// Decodes, and uses what was decoded.
fn survives(message: &[u8]) {
    let Ok(datatype) = Datatype::decode(message) else { return };
    assert!(datatype.footprint() < 4096 + message.len() * 64, "memory beyond the message's");
    let _ = (datatype.extent(), datatype.true_bounds(), datatype.run_count());
    let size = datatype.size();
    for begin in [0, size / 2, size.saturating_sub(9)] {
        for run in datatype.runs(begin..size).take(100) {
            assert!(datatype.true_bounds().contains(&run.offset));
            assert_eq!(datatype.position(begin).is_some(), begin < size);
        }
    }
    if datatype.is_monotone() {
        let _ = [i64::MIN, -1, 0, 1, i64::MAX].map(|at| datatype.below(at));
    }
}

#[test]
fn nested_vectors_become_one_loop() {
    let byte = Datatype::bytes(1).unwrap();
    let row = Datatype::hvector(8, 1, 2, &byte).unwrap();
    let plane = Datatype::hvector(4, 1, 16, &row).unwrap();
    assert_eq!(plane.footprint(), row.footprint(), "32 bytes, 2 apart");
    let dense = Datatype::hvector(5, 3, 12, &Datatype::bytes(4).unwrap()).unwrap();
    assert!(dense.is_dense());
    assert_eq!(dense.run_count(), 1);
}

#[test]
fn equally_spaced_displacements_become_a_loop() {
    let at: Vec<i64> = (0..100_000).map(|index| index * 24).collect();
    let of = Datatype::hindexed_block(2, &at, &Datatype::bytes(8).unwrap()).unwrap();
    assert!(of.footprint() < 1024, "{} bytes", of.footprint());
    assert_eq!(of.run_count(), 100_000);
}

#[test]
fn a_hundred_million_runs_take_few_bytes() {
    let of = Datatype::hvector(100_000_000, 1, 64, &Datatype::bytes(8).unwrap()).unwrap();
    assert!(of.footprint() < 1024 && of.encode(64).is_some());
    assert_eq!(of.runs(799_999_996..800_000_000).next().map(|run| run.length), Some(4));
}

#[test]
fn shared_inner_types_are_sent_once() {
    let mut of = Datatype::bytes(3).unwrap();
    for level in 0..20 {
        let far = of.extent() * 2 + 7 + level;
        of = Datatype::structure(&[1, 1, 1], &[0, far, 3 * far], &[&of, &of, &of]).unwrap();
    }
    let message = of.encode(4096).expect("three billion runs from twenty levels");
    assert_eq!(Datatype::decode(&message).unwrap(), of);
}

#[test]
fn too_large_and_too_deep_types_are_errors() {
    let byte = Datatype::bytes(1).unwrap();
    let large = Datatype::contiguous(i64::MAX, &byte).unwrap();
    assert_eq!(Datatype::contiguous(2, &large), Err(DatatypeError::Overflow));
    assert_eq!(Datatype::hvector(2, 1, i64::MIN, &large), Err(DatatypeError::Overflow));
    assert!(Datatype::hindexed(&[1, 1], &[i64::MIN, i64::MAX], &byte).is_err());
    assert!(Datatype::hindexed(&[-1], &[0], &byte).is_err());
    assert!(Datatype::hindexed(&[1, 1], &[0], &byte).is_err());
    let mut deep = byte.clone();
    let found = (0..200).find_map(|level| {
        match Datatype::structure(&[1, 1], &[0, (1 << 40) + level], &[&deep, &byte]) {
            Ok(deeper) => {
                deep = deeper;
                None
            }
            Err(error) => Some(error),
        }
    });
    assert_eq!(found, Some(DatatypeError::TooDeep(MAX_DEPTH)));
}

#[test]
fn a_message_cannot_ask_for_memory_that_it_does_not_hold() {
    // One shape, indexed, with 2^60 entries.
    let mut message = vec![1, 3];
    crate::wire::put_number(&mut message, 1 << 60);
    message.extend_from_slice(&[0; 64]);
    assert!(matches!(Datatype::decode(&message), Err(DecodeError::Value(_))));
}
