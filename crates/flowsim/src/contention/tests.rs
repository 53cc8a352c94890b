use super::*;
use crate::error::FlowError;

const MIB: u64 = 1 << 20;

fn layout(components: &[(u64, u32)], targets: usize) -> Layout {
    let components: Vec<Component> =
        components.iter().map(|&(end, stripes)| Component { end, stripes }).collect();
    Layout::new(&components, MIB, targets).expect("a layout")
}

fn flat(most: usize) -> Slowdown {
    Slowdown::new(&[(1.0, 1.0)], most).expect("a curve")
}

/// One target serves one object a unit of time, however many wait.
fn one_at_a_time(most: usize) -> Slowdown {
    Slowdown::new(&[(1.0, 1.0), (2.0, 2.0)], most).expect("a curve")
}

#[test]
fn imbalance_is_that_of_the_paper() {
    assert_eq!(imbalance(&[3, 3, 3, 3]), 0.0);
    assert_eq!(imbalance(&[0, 7, 0]), 1.0);
    assert_eq!(imbalance(&[]), 0.0);
    assert_eq!(imbalance(&[0, 0]), 0.0);
    let (p, q) = (0.75_f64, 0.25_f64);
    let expected = 1.0 + (p * p.ln() + q * q.ln()) / 2.0_f64.ln();
    assert!((imbalance(&[3, 1]) - expected).abs() < 1e-12);
}

#[test]
fn small_files_have_one_stripe_and_larger_ones_grow() {
    let layout = layout(&[(4 * MIB, 1), (8 * MIB, 2), (u64::MAX, 4)], 4);
    let placement = Placement::new(layout, &[MIB, 12 * MIB, 1], 2).expect("files");
    let targets = |file: usize| -> Vec<usize> {
        (0..placement.objects(file)).map(|o| placement.target(file, o)).collect()
    };
    assert_eq!(targets(0), [2]);
    assert_eq!(targets(1), [3, 3, 3, 3, 0, 1, 0, 1, 2, 3, 0, 1]);
    // The large file took 1 + 2 + 4 targets, so the next begins 7 further on.
    assert_eq!(targets(2), [2]);
    assert_eq!(placement.objects_of_targets(), [3, 3, 3, 5]);
}

#[test]
fn counting_objects_agrees_with_asking_for_each() {
    let layout = layout(&[(3 * MIB, 1), (64 * MIB, 5), (u64::MAX, 24)], 24);
    let sizes: Vec<u64> = (1..400_u64).map(|i| i * i * 7919 + 1).collect();
    let placement = Placement::new(layout, &sizes, 5).expect("files");
    let mut count = vec![0; 24];
    for file in 0..placement.files() {
        for object in 0..placement.objects(file) {
            count[placement.target(file, object)] += 1;
        }
    }
    assert_eq!(placement.objects_of_targets(), count);
}

fn run(placement: &Placement, slowdown: &Slowdown, loaders: usize) -> Outcome {
    let mut run = FileLevel::new(placement, slowdown, loaders, Dealing::Cyclic).expect("a run");
    while run.advance(3) {}
    run.outcome()
}

#[test]
fn a_loader_alone_needs_a_unit_an_object() {
    let placement =
        Placement::new(layout(&[(u64::MAX, 3)], 3), &[5 * MIB, 2 * MIB], 0).expect("files");
    let outcome = run(&placement, &one_at_a_time(1), 1);
    assert_eq!((outcome.ended, outcome.objects), (vec![7.0], 7));
    assert_eq!(outcome.imbalance, 1.0);
}

#[test]
fn loaders_that_meet_on_a_target_slow_each_other_down() {
    // Both read targets 0, 0 with half the pace; loader 0 has one object more, on target 1.
    let layout = layout(&[(2 * MIB, 1), (u64::MAX, 1)], 2);
    let placement = Placement::new(layout, &[3 * MIB, 2 * MIB], 0).expect("files");
    assert_eq!((placement.target(0, 2), placement.target(1, 0)), (1, 0));
    let outcome = run(&placement, &one_at_a_time(2), 2);
    assert_eq!(outcome.ended, [5.0, 4.0]);
    // Without a slowdown they do not feel each other.
    assert_eq!(run(&placement, &flat(2), 2).ended, [3.0, 2.0]);
}

