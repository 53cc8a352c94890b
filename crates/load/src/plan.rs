//! The units that one process delivers in one epoch, in order.
//!
//! Every process computes this from the same files, seed, epoch, rank and number of processes, so that all together
//! deliver each file or object once without communication.

use waystage_flowsim::seeded::{hash, Random};

use crate::configure::active_loaders;
use crate::error::LoadError;
use crate::files::Files;

/// What is delivered at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// Whole files.
    Files,
    /// Objects, each in pieces that follow one another in the file.
    Objects,
}

/// What is done where files do not divide evenly among processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Uneven {
    /// Some processes deliver one more than others.
    Keep,
    /// The last few are not delivered, so that all deliver as many.
    Drop,
    /// The first few are delivered twice, so that all deliver as many.
    Repeat,
}

/// Which part of the work is whose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// What the order is drawn from.
    pub seed: u64,
    /// Which pass over the files; each has a different order.
    pub epoch: u64,
    /// Whether files come in an order drawn from the seed; else as they were added.
    pub shuffle: bool,
    /// Which process this is, from 0.
    pub rank: u32,
    /// How many processes there are.
    pub world: u32,
    /// What is done with a remainder, where whole files are delivered.
    pub uneven: Uneven,
}

/// The units of this process, by position: numbers of files, or of objects.
///
/// Files are dealt one by one in the order of the epoch, so that all files of a training step are those of a step
/// with one process. Objects are dealt by target: the loaders of all processes are bound to targets round robin
/// (SwiftLoad, section IV.C), and of a target's objects each loader gets as many bytes as the others.
///
/// # Errors
/// Where the rank is none of the processes.
pub fn units(
    files: &Files,
    delivery: Delivery,
    share: &Share,
    loaders: u32,
    best: Option<u32>,
) -> Result<Vec<u32>, LoadError> {
    let Share { rank, world, .. } = *share;
    if rank >= world {
        return Err(LoadError::Option(format!(
            "rank {rank} of {world} processes: ranks are 0 to {}",
            i64::from(world) - 1
        )));
    }
    let count = match delivery {
        Delivery::Files => files.len(),
        Delivery::Objects => files.objects(),
    };
    let mut order: Vec<u32> = (0..u32::try_from(count).unwrap_or(u32::MAX)).collect();
    if share.shuffle {
        Random::new(hash(share.seed, &[share.epoch])).shuffle(&mut order);
    }
    if world == 1 {
        return Ok(order);
    }
    Ok(match delivery {
        Delivery::Files => strided(&order, share),
        Delivery::Objects => {
            let all = loaders.max(1).saturating_mul(world);
            let targets = u32::try_from(files.targets().len()).unwrap_or(u32::MAX);
            let active = best.map_or(all, |best| active_loaders(all, targets, best));
            by_target(files, order, share, loaders.max(1), active)
        }
    })
}

fn strided(order: &[u32], share: &Share) -> Vec<u32> {
    let (rank, world) = (share.rank as usize, share.world as usize);
    let mut mine: Vec<u32> = order.iter().skip(rank).step_by(world).copied().collect();
    let remainder = order.len() % world;
    match share.uneven {
        Uneven::Drop if rank < remainder => {
            mine.pop();
        }
        Uneven::Repeat if remainder > 0 && rank >= remainder => {
            mine.push(order[(rank - remainder) % order.len()]);
        }
        _ => {}
    }
    mine
}

fn by_target(files: &Files, order: Vec<u32>, share: &Share, each: u32, active: u32) -> Vec<u32> {
    let targets = files.targets().len();
    let owners: Vec<Vec<u32>> =
        (0..targets).map(|target| bound_to(target, targets, active).collect()).collect();
    let mut dealt: Vec<Vec<u64>> = owners.iter().map(|loaders| vec![0; loaders.len()]).collect();
    let mut mine = order;
    mine.retain(|&object| {
        let (target, bytes) = files.object(object);
        let dealt = &mut dealt[usize::from(target)];
        let least = (0..dealt.len()).min_by_key(|&i| dealt[i]).unwrap_or(0);
        // An empty object must not always be the same loader's.
        dealt[least] += bytes.max(1);
        owners[usize::from(target)][least] / each == share.rank
    });
    mine
}

