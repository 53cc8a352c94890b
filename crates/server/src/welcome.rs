//! What a client is granted on its hello.
//!
//! Arrives: the hello, the user, the address, the server's options. Leaves: the welcome. Must not know: connections,
//! sockets.

use std::net::IpAddr;

use waystage_protocol::congestion::grant::grant;
use waystage_protocol::congestion::Mode;
use waystage_transport::handshake::hello::{Hello, Purpose, Welcome};
use waystage_transport::message::memory_of_each;

use crate::mode_rules::rules;
use crate::options::{ServerOptions, User, NO_CAP_BYTES_PER_S};

/// The answer to a hello of `version`; `udp` where the server has a UDP socket.
pub(crate) fn welcome(
    options: &ServerOptions,
    (user, from): (&User, IpAddr),
    (hello, version): (&Hello, u32),
    udp: bool,
) -> Welcome {
    let rate = cap(options, user);
    let granted = grant(hello.mode, &user.name, from, &rules(&options.users), rate as f64 * 8.0);
    let connections = match hello.purpose {
        Purpose::Proxy => 1,
        _ => hello.connections.clamp(1, options.copy_connections.max(1)),
    };
    Welcome {
        version,
        mode: granted.mode,
        note: granted.downgraded.unwrap_or_default(),
        rate,
        memory: memory_of_each(options.memory_bytes, connections).min(hello.memory),
        udp: udp && hello.udp,
        connections,
    }
}

/// The mode that a user gets who asks for this one while a copy runs, and why it is another.
pub(crate) fn mode_of(
    options: &ServerOptions,
    (user, from): (&User, IpAddr),
    asked: Mode,
) -> (Mode, String) {
    let rate = cap(options, user);
    let granted = grant(asked, &user.name, from, &rules(&options.users), rate as f64 * 8.0);
    (granted.mode, granted.downgraded.unwrap_or_default())
}

/// Bytes a second that a user's connection may carry.
pub(crate) fn cap(options: &ServerOptions, user: &User) -> u64 {
    let all = options.rate_bytes_per_s.unwrap_or(NO_CAP_BYTES_PER_S);
    user.rate_bytes_per_s.unwrap_or(all).min(all)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use proptest::prelude::*;

    const INSIDE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
    const OUTSIDE: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));

    /// A server with one user, who may use `aggressive` from the inside.
    fn options(rates: [Option<u64>; 2]) -> ServerOptions {
        let ada = User {
            modes: vec![Mode::Aggressive],
            networks: vec![(INSIDE, 8)],
            rate_bytes_per_s: rates[1],
            ..User::named("ada", &[])
        };
        ServerOptions { rate_bytes_per_s: rates[0], ..ServerOptions::of(vec![ada]) }
    }

    fn hello() -> Hello {
        Hello {
            user: "ada".to_owned(),
            mode: Mode::Aggressive,
            rate: 0,
            memory: 1 << 40,
            udp: true,
            rtt_ns: 0,
            purpose: Purpose::Copy,
            copy: [0; 16],
            connections: 3,
        }
    }

    fn answer(options: &ServerOptions, from: IpAddr, hello: &Hello) -> Welcome {
        welcome(options, (&options.users[0], from), (hello, 2), true)
    }

    #[test]
    fn a_mode_is_granted_by_network_and_a_refusal_is_explained() {
        let options = options([None; 2]);
        let granted = answer(&options, INSIDE, &hello());
        assert_eq!((granted.mode, granted.note.as_str()), (Mode::Aggressive, ""));
        let granted = answer(&options, OUTSIDE, &hello());
        assert_eq!(granted.mode, Mode::Fair);
        assert!(granted.note.contains("does not grant mode aggressive to ada"), "{}", granted.note);
    }

    #[test]
    fn the_lower_of_the_server_s_and_the_user_s_rate_holds() {
        for (rates, expected) in [
            ([None, None], NO_CAP_BYTES_PER_S),
            ([Some(50), None], 50),
            ([Some(50), Some(80)], 50),
            ([Some(50), Some(20)], 20),
            ([None, Some(u64::MAX)], NO_CAP_BYTES_PER_S),
        ] {
            assert_eq!(answer(&options(rates), INSIDE, &hello()).rate, expected, "{rates:?}");
        }
    }

    #[test]
    fn udp_takes_both_ends_and_a_proxy_one_connection() {
        let options = options([None; 2]);
        let proxy = Hello { purpose: Purpose::Proxy, udp: false, ..hello() };
        let granted = answer(&options, INSIDE, &proxy);
        assert_eq!((granted.connections, granted.udp), (1, false));
        let user = (&options.users[0], INSIDE);
        assert!(!welcome(&options, user, (&hello(), 2), false).udp);
        let granted = welcome(&options, user, (&hello(), 2), true);
        assert_eq!((granted.connections, granted.udp, granted.version), (3, true, 2));
    }

    proptest! {
        #[test]
        fn no_hello_gets_more_than_the_server_has(
            memory in prop_oneof![0_u64..1 << 31, any::<u64>()],
            connections in any::<u32>(),
            rate in any::<u64>(),
            copy_connections in 0_u32..9,
        ) {
            let options = ServerOptions { copy_connections, ..options([Some(1000), None]) };
            let granted = answer(&options, OUTSIDE, &Hello { memory, connections, rate, ..hello() });
            prop_assert!((1..=copy_connections.max(1)).contains(&granted.connections));
            prop_assert!(granted.memory <= memory);
            prop_assert!(granted.memory * u64::from(granted.connections) <= options.memory_bytes);
            prop_assert_eq!(granted.rate, 1000);
        }
    }
}
