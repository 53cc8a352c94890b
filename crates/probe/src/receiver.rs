//! Receives a probe's packets: counts the train in flight, answers echoes, keeps the answers to its own.
//!
//! Arrives: datagrams. Leaves: counts, round trips. Must not know: why anything is measured.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use waystage_transport::clock::now_ns;

use crate::counting::{Count, Counting};
use crate::packet::{Kind, Mark, Opened, Packet, HEADER_BYTES};
use crate::probe_socket::ProbeSocket;

/// Round trips kept until they are taken.
const MOST_ECHOES: usize = 1 << 20;

/// One packet there and back (RFC 5357). Delays in one direction are of two clocks: see [`super::Delays`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Echo {
    /// Its number.
    pub number: u32,
    /// When it was sent, by this end's clock.
    pub sent_ns: u64,
    /// There and back, without the time that the peer had it.
    pub round_trip_ns: u64,
    /// From here to the peer.
    pub there_ns: i64,
    /// And back.
    pub back_ns: i64,
}

/// A thread that listens. Dropped, it ends.
pub(crate) struct Receiver {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    socket: Arc<ProbeSocket>,
    /// Of packets that come, and of those sent.
    marks: [Mark; 2],
    state: Mutex<State>,
    stop: AtomicBool,
    /// Interrupts the thread that waits for packets.
    notify: Box<dyn Fn() + Send + Sync>,
}

/// What a thread waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Awaited {
    /// Any packet of the session.
    Packet,
    /// This number of a train's packets.
    Train(u64),
    /// An answer that was not taken yet.
    Answer,
}

/// What was received, without sockets and clocks.
#[derive(Default)]
struct State {
    counting: Option<Counting>,
    /// What the kernel had dropped when the train began.
    dropped_before: u64,
    /// When the last packet of the train came, by [`now_ns`].
    heard_ns: Option<u64>,
    echoes: Vec<Echo>,
    /// Packets of this session that came undamaged.
    whole: u64,
    awaited: Option<Awaited>,
}

impl State {
    /// A damaged packet came.
    fn damaged(&mut self, heard_ns: u64) {
        self.heard_ns = Some(heard_ns);
        if let Some(counting) = &mut self.counting {
            counting.damaged();
        }
    }

    /// A packet came. The answer to send, if it is an echo.
    fn packet(&mut self, packet: Packet, heard_ns: u64) -> Option<Packet> {
        self.whole += 1;
        match packet.kind {
            Kind::Train => {
                if self.counting.as_mut().is_some_and(|counting| {
                    counting.came(packet.train, packet.number, packet.sent_ns, heard_ns)
                }) {
                    self.heard_ns = Some(heard_ns);
                }
            }
            Kind::Answer => {
                let held = packet.sent_ns.saturating_sub(packet.heard_ns);
                let passed = heard_ns.saturating_sub(packet.asked_ns);
                if self.echoes.len() < MOST_ECHOES {
                    self.echoes.push(Echo {
                        number: packet.number,
                        sent_ns: packet.asked_ns,
                        round_trip_ns: passed.saturating_sub(held),
                        there_ns: packet.heard_ns.wrapping_sub(packet.asked_ns).cast_signed(),
                        back_ns: heard_ns.wrapping_sub(packet.sent_ns).cast_signed(),
                    });
                }
            }
            Kind::Echo => {
                return Some(Packet {
                    kind: Kind::Answer,
                    asked_ns: packet.sent_ns,
                    heard_ns,
                    ..packet
                })
            }
            Kind::Call => {}
        }
        None
    }

    fn has(&self, awaited: Awaited) -> bool {
        match awaited {
            Awaited::Packet => self.whole > 0,
            Awaited::Train(sent) => self.counting.as_ref().is_none_or(|c| c.arrived() >= sent),
            Awaited::Answer => !self.echoes.is_empty(),
        }
    }

