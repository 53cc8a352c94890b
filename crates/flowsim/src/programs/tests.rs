use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::error::FlowError;

fn clock(capacities: &[f64], routes: &[&[u32]]) -> FlowClock {
    let mut clock = FlowClock::new(capacities, 1e-9).expect("a clock");
    let mut offsets = vec![0];
    for route in routes {
        offsets.push(offsets[offsets.len() - 1] + route.len() as u64);
    }
    clock.add_routes(&offsets, &routes.concat()).expect("routes");
    clock
}

fn flows<'a>(routes: &'a [u32], bytes: &'a [f64]) -> Flows<'a> {
    Flows { routes, bytes, class: 0, weight: 1.0, limit: f64::INFINITY }
}

/// Steps of (pause, route keys, bytes).
fn program(repeat: u64, steps: &[(f64, &[u32], &[f64])]) -> Arc<Program> {
    let mut program = Program::new(repeat).expect("a program");
    for &(pause, routes, bytes) in steps {
        program.step(pause).expect("a step");
        program.flows(&flows(routes, bytes)).expect("flows");
    }
    Arc::new(program)
}

fn all_ends(clock: &mut FlowClock) -> Vec<(f64, u32)> {
    let mut ends = Vec::new();
    while clock.advance(f64::INFINITY, u64::MAX).expect("to go on") == Pause::Ended {
        ends.extend(clock.take_ended());
    }
    ends
}

fn assert_close(a: f64, b: f64) {
    assert!((a - b).abs() <= 1e-7 * a.abs().max(b.abs()) + 1e-9, "{a} against {b}");
}

#[test]
fn two_flows_share_a_link_and_the_second_then_has_it_alone() {
    let mut clock = clock(&[10.0], &[&[0]]);
    let short = clock.start(program(1, &[(0.0, &[0], &[50.0])]), 0.0).expect("a run");
    let long = clock.start(program(1, &[(0.0, &[0], &[100.0])]), 0.0).expect("a run");
    // 5 bytes/s each until 10 s; then 50 bytes are left at 10 bytes/s.
    assert_eq!(all_ends(&mut clock), [(10.0, short), (15.0, long)]);
    assert_eq!(clock.totals(0), [150.0]);
}

#[test]
fn a_program_pauses_repeats_and_waits_for_all_flows_of_a_step() {
    let mut clock = clock(&[10.0, 10.0], &[&[0], &[1]]);
    let steps: &[(f64, &[u32], &[f64])] = &[(2.0, &[0, 1], &[10.0, 30.0]), (1.0, &[], &[])];
    let run = clock.start(program(4, steps), 5.0).expect("a run");
    assert_eq!(all_ends(&mut clock), [(5.0 + 4.0 * (2.0 + 3.0 + 1.0), run)]);
    assert_eq!(clock.times(run), Ok((5.0, Some(29.0))));
}

#[test]
fn equal_flows_are_merged_and_count_as_many() {
    let mut clock = clock(&[10.0], &[&[0]]);
    let many = clock.start(program(1, &[(0.0, &[0; 9], &[10.0; 9])]), 0.0).expect("a run");
    let one = clock.start(program(1, &[(0.0, &[0], &[5.0])]), 0.0).expect("a run");
    clock.advance(0.0, u64::MAX).expect("to go on");
    assert_eq!(clock.active_flows(), 2);
    assert_eq!(clock.bytes_left(many), Ok(90.0));
    let ends = all_ends(&mut clock);
    assert_eq!(ends.iter().map(|end| end.1).collect::<Vec<_>>(), [one, many]);
    assert_close(ends[0].0, 5.0);
    assert_close(ends[1].0, 9.5);
}

#[test]
fn active_flows_move_to_the_new_route_with_what_is_left() {
    let mut clock = clock(&[10.0, 20.0], &[&[0], &[0]]);
    let moved = clock.start(program(1, &[(0.0, &[0], &[100.0])]), 0.0).expect("a run");
    let stays = clock.start(program(1, &[(0.0, &[1], &[100.0])]), 0.0).expect("a run");
    assert_eq!(clock.advance(4.0, u64::MAX), Ok(Pause::Limit));
    clock.set_routes(&[0], &[0, 1], &[1]).expect("routes");
    // 20 bytes each by now; then 20 bytes/s and 10 bytes/s alone.
    assert_eq!(all_ends(&mut clock), [(8.0, moved), (12.0, stays)]);
    assert_eq!(clock.totals(0), [120.0, 80.0]);
    assert_eq!(clock.route(0), Ok(&[1][..]));
}

