//! The scheduler against emulated targets in simulated time: the duration of an epoch, without reading.
//!
//! A target serves its readers in equal shares of a rate that depends on how many there are, after a latency each.
//! The same targets, files and rules give the same answer on every machine.

use crate::files::Files;
use crate::plan::Delivery;
use crate::schedule::{Piece, Scheduler, Turn};

/// How a target serves: a contention curve, as measured on a real one or made up.
#[derive(Clone, Debug)]
pub struct Service {
    /// Bytes a second of all its readers together, for 1, 2, ... readers; the last holds for more.
    pub rates: Vec<f64>,
    /// Seconds before the first byte of each piece.
    pub latency_s: f64,
}

impl Service {
    /// Bytes a second of `readers` together.
    #[must_use]
    pub fn rate(&self, readers: usize) -> f64 {
        let last = self.rates.len().saturating_sub(1);
        self.rates.get(readers.saturating_sub(1).min(last)).copied().unwrap_or(f64::MIN_POSITIVE)
    }
}

/// What a simulated epoch gave.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Seconds until everything was delivered.
    pub makespan_s: f64,
    /// Seconds that each target had a reader.
    pub busy_s: Vec<f64>,
    /// Bytes delivered.
    pub bytes: u64,
    /// Pieces that were read by a loader of another target.
    pub stolen: u64,
    /// The most bytes held at any time.
    pub most_held: u64,
}

/// A piece being served.
#[derive(Clone, Copy, Debug)]
struct Served {
    loader: u32,
    piece: Piece,
    /// Seconds of latency left, then bytes left.
    wait_s: f64,
    left: f64,
}

/// Less than a byte is nothing: rounding must not leave a piece unfinished for ever.
const NOTHING: f64 = 1e-3;

/// Run an epoch to its end. Target i of the files is served by `services[i]`; what was read is consumed at once, in
/// order where the scheduler says so.
///
/// Returns None where no loader finds work though some is left, which would be a defect of the scheduler.
#[must_use]
pub fn run(
    mut scheduler: Scheduler,
    files: &Files,
    services: &[Service],
    loaders: u32,
    delivery: Delivery,
    ordered: bool,
) -> Option<Outcome> {
    let mut targets: Vec<Vec<Served>> = vec![Vec::new(); services.len()];
    let mut outcome = Outcome {
        makespan_s: 0.0,
        busy_s: vec![0.0; services.len()],
        bytes: 0,
        stolen: 0,
        most_held: 0,
    };
    let mut now = 0.0_f64;
    let mut idle: Vec<u32> = (0..loaders).collect();
    let mut waiting: Vec<Option<u64>> = Vec::new();
    let mut next_out = 0;
    loop {
        idle.retain(|&loader| match scheduler.turn(loader, files, nanoseconds(now)) {
            Turn::Read(piece) => {
                let item = scheduler.item(piece.slot);
                let length = item.map_or(0, |item| item.extent(piece.extent).length);
                let target = usize::from(piece.target);
                let wait_s = services[target].latency_s;
                targets[target].push(Served { loader, piece, wait_s, left: length as f64 });
                outcome.bytes += length;
                false
            }
            Turn::Wait => true,
            Turn::End => false,
        });
        outcome.most_held = outcome.most_held.max(scheduler.held_bytes());
        if targets.iter().all(Vec::is_empty) {
            break;
        }
        let step = targets
            .iter()
            .zip(services)
            .map(|(served, service)| first_event(served, service))
            .fold(f64::INFINITY, f64::min);
        now += step;
        for (index, served) in targets.iter_mut().enumerate() {
            if !served.is_empty() {
                outcome.busy_s[index] += step;
            }
            advance(served, &services[index], step);
            let mut done = Vec::new();
            served.retain(|piece| {
                let over = piece.wait_s <= 0.0 && piece.left < NOTHING;
                if over {
                    done.push(*piece);
                }
                !over
            });
            for Served { loader, piece, .. } in done {
                idle.push(loader);
                scheduler.ended(loader, nanoseconds(now));
                let Some((_, sequence, held)) = scheduler.read(piece, None) else { continue };
                if !ordered {
                    scheduler.release(held);
                    continue;
                }
                let at = usize::try_from(sequence - next_out).ok()?;
                waiting.resize(waiting.len().max(at + 1), None);
                waiting[at] = Some(held);
                while let Some(Some(held)) = waiting.first().copied() {
                    scheduler.release(held);
                    waiting.remove(0);
                    next_out += 1;
                }
            }
        }
        // Loaders ask in the order of their numbers, so that a run is the same every time.
        idle.sort_unstable();
    }
    outcome.makespan_s = now;
    outcome.stolen = scheduler.stolen();
    let units = match delivery {
        Delivery::Files => files.len(),
        Delivery::Objects => files.objects(),
    };
    let left_over = scheduler.held_bytes() > 0 || (units > 0 && !idle.is_empty());
    (!left_over).then_some(outcome)
}

