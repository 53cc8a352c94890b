//! Both ends of a proxy against a model of programs, in any order of what programs, sessions and hostile peers do.

mod ending;
mod world;

use std::io::ErrorKind;
use std::rc::{Rc, Weak};
use std::sync::atomic::Ordering;

use proptest::prelude::*;
use waystage_protocol::streams::message::Message;

use super::*;
use crate::rules::Verdict;
use crate::socks;
use crate::tunnel::CHUNK_BYTES;
use world::{destination, Line, Program, Shown, Wire, World, REFUSES, SILENT};

/// The time that a connection waits for a session.
const WAIT: Duration = Duration::from_secs(10);

/// Memory of an end, and the connections that it is enough for at once: the next one is refused.
const MEMORY_BYTES: u64 = 1 << 20;
const MOST_AT_ONCE: usize = (MEMORY_BYTES / LEAST_WINDOW_BYTES / 2) as usize;

/// The first port of destinations that answer.
const FIRST_PORT: u16 = 1000;

fn engine(side: Side, rules: &[&str]) -> (Rc<World>, Engine<Shown>) {
    let world = Rc::<World>::default();
    let (otherwise, here) = match side {
        Side::Client => (Verdict::Allow, Verdict::Direct),
        Side::Server => (Verdict::Deny, Verdict::Allow),
    };
    let rules = rules.iter().map(|line| line.parse().unwrap()).collect();
    let settings = Settings {
        rules: Rules { rules, otherwise, here },
        side,
        reverse: Vec::new(),
        wait: if side == Side::Client { WAIT } else { Duration::ZERO },
        memory_bytes: MEMORY_BYTES,
    };
    let shown = Shown(Rc::clone(&world), Instant::now());
    (world, Engine::new(shown, settings, Arc::default()))
}

/// A client's and a server's end.
struct Pair {
    worlds: [Rc<World>; 2],
    engines: [Engine<Shown>; 2],
    wires: Option<[Rc<std::cell::RefCell<Wire>>; 2]>,
    records: [Vec<Record>; 2],
    phase: Phase,
}

impl Pair {
    fn new() -> Self {
        let (near, mut client) = engine(Side::Client, &["direct 192.0.2.9"]);
        let (far, server) = engine(Side::Server, &["allow 192.0.2.0/24"]);
        let place = Place { listen: ([127, 0, 0, 1], 1).into(), kind: crate::Kind::Socks };
        client.listen(&place).unwrap();
        let records = Default::default();
        let (worlds, engines) = ([near, far], [client, server]);
        Self { worlds, engines, wires: None, records, phase: Phase::Running }
    }

    fn attach(&mut self) {
        let lines = Line::pair();
        self.wires = Some([Rc::clone(&lines[0].out), Rc::clone(&lines[0].into)]);
        for (engine, line) in self.engines.iter_mut().zip(lines) {
            engine.attach_session(line).unwrap();
        }
    }

    fn lose(&mut self) {
        if let Some(wires) = self.wires.take() {
            wires[0].borrow_mut().lost = true;
        }
        self.turns(1);
        assert!(self.engines.iter().all(|engine| !engine.has_session()));
    }

    fn turns(&mut self, count: usize) {
        for _ in 0..count {
            for (side, engine) in self.engines.iter_mut().enumerate() {
                engine.clear_wakers();
                engine.turn(self.phase, Some(Duration::ZERO));
                for notice in engine.notices() {
                    if let Notice::Connection(record) = notice {
                        self.records[side].push(record);
                    }
                }
                check(engine, self.records[side].len());
            }
        }
    }

    fn pass(&self, time: Duration) {
        for world in &self.worlds {
            world.passed.set(world.passed.get() + time);
        }
    }

    /// A program that is to reach a port, by SOCKS or by a forward.
    fn connect(&self, port: u16, by_socks: bool) -> Program {
        let program = Program::new(true);
        let to = destination(port);
        let kind = if by_socks {
            program.change(|ends| ends.says.extend(socks_request(port)));
            crate::Kind::Socks
        } else {
            crate::Kind::Fixed(to)
        };
        self.worlds[0].arriving.borrow_mut().push_back((program.clone(), kind));
        program
    }
}

/// What a SOCKS client says first, and what it hears.
fn socks_request(port: u16) -> Vec<u8> {
    let mut said = vec![5, 1, 0, 5, 1, 0, 3];
    let host = if port.is_multiple_of(2) { "known" } else { "192.0.2.1" };
    said.push(host.len() as u8);
    said.extend_from_slice(host.as_bytes());
    said.extend_from_slice(&port.to_be_bytes());
    said
}

