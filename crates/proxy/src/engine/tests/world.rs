//! Programs, destinations and a session in memory: the network of engines under test.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};

use waystage_transport::message::Message;
use waystage_transport::stats::Status;

use crate::destination::Destination;
use crate::listener::{Kind, Place};
use crate::network::{Accepted, Network, Transport};
use crate::poller::Ready;
use crate::resolver::Found;
use crate::tunnel::ProgramSocket;

/// What one end of a connection has said and heard.
pub(super) struct Ends {
    pub(super) says: VecDeque<u8>,
    pub(super) has_ended: bool,
    pub(super) heard: Vec<u8>,
    /// Bytes that it takes before a write would block.
    pub(super) room: usize,
    pub(super) connected: bool,
    /// The program reset its connection, or refuses it.
    pub(super) broken: Option<ErrorKind>,
    /// The engine has sent its end.
    pub(super) finished: bool,
    /// The engine has reset it.
    pub(super) was_reset: bool,
    /// Something changed since the engine saw it.
    pub(super) edge: bool,
}

/// The socket of a program or a destination, as the engine and the test hold it.
#[derive(Clone)]
pub(super) struct Program(pub(super) Rc<RefCell<Ends>>);

impl Program {
    pub(super) fn new(connected: bool) -> Self {
        Self(Rc::new(RefCell::new(Ends {
            says: VecDeque::new(),
            has_ended: false,
            heard: Vec::new(),
            room: 1000,
            connected,
            broken: None,
            finished: false,
            was_reset: false,
            edge: true,
        })))
    }

    /// Change it, as its owner does.
    pub(super) fn change(&self, change: impl FnOnce(&mut Ends)) {
        let mut ends = self.0.borrow_mut();
        change(&mut ends);
        ends.edge = true;
    }

    /// Whether the engine has let go of it.
    pub(super) fn is_closed(&self) -> bool {
        Rc::strong_count(&self.0) == 1
    }
}

impl Read for Program {
    fn read(&mut self, into: &mut [u8]) -> Result<usize> {
        let count = self.peek(into)?;
        self.0.borrow_mut().says.drain(..count);
        Ok(count)
    }
}

