//! The forwarder of one direction: a thread that reads, consults the model, waits and writes.
//!
//! Arrives: a packet source, a packet sink, the properties of the path. Leaves: packets at the sink when they are due;
//! counts. Must not know: any kind of source or sink.
//!
//! The thread sleeps in the kernel and never spins: the programs under test need the processors. While packets arrive
//! it wakes once per tick, so that the packets of a tick share the cost of waking; otherwise it wakes for the next
//! packet at once, or when one is due. A packet is stamped after it was read, so it is never early.

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{ppoll, PollFd, PollFlags};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::time::TimeSpec;
use parking_lot::Mutex;

use crate::delay_line::DelayLine;
use crate::endpoint::{Change, PacketSink, PacketSource};
use crate::frame::Frame;
use crate::model::{Link, Spec};
use crate::packet_buffer::PacketBuffer;
use crate::report::Report;
use crate::runqueue::RunQueue;

/// Frames read before due packets are written.
const READ_AT_ONCE: usize = 128;
/// The interval at which an idle forwarder reads the kernel's drop counters, for which the kernel has no event.
const COUNTERS_INTERVAL: Duration = Duration::from_millis(500);

/// The configuration of a forwarder, beside the properties of its path.
#[derive(Clone, Copy, Debug)]
pub struct ForwarderConfig {
    /// The interval of wake-ups while packets arrive.
    pub tick: Duration,
    /// The lateness from which on packets count as late.
    pub late: Duration,
    /// Memory for packets in flight.
    pub memory_bytes: usize,
}

/// The state that a forwarder shares with its owner.
#[derive(Debug)]
pub struct Shared {
    stop: AtomicBool,
    changed: AtomicBool,
    spec: Mutex<Spec>,
    report: Mutex<Report>,
    wake: EventFd,
}

impl Shared {
    fn new(spec: Spec, late: Duration) -> io::Result<Self> {
        Ok(Self {
            stop: AtomicBool::new(false),
            changed: AtomicBool::new(false),
            spec: Mutex::new(spec),
            report: Mutex::new(Report::new(late)),
            wake: EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?,
        })
    }
}

/// A running forwarder; it ends when dropped.
#[derive(Debug)]
pub struct Forwarder {
    shared: Arc<Shared>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Forwarder {
    /// Starts the thread. Each direction needs its own `seed`.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start<I, O, S>(
        inlet: I,
        outlet: O,
        spec: Spec,
        seed: u64,
        config: ForwarderConfig,
    ) -> io::Result<Self>
    where
        I: PacketSource<Shape = S> + Send + 'static,
        O: PacketSink<Shape = S> + Send + 'static,
        S: Send + 'static,
    {
        let shared = Arc::new(Shared::new(spec, config.late)?);
        let ready = spec_bytes(&spec).min(READY_BYTES as u64) as usize;
        let mut worker = Worker {
            inlet,
            outlet,
            link: Link::new(spec, seed),
            line: DelayLine::default(),
            buffer: PacketBuffer::new(ready.min(config.memory_bytes), config.memory_bytes),
            frames: Vec::new(),
            unused: Vec::new(),
            epoch: Instant::now(),
            config,
            shared: Arc::clone(&shared),
            round: Round::default(),
            max_number: 0,
            read_end_ns: 0,
        };
        let thread =
            thread::Builder::new().name("wan-forwarder".into()).spawn(move || worker.run())?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// The counts so far.
    #[must_use]
    pub fn report(&self) -> Report {
        self.shared.report.lock().clone()
    }

    /// The properties of the path.
    #[must_use]
    pub fn spec(&self) -> Spec {
        *self.shared.spec.lock()
    }

    /// Changes the properties, for packets that are read from now on.
    pub fn change(&self, spec: Spec) {
        *self.shared.spec.lock() = spec;
        self.shared.changed.store(true, Ordering::Release);
        self.wake();
    }

    /// Whether its thread has ended on an error: an end of the path is gone.
    #[must_use]
    pub fn ended(&self) -> bool {
        self.thread.as_ref().is_none_or(thread::JoinHandle::is_finished)
    }

    /// Ends it; packets in flight are lost.
    pub fn end(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.wake();
        if let Some(thread) = self.thread.take() {
            // A panic has been reported already.
            let _ = thread.join();
        }
    }

    fn wake(&self) {
        // A full counter wakes it as well.
        let _ = self.shared.wake.write(1);
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        self.end();
    }
}

/// The most memory that is allocated before the first packet.
const READY_BYTES: usize = 64 << 20;

/// Bytes in flight on a full path.
fn spec_bytes(spec: &Spec) -> u64 {
    if !spec.rate_bps.is_finite() {
        return 0;
    }
    let in_flight = (spec.max_flight_ns() as f64 * spec.rate_bps / 8e9) as u64;
    in_flight.saturating_add(spec.buffer_bytes)
}

/// A packet in flight.
#[derive(Clone, Copy, Debug)]
struct Packet {
    frame: u32,
    index: u32,
    number: u64,
    change: Change,
}

/// The counts of one round, until they are in the report.
#[derive(Debug, Default)]
struct Round {
    read: u64,
    read_late: u64,
    unusable: u64,
    no_memory: u64,
    refused: u64,
    out: u64,
    out_bytes: u64,
    reordered: u64,
    /// Lateness in ns, and the number of packets with it.
    late_ns: Vec<(u64, u64)>,
}

struct Worker<I, O, S> {
    inlet: I,
    outlet: O,
    link: Link,
    line: DelayLine<Packet>,
    buffer: PacketBuffer,
    /// Frames with packets in flight, and their number.
    frames: Vec<Option<(Frame<S>, u32)>>,
    unused: Vec<u32>,
    epoch: Instant,
    config: ForwarderConfig,
    shared: Arc<Shared>,
    round: Round,
    /// The highest number among packets that have left.
    max_number: u64,
    /// When the source was last empty.
    read_end_ns: u64,
}

impl<I: PacketSource<Shape = S>, O: PacketSink<Shape = S>, S> Worker<I, O, S> {
    fn run(&mut self) {
        // Without this, the kernel may let the thread sleep 50 us too long, unless it has real-time priority.
        let _ = nix::sys::prctl::set_timerslack(1000);
        let mut waits = RunQueue::open();
        let mut woken_by_packet = true;
        let mut counters_at = Instant::now();
        while !self.shared.stop.load(Ordering::Acquire) {
            if self.shared.changed.swap(false, Ordering::AcqRel) {
                self.link.change(*self.shared.spec.lock());
            }
            // If a packet woke it, packets waited as long as the thread waited for a processor; otherwise perhaps since
            // the last read.
            let scheduled_ns = waits.since_last();
            let waited_ns = if woken_by_packet {
                scheduled_ns
            } else {
                self.now_ns().saturating_sub(self.read_end_ns)
            };
            let all_read = match self.read(waited_ns) {
                Ok(all_read) => all_read,
                Err(error) => {
                    self.shared.report.lock().ended = Some(error.to_string());
                    return;
                }
            };
            let written = self.write_due();
            let busy = self.round.read > 0 || written;
            let counters_due = counters_at.elapsed() >= COUNTERS_INTERVAL;
            let overflowed = counters_due.then(|| self.inlet.overflowed());
            if counters_due {
                counters_at = Instant::now();
            }
            if busy || counters_due {
                self.publish(overflowed);
            }
            woken_by_packet = false;
            if !all_read {
                continue;
            }
            if busy {
                thread::sleep(self.config.tick);
            } else {
                woken_by_packet = self.wait();
            }
        }
        let overflowed = self.inlet.overflowed();
        self.publish(Some(overflowed));
    }

