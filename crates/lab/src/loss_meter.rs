//! Probes: a UDP stream for each pair of hosts and class, counted exactly.
//!
//! One thread sends every stream and one receives them all, so that an emulated cluster on two cores
//! keeps its CPU time for the switches. The sockets live in the hosts' network namespaces.

use std::io;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use socket2::Socket;

use crate::receiver::{overflowed, receive_all, Harvest, Intake};
use crate::sender::{send_all, Outlet, Pace, Sent};
use crate::sockets::{check, open_inlets, open_outlets};
use crate::wire::Kind;
use crate::{LatencyHistogram, LossMeterError, LossRun};

/// The largest payload: a packet stays below an MTU of 1,500 on every path.
pub const MAX_PAYLOAD_BYTES: usize = 1400;

/// The fastest a stream may be: one packet a microsecond is more than one core sends.
pub const MAX_RATE_PPS: u32 = 1_000_000;

/// How many runs of losses a report lists for each stream.
const LOSS_RUNS: usize = 16;

/// One stream of probes from a source host to a target host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stream {
    /// The source's namespace in `/run/netns`; `None` for the caller's own.
    pub source_namespace: Option<String>,
    /// The address to send from.
    pub source: Ipv4Addr,
    /// The target's namespace in `/run/netns`; `None` for the caller's own.
    pub target_namespace: Option<String>,
    /// The address to send to.
    pub target: Ipv4Addr,
    /// The target's UDP port.
    pub port: u16,
    /// The code point that marks the traffic's class, 0 to 63.
    pub dscp: u8,
    /// Packets a second.
    pub rate_pps: u32,
}

/// What became of one stream.
#[derive(Clone, Debug)]
pub struct StreamReport {
    /// Packets that the system took.
    pub sent: u64,
    /// Packets that the sending system did not take; they are in none of the other counts.
    pub refused: u64,
    /// Packets not tried because the sending thread did not get the CPU in time.
    pub skipped: u64,
    /// Different packets that arrived.
    pub received: u64,
    /// Packets that never arrived.
    pub lost: u64,
    /// Arrivals of a packet that had arrived before.
    pub duplicated: u64,
    /// Packets that arrived after a later one.
    pub reordered: u64,
    /// The first runs of consecutive losses.
    pub loss_runs: Vec<LossRun>,
    /// One-way latencies, from before the sending call to after the receiving one.
    pub latency: LatencyHistogram,
}

/// What became of all streams.
#[derive(Clone, Debug)]
pub struct Report {
    /// For each stream, in the order given.
    pub streams: Vec<StreamReport>,
    /// How long was sent.
    pub sending: Duration,
    /// Packets lost in receive buffers of this machine, not in the network.
    pub overflowed: u64,
    /// Packets that were no probe of this run.
    pub foreign: u64,
}

/// A set of streams with open sockets.
pub struct LossMeter {
    streams: Vec<Stream>,
    outlets: Arc<Vec<Outlet>>,
    inlets: Arc<Vec<Socket>>,
    payload_bytes: usize,
    epoch: Instant,
    run: u32,
    running: Option<Running>,
}

struct Running {
    shared: Arc<Shared>,
    started: Instant,
    overflowed_before: u64,
    sender: JoinHandle<Vec<Sent>>,
    receiver: JoinHandle<io::Result<Harvest>>,
}

struct Shared {
    stop_sending: AtomicBool,
    stop_receiving: AtomicBool,
    sent: AtomicU64,
    received: AtomicU64,
    reached: Vec<AtomicBool>,
}

impl LossMeter {
    /// Open every socket, each in its namespace. Nothing is sent yet.
    pub fn open(streams: Vec<Stream>, payload_bytes: usize) -> Result<Self, LossMeterError> {
        if streams.is_empty() {
            return Err(LossMeterError::State("there is no stream to probe: give at least one"));
        }
        for (index, stream) in streams.iter().enumerate() {
            check(stream, payload_bytes)
                .map_err(|reason| LossMeterError::Stream { index, reason })?;
        }
        Ok(Self {
            outlets: Arc::new(open_outlets(&streams)?),
            inlets: Arc::new(open_inlets(&streams)?),
            streams,
            payload_bytes,
            epoch: Instant::now(),
            run: first_run(),
            running: None,
        })
    }

