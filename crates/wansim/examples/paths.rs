//! The protocol's figures in virtual time: `cargo run --release -p waystage-wansim --example paths [PART]`.
//!
//! `paths controller MODE...` compares congestion controllers: alone, with random loss, beside CUBIC and beside `fair`.

use waystage_aqm::{Aqm, Policer};
use waystage_protocol::congestion::Mode;
use waystage_wansim::link::Loss;
use waystage_wansim::scenario::{
    jain, reached_ns, run, run_changing, seconds, Change, Entry, Kind, Outcome, PathSpec,
};

const GIGABIT: f64 = 1e9;
const MS: u64 = 1_000_000;

fn main() {
    let part = std::env::args().nth(1).unwrap_or_default();
    if part == "controller" {
        let modes: Result<Vec<Mode>, _> =
            std::env::args().skip(2).map(|name| name.parse()).collect();
        return modes.map_or_else(|error| eprintln!("{error}"), |modes| controllers(&modes));
    }
    let wanted = |name: &str| part.is_empty() || part == name;
    if wanted("loss") {
        loss();
    }
    if wanted("seeds") {
        seeds();
    }
    if wanted("start") {
        start();
    }
    if wanted("fairness") {
        fairness(std::env::args().nth(2).and_then(|buffer| buffer.parse().ok()));
    }
    if wanted("modest") {
        modest();
        back();
    }
    if wanted("jain") {
        many();
    }
    if wanted("reorder") {
        reorder();
    }
    if wanted("bursts") {
        bursts();
    }
    if wanted("marks") {
        marks();
    }
    if wanted("patterns") {
        patterns(&std::env::args().nth(2).unwrap_or_default());
    }
}

/// Compares controllers on one path. Each line is a mode.
fn controllers(modes: &[Mode]) {
    let path = PathSpec::new(1e8, 20 * MS, 1.0);
    for &mode in modes {
        let alone = |path| {
            let outcome =
                run(path, &[Entry::now(Kind::Ours(mode))], seconds(5.0), seconds(15.0), 1);
            let queued =
                outcome.queued_bytes[outcome.queued_bytes.len() / 2..].iter().sum::<u64>() as f64;
            (
                outcome.bps[0] / path.forward.rate_bps,
                queued / outcome.queued_bytes.len() as f64 * 2.0 * 8e3 / 1e8,
            )
        };
        let share = |other| {
            let entries =
                [Entry::now(Kind::Ours(mode)), Entry { kind: other, begins_ns: seconds(5.0) }];
            let outcome = run(path.without_phase(), &entries, seconds(15.0), seconds(75.0), 1);
            100.0 * outcome.bps[0] / outcome.bps.iter().sum::<f64>()
        };
        let (used, queue_ms) = alone(path);
        println!(
            "{mode}: {used:.3} of the path alone, {queue_ms:.1} ms of queue; {:.3} at 1 % random loss; {:.0} % beside cubic, {:.0} % beside fair",
            alone(with_loss(path, 0.01)).0,
            share(Kind::Cubic),
            share(Kind::Ours(Mode::Fair)),
        );
    }
}

fn with_loss(mut path: PathSpec, share: f64) -> PathSpec {
    let loss = if share > 0.0 { Loss::Random(share) } else { Loss::Never };
    (path.forward.loss, path.backward.loss) = (loss, loss);
    path
}

fn loss() {
    for rtt_ms in [10, 200] {
        for share in [0.0, 0.001, 0.01, 0.05, 0.1, 0.2] {
            let path = with_loss(PathSpec::new(GIGABIT, rtt_ms * MS, 1.0), share);
            let until = if rtt_ms > 100 { 12.0 } else { 5.0 };
            let from = if rtt_ms > 100 { 4.0 } else { 1.0 };
            let rate = |kind| {
                let outcome = run(path, &[Entry::now(kind)], seconds(from), seconds(until), 1);
                let (sent, received) = (&outcome.sender[0], &outcome.receiver[0]);
                let duplicates =
                    100.0 * received.duplicate_bytes as f64 / received.unique_bytes.max(1) as f64;
                let late = sent.late_packets;
                (
                    outcome.bps[0] / (GIGABIT * (1.0 - share)),
                    duplicates,
                    late,
                    timeline(&outcome, 0),
                )
            };
            let (ours, duplicates, late, phases) = rate(Kind::Ours(Mode::Fair));
            print!("loss {rtt_ms} ms {:5.1} %: fair {ours:.3} of C(1-p), duplicates {duplicates:.3} %, late {late}", 100.0 * share);
            println!(
                " | aggressive {:.3}, cubic {:.4}, bbr {:.3} | {phases}",
                rate(Kind::Ours(Mode::Aggressive)).0,
                rate(Kind::Cubic).0,
                rate(Kind::Bbr).0
            );
        }
    }
}

