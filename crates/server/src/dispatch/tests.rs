//! Sequences of clients, honest and hostile, against a model of who holds what.

use std::collections::HashMap;

use proptest::prelude::*;
use waystage_protocol::congestion::Mode;
use waystage_remote_copy::CopyState;
use waystage_transport::identity::Identity;

use super::*;
use crate::copies::Open;
use crate::shared::{admit, Session};

const FROM: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));

/// A server's books, as the sessions keep them.
#[derive(Default)]
struct Books {
    sessions: HashMap<u64, Session>,
    /// Of the session in progress.
    user: Option<String>,
    authenticated: bool,
}

impl Books {
    fn of_users(&self) -> HashMap<String, usize> {
        let mut of_users = HashMap::new();
        for user in self.sessions.values().filter_map(|session| session.user.clone()) {
            *of_users.entry(user).or_default() += 1;
        }
        of_users
    }
}

/// The books, and the options and the session that they are kept for.
struct ClientRecord<'a>(&'a mut Books, &'a ServerOptions, u64);

impl<'a> ClientRecord<'a> {
    fn begin(books: &'a mut Books, options: &'a ServerOptions, id: u64) -> Self {
        let session = Session {
            user: None,
            copy_state: std::sync::Arc::new(CopyState::default()),
            control: None,
            stream: None,
            from: None,
            work: None,
            asked: (None, false),
        };
        books.sessions.insert(id, session);
        (books.user, books.authenticated) = (None, false);
        Self(books, options, id)
    }
}

impl Register for ClientRecord<'_> {
    fn identified(&mut self, user: &User) {
        self.0.user = Some(user.name.clone());
    }

    fn authenticated(&mut self) {
        self.0.authenticated = true;
    }

    fn admit(&mut self, user: &User) -> Result<(), Error> {
        self.authenticated();
        admit(self.1, &mut self.0.sessions, self.2, user)
    }

    fn limit(&self, user: &str) -> Option<u64> {
        (user == "bob").then_some(70)
    }
}

/// Two users and a stranger.
fn server() -> (ServerOptions, [PublicKey; 3]) {
    let keys = [(); 3].map(|()| Identity::ephemeral().unwrap().public);
    let users = [("ada", 0), ("bob", 1)];
    let users = users.map(|(name, key)| User::named(name, &keys[key..=key])).to_vec();
    let mut options = ServerOptions {
        connections: 4,
        copy_connections: 3,
        rate_bytes_per_s: Some(900),
        ..ServerOptions::of(users)
    };
    options.probing.users = vec!["bob".to_owned()];
    (options, keys)
}

fn hello(user: &str, purpose: Purpose, copy: u8, connections: u32) -> Hello {
    Hello {
        user: user.to_owned(),
        mode: Mode::Fair,
        rate: 0,
        memory: 1 << 20,
        udp: true,
        rtt_ns: u64::MAX,
        purpose,
        copy: [copy; 16],
        connections,
    }
}

#[test]
fn the_application_protocol_chooses_the_service() {
    assert_eq!(service(Some(tls::PROBE_ALPN)), Service::Probe);
    assert_eq!(service(Some(tls::STREAM_ALPN)), Service::ProbeStream);
    assert_eq!(service(Some(b"other")), Service::Session);
    assert_eq!(service(None), Service::Session);
}

#[test]
fn a_limit_for_now_holds_for_a_proxy_s_session_and_a_copy_s_connections_share_a_rate() {
    let (options, keys) = server();
    let dispatcher = Dispatcher { options: &options, copies: &Copies::<()>::default(), udp: true };
    let mut books = Books::default();
    let mut grant = |id: u64, key: usize, purpose, connections| {
        let mut record = ClientRecord::begin(&mut books, &options, id);
        let hello = hello("", purpose, 0, connections).encode();
        dispatcher.session(&hello, &keys[key], FROM, &mut record).unwrap()
    };
    let proxy = grant(0, 1, Purpose::Proxy, 3);
    assert_eq!((proxy.rate_bytes_per_s, proxy.tls_bytes_per_s), (70, Some(70)));
    assert_eq!((proxy.user.name.as_str(), proxy.welcome.connections), ("bob", 1));
    let proxy = grant(1, 0, Purpose::Proxy, 3);
    assert_eq!((proxy.rate_bytes_per_s, proxy.tls_bytes_per_s), (900, Some(900)));
    let copy = grant(2, 0, Purpose::Copy, 3);
    assert!(copy.group.is_some(), "one controller for all three");
    assert_eq!((copy.rate_bytes_per_s, copy.tls_bytes_per_s), (900, Some(300)));
    assert_eq!(copy.rtt_ns, MOST_RTT_NS);
}

