//! Which destinations may be reached, and by which way: the first rule that fits decides.
//!
//! Arrives: lines such as `allow 10.0.0.0/8:22,8000-8100`, a destination. Leaves: a verdict. Must not know: who asks.
//!
//! A service on loopback, or at an address of the host that connects, trusts whom it sees there: that host. So a rule
//! lets none of the special addresses (`address.rs`) through unless it names them; `*` and networks around them do not.
//! An IPv4 address inside one of IPv6 is denied where either is.

use std::cell::OnceCell;
use std::net::IpAddr;
use std::str::FromStr;

use crate::address::{embedded, special_of, Network, Special};
use crate::destination::Host;

/// What a rule says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Through the session.
    Allow,
    /// Not at all.
    Deny,
    /// From here, past the session.
    Direct,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Pattern {
    Any,
    Network(Network),
    Name(String),
    /// Resolver below this one.
    Below(String),
}

/// One rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    verdict: Verdict,
    hosts: Pattern,
    /// From, to; empty for all.
    ports: Vec<(u16, u16)>,
}

/// Rules in order, and what holds where none fits.
#[derive(Debug, Clone)]
pub(crate) struct Rules {
    pub(crate) rules: Vec<Rule>,
    pub(crate) otherwise: Verdict,
    /// The verdict with which this host connects, or listens, itself.
    pub(crate) here: Verdict,
}

/// What holds for a destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Judgement {
    pub(crate) verdict: Verdict,
    /// What an address is that a rule would have let through if it named it.
    pub(crate) unnamed: Option<&'static str>,
}

impl Judgement {
    fn of(verdict: Verdict) -> Self {
        Self { verdict, unnamed: None }
    }

    /// For the end of a sentence that refuses.
    pub(crate) fn remedy(&self) -> String {
        self.unnamed.map_or_else(String::new, |what| {
            format!(": it is {what}, which only a rule that names it allows, and neither * nor a network around it")
        })
    }
}

/// Why an address has to be named.
#[derive(Clone, Copy)]
enum Guard {
    Special(&'static Special),
    /// This host's own.
    Own,
    /// It holds an IPv4 address that is one of these.
    Holds,
}

impl Guard {
    fn what(self) -> &'static str {
        match self {
            Self::Special(special) => special.what,
            Self::Own => "this host's own address",
            Self::Holds => "an address with a special one inside",
        }
    }

    fn of(address: IpAddr, own: &dyn Fn(IpAddr) -> bool) -> Option<Self> {
        if let Some(special) = special_of(address) {
            return Some(Self::Special(special));
        }
        if own(address) {
            return Some(Self::Own);
        }
        let inside = |four: &IpAddr| special_of(*four).is_some() || own(*four);
        embedded(address).iter().any(inside).then_some(Self::Holds)
    }
}

impl Rules {
    /// What holds for this host and port. `address` is what a name led to, where that is known; `own` says whether an
    /// address is this host's, and is asked only where it matters.
    pub(crate) fn judge(
        &self,
        host: &Host,
        address: Option<IpAddr>,
        port: u16,
        own: &dyn Fn(IpAddr) -> bool,
    ) -> Judgement {
        let address = match host {
            Host::Address(address) => Some(*address),
            Host::Name(_) => address,
        };
        let address = address.map(|address| address.to_canonical());
        let guard = OnceCell::new();
        let guard = || *guard.get_or_init(|| Guard::of(address?, own));
        let mut unnamed = None;
        for rule in self.rules.iter().filter(|rule| rule.fits(host, address, port)) {
            match guard_of(rule.verdict == self.here, guard) {
                Some(guard) if !rule.resolver(host, address, guard) => unnamed = Some(guard.what()),
                _ => return Judgement::of(rule.verdict),
            }
        }
        if unnamed.is_none() {
            unnamed = guard_of(self.otherwise == self.here, guard).map(Guard::what);
        }
        match unnamed {
            Some(_) => Judgement { verdict: Verdict::Deny, unnamed },
            None => Judgement::of(self.otherwise),
        }
    }
}

/// Only for what leads to a connection from here the kernel is asked.
fn guard_of(here: bool, guard: impl Fn() -> Option<Guard>) -> Option<Guard> {
    here.then(guard).flatten()
}

impl Rule {
    /// Whether it is about addresses alone: what is no name, nor everything.
    #[must_use]
    pub fn is_of_addresses(&self) -> bool {
        matches!(self.hosts, Pattern::Network(_))
    }