fn timeline(outcome: &Outcome, flow: usize) -> String {
    let every = (outcome.steps[flow].len() / 12).max(1);
    let each = |at: usize| {
        let phase = outcome.phases[flow].get(at).map_or("", |phase| &phase[..1]);
        format!("{phase}{:.0}", outcome.steps[flow][at] / 1e6)
    };
    (0..outcome.steps[flow].len()).step_by(every).map(each).collect::<Vec<_>>().join(" ")
}

fn start() {
    for mode in [Mode::Fair, Mode::FastStart, Mode::Modest, Mode::Aggressive] {
        let path = PathSpec::new(GIGABIT, 500 * MS, 1.0);
        let outcome = run(path, &[Entry::now(Kind::Ours(mode))], seconds(5.0), seconds(10.0), 1);
        let reached = reached_ns(&outcome, 0, 0.9 * 0.95 * GIGABIT).map(|ns| ns as f64 / 1e9);
        println!(
            "start 500 ms {mode}: 90 % after {reached:?} s, then {:.3} | {}",
            outcome.bps[0] / GIGABIT,
            timeline(&outcome, 0)
        );
    }
}

/// Single runs are chaotic, so each figure is the median of runs that differ in the start of the second flow. CUBIC
/// needs twenty seconds to fill the larger buffers. With a number, only that buffer.
fn fairness(only: Option<f64>) {
    for (rate_bps, rtt_ms) in [(1e8, 20), (GIGABIT, 10)] {
        for buffer in [0.05, 0.1, 0.25, 0.5, 1.0, 4.0] {
            if only.is_some_and(|only| only != buffer) {
                continue;
            }
            for ours_first in [true, false] {
                let path = PathSpec::new(rate_bps, rtt_ms * MS, buffer).without_phase();
                let ours = Kind::Ours(Mode::Fair);
                let order = if ours_first { [ours, Kind::Cubic] } else { [Kind::Cubic, ours] };
                let share = |start: u32| {
                    let begins_ns = seconds(20.0 + 0.37 * f64::from(start));
                    let entries = [Entry::now(order[0]), Entry { kind: order[1], begins_ns }];
                    let outcome = run(path, &entries, seconds(30.0), seconds(90.0), 1);
                    let total: f64 = outcome.bps.iter().sum();
                    (100.0 * outcome.bps[usize::from(!ours_first)] / total, total / rate_bps)
                };
                let mut runs: Vec<(f64, f64)> = (0..7).map(share).collect();
                runs.sort_by(|one, other| one.0.total_cmp(&other.0));
                println!(
                    "fairness {rate_bps:e} {rtt_ms} ms, {buffer} BDP, ours first {ours_first}: ours {:.1} % ({:.1} to {:.1}), used {:.3}",
                    runs[3].0, runs[0].0, runs[6].0, runs[3].1
                );
            }
        }
    }
}

