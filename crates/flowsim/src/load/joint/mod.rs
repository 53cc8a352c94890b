//! Joint: one path a pair, all pairs weighed together.
//!
//! Arrives: demands.
//! Leaves: routes whose busiest link between switches is close to the bound.
//! Must not know: jobs, time.
//!
//! Greedy routing cannot take back what it did. Here every pair may move again:
//!
//! 1. The bound of [`splittable`](crate::load::splittable) says what to aim at, and when to stop.
//! 2. Pairs are placed, the heaviest first, and then moved in rounds, each to the path that adds least to `sum over
//!    links of exp(sharpness * load / bound)`. The sharpness rises from round to round, so that early rounds spread
//!    everything and late ones change the busiest links only. The sum falls with every move, so rounds end.
//! 3. Pairs on the busiest link move where every link they meet stays below it; where none can, two pairs change
//!    places.
//! 4. Where that ends above the bound, some pairs are taken out, those on the busiest links and those that are in
//!    their way, and put back one after the other (Shaw, "Using constraint programming and local search methods to
//!    solve vehicle routing problems", 1998); or a few are moved at random, from the seed. 3 goes on; what is much
//!    worse is taken back. Should greedy routing do better after all, its routes are given.
//!
//! A pair costs one pass over the links of its shortest ways in each round. To round the split of the bound at random
//! (Raghavan and Thompson, 1987) was rejected: it forgets which pairs are large, and the rounds repair its result at
//! the same cost. Multiplicative weights over paths were, too: they need the paths listed.

mod placement;

use crate::error::FlowError;
use crate::load::demands::Demand;
use crate::load::greedy::{self, Cost};
use crate::load::paths::PathCollector;
use crate::load::shortest_paths::{whole_path, PathDagCache};
use crate::load::splittable::{Commodities, Search};
use crate::load::{Demands, RouteOptions, Routes};
use crate::network::Network;
use crate::seeded::Random;
use placement::Placement;

/// Link visits that one unit of effort pays for: about a fifth of a second.
const VISITS: f64 = 3e7;

/// Steps in a row that gain nothing before the search gives up, for one unit of effort.
const FRUITLESS_KICKS: f64 = 3000.0;

/// Steps for each kick; the others take pairs out and put them back.
const KICK_EVERY: usize = 12;

/// How much worse than the best a placement may be to go on from.
const DEVIATION: f64 = 0.01;

/// Steps that gain nothing after which the search goes back to the best.
const RETURN_AFTER: f64 = 200.0;

/// The rounds that are made at any cost.
const LEAST_ROUNDS: f64 = 6.0;

/// Sharpness of the rounds. Beyond 200 a link that carries 2 % less is fifty times as cheap, and step 3 does the
/// rest.
const SHARPNESS: [f64; 5] = [8.0, 25.0, 60.0, 120.0, 200.0];

/// Relative distance from the bound that is not worth a search: bytes of a packet on a link that carries gigabytes.
const CLOSE_ENOUGH: f64 = 1e-6;

/// Share of the effort that goes into the bound.
const BOUND_EFFORT: f64 = 0.1;

/// Route every demand.
///
/// # Errors
/// [`FlowError::Unreachable`] names the two hosts that no path joins.
pub fn route(
    network: &Network,
    demands: &Demands,
    options: &RouteOptions,
) -> Result<Routes, FlowError> {
    let commodities = Commodities::new(network, demands)?;
    let search = Search::new(network, &commodities, options);
    let bound = search.run(BOUND_EFFORT * options.effort);
    let aim = bound.least_max.max(f64::MIN_POSITIVE);
    let mut placement = Placement::new(network, demands, &commodities, aim, options);
    search_paths(&mut placement, aim, options);
    let found = finish(network, demands, &placement, options)?;
    let reached = busiest(network, &found, options);
    if reached <= aim * (1.0 + CLOSE_ENOUGH) {
        return Ok(found);
    }
    // A user who asks for more than greedy routing must not get less, beyond what was close enough.
    let greedy = greedy::route(network, demands, Cost::Max, options)?;
    Ok(if busiest(network, &greedy, options) < reached { greedy } else { found })
}

