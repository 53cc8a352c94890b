//! Rules that grant congestion controllers by user and network.
//!
//! Arrives: users as they were configured. Leaves: rules, the first that fits decides. Must not know: connections.

use std::net::IpAddr;

use waystage_protocol::congestion::grant::Rule;

use crate::options::{User, NO_CAP_BYTES_PER_S};

pub(crate) fn rules(users: &[User]) -> Vec<Rule> {
    let of = |user: &User, network: Option<(IpAddr, u8)>| Rule {
        user: Some(user.name.clone()),
        network,
        modes: user.modes.clone(),
        rate_cap_bps: user.rate_bytes_per_s.unwrap_or(NO_CAP_BYTES_PER_S) as f64 * 8.0,
    };
    users
        .iter()
        .flat_map(|user| {
            if user.networks.is_empty() {
                vec![of(user, None)]
            } else {
                user.networks.iter().map(|network| of(user, Some(*network))).collect()
            }
        })
        .collect()
}