/// Shares on a path that marks, beside CUBIC with and without ECN, and beside `fair`: medians of starts.
fn marks() {
    for (rate_bps, rtt_ms) in [(1e8, 20), (2e8, 10), (2e8, 40), (GIGABIT, 20)] {
        for threshold in [0.05, 0.1, 0.3] {
            let mut path = PathSpec::new(rate_bps, rtt_ms * MS, 1.0).without_phase();
            path.forward.queue.mark_bytes = (path.forward.buffer_bytes as f64 * threshold) as u64;
            let ours = Kind::Ours(Mode::Fair);
            let alone = run(path, &[Entry::now(ours)], seconds(2.0), seconds(32.0), 1);
            print!(
                "marks {rate_bps:e} {rtt_ms} ms, {threshold} BDP: alone {:.3}",
                alone.bps[0] / rate_bps
            );
            for other in [Kind::CubicWithEcn, ours] {
                for ours_first in [true, false] {
                    let order = if ours_first { [ours, other] } else { [other, ours] };
                    let share = |start: u32| {
                        let begins_ns = seconds(10.0 + 0.37 * f64::from(start));
                        let entries = [Entry::now(order[0]), Entry { kind: order[1], begins_ns }];
                        let outcome = run(path, &entries, seconds(20.0), seconds(60.0), 1);
                        let total: f64 = outcome.bps.iter().sum();
                        (100.0 * outcome.bps[usize::from(!ours_first)] / total, total / rate_bps)
                    };
                    let mut runs: Vec<(f64, f64)> = (0..3).map(share).collect();
                    runs.sort_by(|one, other| one.0.total_cmp(&other.0));
                    print!(
                        ", {other:?} {} {:.0} % ({:.0} to {:.0}) of {:.2}",
                        if ours_first { "second" } else { "first" },
                        runs[1].0,
                        runs[0].0,
                        runs[2].0,
                        runs[1].1
                    );
                }
            }
            println!();
        }
    }
}

fn modest() {
    for buffer in [0.05, 1.0, 4.0] {
        let path = PathSpec::new(1e8, 20 * MS, buffer);
        let measure = |entries: &[Entry]| run(path, entries, seconds(15.0), seconds(45.0), 1);
        let alone = measure(&[Entry::now(Kind::Ours(Mode::Modest))]);
        let cubic = measure(&[Entry::now(Kind::Cubic)]).bps[0];
        let both = measure(&[
            Entry::now(Kind::Ours(Mode::Modest)),
            Entry { kind: Kind::Cubic, begins_ns: seconds(5.0) },
        ]);
        println!(
            "modest {buffer} BDP: alone {:.3}, costs cubic {:.1} % | {} | {}",
            alone.bps[0] / 1e8,
            100.0 * (1.0 - both.bps[1] / cubic),
            timeline(&alone, 0),
            timeline(&both, 0)
        );
    }
}

/// The time that `modest` needs to use half of the path after a CUBIC flow has ended.
fn back() {
    for (rate_bps, rtt_ms) in [(1e8, 20), (1e8, 50), (2e8, 100), (1e8, 200)] {
        for buffer in [1.0, 4.0] {
            let path = PathSpec::new(rate_bps, rtt_ms * MS, buffer);
            let rounds = |ends_s: f64| {
                let entries = [
                    Entry::now(Kind::Ours(Mode::Modest)),
                    Entry { kind: Kind::CubicUntil(seconds(ends_s)), begins_ns: seconds(5.0) },
                ];
                let mut outcome = run(path, &entries, seconds(5.0), seconds(ends_s + 60.0), 1);
                let ended = (seconds(ends_s) / outcome.step_ns) as usize;
                outcome.steps[0].drain(..ended);
                let half_ns = reached_ns(&outcome, 0, rate_bps / 2.0)?;
                Some(half_ns / path.rtt_ns())
            };
            let each: Vec<_> = [20.0, 23.0, 26.0, 29.0, 33.0].map(rounds).to_vec();
            println!("modest back at half, {rate_bps:e} {rtt_ms} ms, {buffer} BDP: after {each:?} round trips");
        }
    }
}

/// Twenty spacings, which differ in the flow that overflows the buffer and in the flows that have drained by then.
fn many() {
    for (rate_bps, rtt_ms) in [(GIGABIT, 20), (2e8, 10), (1e8, 20), (1e8, 50)] {
        let path = PathSpec::new(rate_bps, rtt_ms * MS, 1.0).without_phase();
        let index = |step: u32| {
            let apart_s = 0.1 + 0.047 * f64::from(step);
            let entries: Vec<Entry> = (0..16)
                .map(|index| Entry {
                    kind: Kind::Ours(Mode::Fair),
                    begins_ns: seconds(apart_s * f64::from(index)),
                })
                .collect();
            let from_s = (16.0 * apart_s + 5.0).max(17.0);
            let outcome = run(path, &entries, seconds(from_s), seconds(from_s + 20.0), 1);
            (jain(&outcome.bps), apart_s)
        };
        let mut all: Vec<(f64, f64)> = (0..20).map(index).collect();
        all.sort_by(|one, other| one.0.total_cmp(&other.0));
        let worst: Vec<String> = all[..4]
            .iter()
            .map(|(index, apart_s)| format!("{index:.3} at {apart_s:.3} s"))
            .collect();
        println!(
            "jain of 16, {rate_bps:e} {rtt_ms} ms, 20 spacings from 0.1 to 1 s: median {:.3}, {} of 20 at 0.97 or more, worst {}",
            all[10].0,
            all.iter().filter(|one| one.0 >= 0.97).count(),
            worst.join(", ")
        );
    }
}