fn socks_answer(code: u8) -> Vec<u8> {
    [&socks::GREETED[..], &socks::reply(code)].concat()
}

/// The books of an engine agree with one another.
fn check(engine: &Engine<Shown>, records: usize) {
    let open = engine.tunnels.len() + engine.splices.len();
    assert_eq!(engine.counts.open.load(Ordering::Relaxed), open as u64);
    let begun = engine.counts.connections.load(Ordering::Relaxed);
    assert_eq!(begun, (open + records) as u64, "each connection has one record");
    for (stream, token) in &engine.by_stream {
        assert_eq!(engine.tunnels[token].stream, Some(*stream));
    }
    let with_stream = engine.tunnels.values().filter(|tunnel| tunnel.stream.is_some()).count();
    assert_eq!(with_stream, engine.by_stream.len());
    if let Some(session) = &engine.session {
        assert!(session.streams.promised_bytes() <= engine.settings.memory_bytes);
    }
}

#[test]
fn a_socks_client_reaches_a_name_and_learns_why_another_is_not_reached() {
    let mut pair = Pair::new();
    pair.attach();
    let there = pair.connect(FIRST_PORT, true);
    let refused = pair.connect(REFUSES, true);
    pair.turns(8);
    assert_eq!(there.0.borrow().heard, socks_answer(socks::replies::SUCCEEDED));
    assert_eq!(refused.0.borrow().heard, socks_answer(socks::replies::REFUSED));
    assert!(refused.0.borrow().finished && !refused.0.borrow().was_reset);
    let silent = pair.connect(SILENT, true);
    pair.turns(8);
    pair.pass(CONNECT_TIME);
    pair.turns(4);
    assert_eq!(silent.0.borrow().heard, socks_answer(socks::replies::TTL_EXPIRED));
}

#[test]
fn a_connection_waits_for_a_session_for_its_time_and_goes_on_with_the_next_one() {
    let mut pair = Pair::new();
    let late = pair.connect(FIRST_PORT, true);
    pair.turns(3);
    pair.pass(WAIT / 2);
    let early = pair.connect(FIRST_PORT + 1, true);
    pair.turns(3);
    pair.pass(WAIT / 2);
    pair.turns(1);
    assert_eq!(late.0.borrow().heard, socks_answer(socks::replies::NETWORK_UNREACHABLE));
    pair.attach();
    // The server's answer does not come: the request waits for another session.
    pair.engines[0].turn(Phase::Running, None);
    pair.lose();
    pair.attach();
    pair.turns(6);
    assert_eq!(early.0.borrow().heard, socks_answer(socks::replies::SUCCEEDED));
}

#[test]
fn programs_that_gave_up_before_there_was_a_session_leave_nothing_behind() {
    let mut pair = Pair::new();
    for number in 0..1000 {
        let program = pair.connect(FIRST_PORT, false);
        pair.turns(2);
        program.change(|ends| ends.broken = Some(ErrorKind::ConnectionReset));
        pair.turns(1);
        assert_eq!(pair.records[0].len(), number + 1);
    }
    assert!(pair.engines[0].waiting.len() <= 3);
}

#[test]
fn a_session_that_is_lost_resets_its_open_connections_at_both_ends() {
    let mut pair = Pair::new();
    pair.attach();
    let program = pair.connect(FIRST_PORT, false);
    pair.turns(6);
    let far = pair.worlds[1].made.borrow()[0].1.clone();
    pair.lose();
    assert!(program.0.borrow().was_reset && far.0.borrow().was_reset);
    assert_eq!((pair.records[0][0].end, pair.records[1][0].end), ("lost", "lost"));
}

#[test]
fn a_listener_without_descriptors_is_tried_again_later() {
    let mut pair = Pair::new();
    pair.attach();
    pair.worlds[0].is_full.set(true);
    let program = pair.connect(FIRST_PORT, true);
    pair.turns(2);
    pair.worlds[0].is_full.set(false);
    pair.turns(6);
    assert!(program.0.borrow().heard.is_empty(), "not before the time");
    pair.pass(RETRY_TIME);
    pair.turns(8);
    assert_eq!(program.0.borrow().heard, socks_answer(socks::replies::SUCCEEDED));
}

