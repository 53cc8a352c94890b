use proptest::prelude::*;

use super::*;
use crate::error::FlowError;

/// What a flow asks for, as a naive model keeps it.
#[derive(Clone, Debug)]
struct Wanted {
    route: Vec<u32>,
    copies: u32,
    weight: f64,
    limit: f64,
}

/// Progressive filling as the textbook has it: raise all levels together until something is full; hold what it
/// holds; go on.
fn naive(capacities: &[f64], wishes: &[Wanted]) -> Vec<f64> {
    let mut levels: Vec<Option<f64>> = vec![None; wishes.len()];
    loop {
        let mut next: Option<(f64, usize, bool)> = None;
        for (r, &capacity) in capacities.iter().enumerate() {
            let (mut held, mut weight) = (0.0, 0.0);
            for (wish, level) in wishes.iter().zip(&levels) {
                let crossings = wish.route.iter().filter(|&&x| x as usize == r).count() as f64;
                let all = crossings * wish.weight * f64::from(wish.copies);
                match level {
                    Some(level) => held += all * level,
                    None => weight += all,
                }
            }
            let level = (capacity - held).max(0.0) / weight;
            if weight > 0.0 && next.is_none_or(|n| level < n.0) {
                next = Some((level, r, true));
            }
        }
        for (i, wish) in wishes.iter().enumerate() {
            let level = wish.limit / wish.weight;
            if levels[i].is_none() && level.is_finite() && next.is_none_or(|n| level < n.0) {
                next = Some((level, i, false));
            }
        }
        let Some((level, at, is_resource)) = next else {
            break;
        };
        for (i, wish) in wishes.iter().enumerate() {
            let held = if is_resource { wish.route.contains(&(at as u32)) } else { i == at };
            if held && levels[i].is_none() {
                levels[i] = Some(level);
            }
        }
    }
    levels.into_iter().map(|level| level.expect("every flow is held")).collect()
}

/// A change to a set of flows.
#[derive(Clone, Debug)]
enum Change {
    Add(Wanted),
    Remove(prop::sample::Index),
    Reroute(prop::sample::Index, Vec<u32>),
    Capacity(u32, f64),
    Curve(u32, f64, f64),
}

const RESOURCES: u32 = 12;

fn route() -> impl Strategy<Value = Vec<u32>> {
    prop::collection::vec(0..RESOURCES, 1..5)
}

fn wish() -> impl Strategy<Value = Wanted> {
    let weight = prop_oneof![4 => Just(1.0), 1 => 0.1..10.0];
    let limit = prop_oneof![3 => Just(f64::INFINITY), 1 => 0.5..50.0];
    (route(), 1..4_u32, weight, limit).prop_map(|(route, copies, weight, limit)| Wanted {
        route,
        copies,
        weight,
        limit,
    })
}

fn capacity() -> impl Strategy<Value = f64> {
    // Equal capacities make ties, which is where such code goes wrong.
    prop_oneof![3 => Just(100.0), 3 => 1.0..1000.0, 1 => Just(0.0)]
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        6 => wish().prop_map(Change::Add),
        4 => any::<prop::sample::Index>().prop_map(Change::Remove),
        2 => (any::<prop::sample::Index>(), route()).prop_map(|(i, r)| Change::Reroute(i, r)),
        1 => (0..RESOURCES, capacity()).prop_map(|(r, c)| Change::Capacity(r, c)),
        1 => (0..RESOURCES, capacity(), capacity()).prop_map(|(r, a, b)| Change::Curve(r, a, b)),
    ]
}

/// Capacity as the model sees it: a line from (1, a) to (9, b), or constant.
type Line = (f64, f64);

fn model_capacities(lines: &[Line], wishes: &[Wanted]) -> Vec<f64> {
    let on = |r: usize| -> f64 {
        let each =
            |w: &Wanted| w.copies as usize * w.route.iter().filter(|&&x| x as usize == r).count();
        wishes.iter().map(each).sum::<usize>() as f64
    };
    lines
        .iter()
        .enumerate()
        .map(|(r, &(a, b))| a + (b - a) * (on(r).clamp(1.0, 9.0) - 1.0) / 8.0)
        .collect()
}

fn close(a: f64, b: f64, share: f64) -> bool {
    (a - b).abs() <= share * a.abs().max(b.abs()) + 1e-9
}

