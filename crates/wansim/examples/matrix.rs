//! One change of the law over many paths: `cargo run --release -p waystage-wansim --example matrix PART`.
//!
//! Parts: `marks`, `bursts`, `both-ways`, `acknowledgements`, `delay`, `steps`, `stalls`, `hosts`,
//! `hosts-policer`, `beside`, `excess`.
//! Each figure is a part of what the path carries, or a share in per cent beside another flow: the worst and the median
//! of seeds. `WAYSTAGE_MATRIX_SEEDS` sets their number; a second argument, as `2e8,40`, selects one path.

use std::sync::atomic::{AtomicUsize, Ordering};

use waystage_aqm::Policer;
use waystage_protocol::congestion::Mode;
use waystage_wansim::link::{HostDelays, Loss, Stalls};
use waystage_wansim::scenario::{run, run_changing, seconds, Change, Entry, Kind, PathSpec};

const MS: u64 = 1_000_000;
/// How often hosts are busy, in ms, and for how long on average, in us.
const BUSY: [(u64, u64); 3] = [(20, 200), (300, 1500), (2000, 8000)];

const OURS: Kind = Kind::Ours(Mode::Fair);

/// Rates and round trips in ms: near and far, slow and fast; or the one that was asked for.
fn paths() -> Vec<(f64, u64)> {
    let only = std::env::args().nth(2);
    let parsed = only.as_deref().and_then(|text| text.split_once(','));
    if let Some((rate_bps, rtt_ms)) = parsed {
        return rate_bps.parse().ok().zip(rtt_ms.parse().ok()).into_iter().collect();
    }
    vec![(5e7, 20), (1e8, 20), (2e8, 2), (2e8, 10), (2e8, 40), (1e9, 20), (1e8, 200)]
}

fn main() {
    let part = std::env::args().nth(1).unwrap_or_default();
    match part.as_str() {
        "marks" => marks(),
        "bursts" => bursts(),
        "acknowledgements" => acknowledgements(),
        "both-ways" => both_ways(),
        "delay" => delay(),
        "steps" => steps(),
        "stalls" => stalls(),
        "hosts" => hosts(),
        "hosts-policer" => hosts_policer(),
        "beside" => beside(),
        "excess" => excess(),
        _ => eprintln!(
            "name a part: marks, bursts, both-ways, acknowledgements, delay, steps, stalls, hosts, hosts-policer, beside or excess"
        ),
    }
}

/// What `measure` returns for each seed, in any order, on two threads.
fn each_seed<T: Send>(measure: impl Fn(u64) -> T + Sync) -> Vec<T> {
    let count = std::env::var("WAYSTAGE_MATRIX_SEEDS").ok().and_then(|n| n.parse().ok());
    let count: usize = count.unwrap_or(3);
    let next = AtomicUsize::new(0);
    let part = || {
        let mut values = Vec::new();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= count {
                return values;
            }
            values.push(measure(seed as u64 + 1));
        }
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(part);
        let mut values = part();
        values.extend(other.join().unwrap_or_default());
        values
    })
}

/// The least, the median and the most of these values.
fn ordered(mut values: Vec<f64>) -> (f64, f64, f64) {
    values.sort_by(f64::total_cmp);
    (values[0], values[values.len() / 2], values[values.len() - 1])
}

/// The same of what `measure` returns for each seed.
fn seeds(measure: impl Fn(u64) -> f64 + Sync) -> (f64, f64, f64) {
    ordered(each_seed(measure))
}

fn busy(every_ms: u64, mean_us: u64) -> HostDelays {
    HostDelays { every_ns: every_ms * MS, mean_ns: 1000 * mean_us }
}

/// The first seconds before a policer of a half: the worst and the median part of what it passes.
fn before_policer(mut path: PathSpec) -> (f64, f64) {
    let policer = Policer { rate_bps: path.forward.rate_bps / 2.0, bucket_bytes: 30_000 };
    path.forward.queue.policer = Some(policer);
    let (worst, median, _) = alone(path, |_, _| {}, 5.0);
    (2.0 * worst, 2.0 * median)
}

