//! One direction at work: a thread that reads, asks the model, waits, and writes.
//!
//! Arrives: an inlet, an outlet, what the path is like. Leaves: packets at the other end when they are due; what was counted.
//! Must not know: where packets come from and go to.
//!
//! The thread sleeps in the kernel and never spins: the programs under test need the processors. As long as packets come it looks once in
//! a tick, so that the cost of waking is shared by all packets of a tick; when none came, it wakes for the next packet at once, or for
//! the moment when one is due. A packet is stamped after it was read, so it is never early.

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{ppoll, PollFd, PollFlags};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::time::TimeSpec;

use crate::delay_line::DelayLine;
use crate::endpoint::{PacketSink, PacketSource};
use crate::frame::Frame;
use crate::model::{Link, Spec};
use crate::packet_buffer::PacketBuffer;
use crate::report::Report;
use crate::runqueue::RunQueue;

/// Frames read in one round before those that are due get their turn.
const READ_AT_ONCE: usize = 128;
/// How often somebody idle looks at the kernel's counters.
const LOOK: Duration = Duration::from_millis(500);

/// How a forwarder works, besides what its path is like.
#[derive(Clone, Copy, Debug)]
pub struct ForwarderConfig {
    /// How often it looks while packets come.
    pub tick: Duration,
    /// Packets later than this count as late.
    pub late: Duration,
    /// Memory for packets under way.
    pub memory_bytes: usize,
}