/// A lower bound on the makespan of any scheduler with `loaders` readers: no target is read out sooner than at the
/// best rate its share of the loaders allows.
///
/// In a time `t`, target i needs at least `x` readers on average, where its rate, made concave, reaches its bytes
/// over `t`; all together there are no more than `loaders`. The least such `t` is found by halving.
#[must_use]
pub fn lower_bound_s(bytes: &[u64], services: &[Service], loaders: u32) -> f64 {
    let hulls: Vec<Vec<(f64, f64)>> = services.iter().map(concave).collect();
    let enough = |time: f64| {
        let mut readers = 0.0;
        for (bytes, hull) in bytes.iter().zip(&hulls) {
            match readers_for(hull, *bytes as f64 / time) {
                Some(x) => readers += x,
                None => return false,
            }
        }
        readers <= f64::from(loaders)
    };
    let (mut low, mut high) = (0.0, 1.0);
    while !enough(high) && high < 1e12 {
        high *= 2.0;
    }
    for _ in 0..100 {
        let middle = f64::midpoint(low, high);
        if enough(middle) {
            high = middle;
        } else {
            low = middle;
        }
    }
    high
}

/// The upper hull of a service's rates, from no reader at rate 0 to the largest rate.
fn concave(service: &Service) -> Vec<(f64, f64)> {
    let mut hull = vec![(0.0, 0.0)];
    for readers in 1..=service.rates.len() {
        let point = (readers as f64, service.rate(readers));
        while let [.., a, b] = hull[..] {
            let falls = (b.1 - a.1) * (point.0 - a.0) <= (point.1 - a.1) * (b.0 - a.0);
            if !falls {
                break;
            }
            hull.pop();
        }
        hull.push(point);
    }
    let top =
        hull.iter().enumerate().fold(0, |top, (i, p)| if p.1 > hull[top].1 { i } else { top });
    hull.truncate(top + 1);
    hull
}

/// The fewest readers, on average, at which a concave curve reaches a rate.
fn readers_for(hull: &[(f64, f64)], rate: f64) -> Option<f64> {
    let after = hull.iter().position(|point| point.1 >= rate)?;
    let Some(before) = after.checked_sub(1) else { return Some(0.0) };
    let ((x0, y0), (x1, y1)) = (hull[before], hull[after]);
    Some(x0 + (x1 - x0) * (rate - y0) / (y1 - y0))
}

fn first_event(served: &[Served], service: &Service) -> f64 {
    let share = share(served, service);
    let until = |piece: &Served| if piece.wait_s > 0.0 { piece.wait_s } else { piece.left / share };
    served.iter().map(until).fold(f64::INFINITY, f64::min)
}

fn advance(served: &mut [Served], service: &Service, step: f64) {
    let share = share(served, service);
    for piece in served {
        if piece.wait_s > 0.0 {
            piece.wait_s -= step;
            // What is left of the latency by rounding is none.
            if piece.wait_s < 1e-12 {
                piece.wait_s = 0.0;
            }
        } else {
            piece.left -= step * share;
        }
    }
}

/// Bytes a second of each piece that is past its latency.
fn share(served: &[Served], service: &Service) -> f64 {
    let active = served.iter().filter(|piece| piece.wait_s <= 0.0).count();
    service.rate(served.len()) / active.max(1) as f64
}

/// Simulated time, as the scheduler takes it.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "time is not negative")]
fn nanoseconds(seconds: f64) -> u64 {
    (seconds * 1e9) as u64
}