/// Losses of the first round trips differ most from run to run.
fn seeds() {
    for (rate_bps, rtt_ms) in [(2e8, 10), (2e8, 20), (GIGABIT, 20), (5e7, 100)] {
        for share in [0.01, 0.1] {
            let path = with_loss(PathSpec::new(rate_bps, rtt_ms * MS, 1.0), share);
            let fraction = |seed| {
                let ours = [Entry::now(Kind::Ours(Mode::Fair))];
                let outcome = run(path, &ours, seconds(2.0), seconds(12.0), seed);
                outcome.bps[0] / (rate_bps * (1.0 - share))
            };
            let mut runs: Vec<f64> = (1..25).map(fraction).collect();
            runs.sort_by(f64::total_cmp);
            println!(
                "24 seeds, {rate_bps:e} {rtt_ms} ms, {:.1} %: {:.3} to {:.3} of C(1-p)",
                100.0 * share,
                runs[0],
                runs[23]
            );
        }
    }
}

/// Loss in bursts: every packet of a burst is lost, and their lengths are geometric.
fn bursts() {
    for (rate_bps, rtt_ms) in [(2e8, 10), (2e8, 100), (GIGABIT, 20)] {
        for share in [0.001, 0.01, 0.05, 0.1] {
            for mean in [1.0, 3.0, 10.0, 50.0] {
                let mut path = PathSpec::new(rate_bps, rtt_ms * MS, 1.0);
                path.forward.loss = Loss::in_bursts(share, mean);
                let runs = |kind, seeds: u64| {
                    let each =
                        |seed| run(path, &[Entry::now(kind)], seconds(4.0), seconds(16.0), seed);
                    let outcomes: Vec<Outcome> = (1..=seeds).map(each).collect();
                    let mut used: Vec<f64> = outcomes
                        .iter()
                        .map(|outcome| outcome.bps[0] / (rate_bps * (1.0 - share)))
                        .collect();
                    used.sort_by(f64::total_cmp);
                    (used[0], used[used.len() / 2], timeline(&outcomes[0], 0))
                };
                let (worst, median, phases) = runs(Kind::Ours(Mode::Fair), 3);
                println!(
                    "bursts of {mean}, {:.1} %, {rate_bps:e} {rtt_ms} ms: fair {worst:.3} to {median:.3} of C(1-p), bbr {:.3} | {phases}",
                    100.0 * share, runs(Kind::Bbr, 1).1,
                );
            }
        }
    }
}

/// A policer at half of the path's rate.
fn half(path: &PathSpec, bucket_bytes: u64) -> Option<Policer> {
    Some(Policer { rate_bps: path.forward.rate_bps / 2.0, bucket_bytes })
}

