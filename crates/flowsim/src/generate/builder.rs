//! Collects the cables of a shape.

use crate::error::FlowError;
use crate::network::Network;

/// Bytes per second of the links at hosts and of those between switches.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Capacities {
    /// Of each link between a host and a switch.
    pub host: f64,
    /// Of each link between two switches.
    pub switch: f64,
}

/// Nodes or cables that a shape may have: sixteen million take some gigabytes.
pub(super) const MOST: usize = 1 << 24;

/// Collects cables; hosts are known by number, switches too, from 0 each.
pub(super) struct Builder {
    hosts: usize,
    names: Vec<String>,
    from: Vec<u32>,
    to: Vec<u32>,
    capacity: Vec<f64>,
    capacities: Capacities,
}

impl Builder {
    pub(super) fn new(hosts: usize, capacities: Capacities) -> Result<Self, FlowError> {
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

    pub(super) fn add_switches(&mut self, names: Vec<String>) -> Result<(), FlowError> {
        self.names.extend(names);
        if self.names.len() > MOST {
            return Err(too_large());
        }
        Ok(())
    }

    pub(super) fn join_host(&mut self, host: usize, switch: usize) -> Result<(), FlowError> {
        self.join(host, self.hosts + switch, self.capacities.host)
    }

    pub(super) fn join_switches(&mut self, a: usize, b: usize) -> Result<(), FlowError> {
        self.join(self.hosts + a, self.hosts + b, self.capacities.switch)
    }

    pub(super) fn join(&mut self, a: usize, b: usize, capacity: f64) -> Result<(), FlowError> {
        if self.from.len() >= 2 * MOST {
            return Err(too_large());
        }
        self.from.extend([a as u32, b as u32]);
        self.to.extend([b as u32, a as u32]);
        self.capacity.extend([capacity; 2]);
        Ok(())
    }

    pub(super) fn finish(self) -> Result<Network, FlowError> {
        let switches = self.names.len() - self.hosts;
        Network::new(self.hosts, switches, self.from, self.to, self.capacity, self.names)
    }
}

/// `prefix` with the numbers from 0, padded to one width.
pub(super) fn numbered(prefix: &str, count: usize) -> Vec<String> {
    let width = count.saturating_sub(1).to_string().len();
    (0..count).map(|number| format!("{prefix}{number:0width$}")).collect()
}

/// The product, or an error where it is more than any shape may have.
pub(super) fn product(numbers: &[usize]) -> Result<usize, FlowError> {
    let product = numbers.iter().try_fold(1usize, |product, &n| product.checked_mul(n));
    product.filter(|&product| product <= MOST).ok_or_else(too_large)
}

pub(super) fn at_least_one(what: &str, number: usize) -> Result<(), FlowError> {
    if number == 0 {
        return Err(FlowError::Shape(format!("{what} is 0: give at least 1")));
    }
    Ok(())
}

pub(super) fn too_large() -> FlowError {
    FlowError::Shape(format!("the shape has more than {MOST} nodes or cables: give a smaller one"))
}
