//! The event queue of a path and its flows, in virtual time.
//!
//! Arrives: the two directions of a path, flows, a seed. Leaves: the flows at a later time. Must not know: any kind
//! of flow.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::link::{Link, LinkSpec};

/// An end of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum End {
    /// The source of the data.
    Sender,
    /// Its destination.
    Receiver,
}

/// The contents of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// A datagram of the wide-area protocol.
    Datagram(Vec<u8>),
    /// A packet of a TCP-like flow: the number of the transmission.
    Segment(u64),
    /// Its acknowledgement, and whether the segment had an ECN mark.
    Ack(u64, bool),
}

/// A packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Its size with all headers.
    pub bytes: usize,
    /// Its contents.
    pub body: Body,
    /// Whether it has an ECN mark.
    pub marked: bool,
}

/// A flow: two ends that exchange packets over the path.
pub trait Flow {
    /// A packet arrives at one end.
    fn on_packet(&mut self, now_ns: u64, end: End, packet: Packet);

    /// Appends the packets that the ends send now.
    fn poll(&mut self, now_ns: u64, out: &mut Vec<(End, Packet)>);

    /// When to poll next, unless a packet arrives before; None for never.
    fn wake_ns(&self) -> Option<u64>;

    /// Bytes of payload at the receiver, each counted once.
    fn delivered_bytes(&self) -> u64;
}

#[derive(Debug, PartialEq, Eq)]
enum EventKind {
    Wake,
    Arrive(End, Packet),
}

#[derive(Debug, PartialEq, Eq)]
struct Event {
    at_ns: u64,
    order: u64,
    flow: usize,
    kind: EventKind,
}

impl Ord for Event {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at_ns, self.order).cmp(&(other.at_ns, other.order))
    }
}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// A path and its flows.
pub struct Simulation<F> {
    /// From senders to receivers.
    pub forward: Link,
    /// Back.
    pub backward: Link,
    flows: Vec<F>,
    wakes: Vec<u64>,
    events: BinaryHeap<Reverse<Event>>,
    order: u64,
    now_ns: u64,
    out: Vec<(End, Packet)>,
}

impl<F: Flow> Simulation<F> {
    /// An idle path.
    #[must_use]
    pub fn new(forward: LinkSpec, backward: LinkSpec, seed: u64) -> Self {
        Self {
            forward: Link::new(forward, seed),
            backward: Link::new(backward, seed ^ 0x5555),
            flows: Vec::new(),
            wakes: Vec::new(),
            events: BinaryHeap::new(),
            order: 0,
            now_ns: 0,
            out: Vec::new(),
        }
    }

    /// Adds a flow that begins at this time; returns its index.
    pub fn add(&mut self, begins_ns: u64, flow: F) -> usize {
        let index = self.flows.len();
        self.flows.push(flow);
        self.wakes.push(u64::MAX);
        self.wake(index, begins_ns);
        index
    }

    /// The flows, in the order of [`Self::add`].
    #[must_use]
    pub fn flows(&self) -> &[F] {
        &self.flows
    }

    /// Changes a flow, and polls it.
    pub fn change(&mut self, index: usize, change: impl FnOnce(&mut F, u64)) {
        change(&mut self.flows[index], self.now_ns);
        self.poll(index);
    }

    /// The current time.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Advances the time to `end_ns`.
    pub fn run_until(&mut self, end_ns: u64) {
        while let Some(Reverse(next)) = self.events.peek() {
            if next.at_ns > end_ns {
                break;
            }
            let Some(Reverse(next)) = self.events.pop() else { break };
            self.now_ns = next.at_ns;
            match next.kind {
                EventKind::Wake if self.wakes[next.flow] != next.at_ns => continue,
                EventKind::Wake => self.wakes[next.flow] = u64::MAX,
                EventKind::Arrive(end, packet) => {
                    self.flows[next.flow].on_packet(next.at_ns, end, packet)
                }
            }
            self.poll(next.flow);
        }
        self.now_ns = end_ns;
    }

    fn poll(&mut self, index: usize) {
        let mut out = std::mem::take(&mut self.out);
        self.flows[index].poll(self.now_ns, &mut out);
        for (from, packet) in out.drain(..) {
            self.cross(index, from, packet);
        }
        self.out = out;
        if let Some(at_ns) = self.flows[index].wake_ns() {
            self.wake(index, at_ns.max(self.now_ns + 1));
        }
    }

    fn cross(&mut self, flow: usize, from: End, packet: Packet) {
        let (link, to) = match from {
            End::Sender => (&mut self.forward, End::Receiver),
            End::Receiver => (&mut self.backward, End::Sender),
        };
        let [first, again] = link.send(self.now_ns, packet.bytes);
        let order = self.order;
        self.order += 2;
        let mut arrive = |arrival: crate::link::Arrival, mut packet: Packet, order: u64| {
            packet.marked = arrival.marked;
            if let (true, Body::Datagram(bytes)) = (arrival.corrupt, &mut packet.body) {
                let at = (order % bytes.len() as u64) as usize;
                bytes[at] ^= 1 << (order % 7);
            }
            let kind = EventKind::Arrive(to, packet);
            self.events.push(Reverse(Event { at_ns: arrival.at_ns, order, flow, kind }));
        };
        if let Some(again) = again {
            arrive(again, packet.clone(), order + 1);
        }
        if let Some(first) = first {
            arrive(first, packet, order);
        }
    }

    fn wake(&mut self, flow: usize, at_ns: u64) {
        if at_ns >= self.wakes[flow] {
            return;
        }
        self.wakes[flow] = at_ns;
        let order = self.order;
        self.order += 1;
        self.events.push(Reverse(Event { at_ns, order, flow, kind: EventKind::Wake }));
    }
}