    /// Send uncounted packets until every stream has been received, which also resolves addresses.
    ///
    /// Returns the streams of which nothing arrived within `timeout`.
    pub fn warm_up(&mut self, timeout: Duration) -> Result<Vec<usize>, LossMeterError> {
        self.begin(Kind::WarmUp)?;
        let deadline = Instant::now() + timeout;
        let unreached = loop {
            let unreached = self.unreached();
            if unreached.is_empty() || Instant::now() >= deadline {
                break unreached;
            }
            thread::sleep(Duration::from_millis(5));
        };
        self.stop(Duration::ZERO)?;
        Ok(unreached)
    }

    /// Begin to send and count.
    pub fn start(&mut self) -> Result<(), LossMeterError> {
        self.begin(Kind::Counted)
    }

    /// Packets sent and received since the start, over all streams: never more received than sent.
    pub fn totals(&self) -> (u64, u64) {
        self.running.as_ref().map_or((0, 0), |running| {
            let received = running.shared.received.load(Ordering::Acquire);
            (running.shared.sent.load(Ordering::Acquire), received)
        })
    }

    /// Stop sending, wait at most `drain` for what is under way, and report.
    pub fn stop(&mut self, drain: Duration) -> Result<Report, LossMeterError> {
        let running = self
            .running
            .take()
            .ok_or(LossMeterError::State("the probes are not running: start them"))?;
        running.shared.stop_sending.store(true, Ordering::Relaxed);
        let sent = running.sender.join();
        let sending = running.started.elapsed();
        let deadline = Instant::now() + drain;
        while Instant::now() < deadline
            && running.shared.received.load(Ordering::Relaxed)
                < running.shared.sent.load(Ordering::Relaxed)
        {
            thread::sleep(Duration::from_millis(1));
        }
        running.shared.stop_receiving.store(true, Ordering::Relaxed);
        let harvest = running.receiver.join();
        let sent = sent.map_err(|_| LossMeterError::State("the sending thread panicked"))?;
        let harvest = harvest
            .map_err(|_| LossMeterError::State("the receiving thread panicked"))?
            .map_err(|source| LossMeterError::Socket { what: "receiving probes".into(), source })?;
        let overflowed = self.overflowed()?.saturating_sub(running.overflowed_before);
        Ok(report(&sent, harvest, sending, overflowed))
    }

    fn begin(&mut self, kind: Kind) -> Result<(), LossMeterError> {
        if self.running.is_some() {
            return Err(LossMeterError::State("the probes are running already: stop them first"));
        }
        self.run = self.run.wrapping_add(1);
        let shared = Arc::new(Shared {
            stop_sending: AtomicBool::new(false),
            stop_receiving: AtomicBool::new(false),
            sent: AtomicU64::new(0),
            received: AtomicU64::new(0),
            reached: self.streams.iter().map(|_| AtomicBool::new(false)).collect(),
        });
        let overflowed_before = self.overflowed()?;
        let receiver = self.spawn_receiver(&shared)?;
        let sender = match self.spawn_sender(&shared, kind) {
            Ok(sender) => sender,
            Err(error) => {
                shared.stop_receiving.store(true, Ordering::Relaxed);
                return Err(error);
            }
        };
        let started = Instant::now();
        self.running = Some(Running { shared, started, overflowed_before, sender, receiver });
        Ok(())
    }

    fn spawn_receiver(
        &self,
        shared: &Arc<Shared>,
    ) -> Result<JoinHandle<io::Result<Harvest>>, LossMeterError> {
        let (shared, inlets) = (Arc::clone(shared), Arc::clone(&self.inlets));
        let (run, streams, epoch) = (self.run, self.streams.len(), self.epoch);
        spawn("loss-meter-receiver", move || {
            let intake = Intake {
                run,
                streams,
                epoch,
                stop: &shared.stop_receiving,
                total: &shared.received,
                reached: &shared.reached,
            };
            receive_all(&inlets, &intake)
        })
    }