/// What happens to connections.
#[derive(Clone, Debug)]
enum Step {
    Connect,
    /// A program or its destination says more bytes.
    Say(usize, bool, usize),
    End(usize, bool),
    Break(usize, bool),
    /// Takes more bytes.
    Room(usize, bool, usize),
    /// Messages in flight change places.
    Shuffle(bool, usize),
    Lose,
    Attach,
    Turns(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let which = || any::<usize>();
    let step = prop_oneof![
        3 => Just(Step::Connect),
        6 => (which(), any::<bool>(), 1..2 * CHUNK_BYTES).prop_map(|(i, far, n)| Step::Say(i, far, n)),
        2 => (which(), any::<bool>()).prop_map(|(i, far)| Step::End(i, far)),
        1 => (which(), any::<bool>()).prop_map(|(i, far)| Step::Break(i, far)),
        3 => (which(), any::<bool>(), 1..3 * CHUNK_BYTES).prop_map(|(i, far, n)| Step::Room(i, far, n)),
        3 => (any::<bool>(), any::<usize>()).prop_map(|(far, by)| Step::Shuffle(far, by)),
        1 => Just(Step::Lose),
        2 => Just(Step::Attach),
        8 => (1_usize..5).prop_map(Step::Turns),
    ];
    prop::collection::vec(step, 1..80)
}

/// A connection of the model.
struct Known {
    near: Program,
    port: u16,
    by_socks: bool,
    /// What the program and the destination said in all; of several destinations, one after each lost session, the
    /// last.
    said: [Vec<u8>; 2],
    spoke: Weak<std::cell::RefCell<world::Ends>>,
    /// Whether one of them broke it off, or a session was lost since it came.
    disturbed: bool,
}

impl Known {
    fn far(&self, pair: &Pair) -> Option<Program> {
        let made = pair.worlds[1].made.borrow();
        made.iter().rev().find(|(at, _)| at.port() == self.port).map(|(_, far)| far.clone())
    }

    fn end(&self, pair: &Pair, far: bool) -> Option<Program> {
        if far {
            self.far(pair)
        } else {
            Some(self.near.clone())
        }
    }

