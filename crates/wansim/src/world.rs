//! Flows over one path, in virtual time.
//!
//! Arrives: the path's two directions, flows. Leaves: the flows, further on in time. Must not know: what a flow is made of.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::link::{Link, LinkSpec};

/// Which end of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum End {
    /// Where the data comes from.
    Sender,
    /// Where it goes.
    Receiver,
}

/// What crosses a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// A datagram of the wide-area protocol.
    Datagram(Vec<u8>),
    /// A packet of a TCP-like flow, or its acknowledgement: the number of the transmission.
    Segment(u64),
}

/// A packet and how large it is with all headers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Bytes of the IP packet.
    pub bytes: usize,
    /// What is in it.
    pub body: Body,
    /// Marked for congestion on the way.
    pub marked: bool,
}

/// Two ends that talk across the path.
pub trait Flow {
    /// A packet has come to one end.
    fn arrived(&mut self, now_ns: u64, end: End, packet: Packet);

    /// The packets that the ends send now.
    fn poll(&mut self, now_ns: u64, out: &mut Vec<(End, Packet)>);

    /// When to poll next, if nothing arrives before; None for never.
    fn wake_ns(&self) -> Option<u64>;

    /// Bytes of payload that the receiver has, each counted once.
    fn delivered_bytes(&self) -> u64;
}

#[derive(Debug, PartialEq, Eq)]
enum What {
    Wake,
    Arrive(End, Packet),
}

#[derive(Debug, PartialEq, Eq)]
struct Happening {
    at_ns: u64,
    order: u64,
    flow: usize,
    what: What,
}

impl Ord for Happening {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at_ns, self.order).cmp(&(other.at_ns, other.order))
    }
}

impl PartialOrd for Happening {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// A path and its flows.
pub struct World<F> {
    /// From senders to receivers.
    pub forward: Link,
    /// Back.
    pub backward: Link,
    flows: Vec<F>,
    wakes: Vec<u64>,
    happenings: BinaryHeap<Reverse<Happening>>,
    order: u64,
    now_ns: u64,
    out: Vec<(End, Packet)>,
}

impl<F: Flow> World<F> {
    /// An idle path.
    #[must_use]
    pub fn new(forward: LinkSpec, backward: LinkSpec, seed: u64) -> Self {
        Self {
            forward: Link::new(forward, seed),
            backward: Link::new(backward, seed ^ 0x5555),
            flows: Vec::new(),
            wakes: Vec::new(),
            happenings: BinaryHeap::new(),
            order: 0,
            now_ns: 0,
            out: Vec::new(),
        }
    }

    /// Adds a flow that begins at this time.
    pub fn add(&mut self, begins_ns: u64, flow: F) -> usize {
        let index = self.flows.len();
        self.flows.push(flow);
        self.wakes.push(u64::MAX);
        self.wake(index, begins_ns);
        index
    }

    /// The flows, in the order they were added.
    #[must_use]
    pub fn flows(&self) -> &[F] {
        &self.flows
    }

    /// One of them, to be told something; it is polled at once.
    pub fn tell(&mut self, index: usize, what: impl FnOnce(&mut F, u64)) {
        what(&mut self.flows[index], self.now_ns);
        self.poll(index);
    }

    /// Now.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Lets time pass until `end_ns`.
    pub fn run_until(&mut self, end_ns: u64) {
        while let Some(Reverse(next)) = self.happenings.peek() {
            if next.at_ns > end_ns {
                break;
            }
            let Some(Reverse(next)) = self.happenings.pop() else { break };
            self.now_ns = next.at_ns;
            match next.what {
                What::Wake if self.wakes[next.flow] != next.at_ns => continue,
                What::Wake => self.wakes[next.flow] = u64::MAX,
                What::Arrive(end, packet) => self.flows[next.flow].arrived(next.at_ns, end, packet),
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
            let what = What::Arrive(to, packet);
            self.happenings.push(Reverse(Happening { at_ns: arrival.at_ns, order, flow, what }));
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
        self.happenings.push(Reverse(Happening { at_ns, order, flow, what: What::Wake }));
    }
}