    fn now_ns(&self) -> u64 {
        self.epoch.elapsed().as_nanos() as u64
    }

    /// Reads frames; returns whether all were read. `waited_ns` is how long they may have waited.
    fn read(&mut self, waited_ns: u64) -> io::Result<bool> {
        let late = Duration::from_nanos(waited_ns) > self.config.late;
        for _ in 0..READ_AT_ONCE {
            let Some(room) = self.buffer.room(I::MAX_FRAME) else {
                return self.discard();
            };
            let (cuts, shape) = match self.inlet.read(room) {
                Ok(Some(found)) => found,
                Ok(None) => {
                    self.read_end_ns = self.now_ns();
                    return Ok(true);
                }
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    self.round.unusable += 1;
                    continue;
                }
                Err(error) => return Err(error),
            };
            let now_ns = self.now_ns();
            let packets = cuts.packets();
            self.round.read += packets as u64;
            if late {
                self.round.read_late += packets as u64;
            }
            let place = self.buffer.keep(cuts.len);
            self.enqueue(now_ns, Frame { place, cuts, shape });
        }
        Ok(false)
    }

    /// Discards frames for lack of memory, which is an error of this machine and not a loss of the path.
    fn discard(&mut self) -> io::Result<bool> {
        let mut room = vec![0; I::MAX_FRAME];
        for _ in 0..READ_AT_ONCE {
            match self.inlet.read(&mut room) {
                Ok(Some((cuts, _))) => self.round.no_memory += cuts.packets() as u64,
                Ok(None) => {
                    self.read_end_ns = self.now_ns();
                    return Ok(true);
                }
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    self.round.unusable += 1;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }

    /// Decides the fate of each packet of a frame, and queues those that will arrive.
    fn enqueue(&mut self, now_ns: u64, frame: Frame<S>) {
        let cuts = frame.cuts;
        let place = frame.place;
        let slot = self.unused.pop().unwrap_or_else(|| {
            self.frames.push(None);
            self.frames.len() as u32 - 1
        });
        let mut in_flight = 0;
        let ecn_capable = I::ecn_capable(self.buffer.bytes(place));
        for index in 0..cuts.packets() {
            let number = self.link.counts().packets;
            let fate = self.link.send(now_ns, cuts.wire_bytes(index), ecn_capable);
            let Ok((first, again)) = fate else {
                continue;
            };
            for arrival in [Some(first), again].into_iter().flatten() {
                let change = Change { marked: arrival.marked, flip: arrival.flip };
                let packet = Packet { frame: slot, index: index as u32, number, change };
                self.line.push(arrival.at_ns, arrival.held, packet);
                in_flight += 1;
            }
        }
        if in_flight > 0 {
            self.frames[slot as usize] = Some((frame, in_flight));
        } else {
            self.unused.push(slot);
            self.buffer.release(place);
        }
    }

    /// Writes the packets that are due; returns whether there were any. Neighbours of one frame leave together.
    fn write_due(&mut self) -> bool {
        let now_ns = self.now_ns();
        let mut run: Option<(Packet, u32, u64)> = None;
        let mut any = false;
        while let Some((due_ns, packet)) = self.line.pop_due(now_ns) {
            any = true;
            run = match run {
                Some((first, count, first_due_ns))
                    if first.frame == packet.frame
                        && packet.index == first.index + count
                        && packet.change == first.change
                        && first.change.flip.is_none() =>
                {
                    Some((first, count + 1, first_due_ns))
                }
                Some((first, count, first_due_ns)) => {
                    self.write(first, count, first_due_ns);
                    Some((packet, 1, due_ns))
                }
                None => Some((packet, 1, due_ns)),
            };
        }
        if let Some((first, count, due_ns)) = run {
            self.write(first, count, due_ns);
        }
        any
    }

    fn write(&mut self, first: Packet, count: u32, due_ns: u64) {
        let Some((frame, in_flight)) = &mut self.frames[first.frame as usize] else {
            debug_assert!(false, "a packet in flight has its frame");
            return;
        };
        let (from, packets) = (first.index as usize, count as usize);
        let bytes = self.buffer.bytes(frame.place);
        match self.outlet.write(frame, bytes, (from, packets), first.change) {
            Ok(()) => {
                self.round.out += u64::from(count);
                let sizes = (from..from + packets).map(|packet| frame.cuts.wire_bytes(packet));
                self.round.out_bytes += sizes.sum::<u64>();
            }
            Err(_) => self.round.refused += u64::from(count),
        }
        *in_flight -= count;
        let place = frame.place;
        if *in_flight == 0 {
            self.frames[first.frame as usize] = None;
            self.unused.push(first.frame);
            self.buffer.release(place);
        }
        // RFC 4737: a packet after a higher number is reordered. The packets of one run are consecutive.
        let last = first.number + u64::from(count) - 1;
        let max = self.max_number;
        self.round.reordered += max.saturating_sub(first.number).min(u64::from(count));
        self.max_number = max.max(last);
        // The lateness is that of the first packet.
        self.round.late_ns.push((self.now_ns().saturating_sub(due_ns), u64::from(count)));
    }

    fn publish(&mut self, overflowed: Option<u64>) {
        let now_ns = self.now_ns();
        let round = &mut self.round;
        let mut report = self.shared.report.lock();
        report.counts = self.link.counts();
        report.out += round.out;
        report.out_bytes += round.out_bytes;
        report.reordered += round.reordered;
        report.read_late += round.read_late;
        report.refused += round.refused;
        report.no_memory += round.no_memory;
        report.unusable += round.unusable;
        for (late_ns, packets) in round.late_ns.drain(..) {
            report.on_left(late_ns, packets);
        }
        report.queued_bytes = self.link.queued_bytes(now_ns);
        report.in_flight = self.line.len() as u64;
        report.memory_bytes = self.buffer.allocated() as u64;
        if let Some(overflowed) = overflowed {
            report.unread = overflowed;
        }
        drop(report);
        let late_ns = std::mem::take(&mut round.late_ns);
        *round = Round { late_ns, ..Round::default() };
    }

    /// Sleeps until a packet arrives, one is due, or the owner wakes it; returns whether a packet has arrived.
    fn wait(&mut self) -> bool {
        let now_ns = self.now_ns();
        let due =
            self.line.next_due_ns().map(|due| Duration::from_nanos(due.saturating_sub(now_ns)));
        let timeout = due.map_or(COUNTERS_INTERVAL, |due| due.min(COUNTERS_INTERVAL));
        let mut descriptors = [
            PollFd::new(self.inlet.descriptor(), PollFlags::POLLIN),
            PollFd::new(self.shared.wake.as_fd(), PollFlags::POLLIN),
        ];
        let found = ppoll(&mut descriptors, Some(TimeSpec::from(timeout)), None);
        let [packet, called] = descriptors.map(|descriptor| descriptor.any() == Some(true));
        match found {
            Ok(_) | Err(Errno::EINTR) => {
                if called {
                    let _ = self.shared.wake.read();
                }
            }
            // Out of memory, at worst: try again, without a busy loop.
            Err(_) => thread::sleep(self.config.tick),
        }
        if !packet {
            // No frame was waiting until now.
            self.read_end_ns = self.now_ns();
        }
        packet
    }
}