    /// What the program heard of its destination.
    fn heard(&self) -> Vec<u8> {
        let heard = &self.near.0.borrow().heard;
        let answer = if self.by_socks { socks_answer(0) } else { Vec::new() };
        heard.strip_prefix(&answer[..]).unwrap_or_default().to_vec()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn each_connection_carries_its_own_bytes_in_order_and_ends_once_whatever_happens(steps in steps()) {
        let mut pair = Pair::new();
        let mut known: Vec<Known> = Vec::new();
        let mut said = 0_usize;
        for step in steps {
            match step {
                Step::Connect if known.len() < MOST_AT_ONCE => {
                    let number = known.len() as u16;
                    let (port, by_socks) = (FIRST_PORT + number, number.is_multiple_of(3));
                    let near = pair.connect(port, by_socks);
                    known.push(Known { near, port, by_socks, said: Default::default(), spoke: Weak::new(), disturbed: false });
                }
                Step::Turns(count) => pair.turns(count),
                Step::Lose if pair.wires.is_some() => {
                    pair.lose();
                    // Those that came before may have been carried by it.
                    known.iter_mut().for_each(|one| one.disturbed = true);
                }
                Step::Attach if pair.wires.is_none() => pair.attach(),
                Step::Lose | Step::Attach => {}
                Step::Shuffle(far, by) => {
                    if let Some(wires) = &pair.wires {
                        let messages = &mut wires[usize::from(far)].borrow_mut().messages;
                        let count = messages.len();
                        // The first message of a stream stays before the others of it.
                        if count > 1 && messages.iter().all(|message| !matches!(message[0], 1..=3)) {
                            messages.swap(by % count, (by / count) % count);
                        }
                    }
                }
                Step::Say(place, far, count) if !known.is_empty() => {
                    let place = place % known.len();
                    let Some(end) = known[place].end(&pair, far) else { continue };
                    if end.0.borrow().has_ended {
                        continue;
                    }
                    if far {
                        let now = Rc::downgrade(&end.0);
                        if !known[place].spoke.ptr_eq(&now) {
                            known[place].said[1].clear();
                        }
                        known[place].spoke = now;
                    }
                    said += 1;
                    let bytes = (0..count).map(|byte| ((byte + said * 31) % 251) as u8);
                    let bytes: Vec<u8> = bytes.collect();
                    end.change(|ends| ends.says.extend(&bytes));
                    known[place].said[usize::from(far)].extend(bytes);
                }
                Step::End(place, far) if !known.is_empty() => {
                    let one = &known[place % known.len()];
                    one.end(&pair, far).iter().for_each(|end| end.change(|ends| ends.has_ended = true));
                }
                Step::Break(place, far) if !known.is_empty() => {
                    let place = place % known.len();
                    if let Some(end) = known[place].end(&pair, far) {
                        end.change(|ends| ends.broken = Some(ErrorKind::ConnectionReset));
                        known[place].disturbed = true;
                    }
                }
                Step::Room(place, far, count) if !known.is_empty() => {
                    let one = &known[place % known.len()];
                    one.end(&pair, far).iter().for_each(|end| end.change(|ends| ends.room += count));
                }
                _ => {}
            }
            for one in &known {
                prop_assert!(one.said[1].starts_with(&one.heard()));
                if let Some(far) = one.far(&pair) {
                    let (near, far) = (one.near.0.borrow(), far.0.borrow());
                    prop_assert!(one.said[0].starts_with(&far.heard));
                    prop_assert!(!far.finished || far.heard == one.said[0]);
                    prop_assert!(!near.finished || one.heard() == one.said[1], "an end too early");
                }
            }
        }
        // Let all of it come to its end.
        if pair.wires.is_none() {
            pair.attach();
        }
        pair.turns(20);
        for one in &known {
            for end in [Some(one.near.clone()), one.far(&pair)].into_iter().flatten() {
                end.change(|ends| (ends.has_ended, ends.room) = (true, usize::MAX / 2));
            }
        }
        pair.turns(400);
        for one in &known {
            let far = one.far(&pair);
            if !one.disturbed {
                let far = far.as_ref().expect("it was connected");
                prop_assert!(far.0.borrow().heard == one.said[0] && one.heard() == one.said[1]);
                prop_assert!(far.0.borrow().finished && one.near.0.borrow().finished);
            }
        }
        prop_assert!(pair.engines.iter().all(|engine| engine.is_drained()));
        let made = pair.worlds[1].made.take();
        prop_assert!(known.iter().all(|one| one.near.is_closed()));
        prop_assert!(made.iter().all(|(_, far)| far.is_closed()));
    }

    #[test]
    fn fuzz_no_order_of_a_hostile_peer_s_messages_confuses_an_end(
        side in prop::sample::select(vec![Side::Client, Side::Server]),
        messages in prop::collection::vec(
            (0_u8..11, 0_u64..10, 0_u64..200_000, 0_usize..300, any::<bool>()), 0..120,
        ),
    ) {
        let (world, mut end) = engine(side, &["allow 192.0.2.0/24"]);
        let place = Place { listen: ([127, 0, 0, 1], 1).into(), kind: crate::Kind::Socks };
        end.listen(&place).unwrap();
        let [line, peer] = Line::pair();
        end.attach_session(line).unwrap();
        let mut records = 0;
        for (kind, stream, number, length, turn) in messages {
            let bytes = vec![7; length];
            let offer = crate::destination::Offer::Forward {
                destination: destination(number as u16),
                origin: "peer".to_owned(),
            };
            let target = if length.is_multiple_of(5) { bytes.clone() } else { offer.encode() };
            let mut message = Vec::new();
            match kind {
                0 | 1 => Message::Open { stream, window: number, target: &target }.put(&mut message),
                2 => Message::Opened { stream, window: number }.put(&mut message),
                3 => Message::Refused { stream, code: number, reason: &bytes }.put(&mut message),
                4 => Message::Data { stream, offset: number % 1000, bytes: &bytes }.put(&mut message),
                5 => Message::End { stream, length: number % 1000 }.put(&mut message),
                6 => Message::Window { stream, limit: number }.put(&mut message),
                7 => Message::Reset { stream, code: number }.put(&mut message),
                8 if length < 20 => Message::Drain.put(&mut message),
                // A program of this side asks for something.
                8 | 9 => {
                    let program = Program::new(true);
                    program.change(|ends| ends.says.extend(socks_request(number as u16)));
                    world.arriving.borrow_mut().push_back((program, crate::Kind::Socks));
                }
                _ => message = bytes,
            }
            if !message.is_empty() {
                peer.out.borrow_mut().messages.push_back(message);
            }
            if turn {
                end.clear_wakers();
                let lost = end.turn(Phase::Running, Some(Duration::ZERO));
                prop_assert_eq!(lost.is_some(), !end.has_session());
                records += end.notices().len();
                check(&end, records);
                let offered = end.tunnels.values().filter(|tunnel| tunnel.ingress == Ingress::Offered);
                prop_assert!(offered.count() <= 8, "as many as its memory has windows for");
                if lost.is_some() {
                    prop_assert!(end.by_stream.is_empty());
                    break;
                }
            }
        }
        end.finish("over");
        records += end.notices().len();
        check(&end, records);
        prop_assert!(end.tunnels.is_empty() && end.splices.is_empty());
    }
}
