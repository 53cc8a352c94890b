//! The loss meter: a UDP stream for each pair of hosts and class, counted exactly.
//!
//! Arrives: streams. Leaves: their reports. Must not know: who asks.
//!
//! One thread sends every stream and one receives them all, so that an emulated cluster on two cores keeps its
//! processor time for the switches. The sockets belong to the hosts' network namespaces.

use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use socket2::Socket;

use crate::control::Control;
use crate::receiver::{overflowed, receive_all, Received, Receiver};
use crate::sender::{send_all, Sent, SourceSocket, StreamSender};
use crate::sockets::{check, open_sources, open_targets};
use crate::stream::{Report, Stream, StreamReport};
use crate::wire::Kind;
use crate::LossMeterError;

/// How many runs of losses a report lists for each stream.
const LOSS_RUNS: usize = 16;

/// A set of streams with open sockets.
pub struct LossMeter {
    streams: Vec<Stream>,
    sources: Arc<Vec<SourceSocket>>,
    targets: Arc<Vec<Socket>>,
    payload_bytes: usize,
    epoch: Instant,
    run: u32,
    running: Option<Running>,
}

struct Running {
    control: Arc<Control>,
    started: Instant,
    overflowed_before: u64,
    sender: JoinHandle<Vec<Sent>>,
    receiver: JoinHandle<io::Result<Received>>,
}

impl LossMeter {
    /// Opens every socket, each in its namespace. Nothing is sent yet.
    ///
    /// # Errors
    /// A stream is invalid, or a socket cannot be opened.
    pub fn open(streams: Vec<Stream>, payload_bytes: usize) -> Result<Self, LossMeterError> {
        if streams.is_empty() {
            return Err(LossMeterError::State("there is no stream to probe: give at least one"));
        }
        for (index, stream) in streams.iter().enumerate() {
            check(stream, payload_bytes)
                .map_err(|reason| LossMeterError::Stream { index, reason })?;
        }
        Ok(Self {
            sources: Arc::new(open_sources(&streams)?),
            targets: Arc::new(open_targets(&streams)?),
            streams,
            payload_bytes,
            epoch: Instant::now(),
            run: first_run(),
            running: None,
        })
    }

    /// Sends uncounted packets until every stream has been received, which also resolves addresses.
    ///
    /// Returns the streams of which no packet arrived within `timeout`.
    ///
    /// # Errors
    /// The meter is running, or its threads fail.
    pub fn warm_up(&mut self, timeout: Duration) -> Result<Vec<usize>, LossMeterError> {
        let control = self.begin(Kind::WarmUp)?;
        let unreached = control.wait_reached(timeout);
        self.stop(Duration::ZERO)?;
        Ok(unreached)
    }

    /// Starts to send and count.
    ///
    /// # Errors
    /// The meter is running, or its threads cannot be started.
    pub fn start(&mut self) -> Result<(), LossMeterError> {
        self.begin(Kind::Counted).map(drop)
    }

    /// Packets sent and received since the start, over all streams: never more received than sent.
    pub fn totals(&self) -> (u64, u64) {
        self.running.as_ref().map_or((0, 0), |running| running.control.totals())
    }

    /// Stops sending, waits at most `drain` for packets in flight, and reports.
    ///
    /// # Errors
    /// The meter is not running, or its threads have failed.
    pub fn stop(&mut self, drain: Duration) -> Result<Report, LossMeterError> {
        let running = self
            .running
            .take()
            .ok_or(LossMeterError::State("the probes are not running: start them"))?;
        running.control.stop_sending();
        let sent = running.sender.join();
        let sending = running.started.elapsed();
        running.control.wait_received(drain);
        running.control.stop_receiving();
        let received = running.receiver.join();
        let sent = sent.map_err(|_| LossMeterError::State("the sending thread panicked"))?;
        let received = received
            .map_err(|_| LossMeterError::State("the receiving thread panicked"))?
            .map_err(|source| LossMeterError::Socket { what: "receiving probes".into(), source })?;
        let overflowed = self.overflowed()?.saturating_sub(running.overflowed_before);
        Ok(report(&sent, received, sending, overflowed))
    }

    fn begin(&mut self, kind: Kind) -> Result<Arc<Control>, LossMeterError> {
        if self.running.is_some() {
            return Err(LossMeterError::State("the probes are running already: stop them first"));
        }
        self.run = self.run.wrapping_add(1);
        let failed = |source| LossMeterError::Socket { what: "making an eventfd".into(), source };
        let control = Arc::new(Control::new(self.streams.len()).map_err(failed)?);
        let overflowed_before = self.overflowed()?;
        let receiver = self.spawn_receiver(&control)?;
        let sender = self.spawn_sender(&control, kind).inspect_err(|_| control.stop_receiving())?;
        let started = Instant::now();
        let running =
            Running { control: Arc::clone(&control), started, overflowed_before, sender, receiver };
        self.running = Some(running);
        Ok(control)
    }