    /// Whether what was awaited has just come.
    fn is_due(&mut self) -> bool {
        let due = self.awaited.is_some_and(|awaited| self.has(awaited));
        if due {
            self.awaited = None;
        }
        due
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn came(&self, datagram: &[u8], heard_ns: u64, answer: &mut Vec<u8>) {
        let mut state = self.lock();
        let reply = match self.marks[0].read(datagram) {
            Opened::Whole(packet) => state.packet(packet, heard_ns),
            Opened::Damaged => {
                state.damaged(heard_ns);
                return;
            }
            Opened::Strange => return,
        };
        let due = state.is_due();
        drop(state);
        if due {
            (self.notify)();
        }
        if let Some(reply) = reply {
            // As large as the question: an answer amplifies nothing.
            answer.clear();
            let reply = Packet { sent_ns: now_ns(), ..reply };
            self.marks[1].write(&reply, &datagram[HEADER_BYTES..], answer);
            self.socket.send(answer);
        }
    }
}

impl Receiver {
    /// Listen for packets with the first mark, and answer with the second.
    pub(crate) fn start(
        socket: Arc<ProbeSocket>,
        marks: [Mark; 2],
        notify: impl Fn() + Send + Sync + 'static,
    ) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            socket,
            marks,
            state: Mutex::default(),
            stop: AtomicBool::new(false),
            notify: Box::new(notify),
        });
        let listening = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("wan-probe".to_owned()).spawn(move || {
            let mut answer = Vec::new();
            while !listening.stop.load(Ordering::Relaxed) {
                listening.socket.receive(|bytes, stride, heard_ns| {
                    for datagram in bytes.chunks(stride) {
                        listening.came(datagram, heard_ns, &mut answer);
                    }
                });
            }
        })?;
        Ok(Self { shared, thread: Mutex::new(Some(thread)) })
    }

    pub(crate) fn socket(&self) -> &Arc<ProbeSocket> {
        &self.shared.socket
    }

    /// The mark of what is sent.
    pub(crate) fn mark(&self) -> Mark {
        self.shared.marks[1]
    }

    /// Packets of this session that have come whole.
    pub(crate) fn whole(&self) -> u64 {
        self.shared.lock().whole
    }

    /// From now on, count this train.
    pub(crate) fn arm(&self, train: u32, packets: u32) {
        let dropped_before = self.shared.socket.dropped();
        let mut state = self.shared.lock();
        state.counting = Some(Counting::new(train, packets));
        state.dropped_before = dropped_before;
        state.heard_ns = None;
    }

    /// Whether it has come already; if not, `notify` is called once it has.
    pub(crate) fn expect(&self, awaited: Awaited) -> bool {
        let mut state = self.shared.lock();
        state.awaited = Some(awaited);
        state.is_due()
    }

    /// What has come of the train, once all `sent` packets have, or for `quiet` none; or where `stopped` says so.
    /// `wait` waits for a call of `notify`, at most for a time.
    pub(crate) fn count(
        &self,
        sent: u64,
        quiet: Duration,
        stopped: &dyn Fn() -> bool,
        wait: &dyn Fn(Duration),
    ) -> Count {
        let began = now_ns();
        loop {
            let all = self.expect(Awaited::Train(sent));
            let mut state = self.shared.lock();
            let since = now_ns().saturating_sub(state.heard_ns.unwrap_or(began).max(began));
            let left = quiet.saturating_sub(Duration::from_nanos(since));
            if all || left.is_zero() || stopped() {
                state.awaited = None;
                let dropped = self.shared.socket.dropped().saturating_sub(state.dropped_before);
                return state.counting.take().map_or_else(Count::default, |c| c.finish(dropped));
            }
            drop(state);
            wait(left);
        }
    }

    /// The answers that have come since they were last taken.
    pub(crate) fn echoes(&self) -> Vec<Echo> {
        std::mem::take(&mut self.shared.lock().echoes)
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.shared.socket.wake();
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
            // A panic was printed on stderr already.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(kind: Kind, number: u32) -> Packet {
        Packet { kind, train: 7, number, sent_ns: 1000, asked_ns: 100, heard_ns: 900 }
    }

    fn counting(packets: u32) -> State {
        State { counting: Some(Counting::new(7, packets)), ..State::default() }
    }

    #[test]
    fn a_train_is_due_with_its_last_packet_and_not_before() {
        let mut state = counting(3);
        state.awaited = Some(Awaited::Train(3));
        for number in 0..2 {
            assert!(state.packet(packet(Kind::Train, number), 5000).is_none());
            assert!(!state.is_due());
        }
        state.packet(Packet { train: 8, ..packet(Kind::Train, 2) }, 5500);
        assert!(!state.is_due(), "a packet of another train");
        assert_eq!(state.heard_ns, Some(5000));
        state.packet(packet(Kind::Train, 2), 6000);
        assert!(state.is_due() && !state.is_due(), "once");
    }

    #[test]
    fn an_answer_gives_the_round_trip_without_the_time_that_the_peer_had_it() {
        let mut state = State { awaited: Some(Awaited::Answer), ..State::default() };
        assert!(state.packet(packet(Kind::Answer, 4), 1300).is_none());
        assert!(state.is_due());
        let expected =
            Echo { number: 4, sent_ns: 100, round_trip_ns: 1100, there_ns: 800, back_ns: 300 };
        assert_eq!(state.echoes, [expected]);
    }

    #[test]
    fn an_echo_is_answered_with_the_times_of_the_question() {
        let mut state = State { awaited: Some(Awaited::Packet), ..State::default() };
        let answer = state.packet(packet(Kind::Echo, 5), 4000).unwrap();
        assert_eq!((answer.kind, answer.number), (Kind::Answer, 5));
        assert_eq!((answer.asked_ns, answer.heard_ns), (1000, 4000));
        assert!(state.is_due(), "any packet shows that the path is open");
    }

    #[test]
    fn a_damaged_packet_keeps_the_wait_for_a_train_alive_and_is_counted() {
        let mut state = counting(2);
        state.damaged(9000);
        assert_eq!(state.heard_ns, Some(9000));
        assert_eq!(state.counting.take().unwrap().finish(0).damaged, 1);
    }
}
