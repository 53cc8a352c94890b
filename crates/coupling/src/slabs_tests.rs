//! Writers and readers of a version's bytes in any order, against who must hold what.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Step {
    Take { from: u64, first: u64, units: u64 },
    Locate { first: u64, units: u64 },
    Provide { from: u64 },
    Keep,
}

fn step() -> impl Strategy<Value = Step> {
    let range = || (0_u64..40, 0_u64..50);
    prop_oneof![
        (0_u64..3, range()).prop_map(|(from, (first, units))| Step::Take { from, first, units }),
        range().prop_map(|(first, units)| Step::Locate { first, units }),
        (0_u64..3).prop_map(|from| Step::Provide { from }),
        Just(Step::Keep),
    ]
}

proptest! {
    /// A unit has one place; a writer is given only what no process has, or a copy of an earlier version's; a slab that
    /// was provided stays where it is until the next version.
    #[test]
    fn every_unit_has_one_place(steps in proptest::collection::vec(step(), 0..60)) {
        let mut slabs = Slabs::default();
        // Units: who makes them, or where they are and whether they are shared.
        let mut given: BTreeMap<u64, u64> = BTreeMap::new();
        let mut held: BTreeMap<u64, (Place, bool)> = BTreeMap::new();
        let mut todo: Vec<(u64, Slab)> = Vec::new();
        let mut key = 0;
        for step in steps {
            match step {
                Step::Take { from, first, units } => {
                    let upto = (first + units) * UNIT;
                    let before = slabs.bytes();
                    let waits = given.get(&first).is_some_and(|other| *other != from);
                    let Some(found) = slabs.take(from, first, units, upto) else {
                        prop_assert!(units > 0 && waits);
                        continue;
                    };
                    prop_assert!(units == 0 || found.end > first);
                    prop_assert!(found.bytes >= before && found.bytes <= before.max(upto));
                    for slab in &found.slabs {
                        for unit in slab.first..slab.first + slab.units {
                            match (&slab.place, held.get(&unit)) {
                                (Some(place), found) => {
                                    prop_assert_eq!(found, Some(&(place.clone(), false)));
                                }
                                (None, Some((place, shared))) => {
                                    prop_assert!(*shared && slab.base.as_ref() == Some(place));
                                    held.remove(&unit);
                                    given.insert(unit, from);
                                }
                                (None, None) => {
                                    let other = given.insert(unit, from);
                                    prop_assert!(other.is_none_or(|other| other == from));
                                }
                            }
                        }
                        let again = todo.iter().any(|(_, known)| known.first == slab.first);
                        if slab.place.is_none() && !again {
                            todo.push((from, slab.clone()));
                        }
                    }
                }
                Step::Locate { first, units } => {
                    let Some(found) = slabs.locate(first, units) else {
                        prop_assert!(given.contains_key(&first));
                        continue;
                    };
                    for unit in first..found.end.min(first + units) {
                        let of = |slab: &&Slab| (slab.first..slab.first + slab.units).contains(&unit);
                        let place = found.slabs.iter().find(of).and_then(|slab| slab.place.clone());
                        prop_assert_eq!(place, held.get(&unit).map(|(place, _)| place.clone()));
                    }
                }
                Step::Provide { from } => {
                    let Some(at) = todo.iter().position(|(of, _)| *of == from) else { continue };
                    let (_, slab) = todo.swap_remove(at);
                    key += 1;
                    let place = ("a".to_owned(), key);
                    prop_assert!(slabs.provide(from + 1, slab.first, place.clone()).is_err());
                    prop_assert_eq!(slabs.provide(from, slab.first, place.clone()), Ok(slab.base));
                    for unit in slab.first..slab.first + slab.units {
                        given.remove(&unit);
                        held.insert(unit, (place.clone(), false));
                    }
                }
                Step::Keep if todo.is_empty() => {
                    slabs = slabs.kept();
                    held.values_mut().for_each(|(_, shared)| *shared = true);
                }
                Step::Keep => {}
            }
        }
        let all: usize = slabs.held().map(|(_, units, _)| units as usize).sum();
        prop_assert_eq!(all, held.len());
    }
}