    fn spawn_sender(
        &self,
        shared: &Arc<Shared>,
        kind: Kind,
    ) -> Result<JoinHandle<Vec<Sent>>, LossMeterError> {
        let (shared, outlets) = (Arc::clone(shared), Arc::clone(&self.outlets));
        let (run, payload_bytes, epoch) = (self.run, self.payload_bytes, self.epoch);
        spawn("loss-meter-sender", move || {
            let pace = Pace {
                run,
                kind,
                payload_bytes,
                epoch,
                stop: &shared.stop_sending,
                total: &shared.sent,
            };
            // A warm-up packet waits for its address to be resolved; more of them would only queue.
            send_all(&outlets, &pace, |stream| {
                kind == Kind::Counted || !shared.reached[stream].load(Ordering::Relaxed)
            })
        })
    }

    fn unreached(&self) -> Vec<usize> {
        let Some(running) = &self.running else {
            return Vec::new();
        };
        let reached = running.shared.reached.iter().map(|flag| flag.load(Ordering::Relaxed));
        reached.enumerate().filter(|(_, reached)| !reached).map(|(index, _)| index).collect()
    }

    fn overflowed(&self) -> Result<u64, LossMeterError> {
        self.inlets.iter().map(overflowed).sum::<io::Result<u64>>().map_err(|source| {
            LossMeterError::Socket {
                what: "asking a receiving socket for its drops".into(),
                source,
            }
        })
    }
}

impl Drop for LossMeter {
    fn drop(&mut self) {
        if let Some(running) = self.running.take() {
            running.shared.stop_sending.store(true, Ordering::Relaxed);
            running.shared.stop_receiving.store(true, Ordering::Relaxed);
            // Their results are not wanted any more, and a panic was reported when it happened.
            let _ = (running.sender.join(), running.receiver.join());
        }
    }
}

fn report(sent: &[Sent], harvest: Harvest, sending: Duration, overflowed: u64) -> Report {
    let streams = sent
        .iter()
        .zip(harvest.streams)
        .map(|(sent, arrived)| StreamReport {
            sent: sent.packets,
            refused: sent.refused,
            skipped: sent.skipped,
            received: arrived.sequences.unique(),
            lost: arrived.sequences.lost(sent.packets),
            duplicated: arrived.sequences.duplicated(),
            reordered: arrived.sequences.reordered(),
            loss_runs: arrived.sequences.loss_runs(sent.packets, LOSS_RUNS),
            latency: arrived.latency,
        })
        .collect();
    Report { streams, sending, overflowed, foreign: harvest.foreign }
}

fn spawn<T: Send + 'static>(
    name: &str,
    body: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, LossMeterError> {
    thread::Builder::new().name(name.to_owned()).spawn(body).map_err(|source| {
        LossMeterError::Socket { what: format!("starting thread {name}"), source }
    })
}

