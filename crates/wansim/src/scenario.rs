//! Flows on a path, and their rates.
//!
//! Arrives: a path, flows and when they begin. Leaves: rates over time. Must not know: how they are shown.

use waystage_protocol::congestion::coupled::Group;
use waystage_protocol::congestion::Mode;
use waystage_protocol::connection::Counters;

use crate::bulk::{Bulk, BulkSpec};
use crate::link::{HostDelays, LinkSpec};
use crate::simulation::{End, Flow, Packet, Simulation};
use crate::tcp::{Control, Tcp};

/// Between two changes of a path.
const CHANGES_NS: u64 = 10_000_000;

/// Seconds as nanoseconds.
#[must_use]
pub fn seconds(s: f64) -> u64 {
    (s * 1e9) as u64
}

/// A path between two sites: the same delay in both directions, and enough capacity on the return path.
#[derive(Clone, Copy, Debug)]
pub struct PathSpec {
    /// The direction of the data.
    pub forward: LinkSpec,
    /// The return path.
    pub backward: LinkSpec,
}

impl PathSpec {
    /// A path without loss, whose buffer has `buffer_bdp` bandwidth-delay products.
    #[must_use]
    pub fn new(rate_bps: f64, rtt_ns: u64, buffer_bdp: f64) -> Self {
        let bdp_bytes = rate_bps * rtt_ns as f64 / 8e9;
        let buffer = (bdp_bytes * buffer_bdp) as u64;
        Self {
            forward: LinkSpec::new(rate_bps, rtt_ns / 2, buffer.max(3000)),
            backward: LinkSpec::new(rate_bps, rtt_ns - rtt_ns / 2, bdp_bytes as u64 + 100_000),
        }
    }

    /// The same path with jitter on the return path, of up to two packets' time of the forward path. Without it one
    /// flow's packets always meet a full buffer and another's never do, depending on how the path's numbers divide
    /// (Floyd, Jacobson: "On Traffic Phase Effects in Packet-Switched Gateways", Internetworking 3(3), 1992).
    #[must_use]
    pub fn without_phase(mut self) -> Self {
        self.backward.jitter_ns = (2.0 * 1500.0 * 8e9 / self.forward.rate_bps) as u64;
        self
    }

    /// The same path between hosts that are both busy now and then.
    #[must_use]
    pub fn between(mut self, hosts: HostDelays) -> Self {
        (self.forward.host, self.backward.host) = (hosts, hosts);
        self
    }

    /// The round trip of the empty path.
    #[must_use]
    pub fn rtt_ns(&self) -> u64 {
        self.forward.delay_ns + self.backward.delay_ns
    }
}

/// A flow of either kind.
pub enum AnyFlow {
    /// The wide-area protocol.
    Bulk(Box<Bulk>),
    /// A competitor.
    Tcp(Box<Tcp>),
}

impl Flow for AnyFlow {
    fn on_packet(&mut self, now_ns: u64, end: End, packet: Packet) {
        match self {
            Self::Bulk(flow) => flow.on_packet(now_ns, end, packet),
            Self::Tcp(flow) => flow.on_packet(now_ns, end, packet),
        }
    }

    fn poll(&mut self, now_ns: u64, out: &mut Vec<(End, Packet)>) {
        match self {
            Self::Bulk(flow) => flow.poll(now_ns, out),
            Self::Tcp(flow) => flow.poll(now_ns, out),
        }
    }

    fn wake_ns(&self) -> Option<u64> {
        match self {
            Self::Bulk(flow) => flow.wake_ns(),
            Self::Tcp(flow) => flow.wake_ns(),
        }
    }

    fn delivered_bytes(&self) -> u64 {
        match self {
            Self::Bulk(flow) => flow.delivered_bytes(),
            Self::Tcp(flow) => flow.delivered_bytes(),
        }
    }
}

/// The kind of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The protocol in a mode.
    Ours(Mode),
    /// One of the coupled connections of a copy. All of these in a run belong to the same copy.
    OneOf(Mode),
    /// A CUBIC flow.
    Cubic,
    /// A CUBIC flow with ECN.
    CubicWithEcn,
    /// A CUBIC flow that ends at this time in nanoseconds.
    CubicUntil(u64),
    /// A BBR flow.
    Bbr,
}

/// A flow of a scenario.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Its kind.
    pub kind: Kind,
    /// When it begins.
    pub begins_ns: u64,
}

impl Entry {
    /// A flow that begins at once.
    #[must_use]
    pub fn now(kind: Kind) -> Self {
        Self { kind, begins_ns: 0 }
    }
}

/// The result of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// For each flow, payload in bits a second over the measured interval.
    pub bps: Vec<f64>,
    /// For each flow, payload in bits a second in each step from the start.
    pub steps: Vec<Vec<f64>>,
    /// The length of a step.
    pub step_ns: u64,
    /// The counters of the sender of each protocol flow; zeros for others.
    pub sender: Vec<Counters>,
    /// The same of the receiver.
    pub receiver: Vec<Counters>,
    /// The phase of each protocol flow at each step.
    pub phases: Vec<Vec<&'static str>>,
    /// Bytes in the buffer at each step.
    pub queued_bytes: Vec<u64>,
}