fn alone(path: PathSpec, change: Change, ends_s: f64) -> (f64, f64, f64) {
    seeds(|seed| {
        let times = (seconds(2.0), seconds(ends_s));
        let outcome = run_changing(path, change, &[Entry::now(OURS)], times, seed);
        outcome.bps[0] / path.forward.rate_bps
    })
}

/// The share in per cent beside a flow of this kind, for the first and for the second of both.
fn share(path: PathSpec, other: Kind, ours_first: bool) -> (f64, f64, f64) {
    seeds(|seed| {
        let order = if ours_first { [OURS, other] } else { [other, OURS] };
        let begins_ns = seconds(10.0 + 0.37 * seed as f64);
        let entries = [Entry::now(order[0]), Entry { kind: order[1], begins_ns }];
        let outcome = run(path, &entries, seconds(20.0), seconds(60.0), seed);
        100.0 * outcome.bps[usize::from(!ours_first)] / outcome.bps.iter().sum::<f64>()
    })
}

fn marking(rate_bps: f64, rtt_ms: u64, threshold: f64) -> PathSpec {
    let mut path = PathSpec::new(rate_bps, rtt_ms * MS, 1.0).without_phase();
    path.forward.queue.mark_bytes = (path.forward.buffer_bytes as f64 * threshold) as u64;
    path
}

fn marks() {
    for (rate_bps, rtt_ms) in paths() {
        for threshold in [0.05, 0.1, 0.3] {
            let path = marking(rate_bps, rtt_ms, threshold);
            let (worst, median, _) = alone(path, |_, _| {}, 32.0);
            print!("marks {rate_bps:e} {rtt_ms} ms, {threshold} BDP: alone {worst:.3} {median:.3}");
            for (other, name) in [(Kind::CubicWithEcn, "cubic"), (OURS, "fair")] {
                for ours_first in [true, false] {
                    let (least, median, most) = share(path, other, ours_first);
                    let place = if ours_first { "second" } else { "first" };
                    print!(", {name} {place} {median:.0} % ({least:.0} to {most:.0})");
                }
            }
            println!();
        }
    }
}

fn bursts() {
    for (rate_bps, rtt_ms) in paths() {
        for buffer in [0.05, 0.1, 0.25] {
            for (loss, mean) in
                [(0.0, 1.0), (0.001, 1.0), (0.001, 3.0), (0.001, 10.0), (0.01, 3.0), (0.05, 3.0)]
            {
                let mut path = PathSpec::new(rate_bps, rtt_ms * MS, buffer);
                if loss > 0.0 {
                    path.forward.loss = Loss::in_bursts(loss, mean);
                }
                let (worst, median, _) = alone(path, |_, _| {}, 32.0);
                let (worst, median) = (worst / (1.0 - loss), median / (1.0 - loss));
                println!("bursts of {mean}, {:.1} %, {rate_bps:e} {rtt_ms} ms, {buffer} BDP: {worst:.3} {median:.3}", 100.0 * loss);
            }
        }
    }
}

/// Bursts that are lost on the way back as well, counted in its packets.
fn both_ways() {
    for (rate_bps, rtt_ms) in paths() {
        for (loss, mean) in [(0.05, 3.0), (0.05, 10.0), (0.1, 10.0), (0.05, 50.0), (0.1, 50.0)] {
            let mut path = PathSpec::new(rate_bps, rtt_ms * MS, 1.0);
            (path.forward.loss, path.backward.loss) =
                (Loss::in_bursts(loss, mean), Loss::in_bursts(loss, mean));
            let (worst, median, _) = alone(path, |_, _| {}, 10.0);
            let (worst, median) = (worst / (1.0 - loss), median / (1.0 - loss));
            println!("bursts of {mean} both ways, {:.0} %, {rate_bps:e} {rtt_ms} ms: {worst:.3} {median:.3}", 100.0 * loss);
        }
    }
}

