//! Admission of handshakes under overload.
//!
//! Arrives: connections with the address that they come from, how their handshakes ended, the time. Leaves: who may
//! begin, who has to make room; counts. Must not know: sockets, threads, keys.
//!
//! TCP has shown the address of each to be real, so addresses can be held to account: each may have few handshakes at a
//! time, and one whose handshakes come to nothing is turned away for a while, longer each time. Addresses that users
//! logged in from have separate places and rate limits. Memory is bounded.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

/// Handshakes at a time: all places; those not kept for addresses that a user logged in from; those not kept for
/// addresses whose handshakes have not come to nothing, and that have none in progress, either.
pub(crate) const MOST: usize = 64;
const MOST_UNKNOWN: usize = 48;
const MOST_TRIED: usize = 32;

/// Handshakes of one address at a time, and of one that a user logged in from: the connections of a copy begin
/// together.
const MOST_EACH: usize = 8;
const MOST_EACH_KNOWN: usize = 40;

/// Handshakes begun in a second by addresses that no user logged in from, and at once after a pause, for addresses
/// that have none in progress or behind them, and as many for the others. One costs about a third of a millisecond.
const PER_S: f64 = 200.0;
const AT_ONCE: f64 = 200.0;

/// The same for each address that a user logged in from.
const KNOWN_PER_S: f64 = 50.0;
const KNOWN_AT_ONCE: f64 = 100.0;

/// Failed handshakes that are forgiven; then an address is turned away for a second, doubled up to `LONGEST_PENALTY`.
const FORGIVEN: u32 = 4;
const LONGEST_PENALTY: Duration = Duration::from_secs(60);

/// An address is forgotten after this time without a connection.
const FORGET: Duration = Duration::from_secs(300);

/// Addresses remembered.
const MOST_SOURCES: usize = 4096;

/// A handshake that takes longer may be evicted; one takes a round trip here.
const SLOW: Duration = Duration::from_secs(1);

/// Why a connection was turned away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rejection {
    /// Its address has as many handshakes in progress as it may.
    Crowded,
    /// Handshakes from its address came to nothing.
    Penalty,
    /// Too many have begun in the last moment.
    RateLimited,
    /// All places are taken.
    Full,
}

/// What is counted, since the server began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) begun: u64,
    pub(crate) failed: u64,
    pub(crate) evicted: u64,
    pub(crate) crowded: u64,
    pub(crate) penalty: u64,
    pub(crate) rate_limited: u64,
    pub(crate) full: u64,
}

impl Counts {
    pub(crate) fn turned_away(&self) -> u64 {
        self.crowded + self.penalty + self.rate_limited + self.full
    }
}

#[derive(Clone, Copy, Debug)]
struct Source {
    seen: Instant,
    in_progress: usize,
    failures: u32,
    until: Option<Instant>,
    /// Whether a user logged in from here.
    known: bool,
    turns: Turns,
}

/// Handshakes that may begin.
#[derive(Clone, Copy, Debug)]
struct Turns {
    left: f64,
    filled: Instant,
}

impl Turns {
    fn take(&mut self, (per_s, most): (f64, f64), now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.filled).as_secs_f64();
        self.left = (self.left + per_s * passed).min(most);
        self.filled = now;
        let may = self.left >= 1.0;
        self.left -= f64::from(u8::from(may));
        may
    }
}

/// The places for handshakes.
pub(crate) struct Admission {
    /// By the number of the connection.
    in_progress: HashMap<u64, (IpAddr, Instant)>,
    sources: HashMap<IpAddr, Source>,
    /// For new addresses, and for those that are not.
    turns: [Turns; 2],
    counts: Counts,
}

/// What counts as one address: of IPv6 the network, of which one host has all addresses.
fn source_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(six) => {
            let [a, b, c, d, ..] = six.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        four => four,
    }
}