#[test]
fn a_longer_route_in_the_table_leaves_the_others_alone() {
    let mut clock = clock(&[1.0; 4], &[&[0], &[1]]);
    clock.set_routes(&[0], &[0, 3], &[1, 2, 3]).expect("routes");
    assert_eq!((clock.route(0), clock.route(1)), (Ok(&[1, 2, 3][..]), Ok(&[1][..])));
    clock.set_routes(&[0], &[0, 2], &[3, 0]).expect("routes");
    assert_eq!((clock.route(0), clock.route(1)), (Ok(&[3, 0][..]), Ok(&[1][..])));
}

#[test]
fn weights_and_limits_hold() {
    let mut clock = clock(&[12.0], &[&[0], &[]]);
    let mut heavy = Program::new(1).expect("a program");
    heavy.step(0.0).expect("a step");
    heavy.flows(&Flows { weight: 2.0, class: 3, ..flows(&[0], &[80.0]) }).expect("flows");
    heavy.flows(&flows(&[0], &[40.0])).expect("flows");
    let mut limited = Program::new(1).expect("a program");
    limited.step(0.0).expect("a step");
    limited.flows(&Flows { limit: 4.0, ..flows(&[1], &[40.0]) }).expect("flows");
    let (a, b) = (Arc::new(heavy), Arc::new(limited));
    clock.start(a, 0.0).expect("a run");
    clock.start(b, 0.0).expect("a run");
    clock.advance(1.0, u64::MAX).expect("to go on");
    assert_eq!((clock.class_rates(3), clock.class_rates(0)), (vec![8.0], vec![4.0]));
    assert_eq!(clock.rates(), [12.0]);
    assert_eq!(
        (clock.totals(3), clock.totals(0), clock.totals(9)),
        (vec![8.0], vec![4.0], vec![0.0])
    );
    assert_eq!(all_ends(&mut clock), [(10.0, 0), (10.0, 1)]);
}

#[test]
fn what_crosses_nothing_is_over_at_once() {
    let mut clock = clock(&[1.0], &[&[], &[0]]);
    let local = clock.start(program(1, &[(0.0, &[0], &[1e12])]), 3.0).expect("a run");
    let empty = clock.start(program(u64::MAX, &[]), 3.0).expect("a run");
    let none = clock.start(program(5, &[(0.0, &[1], &[0.0])]), 3.0).expect("a run");
    assert_eq!(all_ends(&mut clock), [(3.0, local), (3.0, empty), (3.0, none)]);
}

#[test]
fn a_loop_that_takes_no_time_comes_back_for_its_budget() {
    let mut clock = clock(&[1.0], &[&[]]);
    clock.start(program(u64::MAX, &[(0.0, &[0], &[1.0])]), 0.0).expect("a run");
    assert_eq!(clock.advance(1.0, 1000), Ok(Pause::Budget));
    assert_eq!(clock.now(), 0.0);
}

#[test]
fn a_dead_link_holds_its_flows_until_it_is_back() {
    let mut clock = clock(&[10.0], &[&[0]]);
    let run = clock.start(program(1, &[(0.0, &[0], &[100.0])]), 0.0).expect("a run");
    clock.advance(2.0, u64::MAX).expect("to go on");
    clock.set_capacity(0, 0.0).expect("a capacity");
    assert_eq!(clock.advance(f64::INFINITY, u64::MAX), Ok(Pause::Idle));
    assert_eq!((clock.now(), clock.bytes_left(run)), (2.0, Ok(80.0)));
    assert_eq!(clock.advance(10.0, u64::MAX), Ok(Pause::Idle));
    clock.set_capacity(0, 20.0).expect("a capacity");
    assert_eq!(all_ends(&mut clock), [(14.0, run)]);
}

#[test]
fn a_contention_curve_slows_a_target_with_many_readers() {
    let mut clock = clock(&[10.0], &[&[0]]);
    let curve = crate::sharing::Curve::new(vec![(1.0, 10.0), (2.0, 4.0)]).expect("a curve");
    clock.set_curve(0, curve).expect("set");
    clock.start(program(1, &[(0.0, &[0], &[20.0])]), 0.0).expect("a run");
    clock.start(program(1, &[(0.0, &[0], &[40.0])]), 0.0).expect("a run");
    // 2 bytes/s each until 10 s; then 20 bytes are left at 10 bytes/s.
    assert_eq!(all_ends(&mut clock), [(10.0, 0), (12.0, 1)]);
}