/// What has to hold of any max-min fair shares, whatever found them.
fn assert_fair(sharing: &Sharing, slots: &[u32], tolerance: f64) {
    let mut load = vec![0.0; RESOURCES as usize];
    let mut largest = vec![0.0_f64; RESOURCES as usize];
    for &slot in slots {
        for &r in sharing.route(slot) {
            load[r as usize] += sharing.rate(slot);
            largest[r as usize] = largest[r as usize].max(sharing.flow_level(slot));
        }
    }
    for (r, &given) in load.iter().enumerate() {
        let capacity = sharing.capacity(r as u32);
        assert!(
            given <= capacity * (1.0 + tolerance) + 1e-9,
            "resource {r} gives {given} of {capacity}"
        );
        assert!(
            close(given, sharing.used()[r], 1e-9),
            "resource {r}: {given} against {}",
            sharing.used()[r]
        );
    }
    for &slot in slots {
        let level = sharing.flow_level(slot);
        let flow = &sharing.flows[slot as usize];
        let held = close(level, flow.limit, tolerance)
            || sharing.route(slot).iter().any(|&r| {
                close(load[r as usize], sharing.capacity(r), tolerance)
                    && close(level, largest[r as usize], tolerance)
            });
        assert!(held, "flow {slot} at {level} has no bottleneck");
    }
}

/// What has to hold within a tolerance: each level is kept, and each resource that has one is used up.
fn assert_balanced(sharing: &Sharing, slots: &[u32], tolerance: f64) {
    for &slot in slots {
        let limit = sharing.flows[slot as usize].limit;
        let least = sharing.route(slot).iter().map(|&r| sharing.level(r)).fold(limit, f64::min);
        assert_eq!(sharing.flow_level(slot), least, "flow {slot}");
    }
    for (r, &used) in sharing.used().iter().enumerate() {
        let capacity = sharing.capacity(r as u32);
        let given: f64 = slots
            .iter()
            .map(|&slot| {
                let crossings = sharing.route(slot).iter().filter(|&&x| x as usize == r).count();
                crossings as f64 * sharing.rate(slot)
            })
            .sum();
        assert!(close(given, used, 1e-9), "resource {r}: {given} against {used}");
        assert!(used <= capacity * (1.0 + tolerance) + 1e-9, "resource {r}: {used} of {capacity}");
        if sharing.level(r as u32).is_finite() {
            assert!(used >= capacity * (1.0 - tolerance) - 1e-9, "resource {r} idles");
        }
    }
}

fn play(changes: Vec<Change>, capacities: Vec<f64>, tolerance: f64, every: usize, exact: bool) {
    let mut sharing = Sharing::new(&capacities, tolerance).expect("resources");
    let mut lines: Vec<Line> = capacities.into_iter().map(|c| (c, c)).collect();
    let mut wishes: Vec<Wanted> = Vec::new();
    let mut slots: Vec<u32> = Vec::new();
    for (at, change) in changes.into_iter().enumerate() {
        match change {
            Change::Add(w) => {
                slots.push(sharing.add(&w.route, w.copies, w.weight, w.limit).expect("a flow"));
                wishes.push(w);
            }
            Change::Remove(index) if !slots.is_empty() => {
                let i = index.index(slots.len());
                sharing.remove(slots.swap_remove(i));
                wishes.swap_remove(i);
            }
            Change::Reroute(index, route) if !slots.is_empty() => {
                let i = index.index(slots.len());
                sharing.reroute(slots[i], &route).expect("a route");
                wishes[i].route = route;
            }
            Change::Capacity(r, c) => {
                sharing.set_capacity(r, c).expect("a capacity");
                lines[r as usize] = (c, c);
            }
            Change::Curve(r, a, b) => {
                sharing
                    .set_curve(r, Curve::new(vec![(1.0, a), (9.0, b)]).expect("a curve"))
                    .expect("set");
                lines[r as usize] = (a, b);
            }
            Change::Remove(_) | Change::Reroute(..) => {}
        }
        if at % every != 0 {
            continue;
        }
        sharing.solve();
        assert!(!sharing.is_changed());
        if exact {
            assert_fair(&sharing, &slots, 1e-6);
            assert_balanced(&sharing, &slots, 1e-6);
            let expected = naive(&model_capacities(&lines, &wishes), &wishes);
            for (slot, level) in slots.iter().zip(expected) {
                assert!(
                    close(sharing.flow_level(*slot), level, 1e-6),
                    "flow {slot}: {} against {level}",
                    sharing.flow_level(*slot)
                );
            }
        } else {
            assert_balanced(&sharing, &slots, tolerance);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(debug_assertions) { 300 } else { 3000 }))]

    #[test]
    fn rates_kept_up_to_date_are_those_worked_out_from_scratch(
        changes in prop::collection::vec(change(), 1..60),
        capacities in prop::collection::vec(capacity(), RESOURCES as usize),
        every in 1..5_usize,
    ) {
        play(changes, capacities, 1e-10, every, true);
    }

    #[test]
    fn with_a_tolerance_every_resource_is_used_up_to_it_and_no_further(
        changes in prop::collection::vec(change(), 1..60),
        capacities in prop::collection::vec(capacity(), RESOURCES as usize),
    ) {
        play(changes, capacities, 0.01, 1, false);
    }
}