#[test]
fn a_loader_that_arrives_later_leaves_later() {
    // Loader 1 reads one object on target 1, then joins loader 0, which is through half of its second.
    let layout = layout(&[(u64::MAX, 1)], 2);
    let sizes = [4 * MIB, MIB, 0x10_0001, MIB];
    let placement = Placement::new(layout, &sizes, 0).expect("files");
    let outcome = run(&placement, &one_at_a_time(2), 2);
    // Target 0: file 0 (4 objects) and then file 2 (2 objects) by loader 0; files 1, 3 by loader 1 on target 1.
    assert_eq!(outcome.ended, [6.0, 2.0]);
    assert_eq!(outcome.objects, 8);
}

#[test]
fn from_a_queue_a_free_loader_takes_the_next_file() {
    let sizes = [5 * MIB, MIB, MIB, MIB];
    let placement = Placement::new(layout(&[(u64::MAX, 1)], 4), &sizes, 0).expect("files");
    let slowdown = flat(2);
    let mut run = FileLevel::new(&placement, &slowdown, 2, Dealing::Queue).expect("a run");
    while run.advance(1) {}
    assert_eq!(run.outcome().ended, [5.0, 3.0]);
}

#[test]
fn more_loaders_than_files_leave_some_idle() {
    let placement = Placement::new(layout(&[(u64::MAX, 1)], 2), &[MIB; 3], 0).expect("files");
    let outcome = run(&placement, &flat(5), 5);
    assert_eq!(outcome.ended, [1.0, 1.0, 1.0, 0.0, 0.0]);
}

#[test]
fn at_object_level_the_fullest_target_ends_last() {
    let times = object_level(&[8, 9, 0], 4, &one_at_a_time(4));
    // Two rounds of four at a quarter of the pace; the ninth object alone.
    assert_eq!(times, [8.0, 9.0, 0.0]);
}

#[test]
fn the_best_number_of_loaders_reads_most() {
    // g(x) = exp((x - 1) / 16): x / g(x) is largest at 16, where g(x) = x g'(x).
    let points: Vec<(f64, f64)> =
        (1..=64).map(|x| (f64::from(x), (f64::from(x - 1) / 16.0).exp())).collect();
    let slowdown = Slowdown::new(&points, 64).expect("a curve");
    assert_eq!(best_loaders(&slowdown, 64), 16);
    assert_eq!(best_loaders(&slowdown, 8), 8);
    assert_eq!(best_loaders(&flat(64), 64), 64);
}

#[test]
fn a_curve_goes_on_past_its_last_point() {
    let slowdown = Slowdown::new(&[(1.0, 1.0), (11.0, 2.0), (21.0, 4.0)], 41).expect("a curve");
    assert_eq!([0, 1, 6, 16, 41].map(|x| slowdown.at(x)), [1.0, 1.0, 1.5, 3.0, 8.0]);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let ends = |c: &[(u64, u32)]| -> Result<(), FlowError> {
        let components: Vec<Component> =
            c.iter().map(|&(end, stripes)| Component { end, stripes }).collect();
        Layout::new(&components, MIB, 4).map(|_| ())
    };
    for bad in [&[][..], &[(MIB, 1)], &[(MIB, 1), (MIB, 2), (u64::MAX, 4)], &[(u64::MAX, 0)]] {
        assert_eq!(ends(bad), Err(FlowError::Layout));
    }
    let good = [Component { end: u64::MAX, stripes: 1 }];
    assert_eq!(Layout::new(&good, MIB, 0).err(), Some(FlowError::Targets(0)));
    assert_eq!(Layout::new(&good, 0, 4).err(), Some(FlowError::StripeSize));
    let flat_layout = layout(&[(u64::MAX, 1)], 4);
    assert_eq!(Placement::new(flat_layout.clone(), &[], 0).err(), Some(FlowError::Files(0)));
    assert_eq!(Placement::new(flat_layout.clone(), &[1, 0], 0).err(), Some(FlowError::Size(0)));
    let placement = Placement::new(flat_layout, &[1], 0).expect("files");
    assert_eq!(
        FileLevel::new(&placement, &flat(1), 0, Dealing::Queue).err(),
        Some(FlowError::Loaders(0))
    );
    for bad in [&[][..], &[(1.0, 0.5)], &[(1.0, 1.0), (1.0, 2.0)], &[(1.0, f64::NAN)]] {
        assert_eq!(Slowdown::new(bad, 4).err(), Some(FlowError::Slowdown));
    }
}