/// The busiest link between switches with what was there before, as loads are compared.
fn busiest(network: &Network, routes: &Routes, options: &RouteOptions) -> f64 {
    let scale = greedy::scales(network, options.by_capacity);
    let initial = |link: usize| options.initial.get(link).copied().unwrap_or(0.0);
    let loads: Vec<f64> =
        (0..scale.len()).map(|link| (routes.loads[link] + initial(link)) * scale[link]).collect();
    network.max_load(&loads)
}

fn search_paths(placement: &mut Placement<'_>, aim: f64, options: &RouteOptions) {
    let good = aim * (1.0 + CLOSE_ENOUGH);
    let round = placement.visits_per_round();
    let budget = (VISITS * options.effort.max(0.0)).max(LEAST_ROUNDS * round);
    placement.place_all(SHARPNESS[0]);
    for sharpness in SHARPNESS {
        // Most of what a sharpness can do is done in three rounds.
        for _ in 0..3 {
            let spent = placement.visits + round > budget;
            if spent || placement.round(sharpness) == 0 {
                break;
            }
        }
        if placement.busiest() <= good {
            return;
        }
    }
    placement.relieve(good, budget);
    let mut random = Random::new(options.seed);
    let mut best = placement.snapshot();
    let mut now = best.clone();
    let mut fruitless = 0.0;
    let most_fruitless = FRUITLESS_KICKS * options.effort;
    while best.rank.0 > good && fruitless < most_fruitless && placement.visits < budget {
        if !placement.can_kick() {
            break;
        }
        if random.below(KICK_EVERY) == 0 {
            // Between 2 and 5 pairs: fewer fall back, more are a new start.
            let pairs = 2 + random.below(4);
            placement.kick(pairs, &mut random);
            if round * 4.0 < budget {
                placement.round(SHARPNESS[3]);
            }
        } else {
            let sharpness = SHARPNESS[1 + random.below(SHARPNESS.len() - 1)];
            placement.ruin(3 + random.below(12), sharpness, &mut random);
        }
        placement.relieve(good, budget);
        fruitless += 1.0;
        let rank = placement.rank();
        if rank < best.rank {
            fruitless = 0.0;
            best = placement.snapshot();
        }
        // Record-to-record travel (Dueck, 1993): a little worse than the best is gone on from.
        if rank.0 <= best.rank.0 * (1.0 + DEVIATION) {
            now = placement.snapshot();
        } else {
            placement.restore(&now);
        }
        if fruitless % RETURN_AFTER == RETURN_AFTER - 1.0 {
            placement.restore(&best);
            now = placement.snapshot();
        }
    }
    placement.restore(&best);
}

/// Whole paths with the hosts' links, and their loads, added up anew: searching may have left rounding errors.
fn finish(
    network: &Network,
    demands: &Demands,
    placement: &Placement<'_>,
    options: &RouteOptions,
) -> Result<Routes, FlowError> {
    let mut loads = vec![0.0; network.link_count()];
    let mut collector = options.keep_paths.then(|| PathCollector::new(demands.len()));
    let mut cache = PathDagCache::new(network, greedy::MOST_CACHED_LINKS);
    let mut path = Vec::new();
    for Demand { position, src, dst, bytes } in demands.by_group(network) {
        let ways = cache.of(demands, position)?;
        whole_path(network, (src, dst), &ways, placement.path(position), &mut path);
        for &link in &path {
            loads[link as usize] += bytes;
        }
        if let Some(collector) = &mut collector {
            collector.add(position, &path);
        }
    }
    Ok(Routes { loads, paths: collector.map(PathCollector::finish) })
}