/// What a client does.
#[derive(Clone, Debug)]
enum Step {
    /// A session: its key, the name that it gives, its purpose, its copy's name, the connections that it wants.
    Session(usize, &'static str, Purpose, u8, u32),
    /// A probe: its key, the name that it gives.
    Probe(usize, &'static str),
    /// Bytes that are no hello, or a hello cut short.
    Garbage(usize, Vec<u8>, usize),
    /// The connection of this place ends.
    End(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let name = || prop::sample::select(vec!["", "ada", "bob", "nemo"]);
    let purpose = prop::sample::select(vec![Purpose::Copy, Purpose::Proxy, Purpose::More]);
    let garbage = prop::collection::vec(any::<u8>(), 0..40);
    let step = prop_oneof![
        6 => (0_usize..3, name(), purpose, 0_u8..3, 0_u32..6)
            .prop_map(|(key, name, purpose, copy, most)| Step::Session(key, name, purpose, copy, most)),
        2 => (0_usize..3, name()).prop_map(|(key, name)| Step::Probe(key, name)),
        1 => (0_usize..3, garbage, 0_usize..60).prop_map(|(key, bytes, cut)| Step::Garbage(key, bytes, cut)),
        3 => any::<usize>().prop_map(Step::End),
    ];
    prop::collection::vec(step, 0..60)
}

/// A connection of the model.
struct Held<'a> {
    id: u64,
    /// The user whose place it has.
    user: Option<&'static str>,
    /// The copy that it began.
    copy: Option<(u8, Open<'a, ()>)>,
}

proptest! {
    #[test]
    fn no_order_of_clients_gets_a_user_more_than_its_places_or_another_s_copy(steps in steps()) {
        let (options, keys) = server();
        let copies = Copies::default();
        let dispatcher = Dispatcher { options: &options, copies: &copies, udp: true };
        let mut books = Books::default();
        let mut held: Vec<Held<'_>> = Vec::new();
        // By name: its key, its connections at most and so far.
        let mut joints: HashMap<u8, (usize, u32, u32)> = HashMap::new();
        for (id, step) in (0_u64..).zip(steps) {
            let known = |key: usize, name: &str| {
                let user = ["ada", "bob"].get(key).copied();
                user.filter(|user| name.is_empty() || *user == name)
            };
            // Two users of four places: each has two.
            let free = |user| held.iter().filter(|one| one.user == Some(user)).count() < 2;
            match step {
                Step::End(place) => {
                    if !held.is_empty() {
                        let ended = held.swap_remove(place % held.len());
                        books.sessions.remove(&ended.id);
                        if let Some((name, _)) = &ended.copy {
                            joints.remove(name);
                        }
                    }
                }
                Step::Garbage(key, mut bytes, cut) => {
                    if bytes.len() > 20 {
                        bytes = hello("ada", Purpose::Copy, 0, 1).encode();
                        bytes.truncate(cut.min(bytes.len() - 1));
                    }
                    let mut record = ClientRecord::begin(&mut books, &options, id);
                    let refused = dispatcher.session(&bytes, &keys[key], FROM, &mut record);
                    prop_assert!(refused.is_err());
                    prop_assert!(dispatcher.probe(&bytes, &keys[2], &mut record).is_err());
                    prop_assert!(!books.authenticated && books.user.is_none());
                    books.sessions.remove(&id);
                }
                Step::Probe(key, name) => {
                    let expected = match known(key, name) {
                        Some("bob") if free("bob") => "",
                        Some("bob") => "busy",
                        _ => "denied",
                    };
                    let mut record = ClientRecord::begin(&mut books, &options, id);
                    let bytes = ProbeHello { user: name.to_owned(), port: 7 }.encode();
                    let granted = dispatcher.probe(&bytes, &keys[key], &mut record);
                    prop_assert_eq!(granted.as_ref().map_or_else(|error| error.kind(), |_| ""), expected);
                    match granted {
                        Ok(granted) => {
                            prop_assert_eq!((granted.port, granted.rate_bytes_per_s), (7, 70));
                            held.push(Held { id, user: Some("bob"), copy: None });
                        }
                        Err(_) => drop(books.sessions.remove(&id)),
                    }
                }
                Step::Session(key, name, purpose, copy, most) => {
                    let joint = joints.get_mut(&copy).filter(|joint| joint.0 == key);
                    let expected = match (known(key, name), purpose, joint) {
                        (None, ..) | (_, Purpose::More, None) => "denied",
                        (_, Purpose::More, Some((_, most, given))) if *given >= *most => "busy",
                        (_, Purpose::More, Some((_, _, given))) => {
                            *given += 1;
                            ""
                        }
                        (Some(user), ..) if free(user) => "",
                        _ => "busy",
                    };
                    let mut record = ClientRecord::begin(&mut books, &options, id);
                    let bytes = hello(name, purpose, copy, most).encode();
                    let granted = dispatcher.session(&bytes, &keys[key], FROM, &mut record);
                    prop_assert_eq!(granted.as_ref().map_or_else(|error| error.kind(), |_| ""), expected);
                    prop_assert_eq!(books.user.as_deref(), known(key, name));
                    let Ok(granted) = granted else {
                        // A user without a free place has shown its key, a stranger has not.
                        prop_assert!(!books.authenticated || (expected == "busy" && purpose != Purpose::More));
                        books.sessions.remove(&id);
                        continue;
                    };
                    prop_assert!(books.authenticated);
                    let connections = granted.welcome.connections;
                    prop_assert!((1..=3).contains(&connections) && granted.welcome.rate == 900);
                    prop_assert!(granted.rate_bytes_per_s <= 900);
                    let mut one = Held { id, user: known(key, name), copy: None };
                    match granted.work {
                        Work::Proxy => prop_assert_eq!(purpose, Purpose::Proxy),
                        Work::Joins(_) => {
                            prop_assert_eq!(purpose, Purpose::More);
                            one.user = None;
                        }
                        Work::Copy(named) => {
                            prop_assert_eq!((purpose, named), (Purpose::Copy, [copy; 16]));
                            let open = copies.open(named, &keys[key], &(), (granted.group, connections));
                            prop_assert_eq!(open.is_none(), joints.contains_key(&copy));
                            if let Some(open) = open {
                                joints.insert(copy, (key, connections, 1));
                                one.copy = Some((copy, open));
                            }
                        }
                    }
                    held.push(one);
                }
            }
            let mut of_users = HashMap::new();
            for user in held.iter().filter_map(|one| one.user) {
                *of_users.entry(user.to_owned()).or_default() += 1;
            }
            prop_assert_eq!(books.of_users(), of_users);
        }
    }
}
