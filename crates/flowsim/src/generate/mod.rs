//! Regular interconnects of any size.
//!
//! Arrives: the shape, as numbers, and what links can carry.
//! Leaves: a validated [`Network`], the same for the same numbers.
//! Must not know: what is routed on it.
//!
//! Names sort in byte order as the numbers in them do, so that D-mod-K, which sorts by name, follows the shape. Hosts under
//! one switch have consecutive numbers. A cable is two links, `2 i` towards the later node of the list and `2 i + 1` back.

mod dragonfly;
mod torus;
mod xgft;

pub use dragonfly::dragonfly;
pub use torus::torus;
pub use xgft::{fat_tree, xgft};

use crate::network::{Network, NetworkError};

/// Bytes per second of the links at hosts and of those between switches.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Capacities {
    /// Of each link between a host and a switch.
    pub host: f64,
    /// Of each link between two switches.
    pub switch: f64,
}

/// Nodes or cables that a shape may have: sixteen million take some gigabytes.
const MOST: usize = 1 << 24;

/// Collects cables; hosts are known by number, switches too, from 0 each.
struct Builder {
    hosts: usize,
    names: Vec<String>,
    from: Vec<u32>,
    to: Vec<u32>,
    capacity: Vec<f64>,
    capacities: Capacities,
}

impl Builder {
    fn new(hosts: usize, capacities: Capacities) -> Result<Self, NetworkError> {
        if hosts > MOST {
            return Err(too_large());
        }
        let names = numbered("h", hosts);
        Ok(Self {
            hosts,
            names,
            from: Vec::new(),
            to: Vec::new(),
            capacity: Vec::new(),
            capacities,
        })
    }

    fn add_switches(&mut self, names: Vec<String>) -> Result<(), NetworkError> {
        self.names.extend(names);
        if self.names.len() > MOST {
            return Err(too_large());
        }
        Ok(())
    }

    fn join_host(&mut self, host: usize, switch: usize) -> Result<(), NetworkError> {
        self.join(host, self.hosts + switch, self.capacities.host)
    }

    fn join_switches(&mut self, a: usize, b: usize) -> Result<(), NetworkError> {
        self.join(self.hosts + a, self.hosts + b, self.capacities.switch)
    }

    fn join(&mut self, a: usize, b: usize, capacity: f64) -> Result<(), NetworkError> {
        if self.from.len() >= 2 * MOST {
            return Err(too_large());
        }
        self.from.extend([a as u32, b as u32]);
        self.to.extend([b as u32, a as u32]);
        self.capacity.extend([capacity; 2]);
        Ok(())
    }

    fn finish(self) -> Result<Network, NetworkError> {
        let switches = self.names.len() - self.hosts;
        Network::new(self.hosts, switches, self.from, self.to, self.capacity, self.names)
    }
}

/// `prefix` with the numbers from 0, padded to one width.
fn numbered(prefix: &str, count: usize) -> Vec<String> {
    let width = count.saturating_sub(1).to_string().len();
    (0..count).map(|number| format!("{prefix}{number:0width$}")).collect()
}

/// The product, or an error where it is more than any shape may have.
fn product(numbers: &[usize]) -> Result<usize, NetworkError> {
    let product = numbers.iter().try_fold(1usize, |product, &n| product.checked_mul(n));
    product.filter(|&product| product <= MOST).ok_or_else(too_large)
}

fn at_least_one(what: &str, number: usize) -> Result<(), NetworkError> {
    if number == 0 {
        return Err(NetworkError::Shape(format!("{what} is 0: give at least 1")));
    }
    Ok(())
}

fn too_large() -> NetworkError {
    NetworkError::Shape(format!(
        "the shape has more than {MOST} nodes or cables: give a smaller one"
    ))
}