/// Steps for two seconds of four, from the third second on, and the first seconds before a policer.
fn steps() {
    fn is_other(now_ns: u64) -> bool {
        now_ns % seconds(4.0) >= seconds(2.0)
    }
    let changes: [(&str, f64, Change); 3] = [
        ("delay steps of 20 ms", 1.0, |now_ns, path| {
            if is_other(now_ns) {
                path.forward.delay_ns += 10 * MS;
                path.backward.delay_ns += 10 * MS;
            }
        }),
        ("capacity steps to a quarter", 0.625, |now_ns, path| {
            if is_other(now_ns) {
                path.forward.rate_bps /= 4.0;
            }
        }),
        ("capacity and buffer steps to a quarter", 0.625, |now_ns, path| {
            if is_other(now_ns) {
                path.forward.rate_bps /= 4.0;
                path.forward.buffer_bytes /= 4;
            }
        }),
    ];
    for (rate_bps, rtt_ms) in paths() {
        for buffer in [0.25, 0.5, 1.0] {
            let path = PathSpec::new(rate_bps, rtt_ms * MS, buffer);
            for (name, part, change) in changes {
                let (worst, median, _) = alone(path, change, 10.0);
                let (worst, median) = (worst / part, median / part);
                println!("{name}, {rate_bps:e} {rtt_ms} ms, {buffer} BDP: {worst:.3} {median:.3}");
            }
            let (worst, median) = before_policer(path);
            println!("policer of a half, 30 kB, {rate_bps:e} {rtt_ms} ms, {buffer} BDP: {worst:.3} {median:.3}");
        }
    }
}

fn acknowledgements() {
    for (rate_bps, rtt_ms) in paths() {
        for (loss, mean) in [(0.01, 1.0), (0.1, 1.0), (0.1, 3.0), (0.2, 3.0), (0.1, 10.0)] {
            let mut path = PathSpec::new(rate_bps, rtt_ms * MS, 1.0);
            path.backward.loss = Loss::in_bursts(loss, mean);
            let (worst, median, _) = alone(path, |_, _| {}, 22.0);
            println!("acknowledgements lost, {:.0} % in bursts of {mean}, {rate_bps:e} {rtt_ms} ms: {worst:.3} {median:.3}", 100.0 * loss);
        }
    }
}

fn delay() {
    fn steps(now_ns: u64, path: &mut PathSpec, by_ns: u64) {
        if now_ns / seconds(15.0) % 2 == 1 {
            path.forward.delay_ns += by_ns;
        }
    }
    let changes: [(u64, Change); 3] = [
        (5, |now, path| steps(now, path, 5 * MS)),
        (20, |now, path| steps(now, path, 20 * MS)),
        (60, |now, path| steps(now, path, 60 * MS)),
    ];
    for (rate_bps, rtt_ms) in paths() {
        for (by_ms, change) in changes {
            let path = PathSpec::new(rate_bps, rtt_ms * MS, 1.0);
            let (worst, median, _) = alone(path, change, 62.0);
            println!("delay steps of {by_ms} ms, {rate_bps:e} {rtt_ms} ms: {worst:.3} {median:.3}");
        }
    }
}

/// Pauses in which nothing leaves the link: what arrives queues, or overflows.
fn stalls() {
    for (rate_bps, rtt_ms) in paths() {
        for buffer in [0.05, 0.25, 1.0] {
            print!("stalls, {rate_bps:e} {rtt_ms} ms, {buffer} BDP:");
            for (every_ms, length_ms) in [(100, 1), (500, 3), (300, 10), (2000, 30)] {
                let mut path = PathSpec::new(rate_bps, rtt_ms * MS, buffer);
                path.forward.stalls = Stalls { every_ns: every_ms * MS, length_ns: length_ms * MS };
                let (worst, median, _) = alone(path, |_, _| {}, 32.0);
                let part = every_ms as f64 / (every_ms + length_ms) as f64;
                print!(" {length_ms} of {every_ms} ms {:.3} {:.3}", worst / part, median / part);
            }
            println!();
        }
    }
}

/// Hosts that are busy now and then: alone, in the same buffer with random loss, and beside CUBIC.
fn hosts() {
    for (rate_bps, rtt_ms) in paths() {
        for buffer in [0.05, 0.25, 1.0] {
            for (every_ms, mean_us) in BUSY {
                let hosts = busy(every_ms, mean_us);
                let path = PathSpec::new(rate_bps, rtt_ms * MS, buffer).between(hosts);
                print!("hosts busy {mean_us} us in {every_ms} ms, {rate_bps:e} {rtt_ms} ms, {buffer} BDP:");
                let mut lossy = path;
                lossy.forward.loss = Loss::in_bursts(0.01, 3.0);
                for (path, part) in [(path, 1.0), (lossy, 0.99)] {
                    let (worst, median, _) = alone(path, |_, _| {}, 32.0);
                    print!(" {:.3} {:.3}", worst / part, median / part);
                }
                print_shares(path);
            }
        }
    }
}

