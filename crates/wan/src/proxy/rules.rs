//! Which destinations may be reached, and by which way: the first rule that fits decides.
//!
//! Arrives: lines such as `allow 10.0.0.0/8:22,8000-8100`, a destination. Leaves: a verdict. Must not know: who asks.

use std::net::IpAddr;
use std::str::FromStr;

use super::destination::Host;

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
    Network(IpAddr, u8),
    Name(String),
    /// Names below this one.
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
}

impl Rules {
    /// What holds for this host and port. `address` is what a name led to, where that is known.
    pub(crate) fn verdict(&self, host: &Host, address: Option<IpAddr>, port: u16) -> Verdict {
        let fits = |rule: &&Rule| rule.fits(host, address, port);
        self.rules.iter().find(fits).map_or(self.otherwise, |rule| rule.verdict)
    }
}

impl Rule {
    fn fits(&self, host: &Host, address: Option<IpAddr>, port: u16) -> bool {
        let port_fits = self.ports.is_empty()
            || self.ports.iter().any(|(from, to)| (*from..=*to).contains(&port));
        let address = match host {
            Host::Address(address) => Some(*address),
            Host::Name(_) => address.map(|address| address.to_canonical()),
        };
        port_fits
            && match (&self.hosts, host) {
                (Pattern::Any, _) => true,
                (Pattern::Network(network, bits), _) => {
                    address.is_some_and(|address| lies_in(address, *network, *bits))
                }
                (Pattern::Name(wanted), Host::Name(name)) => name == wanted,
                (Pattern::Below(domain), Host::Name(name)) => {
                    name.strip_suffix(domain.as_str()).is_some_and(|rest| rest.ends_with('.'))
                }
                (Pattern::Name(_) | Pattern::Below(_), Host::Address(_)) => false,
            }
    }
}

fn lies_in(address: IpAddr, network: IpAddr, bits: u8) -> bool {
    let (address, network, width) = match (address, network) {
        (IpAddr::V4(a), IpAddr::V4(n)) => (u128::from(a.to_bits()), u128::from(n.to_bits()), 32),
        (IpAddr::V6(a), IpAddr::V6(n)) => (a.to_bits(), n.to_bits(), 128),
        _ => return false,
    };
    let rest = width - u32::from(bits);
    address.checked_shr(rest).unwrap_or(0) == network.checked_shr(rest).unwrap_or(0)
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
        let network: IpAddr = network.parse().ok()?;
        let bits: u8 = bits.parse().ok()?;
        return (bits <= if network.is_ipv4() { 32 } else { 128 })
            .then_some(Pattern::Network(network, bits));
    }
    if let Some(domain) = text.strip_prefix("*.") {
        return match Host::read(domain.as_bytes()).ok()? {
            Host::Name(name) => Some(Pattern::Below(name)),
            Host::Address(_) => None,
        };
    }
    Some(match Host::read(text.as_bytes()).ok()? {
        Host::Address(address) => {
            Pattern::Network(address, if address.is_ipv4() { 32 } else { 128 })
        }
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
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rules(lines: &[&str]) -> Rules {
        let rules = lines.iter().map(|line| line.parse().unwrap()).collect();
        Rules { rules, otherwise: Verdict::Deny }
    }

    fn host(text: &str) -> Host {
        Host::read(text.as_bytes()).unwrap()
    }

    #[test]
    fn the_first_rule_that_fits_decides() {
        let rules = rules(&[
            "deny 10.1.0.0/16",
            "allow 10.0.0.0/8:22,8000-8100",
            "direct *.example.org:443",
            "allow example.org",
            "allow [fd00::/8]:80",
            "deny *:25",
            "allow ::1",
        ]);
        for (name, port, verdict) in [
            ("10.1.2.3", 22, Verdict::Deny),
            ("10.2.2.3", 22, Verdict::Allow),
            ("10.2.2.3", 8050, Verdict::Allow),
            ("10.2.2.3", 23, Verdict::Deny),
            ("a.b.Example.ORG", 443, Verdict::Direct),
            ("a.b.example.org", 80, Verdict::Deny),
            ("badexample.org", 443, Verdict::Deny),
            ("example.org", 25, Verdict::Allow),
            ("fd12::1", 80, Verdict::Allow),
            ("fe80::1", 80, Verdict::Deny),
            ("::1", 9, Verdict::Allow),
            ("::ffff:10.2.2.3", 22, Verdict::Allow),
        ] {
            assert_eq!(rules.verdict(&host(name), None, port), verdict, "{name}:{port}");
        }
    }

    #[test]
    fn a_name_is_judged_by_the_address_it_leads_to_as_well() {
        let rules = rules(&["deny 127.0.0.0/8", "allow intra.example.org"]);
        let name = host("intra.example.org");
        assert_eq!(rules.verdict(&name, "10.0.0.1".parse().ok(), 80), Verdict::Allow);
        assert_eq!(rules.verdict(&name, "127.0.0.1".parse().ok(), 80), Verdict::Deny);
        assert_eq!(rules.verdict(&name, "::ffff:127.0.0.1".parse().ok(), 80), Verdict::Deny);
    }

    #[test]
    fn what_is_no_rule_is_refused() {
        for bad in [
            "",
            "allow",
            "permit *",
            "allow a b",
            "allow 10.0.0.0/33",
            "allow host:0-70000",
            "allow host:9-8",
            "allow [::1",
            "allow [::1]22",
            "allow *.10.0.0.1",
            "allow a:",
            "allow [::1]/64",
        ] {
            assert!(bad.parse::<Rule>().is_err(), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_a_reader_panic(text in "(allow|deny|direct)? ?[ -~]{0,30}") {
            if let Ok(rule) = text.parse::<Rule>() {
                let rules = Rules { rules: vec![rule], otherwise: Verdict::Deny };
                rules.verdict(&host("::1"), None, 1);
                rules.verdict(&host("0.0.0.0"), None, 1);
                rules.verdict(&host("a.b"), "1.2.3.4".parse().ok(), 1);
            }
        }
    }
}