#[test]
fn a_cancelled_run_frees_what_it_used_and_is_not_reported() {
    let mut clock = clock(&[10.0], &[&[0]]);
    let gone = clock.start(program(1, &[(0.0, &[0], &[100.0])]), 0.0).expect("a run");
    let stays = clock.start(program(1, &[(0.0, &[0], &[100.0])]), 0.0).expect("a run");
    clock.advance(4.0, u64::MAX).expect("to go on");
    clock.cancel(gone).expect("to cancel");
    clock.cancel(gone).expect("twice is no error");
    assert_eq!(all_ends(&mut clock), [(12.0, stays)]);
    assert_eq!(clock.totals(0), [120.0]);
    assert_eq!(clock.times(gone), Ok((0.0, None)));
}

#[test]
fn what_makes_no_sense_is_refused_and_changes_nothing() {
    let mut clock = clock(&[10.0], &[&[0]]);
    assert!(matches!(FlowClock::new(&[1.0], 1.0), Err(FlowError::Precision(_))));
    assert!(matches!(FlowClock::new(&[f64::NAN], 1e-9), Err(FlowError::Capacity(_))));
    assert_eq!(clock.start(program(1, &[(0.0, &[1], &[1.0])]), 0.0), Err(FlowError::Route(1)));
    assert_eq!(clock.start(program(1, &[]), -1.0), Err(FlowError::Time(-1.0)));
    assert!(clock.add_routes(&[0, 1], &[1]).is_err());
    assert_eq!(clock.add_routes(&[0, 2, 1], &[0]), Err(FlowError::Offsets));
    assert_eq!(clock.add_routes(&[], &[]), Err(FlowError::Offsets));
    assert_eq!(clock.set_routes(&[7], &[0, 1], &[0]), Err(FlowError::Route(7)));
    assert_eq!(clock.set_routes(&[0, 0], &[0, 1], &[0]), Err(FlowError::Uneven(2, 1)));
    assert_eq!(clock.cancel(0), Err(FlowError::Run(0)));
    assert!(clock.advance(f64::NAN, 1).is_err());
    let mut bad = Program::new(1).expect("a program");
    assert_eq!(bad.flows(&flows(&[0], &[1.0])), Err(FlowError::NoStep));
    assert!(bad.step(f64::INFINITY).is_err());
    bad.step(0.0).expect("a step");
    assert_eq!(bad.flows(&flows(&[0], &[])), Err(FlowError::Uneven(1, 0)));
    assert!(bad.flows(&flows(&[0], &[f64::NAN])).is_err());
    assert!(bad.flows(&flows(&[0], &[-1.0])).is_err());
    assert!(Program::new(0).is_err());
    assert_eq!(clock.advance(1.0, u64::MAX), Ok(Pause::Idle));
}

/// A job for the comparison with stepping: start, and steps of (pause, (route, bytes) of each flow).
type Job = (f64, Vec<(f64, Vec<(u32, f64)>)>);

const ROUTES: u32 = 6;
const RESOURCES: u32 = 5;

fn job() -> impl Strategy<Value = Job> {
    // Whole numbers make many things happen at one time.
    let bytes = prop_oneof![2 => (1..20_u32).prop_map(f64::from), 1 => 0.1..20.0];
    let flow = (0..ROUTES, bytes);
    let pause = prop_oneof![1 => Just(0.0), 1 => (0..4_u32).prop_map(f64::from), 1 => 0.0..3.0];
    let step = (pause, prop::collection::vec(flow, 0..5));
    ((0..5_u32).prop_map(f64::from), prop::collection::vec(step, 1..4))
}

fn table() -> impl Strategy<Value = Vec<Vec<u32>>> {
    prop::collection::vec(prop::collection::vec(0..RESOURCES, 1..4), ROUTES as usize)
}