impl Write for Program {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        let mut ends = self.0.borrow_mut();
        assert!(!ends.finished, "written after the end");
        if let Some(kind) = ends.broken {
            return Err(kind.into());
        }
        let count = bytes.len().min(ends.room);
        if count == 0 {
            return Err(ErrorKind::WouldBlock.into());
        }
        ends.room -= count;
        ends.heard.extend_from_slice(&bytes[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}

impl ProgramSocket for Program {
    fn finish(&self) {
        self.0.borrow_mut().finished = true;
    }

    fn peek(&self, into: &mut [u8]) -> Result<usize> {
        let ends = self.0.borrow();
        if let Some(kind) = ends.broken {
            return Err(kind.into());
        }
        if ends.says.is_empty() && !ends.has_ended {
            return Err(ErrorKind::WouldBlock.into());
        }
        let count = ends.says.len().min(into.len());
        ends.says.iter().zip(into).for_each(|(byte, place)| *place = *byte);
        Ok(count)
    }

    fn is_connected(&self) -> Result<bool> {
        let ends = self.0.borrow();
        ends.broken.map_or(Ok(ends.connected), |kind| Err(kind.into()))
    }

    fn take_error(&self) -> Option<Error> {
        self.0.borrow().broken.map(Error::from)
    }

    fn reset(self) {
        self.0.borrow_mut().was_reset = true;
    }
}

/// A port that refuses at once, and one that never answers.
pub(super) const REFUSES: u16 = 1;
pub(super) const SILENT: u16 = 2;

/// What the programs of one host and the destinations near it do.
#[derive(Default)]
pub(super) struct World {
    pub(super) passed: Cell<Duration>,
    /// Connections that wait to be taken.
    pub(super) arriving: RefCell<VecDeque<(Program, Kind)>>,
    watched: RefCell<Vec<(u64, Weak<RefCell<Ends>>)>>,
    /// Connections that the engine made.
    pub(super) made: RefCell<Vec<(SocketAddr, Program)>>,
    found: RefCell<Vec<Found>>,
    listener: Cell<Option<u64>>,
    /// The kernel has no descriptor left.
    pub(super) is_full: Cell<bool>,
}

/// A world, to an engine; and the time when it began.
pub(super) struct Shown(pub(super) Rc<World>, pub(super) Instant);

impl Network for Shown {
    type Socket = Program;
    type Listener = ();
    type Transport = Line;

    fn now(&self) -> Instant {
        self.1 + self.0.passed.get()
    }

    fn listen(&self, place: &Place, token: u64) -> Result<((), SocketAddr)> {
        self.0.listener.set(Some(token));
        Ok(((), place.listen))
    }

    fn watch_listener(&self, (): &(), token: Option<u64>) {
        self.0.listener.set(token);
    }

    fn accept(&self, (): &()) -> Result<Accepted<Program>> {
        if self.0.is_full.get() {
            return Err(Error::other("no descriptor left"));
        }
        let arrived = self.0.arriving.borrow_mut().pop_front();
        let (socket, kind) = arrived.ok_or(ErrorKind::WouldBlock)?;
        let found = match &kind {
            Kind::Fixed(destination) => Some(destination.clone()),
            _ => None,
        };
        Ok(Accepted { socket, from: ([127, 0, 0, 1], 9).into(), kind, found: Ok(found) })
    }

    fn watch(&self, socket: &Program, token: u64) -> Result<()> {
        self.0.watched.borrow_mut().push((token, Rc::downgrade(&socket.0)));
        Ok(())
    }

    fn connect(&self, address: SocketAddr, token: u64) -> Result<Program> {
        if address.port() == REFUSES {
            return Err(ErrorKind::ConnectionRefused.into());
        }
        let program = Program::new(address.port() != SILENT);
        self.watch(&program, token)?;
        self.0.made.borrow_mut().push((address, program.clone()));
        Ok(program)
    }

    fn resolve(&self, token: u64, name: &str, port: u16) {
        let found = match name {
            "known" => Ok(vec![([192, 0, 2, 1], port).into()]),
            _ => Err(format!("{name} is not known")),
        };
        self.0.found.borrow_mut().push((token, found));
    }

    fn resolved(&self) -> Vec<Found> {
        self.0.found.take()
    }

    fn attach(&self, _: &Line) -> Result<()> {
        Ok(())
    }

    fn detach(&self, _: &Line) {}

    fn clear_waker(&self) {}

    fn wait(&self, _: Option<Duration>) -> Vec<Ready> {
        let mut ready = Vec::new();
        self.0.watched.borrow_mut().retain(|(token, socket)| {
            let Some(socket) = socket.upgrade() else { return false };
            let mut ends = socket.borrow_mut();
            if std::mem::take(&mut ends.edge) {
                ready.push(Ready {
                    token: *token,
                    readable: !ends.says.is_empty() || ends.has_ended || ends.broken.is_some(),
                    writable: ends.connected && ends.room > 0,
                    failed: ends.broken.is_some(),
                });
            }
            true
        });
        let arrived = !self.0.arriving.borrow().is_empty();
        if let Some(token) = self.0.listener.get().filter(|_| arrived) {
            ready.push(Ready { token, readable: true, writable: false, failed: false });
        }
        ready
    }
}

/// Messages in flight in one direction.
#[derive(Default)]
pub(super) struct Wire {
    pub(super) messages: VecDeque<Vec<u8>>,
    pub(super) lost: bool,
}

/// One end of a session.
pub(super) struct Line {
    pub(super) out: Rc<RefCell<Wire>>,
    pub(super) into: Rc<RefCell<Wire>>,
}

/// Messages in flight before a stream has to wait.
const ROOM: usize = 4;

impl Line {
    /// The ends of a new session.
    pub(super) fn pair() -> [Self; 2] {
        let (there, back) = (Rc::default(), Rc::default());
        let near = Self { out: Rc::clone(&there), into: Rc::clone(&back) };
        [near, Self { out: back, into: there }]
    }
}

impl Transport for Line {
    fn rtt_ns(&self) -> u64 {
        1_000_000
    }

    fn ended(&self) -> Option<String> {
        let lost = self.out.borrow().lost || self.into.borrow().lost;
        lost.then(|| "it was cut".to_owned())
    }

    fn has_place(&self) -> bool {
        true
    }

    fn has_room(&self) -> bool {
        self.out.borrow().messages.len() < ROOM
    }

    fn send(&mut self, message: Vec<u8>) {
        self.out.borrow_mut().messages.push_back(message);
    }

    fn receive(&mut self, came: &mut Vec<Message>, _: &mut Vec<Vec<u8>>) {
        let messages = self.into.borrow_mut().messages.split_off(0);
        came.extend(messages.into_iter().map(|buffer| {
            let length = buffer.len();
            Message { buffer, length, by: None }
        }));
    }

    fn spare(&mut self, buffers: impl Iterator<Item = Vec<u8>>) {
        buffers.for_each(drop);
    }

    fn transmit(&mut self) -> bool {
        false
    }

    fn is_delivered(&self) -> bool {
        self.out.borrow().messages.is_empty()
    }

    fn rests_for(&self) -> Option<Duration> {
        None
    }

    fn status(&self) -> Status {
        Status::default()
    }

    fn clear_waker(&self) {}

    fn abort(&self) {
        self.out.borrow_mut().lost = true;
    }

    fn close(self) {
        self.abort();
    }
}

/// A destination by number: a name for even ports.
pub(super) fn destination(port: u16) -> Destination {
    let host = if port.is_multiple_of(2) { "known" } else { "192.0.2.1" };
    format!("{host}:{port}").parse().unwrap()
}
