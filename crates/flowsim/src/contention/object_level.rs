//! Loaders bound to targets, and the best number of them (SwiftLoad, algorithm 1).

use super::Slowdown;

/// The times at which targets are read out, with `loaders` bound to each and the objects shared among them.
///
/// Loaders on a target read at one pace; those with one object more than others need one round more.
#[must_use]
pub fn object_level(objects: &[u64], loaders: usize, slowdown: &Slowdown) -> Vec<f64> {
    let all = loaders as u64;
    let time = |&n: &u64| {
        let rest = (n % all) as usize;
        let last_round = if rest == 0 { 0.0 } else { slowdown.at(rest) };
        (n / all) as f64 * slowdown.at(loaders) + last_round
    };
    objects.iter().map(time).collect()
}

/// The number of loaders on a target, up to `most`, that reads the most objects a unit of time: where `x / g(x)` is
/// largest, the smallest such number.
#[must_use]
pub fn best_loaders(slowdown: &Slowdown, most: usize) -> usize {
    let rate = |x: usize| x as f64 / slowdown.at(x);
    (1..=most.max(1)).fold(1, |best, x| if rate(x) > rate(best) { x } else { best })
}