/// Paths that are not uniform: the part of what they can carry that a flow gets. `only` selects some by their names.
fn patterns(only: &str) {
    const SECOND: u64 = 1000 * MS;
    type Pattern = (&'static str, fn(&mut PathSpec), Change, f64);
    fn dark(now_ns: u64, path: &mut PathSpec, length_ns: u64) {
        if now_ns % (5 * SECOND) < length_ns {
            (path.forward.loss, path.backward.loss) = (Loss::Random(1.0), Loss::Random(1.0));
        }
    }
    let none: Change = |_, _| {};
    let all: [Pattern; 18] = [
        ("outages of 50 ms", |_| {}, |now, path| dark(now, path, 50 * MS), 0.99),
        ("outages of 500 ms", |_| {}, |now, path| dark(now, path, 500 * MS), 0.9),
        (
            "a quarter for 5 s of 10",
            |_| {},
            |now, path| {
                if now / (5 * SECOND) % 2 == 1 {
                    path.forward.rate_bps /= 4.0;
                }
            },
            0.625,
        ),
        (
            "policer at a half, 30 KB",
            |path| path.forward.queue.policer = half(path, 30_000),
            none,
            0.5,
        ),
        (
            "policer at a half, 100 KB",
            |path| path.forward.queue.policer = half(path, 100_000),
            none,
            0.5,
        ),
        (
            "policer at a half, 1000 KB",
            |path| path.forward.queue.policer = half(path, 1_000_000),
            none,
            0.5,
        ),
        (
            "policer at a half, 300 KB",
            |path| path.forward.queue.policer = half(path, 300_000),
            none,
            0.5,
        ),
        (
            "delay steps of 20 ms",
            |_| {},
            |now, path| {
                if now / (15 * SECOND) % 2 == 1 {
                    path.forward.delay_ns += 20 * MS;
                }
            },
            1.0,
        ),
        (
            "jitter 5 ms on a quarter",
            |path| (path.forward.reorder, path.forward.reorder_ns) = (0.25, 5 * MS),
            none,
            1.0,
        ),
        ("RED", |path| path.forward.queue.aqm = Aqm::Red { min: 0.1, max: 0.3 }, none, 1.0),
        ("CoDel", |path| path.forward.queue.aqm = Aqm::CoDel, none, 1.0),
        (
            "ECN marks",
            |path| path.forward.queue.mark_bytes = path.forward.buffer_bytes / 10,
            none,
            1.0,
        ),
        (
            "duplicates 5 %, damage 1 %",
            |path| (path.forward.duplicate, path.forward.corrupt) = (0.05, 0.01),
            none,
            0.94,
        ),
        (
            "loss of 10 % on the way back",
            |path| path.backward.loss = Loss::in_bursts(0.1, 3.0),
            none,
            1.0,
        ),
        ("buffer of 0.05", |path| path.forward.buffer_bytes /= 20, none, 1.0),
        ("buffer of 0.25", |path| path.forward.buffer_bytes /= 4, none, 1.0),
        ("buffer of 4", |path| path.forward.buffer_bytes *= 4, none, 1.0),
        (
            "buffer of 0.05, 0.1 % bursts of 3",
            |path| {
                path.forward.buffer_bytes /= 20;
                path.forward.loss = Loss::in_bursts(0.001, 3.0);
            },
            none,
            1.0,
        ),
    ];
    for (rate_bps, rtt_ms) in [(2e8, 10), (2e8, 40), (GIGABIT, 20)] {
        for (name, shape, change, part) in all.iter().filter(|pattern| pattern.0.contains(only)) {
            let mut path = PathSpec::new(rate_bps, rtt_ms * MS, 1.0);
            shape(&mut path);
            let ends_s = if name.starts_with("delay") { 62.0 } else { 32.0 };
            let runs = |kind, seeds: u64| {
                let times = (seconds(2.0), seconds(ends_s));
                let each = |seed| run_changing(path, *change, &[Entry::now(kind)], times, seed);
                let outcomes: Vec<Outcome> = (1..=seeds).map(each).collect();
                let mut used: Vec<f64> =
                    outcomes.iter().map(|outcome| outcome.bps[0] / (rate_bps * part)).collect();
                used.sort_by(f64::total_cmp);
                (used[0], used[used.len() / 2], timeline(&outcomes[0], 0))
            };
            let (worst, median, phases) = runs(Kind::Ours(Mode::Fair), 3);
            println!(
                "{name}, {rate_bps:e} {rtt_ms} ms: fair {worst:.3} to {median:.3} of what it carries, cubic {:.3}, bbr {:.3} | {phases}",
                runs(Kind::Cubic, 1).1, runs(Kind::Bbr, 1).1,
            );
        }
    }
}

fn reorder() {
    for rtt_ms in [10, 50, 200] {
        let clean = PathSpec::new(GIGABIT, rtt_ms * MS, 1.0);
        let mut path = clean;
        (path.forward.reorder, path.forward.reorder_ns) = (0.25, 5 * MS);
        let rate =
            |path| run(path, &[Entry::now(Kind::Ours(Mode::Fair))], seconds(3.0), seconds(8.0), 1);
        let (clean, reordered) = (rate(clean), rate(path));
        println!(
            "reorder {rtt_ms} ms: {:.3} of clean; repaired {} KB, late {} | {}",
            reordered.bps[0] / clean.bps[0],
            reordered.sender[0].retransmitted_bytes / 1000,
            reordered.sender[0].late_packets,
            timeline(&reordered, 0)
        );
    }
}