/// Different for engines that are open at the same time, in this process or another.
fn first_run() -> u32 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    now.subsec_nanos() ^ (std::process::id() << 16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;

    fn loopback(port: u16, rate_pps: u32) -> Stream {
        Stream {
            source_namespace: None,
            source: Ipv4Addr::LOCALHOST,
            target_namespace: None,
            target: Ipv4Addr::LOCALHOST,
            port,
            dscp: 10,
            rate_pps,
        }
    }

    /// A port that was free a moment ago.
    fn free_port() -> u16 {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.local_addr().unwrap().port()
    }

    fn run_for(meter: &mut LossMeter, time: Duration) -> Report {
        meter.start().unwrap();
        thread::sleep(time);
        meter.stop(Duration::from_secs(5)).unwrap()
    }

    #[test]
    fn every_packet_over_loopback_is_accounted_for() {
        let streams = vec![loopback(free_port(), 1000), loopback(free_port(), 200)];
        let mut meter = LossMeter::open(streams, 64).unwrap();
        assert_eq!(meter.warm_up(Duration::from_secs(5)).unwrap(), Vec::<usize>::new());
        for _ in 0..2 {
            let report = run_for(&mut meter, Duration::from_millis(300));
            assert_eq!(report.foreign, 0);
            for stream in &report.streams {
                assert!(stream.sent > 0, "{stream:?}");
                assert_eq!(stream.received, stream.sent);
                assert_eq!((stream.lost, stream.duplicated, stream.reordered), (0, 0, 0));
                assert_eq!(stream.latency.total(), stream.sent);
            }
            assert!(report.streams[0].sent > report.streams[1].sent);
        }
    }

    #[test]
    fn streams_to_one_port_are_told_apart() {
        let port = free_port();
        let mut meter =
            LossMeter::open(vec![loopback(port, 500), loopback(port, 100)], 64).unwrap();
        let report = run_for(&mut meter, Duration::from_millis(200));
        let sums = report.streams.iter().map(|s| (s.sent, s.received, s.duplicated));
        assert!(sums.into_iter().all(|(sent, received, again)| sent == received && again == 0));
    }

    #[test]
    fn a_stream_that_goes_nowhere_is_unreached_and_lost() {
        // 192.0.2.0/24 is for documentation (RFC 5737): nothing listens there.
        let taken = free_port();
        let streams = vec![loopback(taken, 100), loopback(free_port(), 100)];
        let mut meter = LossMeter::open(streams, 64).unwrap();
        // Take the second target away behind the engine's back.
        let index = meter
            .inlets
            .iter()
            .position(|s| s.local_addr().unwrap().as_socket_ipv4().unwrap().port() != taken)
            .unwrap();
        let mut inlets: Vec<Socket> = meter.inlets.iter().map(|s| s.try_clone().unwrap()).collect();
        inlets.remove(index);
        meter.inlets = Arc::new(inlets);
        assert_eq!(meter.warm_up(Duration::from_millis(200)).unwrap(), vec![1]);
        meter.start().unwrap();
        thread::sleep(Duration::from_millis(100));
        let report = meter.stop(Duration::from_millis(50)).unwrap();
        let gone = &report.streams[1];
        assert!(gone.sent > 0 && gone.lost == gone.sent && gone.received == 0, "{gone:?}");
        assert_eq!(gone.loss_runs, vec![LossRun { first: 0, count: gone.sent }]);
        assert_eq!(report.streams[0].lost, 0);
    }

    #[test]
    fn foreign_packets_are_not_counted() {
        let port = free_port();
        let mut meter = LossMeter::open(vec![loopback(port, 100)], 64).unwrap();
        meter.start().unwrap();
        let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
        stranger.send_to(b"not a probe", ("127.0.0.1", port)).unwrap();
        thread::sleep(Duration::from_millis(100));
        let report = meter.stop(Duration::from_secs(5)).unwrap();
        assert_eq!(report.foreign, 1);
        assert_eq!(report.streams[0].received, report.streams[0].sent);
    }

    #[test]
    fn bad_streams_are_refused_with_the_reason() {
        let refused = |change: fn(&mut Stream), payload: usize, word: &str| {
            let mut stream = loopback(9, 100);
            change(&mut stream);
            let error = LossMeter::open(vec![stream], payload).err().unwrap().to_string();
            assert!(error.contains(word), "{error}");
        };
        refused(|s| s.rate_pps = 0, 64, "rate 0");
        refused(|s| s.dscp = 64, 64, "code point 64");
        refused(|s| s.port = 0, 64, "port 0");
        refused(|_| (), 8, "payload of 8");
        refused(|s| s.source = Ipv4Addr::new(192, 0, 2, 1), 64, "sending from 192.0.2.1");
        refused(|s| s.target_namespace = Some("waystage-none".into()), 64, "waystage-none");
        assert!(LossMeter::open(Vec::new(), 64).is_err());
    }

    #[test]
    fn calls_out_of_order_are_errors() {
        let mut meter = LossMeter::open(vec![loopback(free_port(), 100)], 64).unwrap();
        assert!(meter.stop(Duration::ZERO).is_err());
        meter.start().unwrap();
        assert!(meter.start().is_err());
        assert!(meter.warm_up(Duration::ZERO).is_err());
        drop(meter);
    }
}
