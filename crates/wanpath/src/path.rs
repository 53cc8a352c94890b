//! A path between two network namespaces.
//!
//! Arrives: two ends, the properties of each direction, a seed. Leaves: a path for any IP packets; counts.
//! Must not know: the owner of the namespaces, the senders.

use crate::error::PathError;
use crate::forwarder::{Forwarder, ForwarderConfig};
use crate::model::Spec;
use crate::tun::Tun;

/// An end of a path: a device in a namespace of `/run/netns`.
#[derive(Clone, Copy, Debug)]
pub struct End<'a> {
    /// The namespace; `None` for the caller's own.
    pub namespace: Option<&'a str>,
    /// The name of the device to create there.
    pub device: &'a str,
}

/// The seeds of the two directions, derived from one.
#[must_use]
pub fn seeds(seed: u64) -> [u64; 2] {
    [0, 1].map(|direction| waystage_flowsim::seeded::hash(seed, &[direction]))
}

/// Starts a path between two ends; returns the forwarders of the two directions.
///
/// # Errors
/// The properties are invalid, or the devices cannot be created. Nothing remains then.
pub fn join(
    ends: [End<'_>; 2],
    specs: [Spec; 2],
    seed: u64,
    config: ForwarderConfig,
) -> Result<[Forwarder; 2], PathError> {
    for spec in &specs {
        spec.check()?;
    }
    let [left, right] = ends;
    let open = |end: End<'_>| Tun::open(end.namespace, end.device);
    let (left, right) = (open(left)?, open(right)?);
    let [forward, back] = seeds(seed);
    let start = |from: &Tun, to: &Tun, spec, seed| {
        Forwarder::start(from.clone(), to.clone(), spec, seed, config).map_err(PathError::Thread)
    };
    Ok([start(&left, &right, specs[0], forward)?, start(&right, &left, specs[1], back)?])
}
