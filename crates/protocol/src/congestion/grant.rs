//! Which mode a client gets: the server decides, by user and by address.
//!
//! Arrives: the requested mode, the user, the address, the server's rules. Leaves: the mode, its rate, and a reason
//! where it differs from the request. Must not know: how users authenticate.

use std::net::IpAddr;

use super::registry::Mode;

/// One rule of a server's configuration. The first that matches decides.
#[derive(Clone, Debug)]
pub struct Rule {
    /// The user; None for any.
    pub user: Option<String>,
    /// The network, as an address and the length of its prefix in bits; None for any.
    pub network: Option<(IpAddr, u8)>,
    /// Modes granted beside `fair` and `modest`, which every user has.
    pub modes: Vec<Mode>,
    /// The largest rate.
    pub rate_cap_bps: f64,
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq)]
pub struct Granted {
    /// The mode.
    pub mode: Mode,
    /// Its largest rate.
    pub rate_cap_bps: f64,
    /// A sentence for the user, where the mode is not the requested one.
    pub downgraded: Option<String>,
}

/// Applies the rules to a request.
#[must_use]
pub fn grant(
    asked: Mode,
    user: &str,
    address: IpAddr,
    rules: &[Rule],
    default_cap_bps: f64,
) -> Granted {
    let rule = rules.iter().find(|rule| {
        rule.user.as_deref().is_none_or(|name| name == user)
            && rule.network.is_none_or(|(network, bits)| is_in(address, network, bits))
    });
    let rate_cap_bps = rule.map_or(default_cap_bps, |rule| rule.rate_cap_bps);
    if asked.is_free() || rule.is_some_and(|rule| rule.modes.contains(&asked)) {
        return Granted { mode: asked, rate_cap_bps, downgraded: None };
    }
    let downgraded = format!(
        "the server does not grant mode {asked} to {user} at {address} and uses fair: ask its administrator, or ask for fair"
    );
    Granted { mode: Mode::Fair, rate_cap_bps, downgraded: Some(downgraded) }
}

fn is_in(address: IpAddr, network: IpAddr, bits: u8) -> bool {
    let same = |a: u128, b: u128, width: u32| {
        let ignored = width.saturating_sub(u32::from(bits));
        ignored >= width || a >> ignored == b >> ignored
    };
    match (address.to_canonical(), network.to_canonical()) {
        (IpAddr::V4(a), IpAddr::V4(b)) => {
            same(u128::from(a.to_bits()), u128::from(b.to_bits()), 32)
        }
        (IpAddr::V6(a), IpAddr::V6(b)) => same(a.to_bits(), b.to_bits(), 128),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules() -> Vec<Rule> {
        vec![
            Rule {
                user: Some("ada".into()),
                network: Some(("10.1.0.0".parse().unwrap(), 16)),
                modes: vec![Mode::Aggressive, Mode::FastStart],
                rate_cap_bps: 1e10,
            },
            Rule { user: None, network: None, modes: vec![Mode::FastStart], rate_cap_bps: 1e9 },
        ]
    }

    #[test]
    fn the_faster_modes_need_a_rule_of_the_server() {
        let ask =
            |mode, user, address: &str| grant(mode, user, address.parse().unwrap(), &rules(), 1e8);
        assert_eq!(ask(Mode::Aggressive, "ada", "10.1.7.7").mode, Mode::Aggressive);
        let refused = ask(Mode::Aggressive, "ada", "10.2.7.7");
        assert_eq!((refused.mode, refused.rate_cap_bps), (Mode::Fair, 1e9));
        assert!(refused.downgraded.unwrap().contains("does not grant mode aggressive to ada"));
        assert_eq!(ask(Mode::FastStart, "bob", "::1").downgraded, None);
        assert_eq!(ask(Mode::Modest, "bob", "::1").mode, Mode::Modest);
    }

    #[test]
    fn without_rules_every_user_gets_fair() {
        let granted = grant(Mode::FastStart, "ada", "10.1.0.1".parse().unwrap(), &[], 1e8);
        assert_eq!((granted.mode, granted.rate_cap_bps), (Mode::Fair, 1e8));
    }
}
