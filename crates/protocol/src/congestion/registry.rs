//! The user's option `--mode`: the controllers by name.
//!
//! Arrives: a name. Leaves: a [`Mode`], and its controller for a connection. Must not know: who may use which mode.

use std::fmt;
use std::str::FromStr;

use super::aggressive::Aggressive;
use super::controller::Controller;
use super::fair::Fair;
use super::fast_start::fast_start;
use super::modest::Modest;
use crate::error::Error;

/// A name for each controller. A new controller needs a variant here and a line in `REGISTRY`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// An even share of the path, beside TCP too. The default.
    Fair,
    /// As fair, but close to the path's capacity after one round trip.
    FastStart,
    /// Only capacity that other flows leave unused.
    Modest,
    /// As much as arrives.
    Aggressive,
}

struct Registered {
    mode: Mode,
    name: &'static str,
    /// Whether every user may have it; other modes need a grant of the server.
    free: bool,
    /// The controller for a path of this round trip in ns, capped at this rate in bits a second.
    start: fn(u64, f64) -> Box<dyn Controller>,
}

#[rustfmt::skip]
static REGISTRY: [Registered; 4] = [
    Registered { mode: Mode::Fair, name: "fair", free: true, start: |rtt, cap| Box::new(Fair::new(rtt, cap)) },
    Registered { mode: Mode::FastStart, name: "fast-start", free: false, start: |rtt, cap| Box::new(fast_start(rtt, cap)) },
    Registered { mode: Mode::Modest, name: "modest", free: true, start: |rtt, cap| Box::new(Modest::new(rtt, cap)) },
    Registered { mode: Mode::Aggressive, name: "aggressive", free: false, start: |rtt, cap| Box::new(Aggressive::new(rtt, cap)) },
];

impl Mode {
    /// Every registered mode.
    pub fn all() -> impl Iterator<Item = Self> {
        REGISTRY.iter().map(|registered| registered.mode)
    }

    /// Its controller, on a path of this round trip; `rate_cap_bps` bounds its rate.
    #[must_use]
    pub fn start(self, rtt_ns: u64, rate_cap_bps: f64) -> Box<dyn Controller> {
        (self.registered().start)(rtt_ns, rate_cap_bps)
    }

    /// Whether a server lets every user have it.
    #[must_use]
    pub fn is_free(self) -> bool {
        self.registered().free
    }

    fn registered(self) -> &'static Registered {
        let found = REGISTRY.iter().find(|registered| registered.mode == self);
        found.expect("every mode is registered")
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.registered().name)
    }
}

impl FromStr for Mode {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        Self::all().find(|mode| mode.registered().name == name).ok_or_else(|| Error::UnknownMode {
            name: name.to_owned(),
            known: REGISTRY.iter().map(|registered| registered.name).collect::<Vec<_>>().join(", "),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mode_is_found_by_its_name_and_respects_its_cap() {
        for mode in Mode::all() {
            assert_eq!(mode.to_string().parse(), Ok(mode));
            assert!(mode.start(10_000_000, 1e6).control().rate_bps <= 1e6, "{mode}");
        }
        let unknown = "eager".parse::<Mode>().unwrap_err().to_string();
        assert!(unknown.contains("fair, fast-start, modest, aggressive"), "{unknown}");
    }
}