/// The same in the first seconds before a policer.
fn hosts_policer() {
    for (rate_bps, rtt_ms) in paths() {
        print!("hosts busy, {rate_bps:e} {rtt_ms} ms, policer of a half, 30 kB:");
        for (every_ms, mean_us) in BUSY {
            let path = PathSpec::new(rate_bps, rtt_ms * MS, 1.0).between(busy(every_ms, mean_us));
            let (worst, median) = before_policer(path);
            print!(" {mean_us} us in {every_ms} ms {worst:.3} {median:.3}");
        }
        println!();
    }
}

fn beside() {
    for (rate_bps, rtt_ms) in paths() {
        for buffer in [0.05, 0.1, 0.25, 1.0] {
            let path = PathSpec::new(rate_bps, rtt_ms * MS, buffer).without_phase();
            print!("beside cubic, {rate_bps:e} {rtt_ms} ms, {buffer} BDP:");
            print_shares(path);
        }
    }
}

/// Ends the line with the shares beside CUBIC.
fn print_shares(path: PathSpec) {
    for ours_first in [true, false] {
        let (least, median, most) = share(path, Kind::Cubic, ours_first);
        let place = if ours_first { "second" } else { "first" };
        print!(" {place} {median:.0} % ({least:.0} to {most:.0})");
    }
    println!();
}

/// Packets sent for each that arrives, without those that are lost at random, where a policer drops all that exceeds
/// its rate: the most and the median of seeds, which differ in the time of the first drain. In brackets the part of
/// what it passes that arrives.
fn excess() {
    /// A fifth of the rate for half of the time.
    fn falls(now_ns: u64, path: &mut PathSpec) {
        if now_ns % seconds(4.0) >= seconds(2.0) {
            if let Some(policer) = &mut path.forward.queue.policer {
                policer.rate_bps /= 5.0;
            }
        }
    }
    for (rate_bps, rtt_ms) in paths() {
        for (part, bucket_bytes) in [(0.05, 30_000), (0.5, 30_000), (0.5, 300_000), (0.9, 30_000)] {
            print!("excess, {rate_bps:e} {rtt_ms} ms, {part} in buckets of {bucket_bytes}:");
            for (name, loss, share) in [
                ("", Loss::Never, 0.0),
                (", 2 % lost", Loss::Random(0.02), 0.02),
                (", 10 % in bursts of 10", Loss::in_bursts(0.1, 10.0), 0.1),
            ] {
                for (when, change) in [("steady", (|_, _| {}) as Change), ("falls", falls)] {
                    let mut path = PathSpec::new(rate_bps, rtt_ms * MS, 1.0);
                    path.forward.queue.policer =
                        Some(Policer { rate_bps: part * rate_bps, bucket_bytes });
                    path.forward.loss = loss;
                    let carries =
                        part * rate_bps * (1.0 - share) * if when == "steady" { 1.0 } else { 0.6 };
                    let runs = each_seed(|seed| {
                        let begins_ns = seconds(0.37 * seed as f64);
                        let entries = [Entry { kind: OURS, begins_ns }];
                        let times = (seconds(4.0), seconds(16.0));
                        let outcome = run_changing(path, change, &entries, times, seed);
                        let arrived = outcome.receiver[0].received_packets as f64;
                        let sent = outcome.sender[0].sent_packets as f64 * (1.0 - share);
                        (sent / arrived, outcome.bps[0] / carries)
                    });
                    let (excesses, filled) = runs.into_iter().unzip();
                    let ((_, median, most), (_, filled, _)) = (ordered(excesses), ordered(filled));
                    print!(" {when}{name} {most:.2} {median:.2} ({filled:.2})");
                }
            }
            println!();
        }
    }
}