fn play(
    precision: f64,
    jobs: &[Job],
    tables: &[Vec<Vec<u32>>],
    every_s: f64,
) -> (Vec<(f64, u32)>, Vec<f64>) {
    let mut clock = FlowClock::new(&[10.0, 5.0, 10.0, 2.0, 20.0], precision).expect("a clock");
    let offsets = |table: &[Vec<u32>]| -> Vec<u64> {
        let mut all = vec![0];
        for route in table {
            all.push(all[all.len() - 1] + route.len() as u64);
        }
        all
    };
    clock.add_routes(&offsets(&tables[0]), &tables[0].concat()).expect("routes");
    for (start, steps) in jobs {
        let mut program = Program::new(2).expect("a program");
        for (pause, each) in steps {
            program.step(*pause).expect("a step");
            let (routes, bytes): (Vec<u32>, Vec<f64>) = each.iter().copied().unzip();
            program.flows(&flows(&routes, &bytes)).expect("flows");
        }
        clock.start(Arc::new(program), *start).expect("a run");
    }
    let keys: Vec<u32> = (0..ROUTES).collect();
    let mut ends = Vec::new();
    for at in 0..100_000 {
        let table = &tables[at % tables.len()];
        clock.set_routes(&keys, &offsets(table), &table.concat()).expect("routes");
        let limit = (at + 1) as f64 * every_s;
        loop {
            match clock.advance(limit, u64::MAX).expect("to go on") {
                Pause::Ended => ends.extend(clock.take_ended()),
                Pause::Idle | Pause::Limit => break,
                Pause::Budget => {}
            }
        }
        if ends.len() == jobs.len() {
            break;
        }
    }
    (ends, clock.totals(0))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(debug_assertions) { 100 } else { 1000 }))]

    #[test]
    fn every_byte_is_counted_once_however_routes_change(
        jobs in prop::collection::vec(job(), 1..6),
        tables in prop::collection::vec(table(), 1..4),
        every_s in 0.3..4.0,
    ) {
        let (ends, totals) = play(1e-9, &jobs, &tables, every_s);
        prop_assert_eq!(ends.len(), jobs.len());
        if tables.len() == 1 {
            let mut expected = vec![0.0; RESOURCES as usize];
            for (_, steps) in &jobs {
                for &(route, bytes) in steps.iter().flat_map(|step| &step.1) {
                    for &resource in &tables[0][route as usize] {
                        expected[resource as usize] += 2.0 * bytes;
                    }
                }
            }
            for (a, b) in totals.iter().zip(&expected) {
                assert_close(*a, *b);
            }
        }
        prop_assert_eq!(play(1e-9, &jobs, &tables, every_s), (ends, totals));
    }

    #[test]
    fn precision_only_moves_ends_by_as_much(
        jobs in prop::collection::vec(job(), 1..6),
        tables in prop::collection::vec(table(), 1..2),
    ) {
        let (mut exact, _) = play(1e-9, &jobs, &tables, 1e6);
        let (mut rough, _) = play(1e-3, &jobs, &tables, 1e6);
        exact.sort_by_key(|end| end.1);
        rough.sort_by_key(|end| end.1);
        for (a, b) in exact.iter().zip(&rough) {
            prop_assert!((a.0 - b.0).abs() <= 0.02 * a.0 + 1e-6, "{:?} against {:?}", a, b);
        }
    }
}

#[test]
fn what_several_runs_have_left_comes_in_the_order_asked() {
    let mut clock = clock(&[10.0], &[&[0]]);
    let mut runs = Vec::new();
    for bytes in [40.0, 100.0] {
        let mut program = Program::new(1).expect("a program");
        program.step(0.0).expect("a step");
        program
            .flows(&Flows {
                routes: &[0],
                bytes: &[bytes],
                class: 0,
                weight: 1.0,
                limit: f64::INFINITY,
            })
            .expect("flows");
        runs.push(clock.start(Arc::new(program), 0.0).expect("a run"));
    }
    clock.advance(2.0, u64::MAX).expect("time passes");
    assert_eq!(clock.left(&[runs[1], runs[0], runs[1]]).expect("runs"), [90.0, 30.0, 90.0]);
    assert!(matches!(clock.left(&[9]), Err(FlowError::Run(9))));
}

#[test]
fn a_run_that_takes_the_place_of_another_one_has_its_own_flows_left() {
    let mut clock = clock(&[10.0, 10.0, 10.0], &[&[0], &[1], &[2]]);
    let short = clock.start(program(1, &[(0.0, &[2], &[10.0])]), 0.0).expect("a run");
    let wide = clock.start(program(1, &[(0.0, &[0, 1], &[100.0, 100.0])]), 0.0).expect("a run");
    assert_eq!(clock.advance(f64::INFINITY, u64::MAX), Ok(Pause::Ended));
    assert_eq!(clock.take_ended(), [(1.0, short)]);
    let after = clock.start(program(1, &[(0.0, &[2], &[50.0])]), 1.0).expect("a run");
    assert_eq!(clock.advance(3.0, u64::MAX), Ok(Pause::Limit));
    assert_eq!(clock.left(&[short, wide, after]), Ok(vec![0.0, 140.0, 30.0]));
    clock.cancel(wide).expect("to cancel");
    assert_eq!(clock.advance(4.0, u64::MAX), Ok(Pause::Limit));
    assert_eq!(clock.left(&[short, wide, after]), Ok(vec![0.0, 0.0, 20.0]));
}