/// What a forwarder and its owner share.
#[derive(Debug)]
pub struct Shared {
    stop: AtomicBool,
    changed: AtomicBool,
    spec: Mutex<Spec>,
    report: Mutex<Report>,
    wake: EventFd,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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

/// A forwarder at work; dropped, it ends.
#[derive(Debug)]
pub struct Forwarder {
    shared: Arc<Shared>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Forwarder {
    /// Begin. `seed` is the direction's own.
    ///
    /// # Errors
    /// Where there is no thread to be had.
    pub fn start<I, O, S>(
        inlet: I,
        outlet: O,
        spec: Spec,
        seed: u64,
        working: ForwarderConfig,
    ) -> io::Result<Self>
    where
        I: PacketSource<Shape = S> + Send + 'static,
        O: PacketSink<Shape = S> + Send + 'static,
        S: Send + 'static,
    {
        let shared = Arc::new(Shared::new(spec, working.late)?);
        let ready = spec_bytes(&spec).min(READY_BYTES as u64) as usize;
        let mut worker = Worker {
            inlet,
            outlet,
            link: Link::new(spec, seed),
            line: DelayLine::default(),
            store: PacketBuffer::new(ready.min(working.memory_bytes), working.memory_bytes),
            frames: Vec::new(),
            unused: Vec::new(),
            epoch: Instant::now(),
            working,
            shared: Arc::clone(&shared),
            round: Round::default(),
            most_number: 0,
            read_end_ns: 0,
        };
        let thread =
            thread::Builder::new().name("wan-forwarder".into()).spawn(move || worker.run())?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// What it counted so far.
    #[must_use]
    pub fn report(&self) -> Report {
        lock(&self.shared.report).clone()
    }

    /// What the path is like.
    #[must_use]
    pub fn spec(&self) -> Spec {
        *lock(&self.shared.spec)
    }

    /// Make the path another, for packets that are read from now on.
    pub fn change(&self, spec: Spec) {
        *lock(&self.shared.spec) = spec;
        self.shared.changed.store(true, Ordering::Release);
        self.wake();
    }

    /// Whether its thread has ended by itself: an end of the path has gone.
    #[must_use]
    pub fn ended(&self) -> bool {
        self.thread.as_ref().is_none_or(thread::JoinHandle::is_finished)
    }

    /// End it; packets under way are lost.
    pub fn end(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.wake();
        if let Some(thread) = self.thread.take() {
            // A forwarder that panicked has said so already.
            let _ = thread.join();
        }
    }

    fn wake(&self) {
        // Full: then it is to wake already.
        let _ = self.shared.wake.write(1);
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        self.end();
    }
}

/// Laid out before the first packet comes, at most; the rest when it is needed.
const READY_BYTES: usize = 64 << 20;

/// Bytes under way when the path is full.
fn spec_bytes(spec: &Spec) -> u64 {
    if !spec.rate_bps.is_finite() {
        return 0;
    }
    let under_way = (spec.longest_ns() as f64 * spec.rate_bps / 8e9) as u64;
    under_way.saturating_add(spec.buffer_bytes)
}

/// A packet under way.
#[derive(Clone, Copy, Debug)]
struct Packet {
    frame: u32,
    index: u32,
    number: u64,
    flip: Option<u64>,
}

/// What one round did, until the report has it.
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
    /// Lateness and how many packets had it.
    late_ns: Vec<(u64, u64)>,
}

struct Worker<I, O, S> {
    inlet: I,
    outlet: O,
    link: Link,
    line: DelayLine<Packet>,
    store: PacketBuffer,
    /// Frames with packets under way, and how many each has.
    frames: Vec<Option<(Frame<S>, u32)>>,
    unused: Vec<u32>,
    epoch: Instant,
    working: ForwarderConfig,
    shared: Arc<Shared>,
    round: Round,
    /// The highest number of a packet that has left.
    most_number: u64,
    /// When nothing was left to read, the last time.
    read_end_ns: u64,
}

impl<I: PacketSource<Shape = S>, O: PacketSink<Shape = S>, S> Worker<I, O, S> {
    fn run(&mut self) {
        // Without this the kernel may let the thread sleep 50 us longer than asked. A thread of real-time priority has none anyway.
        let _ = nix::sys::prctl::set_timerslack(1000);
        let mut waits = RunQueue::open();
        let mut woken_by_packet = true;
        let mut looked = Instant::now();
        while !self.shared.stop.load(Ordering::Acquire) {
            if self.shared.changed.swap(false, Ordering::AcqRel) {
                self.link.change(*lock(&self.shared.spec));
            }
            // Where a packet woke it, packets waited while the thread waited for a processor. Else they may have waited
            // ever since it last looked.
            let scheduled_ns = waits.since_last();
            let waited_ns = if woken_by_packet {
                scheduled_ns
            } else {
                self.now_ns().saturating_sub(self.read_end_ns)
            };
            let all_read = match self.read(waited_ns) {
                Ok(all_read) => all_read,
                Err(error) => {
                    lock(&self.shared.report).ended = Some(error.to_string());
                    return;
                }
            };
            let written = self.write_due();
            let busy = self.round.read > 0 || written;
            let look = looked.elapsed() >= LOOK;
            let overflowed = look.then(|| self.inlet.overflowed());
            if look {
                looked = Instant::now();
            }
            if busy || look {
                self.publish(overflowed);
            }
            woken_by_packet = false;
            if !all_read {
                continue;
            }
            if busy {
                thread::sleep(self.working.tick);
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

    /// Read what is there; whether that was all. `waited_ns` is how long it may have waited to be read.
    fn read(&mut self, waited_ns: u64) -> io::Result<bool> {
        let late = Duration::from_nanos(waited_ns) > self.working.late;
        for _ in 0..READ_AT_ONCE {
            let Some(room) = self.store.room(I::ROOM) else {
                return self.throw_away();
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
            let place = self.store.keep(cuts.len);
            self.take_in(now_ns, Frame { place, cuts, shape });
        }
        Ok(false)
    }

    /// No memory: the path was to hold more than it was given, which is no fault of the path that is emulated.
    fn throw_away(&mut self) -> io::Result<bool> {
        let mut room = vec![0; I::ROOM];
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

    /// Ask the model for each packet of a frame, and let those wait that will arrive.
    fn take_in(&mut self, now_ns: u64, frame: Frame<S>) {
        let cuts = frame.cuts;
        let place = frame.place;
        let slot = self.unused.pop().unwrap_or_else(|| {
            self.frames.push(None);
            self.frames.len() as u32 - 1
        });
        let mut under_way = 0;
        for index in 0..cuts.packets() {
            let number = self.link.counts().packets;
            let Ok((first, again)) = self.link.send(now_ns, cuts.wire_bytes(index)) else {
                continue;
            };
            for arrival in [Some(first), again].into_iter().flatten() {
                let packet =
                    Packet { frame: slot, index: index as u32, number, flip: arrival.flip };
                self.line.push(arrival.at_ns, arrival.held, packet);
                under_way += 1;
            }
        }
        if under_way > 0 {
            self.frames[slot as usize] = Some((frame, under_way));
        } else {
            self.unused.push(slot);
            self.store.release(place);
        }
    }

    /// Write what is due by now; whether there was anything. Neighbours of one frame leave together.
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
                        && packet.flip.is_none()
                        && first.flip.is_none() =>
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
        let Some((frame, under_way)) = &mut self.frames[first.frame as usize] else {
            debug_assert!(false, "a packet under way has its frame");
            return;
        };
        let (from, packets) = (first.index as usize, count as usize);
        let bytes = self.store.bytes(frame.place);
        match self.outlet.write(frame, bytes, (from, packets), first.flip) {
            Ok(()) => {
                self.round.out += u64::from(count);
                let sizes = (from..from + packets).map(|packet| frame.cuts.wire_bytes(packet));
                self.round.out_bytes += sizes.sum::<u64>();
            }
            Err(_) => self.round.refused += u64::from(count),
        }
        *under_way -= count;
        let place = frame.place;
        if *under_way == 0 {
            self.frames[first.frame as usize] = None;
            self.unused.push(first.frame);
            self.store.release(place);
        }
        // RFC 4737: reordered is what comes after a higher number. Packets of one run follow one another.
        let last = first.number + u64::from(count) - 1;
        let most = self.most_number;
        self.round.reordered += most.saturating_sub(first.number).min(u64::from(count));
        self.most_number = most.max(last);
        // As late as the first of them.
        self.round.late_ns.push((self.now_ns().saturating_sub(due_ns), u64::from(count)));
    }

    fn publish(&mut self, overflowed: Option<u64>) {
        let now_ns = self.now_ns();
        let round = &mut self.round;
        let mut report = lock(&self.shared.report);
        report.counts = self.link.counts();
        report.out += round.out;
        report.out_bytes += round.out_bytes;
        report.reordered += round.reordered;
        report.read_late += round.read_late;
        report.refused += round.refused;
        report.no_memory += round.no_memory;
        report.unusable += round.unusable;
        for (late_ns, packets) in round.late_ns.drain(..) {
            report.left(late_ns, packets);
        }
        report.queued_bytes = self.link.queued_bytes(now_ns);
        report.under_way = self.line.len() as u64;
        report.memory_bytes = self.store.laid_out() as u64;
        if let Some(overflowed) = overflowed {
            report.unread = overflowed;
        }
        drop(report);
        let late_ns = std::mem::take(&mut round.late_ns);
        *round = Round { late_ns, ..Round::default() };
    }

    /// Sleep until there is a packet, one is due, or somebody calls; whether there is a packet.
    fn wait(&mut self) -> bool {
        let now_ns = self.now_ns();
        let due =
            self.line.next_due_ns().map(|due| Duration::from_nanos(due.saturating_sub(now_ns)));
        let timeout = due.map_or(LOOK, |due| due.min(LOOK));
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
            // Out of memory, at worst: try again, without a loop that eats a processor.
            Err(_) => thread::sleep(self.working.tick),
        }
        if !packet {
            // Nothing was there until now.
            self.read_end_ns = self.now_ns();
        }
        packet
    }
}