#[test]
fn two_flows_share_a_link_and_one_takes_what_the_other_cannot_use() {
    let mut sharing = Sharing::new(&[10.0, 2.0], 1e-10).expect("resources");
    let wide = sharing.add(&[0], 1, 1.0, f64::INFINITY).expect("a flow");
    let narrow = sharing.add(&[0, 1], 1, 1.0, f64::INFINITY).expect("a flow");
    sharing.solve();
    assert_eq!((sharing.rate(wide), sharing.rate(narrow)), (8.0, 2.0));
    assert_eq!((sharing.bottleneck(wide), sharing.bottleneck(narrow)), (0, 1));
    sharing.remove(wide);
    sharing.solve();
    assert_eq!(sharing.rate(narrow), 2.0);
    assert_eq!(sharing.level(0), f64::INFINITY);
}

#[test]
fn a_change_far_away_is_not_looked_at() {
    // 100 links of two flows each, which share nothing with other links.
    let mut sharing = Sharing::new(&[10.0; 100], 1e-10).expect("resources");
    let slots: Vec<u32> =
        (0..200).map(|i| sharing.add(&[i / 2], 1, 1.0, f64::INFINITY).expect("a flow")).collect();
    sharing.solve();
    sharing.remove(slots[20]);
    sharing.solve();
    assert_eq!(sharing.relevelled(), [10]);
    assert_eq!(sharing.rate(slots[21]), 10.0);
    assert_eq!(sharing.rate(slots[22]), 5.0);
}

#[test]
fn a_change_runs_down_a_long_chain() {
    // Flow i crosses links i and i + 1, the links' capacities make each flow's rate depend on the one before.
    let links = 2000;
    let mut sharing = Sharing::new(&vec![10.0; links + 1], 1e-10).expect("resources");
    let first = sharing.add(&[0], 1, 1.0, 1.0).expect("a flow");
    let chain: Vec<u32> = (0..links as u32)
        .map(|i| {
            sharing.add(&[i, i + 1], 1, 1.0 + f64::from(i) * 1e-3, f64::INFINITY).expect("a flow")
        })
        .collect();
    sharing.solve();
    sharing.remove(first);
    sharing.solve();
    let wishes: Vec<Wanted> = (0..links as u32)
        .map(|i| Wanted {
            route: vec![i, i + 1],
            copies: 1,
            weight: 1.0 + f64::from(i) * 1e-3,
            limit: f64::INFINITY,
        })
        .collect();
    let mut scratch = Sharing::new(&vec![10.0; links + 1], 1e-10).expect("resources");
    let again: Vec<u32> = wishes
        .iter()
        .map(|w| scratch.add(&w.route, 1, w.weight, w.limit).expect("a flow"))
        .collect();
    scratch.solve();
    for (a, b) in chain.iter().zip(&again) {
        assert!(close(sharing.rate(*a), scratch.rate(*b), 1e-9));
    }
}

#[test]
fn what_is_no_number_is_refused() {
    for bad in [f64::NAN, -1.0, f64::INFINITY, 1e300] {
        assert!(matches!(Sharing::new(&[1.0, bad], 1e-10), Err(FlowError::Capacity(_))));
    }
    assert!(matches!(Sharing::new(&[1.0], 0.0), Err(FlowError::Tolerance(_))));
    let mut sharing = Sharing::new(&[1.0], 1e-10).expect("resources");
    assert_eq!(sharing.add(&[1], 1, 1.0, 1.0), Err(FlowError::Resource(1)));
    assert_eq!(sharing.add(&[0], 1, 0.0, 1.0), Err(FlowError::Weight(0.0)));
    assert_eq!(sharing.add(&[0], 1, 1.0, 0.0), Err(FlowError::Limit(0.0)));
    assert_eq!(sharing.add(&[], 1, 1.0, f64::INFINITY), Err(FlowError::Unbounded));
    assert!(sharing.set_capacity(0, f64::NAN).is_err());
    assert_eq!(sharing.live(), 0);
}