/// The loaders bound to a target, of `loaders` in all: one has several targets where there are more targets than
/// loaders.
pub fn bound_to(target: usize, targets: usize, loaders: u32) -> impl Iterator<Item = u32> {
    let few = (loaders as usize) < targets;
    let first = if few { target % loaders.max(1) as usize } else { target };
    let step = if few { usize::MAX } else { targets.max(1) };
    (first..loaders.max(1) as usize).step_by(step).filter_map(|loader| u32::try_from(loader).ok())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::files_of;

    fn some_files(count: usize, targets: u32) -> Files {
        let sizes: Vec<[(u32, u64, u64); 2]> = (0..count as u64)
            .map(|n| {
                let target = (n * 7 % u64::from(targets)) as u32;
                [(target, 0, 10), ((target + 1) % targets, 10, 5 + n % 3)]
            })
            .collect();
        let described: Vec<_> =
            (0..count).map(|n| ("d/f", 15 + n as u64 % 3, &sizes[n][..])).collect();
        files_of(&described)
    }

    const SHARE: Share =
        Share { seed: 3, epoch: 1, shuffle: true, rank: 0, world: 1, uneven: Uneven::Keep };

    proptest! {
        #[test]
        fn all_processes_together_deliver_each_unit_once(
            count in 0_usize..60, targets in 1_u32..9, world in 1_u32..6, loaders in 1_u32..7,
            best in prop::option::of(1_u32..4), shuffle: bool,
        ) {
            let files = some_files(count, targets);
            for delivery in [Delivery::Files, Delivery::Objects] {
                let mut all = Vec::new();
                for rank in 0..world {
                    let share = Share { rank, world, shuffle, ..SHARE };
                    all.extend(units(&files, delivery, &share, loaders, best).unwrap());
                }
                let most = if delivery == Delivery::Files { files.len() } else { files.objects() };
                all.sort_unstable();
                prop_assert_eq!(all, (0..most as u32).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn an_order_follows_from_seed_and_epoch() {
        let files = some_files(50, 3);
        let of = |share: Share| units(&files, Delivery::Files, &share, 1, None).unwrap();
        assert_eq!(of(SHARE), of(SHARE));
        assert_ne!(of(SHARE), of(Share { epoch: 2, ..SHARE }));
        assert_ne!(of(SHARE), of(Share { seed: 4, ..SHARE }));
        assert_eq!(of(Share { shuffle: false, ..SHARE }), (0..50).collect::<Vec<_>>());
    }

    #[test]
    fn a_process_whose_loaders_are_all_surplus_gets_nothing() {
        // Two targets, one loader best on each: of four processes with two loaders the first reads everything.
        let files = some_files(30, 2);
        let of = |rank| {
            let share = Share { rank, world: 4, ..SHARE };
            units(&files, Delivery::Objects, &share, 2, Some(1)).unwrap().len()
        };
        assert_eq!([of(0), of(1), of(2), of(3)], [60, 0, 0, 0]);
    }

    #[test]
    fn a_remainder_is_kept_dropped_or_repeated() {
        let files = some_files(10, 2);
        let of = |uneven| -> Vec<usize> {
            let share = |rank| Share { rank, world: 4, uneven, ..SHARE };
            (0..4)
                .map(|rank| units(&files, Delivery::Files, &share(rank), 1, None).unwrap().len())
                .collect()
        };
        assert_eq!(of(Uneven::Keep), [3, 3, 2, 2]);
        assert_eq!(of(Uneven::Drop), [2, 2, 2, 2]);
        assert_eq!(of(Uneven::Repeat), [3, 3, 3, 3]);
    }

    #[test]
    fn a_rank_beyond_the_processes_is_refused() {
        let share = Share { rank: 2, world: 2, ..SHARE };
        let refused = units(&some_files(1, 1), Delivery::Files, &share, 1, None).unwrap_err();
        assert_eq!(refused.to_string(), "rank 2 of 2 processes: ranks are 0 to 1");
    }
}