    fn fits(&self, host: &Host, address: Option<IpAddr>, port: u16) -> bool {
        let port_fits = self.ports.is_empty()
            || self.ports.iter().any(|(from, to)| (*from..=*to).contains(&port));
        port_fits
            && match (&self.hosts, host) {
                (Pattern::Any, _) => true,
                (Pattern::Network(network), _) => address.is_some_and(|address| {
                    let inside = |four: &IpAddr| network.contains(*four);
                    // What may be is denied, and only what is is allowed.
                    network.contains(address)
                        || (self.verdict == Verdict::Deny && embedded(address).iter().any(inside))
                }),
                (Pattern::Name(wanted), Host::Name(name)) => name == wanted,
                (Pattern::Below(domain), Host::Name(name)) => {
                    name.strip_suffix(domain.as_str()).is_some_and(|rest| rest.ends_with('.'))
                }
                (Pattern::Name(_) | Pattern::Below(_), Host::Address(_)) => false,
            }
    }

    /// Whether it says that this very address, or nothing but addresses of its sort, is meant.
    fn resolver(&self, host: &Host, address: Option<IpAddr>, guard: Guard) -> bool {
        match (&self.hosts, guard) {
            (Pattern::Network(network), Guard::Special(special)) => {
                network.is_within(&special.network)
            }
            (Pattern::Network(network), Guard::Own | Guard::Holds) => {
                address.is_some_and(|address| *network == Network::of(address))
            }
            // RFC 6761, section 6.3: this name is loopback. Any other leads where its owner likes.
            (Pattern::Name(name), Guard::Special(special)) => {
                matches!(host, Host::Name(_))
                    && name == "localhost"
                    && special.what
                        == special_of(std::net::Ipv4Addr::LOCALHOST.into()).map_or("", |s| s.what)
            }
            _ => false,
        }
    }
}

impl FromStr for Rule {
    type Err = String;

    /// `VERDICT HOSTS[:PORTS]`: a name, `*.domain`, an address, a network, or `*`; addresses of IPv6 in brackets.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = |what: &str| {
            format!(
                "{text:?} is no rule: {what}: rules are such as `allow 10.0.0.0/8:22,8000-8100`, `deny *.example.org`, \
                 `direct [fd00::/8]:*`"
            )
        };
        let mut words = text.split_whitespace();
        let (verdict, what) = match (words.next(), words.next(), words.next()) {
            (Some(verdict), Some(what), None) => (verdict, what),
            _ => return Err(wrong("it has not two words")),
        };
        let verdict = match verdict {
            "allow" => Verdict::Allow,
            "deny" => Verdict::Deny,
            "direct" => Verdict::Direct,
            _ => return Err(wrong("it begins with none of allow, deny, direct")),
        };
        let (hosts, ports) = split(what).ok_or_else(|| wrong("its brackets do not match"))?;
        let hosts = pattern(hosts).ok_or_else(|| wrong("its hosts cannot be read"))?;
        let ports = ranges(ports).ok_or_else(|| wrong("its ports cannot be read"))?;
        Ok(Self { verdict, hosts, ports })
    }
}

/// Hosts without brackets, and ports.
fn split(what: &str) -> Option<(&str, &str)> {
    if let Some(rest) = what.strip_prefix('[') {
        let (hosts, ports) = rest.split_once(']')?;
        // Both [::1]/128 and [::1/128] are written.
        if ports.starts_with('/') {
            return None;
        }
        return Some((
            hosts,
            ports.strip_prefix(':').unwrap_or(if ports.is_empty() { "*" } else { "?" }),
        ));
    }
    match what.matches(':').count() {
        0 => Some((what, "*")),
        1 => what.split_once(':'),
        // An address of IPv6 without ports.
        _ => Some((what, "*")),
    }
}

fn pattern(text: &str) -> Option<Pattern> {
    if text == "*" {
        return Some(Pattern::Any);
    }
    if let Some((network, bits)) = text.split_once('/') {
        let digital = !bits.is_empty() && bits.chars().all(|digit| digit.is_ascii_digit());
        let bits: u8 = bits.parse().ok().filter(|_| digital)?;
        return Network::new(network.parse().ok()?, bits).map(Pattern::Network);
    }
    if let Some(domain) = text.strip_prefix("*.") {
        return match Host::read(domain.as_bytes()).ok()? {
            Host::Name(name) => Some(Pattern::Below(name)),
            Host::Address(_) => None,
        };
    }
    Some(match Host::read(text.as_bytes()).ok()? {
        Host::Address(address) => Pattern::Network(Network::of(address)),
        Host::Name(name) => Pattern::Name(name),
    })
}

fn ranges(text: &str) -> Option<Vec<(u16, u16)>> {
    if text == "*" {
        return Some(Vec::new());
    }
    text.split(',')
        .map(|range| {
            let (from, to) = range.split_once('-').unwrap_or((range, range));
            let (from, to) = (from.parse().ok()?, to.parse().ok()?);
            (from <= to).then_some((from, to))
        })
        .collect()
}

#[cfg(test)]
mod tests;