    fn spawn_receiver(
        &self,
        control: &Arc<Control>,
    ) -> Result<JoinHandle<io::Result<Received>>, LossMeterError> {
        let (control, targets) = (Arc::clone(control), Arc::clone(&self.targets));
        let (run, streams, epoch) = (self.run, self.streams.len(), self.epoch);
        spawn("loss-meter-in", move || {
            receive_all(&targets, &Receiver { run, streams, epoch, control: &control })
        })
    }

    fn spawn_sender(
        &self,
        control: &Arc<Control>,
        kind: Kind,
    ) -> Result<JoinHandle<Vec<Sent>>, LossMeterError> {
        let (control, sources) = (Arc::clone(control), Arc::clone(&self.sources));
        let (run, payload_bytes, epoch) = (self.run, self.payload_bytes, self.epoch);
        spawn("loss-meter-out", move || {
            let sender = StreamSender { run, kind, payload_bytes, epoch, control: &control };
            // A warm-up packet waits for its address to be resolved; more of them would only queue.
            send_all(&sources, &sender, |stream| {
                kind == Kind::Counted || !control.is_reached(stream)
            })
        })
    }

    fn overflowed(&self) -> Result<u64, LossMeterError> {
        self.targets.iter().map(overflowed).sum::<io::Result<u64>>().map_err(|source| {
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
            running.control.stop_sending();
            running.control.stop_receiving();
            // The results are no longer needed, and a panic was reported when it happened.
            let _ = (running.sender.join(), running.receiver.join());
        }
    }
}

fn report(sent: &[Sent], received: Received, sending: Duration, overflowed: u64) -> Report {
    let streams = sent
        .iter()
        .zip(received.streams)
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
    Report { streams, sending, overflowed, foreign: received.foreign }
}

fn spawn<T: Send + 'static>(
    name: &str,
    body: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, LossMeterError> {
    thread::Builder::new().name(name.to_owned()).spawn(body).map_err(|source| {
        LossMeterError::Socket { what: format!("starting thread {name}"), source }
    })
}

/// Different for meters that are open at the same time, in this process or another.
fn first_run() -> u32 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    now.subsec_nanos() ^ (std::process::id() << 16)
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, UdpSocket};

    use super::*;
    use crate::LossRun;

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

    /// However busy the machine is.
    const PATIENCE: Duration = Duration::from_secs(60);

    /// What has become of the packets, at least of this number.
    fn run_for(meter: &mut LossMeter, packets: u64) -> Report {
        meter.start().unwrap();
        until_sent(meter, packets);
        meter.stop(PATIENCE).unwrap()
    }

    fn until_sent(meter: &LossMeter, packets: u64) {
        let deadline = Instant::now() + PATIENCE;
        while meter.totals().0 < packets {
            assert!(Instant::now() < deadline, "{packets} packets are not sent in {PATIENCE:?}");
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn every_packet_over_loopback_is_accounted_for() {
        let streams = vec![loopback(free_port(), 1000), loopback(free_port(), 200)];
        let mut meter = LossMeter::open(streams, 64).unwrap();
        assert_eq!(meter.warm_up(PATIENCE).unwrap(), Vec::<usize>::new());
        for _ in 0..2 {
            let report = run_for(&mut meter, 200);
            assert_eq!(report.foreign, 0);
            for stream in &report.streams {
                assert!(stream.sent > 0, "{stream:?}");
                assert_eq!(stream.received, stream.sent);
                assert_eq!((stream.lost, stream.duplicated, stream.reordered), (0, 0, 0));
                assert_eq!(stream.latency.total(), stream.sent);
            }
            let due = |stream: usize| report.streams[stream].sent + report.streams[stream].skipped;
            assert!(due(0) > due(1));
        }
    }

    #[test]
    fn streams_to_one_port_are_distinguished() {
        let port = free_port();
        let mut meter =
            LossMeter::open(vec![loopback(port, 500), loopback(port, 100)], 64).unwrap();
        let report = run_for(&mut meter, 100);
        let sums = report.streams.iter().map(|s| (s.sent, s.received, s.duplicated));
        assert!(sums.into_iter().all(|(sent, received, again)| sent == received && again == 0));
    }

    #[test]
    fn a_stream_without_a_receiver_is_unreached_and_lost() {
        // 192.0.2.0/24 is for documentation (RFC 5737): nothing listens there.
        let taken = free_port();
        let streams = vec![loopback(taken, 100), loopback(free_port(), 100)];
        let mut meter = LossMeter::open(streams, 64).unwrap();
        // Remove the second target without the meter's knowledge.
        let index = meter
            .targets
            .iter()
            .position(|s| s.local_addr().unwrap().as_socket_ipv4().unwrap().port() != taken)
            .unwrap();
        let mut targets: Vec<Socket> =
            meter.targets.iter().map(|s| s.try_clone().unwrap()).collect();
        targets.remove(index);
        meter.targets = Arc::new(targets);
        // The first is reached some time, the second never.
        let warm_up = |_| meter.warm_up(Duration::from_millis(200)).unwrap();
        let unreached = (0..100).map(warm_up).find(|unreached| !unreached.contains(&0)).unwrap();
        assert_eq!(unreached, vec![1]);
        meter.start().unwrap();
        until_sent(&meter, 10);
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
        until_sent(&meter, 5);
        let report = meter.stop(PATIENCE).unwrap();
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
