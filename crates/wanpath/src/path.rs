//! A path between two network namespaces.
//!
//! Arrives: two ends, what each direction is like, a seed. Leaves: a path that carries any IP packets; counts.
//! Must not know: who made the namespaces, and who sends.

use std::fmt;
use std::io;

use crate::forwarder::{Forwarder, ForwarderConfig};
use crate::model::Spec;
use crate::tun::{Tun, TunError};

/// Why there is no path.
#[derive(Debug)]
pub enum PathError {
    /// What it should be like makes no sense; the sentence says what.
    Spec(String),
    /// A device cannot be made in a namespace.
    Device {
        /// The namespace.
        namespace: String,
        /// Why.
        source: io::Error,
    },
    /// A namespace cannot be entered.
    Namespace(waystage_netns::NamespaceError),
    /// A socket cannot be had; the sentence begins with its address.
    Socket(String),
    /// No thread.
    Thread(io::Error),
}

impl fmt::Display for PathError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Spec(what) | Self::Socket(what) => f.write_str(what),
            Self::Device { namespace, source } => write!(
                f,
                "no TUN device can be made in {namespace}: {source} (it needs root and /dev/net/tun)"
            ),
            Self::Namespace(error) => error.fmt(f),
            Self::Thread(error) => write!(f, "the path's threads cannot be started: {error}"),
        }
    }
}

impl std::error::Error for PathError {}

/// An end of a path: a device's name in a namespace of `/run/netns`.
#[derive(Clone, Copy, Debug)]
pub struct End<'a> {
    /// The namespace; `None` for the caller's own.
    pub namespace: Option<&'a str>,
    /// The device that is made there.
    pub device: &'a str,
}

/// The two directions' seeds, from one.
#[must_use]
pub fn seeds(seed: u64) -> [u64; 2] {
    [0, 1].map(|direction| waystage_flowsim::seeded::hash(seed, &[direction]))
}

/// Begin to carry packets between two ends: the forwarder forward, and the one back.
///
/// # Errors
/// Where the path makes no sense, or its devices cannot be made. Nothing is left then.
pub fn join(
    ends: [End<'_>; 2],
    specs: [Spec; 2],
    seed: u64,
    working: ForwarderConfig,
) -> Result<[Forwarder; 2], PathError> {
    for spec in &specs {
        spec.check().map_err(PathError::Spec)?;
    }
    let [left, right] = ends;
    let (left, right) = (open(left)?, open(right)?);
    let [forward, back] = seeds(seed);
    let start = |from: &Tun, to: &Tun, spec, seed| {
        Forwarder::start(from.clone(), to.clone(), spec, seed, working).map_err(PathError::Thread)
    };
    Ok([start(&left, &right, specs[0], forward)?, start(&right, &left, specs[1], back)?])
}

fn open(end: End<'_>) -> Result<Tun, PathError> {
    Tun::open(end.namespace, end.device).map_err(|error| match error {
        TunError::Namespace(error) => PathError::Namespace(error),
        TunError::Device(source) => PathError::Device {
            namespace: end.namespace.unwrap_or("this namespace").to_owned(),
            source,
        },
    })
}