/// Changes a path, given the time; called every 10 ms.
pub type Change = fn(u64, &mut PathSpec);

/// Runs flows on a path, and measures from `from_ns` to `until_ns`.
#[must_use]
pub fn run(path: PathSpec, entries: &[Entry], from_ns: u64, until_ns: u64, seed: u64) -> Outcome {
    run_changing(path, |_, _| {}, entries, (from_ns, until_ns), seed)
}

/// The same on a path that changes.
#[must_use]
pub fn run_changing(
    path: PathSpec,
    change: Change,
    entries: &[Entry],
    (from_ns, until_ns): (u64, u64),
    seed: u64,
) -> Outcome {
    let mut simulation = Simulation::new(path.forward, path.backward, seed);
    let copy = Group::default();
    // A damaged packet must be recognised as such.
    let verify = path.forward.corrupt > 0.0;
    for entry in entries {
        let tcp =
            |ends_ns, control| AnyFlow::Tcp(Box::new(Tcp::new(entry.begins_ns, ends_ns, control)));
        let flow = match entry.kind {
            Kind::Ours(mode) => {
                let spec = BulkSpec { verify, ..BulkSpec::endless(mode, path.rtt_ns()) };
                AnyFlow::Bulk(Box::new(Bulk::new(entry.begins_ns, &spec)))
            }
            Kind::OneOf(mode) => {
                let spec = BulkSpec {
                    group: Some(copy.clone()),
                    ..BulkSpec::endless(mode, path.rtt_ns())
                };
                AnyFlow::Bulk(Box::new(Bulk::new(entry.begins_ns, &spec)))
            }
            Kind::Cubic => tcp(u64::MAX, Control::cubic()),
            Kind::CubicWithEcn => {
                let flow = Tcp::new(entry.begins_ns, u64::MAX, Control::cubic()).heeding_marks();
                AnyFlow::Tcp(Box::new(flow))
            }
            Kind::CubicUntil(ends_ns) => tcp(ends_ns, Control::cubic()),
            Kind::Bbr => tcp(u64::MAX, Control::bbr()),
        };
        simulation.add(entry.begins_ns, flow);
    }
    let step_ns = (until_ns / 200).max(10_000_000);
    let count = entries.len();
    let mut outcome = Outcome {
        bps: vec![0.0; count],
        steps: vec![Vec::new(); count],
        step_ns,
        sender: Vec::new(),
        receiver: Vec::new(),
        phases: vec![Vec::new(); count],
        queued_bytes: Vec::new(),
    };
    let (mut before, mut at_from) = (vec![0; count], vec![0; count]);
    let mut measured_from_ns = 0;
    while simulation.now_ns() < until_ns {
        if simulation.now_ns() <= from_ns {
            measured_from_ns = simulation.now_ns();
            at_from.copy_from_slice(&before);
        }
        let step_ends_ns = simulation.now_ns() + step_ns;
        while simulation.now_ns() < step_ends_ns {
            let mut now = path;
            change(simulation.now_ns(), &mut now);
            (simulation.forward.spec, simulation.backward.spec) = (now.forward, now.backward);
            simulation.run_until(step_ends_ns.min(simulation.now_ns() + CHANGES_NS));
        }
        outcome.queued_bytes.push(simulation.forward.queued_bytes(simulation.now_ns()));
        for (index, flow) in simulation.flows().iter().enumerate() {
            let delivered = flow.delivered_bytes();
            let bits = 8.0 * (delivered - before[index]) as f64;
            outcome.steps[index].push(bits * 1e9 / step_ns as f64);
            before[index] = delivered;
            if let AnyFlow::Bulk(flow) = flow {
                outcome.phases[index].push(flow.end(End::Sender).controller().phase());
            }
        }
    }
    let measured_ns = (simulation.now_ns() - measured_from_ns) as f64;
    for (index, flow) in simulation.flows().iter().enumerate() {
        outcome.bps[index] = 8e9 * (before[index] - at_from[index]) as f64 / measured_ns;
        let counters = |end| match flow {
            AnyFlow::Bulk(flow) => flow.end(end).counters(),
            AnyFlow::Tcp(_) => Counters::default(),
        };
        outcome.sender.push(counters(End::Sender));
        outcome.receiver.push(counters(End::Receiver));
    }
    outcome
}

/// Jain's fairness index: 1 for equal rates.
#[must_use]
pub fn jain(rates: &[f64]) -> f64 {
    let sum: f64 = rates.iter().sum();
    let squares: f64 = rates.iter().map(|rate| rate * rate).sum();
    sum * sum / (rates.len() as f64 * squares)
}

/// When a flow first reached a rate in two consecutive steps.
#[must_use]
pub fn reached_ns(outcome: &Outcome, flow: usize, bps: f64) -> Option<u64> {
    let steps = &outcome.steps[flow];
    let at = steps.windows(2).position(|pair| pair.iter().all(|&rate| rate >= bps))?;
    Some((at as u64 + 1) * outcome.step_ns)
}