impl Admission {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            in_progress: HashMap::new(),
            sources: HashMap::new(),
            turns: [Turns { left: AT_ONCE, filled: now }; 2],
            counts: Counts::default(),
        }
    }

    pub(crate) fn counts(&self) -> Counts {
        self.counts
    }

    /// Whether this connection may begin its handshake; and who is to be thrown out for it.
    pub(crate) fn request(
        &mut self,
        id: u64,
        from: IpAddr,
        now: Instant,
    ) -> Result<Option<u64>, Rejection> {
        let from = source_of(from);
        let admitted = self.admit(from, now);
        match &admitted {
            Ok(evicted) => {
                self.counts.begun += 1;
                if let Some(evicted) = evicted {
                    self.counts.evicted += 1;
                    self.failed(*evicted, now);
                }
                self.in_progress.insert(id, (from, now));
                let source = self.source(from, now);
                source.in_progress += 1;
            }
            Err(Rejection::Crowded) => self.counts.crowded += 1,
            Err(Rejection::Penalty) => self.counts.penalty += 1,
            Err(Rejection::RateLimited) => self.counts.rate_limited += 1,
            Err(Rejection::Full) => self.counts.full += 1,
        }
        admitted
    }

    fn admit(&mut self, from: IpAddr, now: Instant) -> Result<Option<u64>, Rejection> {
        let source = *self.source(from, now);
        if source.in_progress >= if source.known { MOST_EACH_KNOWN } else { MOST_EACH } {
            return Err(Rejection::Crowded);
        }
        if !source.known && source.until.is_some_and(|until| now < until) {
            return Err(Rejection::Penalty);
        }
        let new = source.in_progress == 0 && source.failures == 0;
        let places = match (source.known, new) {
            (true, _) => MOST,
            (_, true) => MOST_UNKNOWN,
            _ => MOST_TRIED,
        };
        let evicted = match self.in_progress.len().cmp(&places) {
            Ordering::Less => None,
            Ordering::Equal => Some(self.in_the_way(from, now).ok_or(Rejection::Full)?),
            // Others' places are not for these, even if they make room.
            Ordering::Greater => return Err(Rejection::Full),
        };
        let may = if source.known {
            self.source(from, now).turns.take((KNOWN_PER_S, KNOWN_AT_ONCE), now)
        } else {
            self.turns[usize::from(!new)].take((PER_S, AT_ONCE), now)
        };
        may.then_some(evicted).ok_or(Rejection::RateLimited)
    }

    /// Of the unknown addresses: a handshake of the one with the most, the slowest first.
    fn in_the_way(&self, from: IpAddr, now: Instant) -> Option<u64> {
        let crowd = |source: &IpAddr| self.sources.get(source).map_or(1, |s| s.in_progress);
        let unknown = |source: &IpAddr| self.sources.get(source).is_none_or(|s| !s.known);
        let (id, (source, began)) = (self.in_progress.iter())
            .filter(|(_, (source, _))| *source != from && unknown(source))
            .max_by_key(|(_, (source, began))| (crowd(source), now.duration_since(*began)))?;
        (crowd(source) > 1 || now.duration_since(*began) > SLOW).then_some(*id)
    }

    /// The handshake has led to a user being let in.
    pub(crate) fn authenticated(&mut self, id: u64, now: Instant) {
        if let Some(from) = self.leave(id) {
            let source = self.source(from, now);
            (source.known, source.failures, source.until) = (true, 0, None);
        }
    }

    /// It came to nothing. Nothing happens where it is no longer in progress.
    pub(crate) fn failed(&mut self, id: u64, now: Instant) {
        let Some(from) = self.leave(id) else { return };
        self.counts.failed += 1;
        let source = self.source(from, now);
        source.failures = source.failures.saturating_add(1);
        if source.failures > FORGIVEN {
            let doubled = 1 << (source.failures - FORGIVEN - 1).min(6);
            source.until = Some(now + Duration::from_secs(doubled).min(LONGEST_PENALTY));
        }
    }

    fn leave(&mut self, id: u64) -> Option<IpAddr> {
        let (from, _) = self.in_progress.remove(&id)?;
        if let Some(source) = self.sources.get_mut(&from) {
            source.in_progress -= 1;
        }
        Some(from)
    }

    fn source(&mut self, from: IpAddr, now: Instant) -> &mut Source {
        if !self.sources.contains_key(&from) && self.sources.len() >= MOST_SOURCES {
            self.forget(now);
        }
        let turns = Turns { left: KNOWN_AT_ONCE, filled: now };
        let new =
            Source { seen: now, in_progress: 0, failures: 0, until: None, known: false, turns };
        let source = self.sources.entry(from).or_insert(new);
        if source.in_progress == 0 && now.saturating_duration_since(source.seen) > FORGET {
            *source = Source { known: source.known, ..new };
        }
        source.seen = now;
        source
    }

    /// Make room: forget the address not seen for the longest time, known ones last.
    fn forget(&mut self, now: Instant) {
        let mut idle: Vec<(bool, Instant, IpAddr)> = (self.sources.iter())
            .filter(|(_, source)| source.in_progress == 0)
            .map(|(from, source)| {
                let known =
                    source.known && now.saturating_duration_since(source.seen) < 12 * FORGET;
                (known, source.seen, *from)
            })
            .collect();
        idle.sort_unstable();
        // Many at a time, so that a flood does not sort for each of its connections.
        for (_, _, from) in idle.into_iter().take(MOST_SOURCES / 4) {
            self.sources.remove(&from);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn address(number: u32) -> IpAddr {
        IpAddr::from((0x0a00_0000 + number).to_be_bytes())
    }

    /// A flood of connections a second from a number of addresses, none of which ever finishes its handshake.
    fn flood(
        sources: u32,
        per_s: u32,
        seconds: u32,
        mut beside: impl FnMut(&mut Admission, u64, Instant),
    ) -> Admission {
        let began = Instant::now();
        let mut admission = Admission::new(began);
        let mut slots: Vec<u64> = Vec::new();
        for number in 0..per_s * seconds {
            let now = began + Duration::from_secs_f64(f64::from(number) / f64::from(per_s));
            let id = 2 * u64::from(number);
            if let Ok(evicted) = admission.request(id, address(number % sources), now) {
                slots.retain(|slot| Some(*slot) != evicted);
                slots.push(id);
            }
            assert!(admission.in_progress.len() <= MOST && admission.sources.len() <= MOST_SOURCES);
            beside(&mut admission, id + 1, now);
        }
        admission
    }

    #[test]
    fn ten_thousand_a_second_from_one_or_many_addresses_begin_few_handshakes() {
        for sources in [1, 10, 1000, 30_000] {
            let counts = flood(sources, 10_000, 5, |_, _, _| {}).counts();
            let most = 2 * (AT_ONCE + 5.0 * PER_S) as u64;
            assert!(counts.begun <= most, "{sources} addresses: {counts:?}");
            assert_eq!(counts.begun + counts.turned_away(), 50_000);
        }
    }

    #[test]
    fn who_came_in_before_comes_in_again_and_a_stranger_soon_does_too() {
        for sources in [1, 10, 300] {
            // Those of the second half: by then each address of the flood has been tried.
            let half = 150_000;
            let friend = address(1 << 20);
            let (mut friends, mut friend_tries, mut strangers, mut tries) = (0, 0, 0, 0);
            flood(sources, 10_000, 30, |admission, id, now| {
                if id == 1 {
                    // Before the flood.
                    admission.request(id, friend, now).unwrap();
                    admission.authenticated(id, now);
                } else if id % 4000 == 1 {
                    friend_tries += 1;
                    if admission.request(id, friend, now).is_ok() {
                        friends += 1;
                        admission.authenticated(id, now);
                    }
                } else if id % 4000 == 2001 && id > half {
                    tries += 1;
                    if admission.request(id, address((1 << 21) + tries), now).is_ok() {
                        strangers += 1;
                        admission.authenticated(id, now);
                    }
                }
            });
            assert_eq!(friends, friend_tries, "{sources} addresses");
            assert!(strangers > tries * 3 / 4, "{sources} addresses: {strangers} of {tries}");
        }
    }

    #[test]
    fn an_address_whose_handshakes_come_to_nothing_waits_longer_each_time() {
        let mut now = Instant::now();
        let mut admission = Admission::new(now);
        let mut waits = Vec::new();
        for id in 0..12 {
            let asked = now;
            while let Err(turned) = admission.request(id, address(1), now) {
                assert_eq!(turned, Rejection::Penalty);
                now += Duration::from_secs(1);
            }
            waits.push((now - asked).as_secs());
            admission.failed(id, now);
        }
        assert_eq!(waits, [0, 0, 0, 0, 0, 1, 2, 4, 8, 16, 32, 60]);
        let later = now + 2 * FORGET;
        assert!(admission.request(99, address(1), later).is_ok());
        admission.authenticated(99, later);
        assert_eq!(admission.sources[&address(1)].failures, 0);
    }

    #[test]
    fn addresses_of_one_network_are_one() {
        let one: IpAddr = "2001:db8::1".parse().unwrap();
        let another: IpAddr = "2001:db8::ffff:1".parse().unwrap();
        let mapped: IpAddr = "::ffff:10.0.0.1".parse().unwrap();
        assert_eq!(source_of(one), source_of(another));
        assert_eq!(source_of(mapped), address(1));
    }

    proptest! {
        #[test]
        fn its_books_stay_right_whatever_comes(
            steps in prop::collection::vec((0_u32..40, 0_u8..4, 0_u64..3000), 0..400),
        ) {
            let mut now = Instant::now();
            let mut admission = Admission::new(now);
            let mut ids: Vec<u64> = Vec::new();
            for (id, (from, what, passed)) in (0_u64..).zip(steps) {
                now += Duration::from_millis(passed);
                if let Ok(evicted) = admission.request(id, address(from), now) {
                    ids.retain(|each| Some(*each) != evicted);
                    ids.push(id);
                }
                match what {
                    0 => ids.pop().into_iter().for_each(|id| admission.authenticated(id, now)),
                    1 => ids.pop().into_iter().for_each(|id| admission.failed(id, now)),
                    _ => {}
                }
                prop_assert_eq!(admission.in_progress.len(), ids.len());
                let sum: usize = admission.sources.values().map(|source| source.in_progress).sum();
                prop_assert_eq!(sum, ids.len());
                prop_assert!(admission.in_progress.len() <= MOST);
            }
        }
    }
}
