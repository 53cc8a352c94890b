//! A connection of the wide-area protocol with the thread that drives it.
//!
//! Arrives: datagrams, messages to send, memory given back, the time. Leaves: datagrams, messages that are whole, what
//! held it back. Must not know: what messages say, TLS.
//!
//! The protocol's core decides everything; this thread only feeds it, and sends what it gives in as few calls as the
//! kernel allows.

mod commands;
mod driver;

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use waystage_protocol::congestion::Mode;

use crate::backpressure::Backpressure;
use crate::clock::now_ns;
use crate::control_path::{ControlPath, ControlSink};
use crate::datagram_receiver::DatagramReceiver;
use crate::endpoint::Endpoint;
use crate::link::Link;
use crate::message::Message;
use crate::message_queue::MessageQueue;
use crate::parameters::{spare_buffers, TransportParameters};
use crate::socket::Socket;
use crate::stats::{Bottleneck, Status};
use crate::waker::Waker;
use commands::{CommandQueue, PendingCommands, MOST_IN_FLIGHT};
use driver::{Driver, LEAST_IN_FLIGHT_BYTES};

/// The way over UDP.
pub struct UdpConnection {
    commands: Arc<CommandQueue>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// Who waits for messages and for backpressure, and which member of the channel this is.
pub type To = (Arc<MessageQueue>, Arc<Backpressure>, usize);

impl UdpConnection {
    /// A client's, which knows the server's address and speaks first.
    pub fn connect(
        socket: Socket,
        parameters: TransportParameters,
        server: SocketAddr,
        to: To,
    ) -> io::Result<Self> {
        Self::start(
            DatagramReceiver::dedicated(socket, Arc::new(Waker::new()?)),
            parameters,
            Some(server),
            to,
        )
    }

    /// A server's, which learns the client's address from the first packet that opens. Fails where the connection's
    /// number is taken.
    pub fn accept(
        endpoint: Arc<Endpoint>,
        parameters: TransportParameters,
        to: To,
    ) -> io::Result<Self> {
        let receiver = DatagramReceiver::registered(
            endpoint,
            parameters.local_connection,
            Arc::new(Waker::new()?),
        )?;
        Self::start(receiver, parameters, None, to)
    }

    fn start(
        receiver: DatagramReceiver,
        parameters: TransportParameters,
        peer: Option<SocketAddr>,
        (incoming, backpressure, member): To,
    ) -> io::Result<Self> {
        let waker = Arc::clone(receiver.waker());
        let most_in_flight_bytes = LEAST_IN_FLIGHT_BYTES.min(parameters.memory_bytes);
        let most_spare = spare_buffers(parameters.memory_bytes);
        let pending =
            PendingCommands { most_in_flight_bytes, most_spare, ..PendingCommands::default() };
        let commands = Arc::new(CommandQueue::new(pending, waker, backpressure));
        let driver = Driver {
            commands: Arc::clone(&commands),
            incoming,
            link: Link::new(Arc::clone(receiver.socket()), parameters, MOST_IN_FLIGHT),
            receiver,
            member,
            limited: (now_ns(), [0; Bottleneck::ALL.len()]),
            more: false,
            told: false,
            given_up: false,
        };
        let thread = std::thread::Builder::new()
            .name("wan-connection".to_owned())
            .spawn(move || driver.run(peer))?;
        Ok(Self { commands, thread: Mutex::new(Some(thread)) })
    }

    /// The control stream to the peer.
    pub fn control_path(&self) -> Arc<dyn ControlPath> {
        Arc::clone(&self.commands) as Arc<dyn ControlPath>
    }

    /// From now on the peer's control stream goes there.
    pub fn deliver_control_to(&self, sink: Weak<dyn ControlSink>) {
        self.commands.set_sink(sink);
    }

    /// Whether a packet of the peer has come within `timeout`.
    pub fn heard(&self, timeout: Duration) -> bool {
        let mut pending = self.commands.lock();
        let waiting = |pending: &mut PendingCommands| !pending.heard && !pending.over;
        self.commands.heard.wait_while_for(&mut pending, waiting, timeout);
        pending.heard
    }

    /// Whether a message of the peer has come.
    pub fn has_come(&self) -> bool {
        self.commands.lock().came
    }

    /// The peer has told how fast to send, and what memory it has. Before the first message.
    pub fn update_parameters(&self, parameters: TransportParameters) {
        let mut pending = self.commands.lock();
        pending.settled = Some(Box::new(parameters));
        self.commands.wake_up(&pending);
    }

    /// How much of what may be in_flight is.
    pub fn load(&self) -> f64 {
        let pending = self.commands.lock();
        let messages = pending.in_flight as f64 / MOST_IN_FLIGHT as f64;
        messages.max(pending.in_flight_bytes as f64 / pending.most_in_flight_bytes.max(1) as f64)
    }

    /// Take the message to send it, or give it back where too much is in_flight.
    pub fn offer(&self, message: Vec<u8>) -> Option<Vec<u8>> {
        let mut pending = self.commands.lock();
        if pending.over || pending.is_full() {
            return Some(message);
        }
        pending.in_flight += 1;
        pending.in_flight_bytes += message.len() as u64;
        pending.messages.push_back(message);
        self.commands.wake_up(&pending);
        None
    }

    /// Wait until the peer holds all messages, or the connection is over; false after [`Self::interrupt`].
    pub fn delivered(&self) -> bool {
        let mut pending = self.commands.lock();
        let in_flight = |pending: &mut PendingCommands| {
            pending.in_flight > 0 && !pending.over && !pending.interrupted
        };
        self.commands.heard.wait_while(&mut pending, in_flight);
        !std::mem::take(&mut pending.interrupted)
    }

    /// Let a thread in [`Self::delivered`] return, now or when it next waits.
    pub fn interrupt(&self) {
        self.commands.lock().interrupted = true;
        self.commands.heard.notify_all();
    }

    /// The consumer has finished with a received message.
    pub fn consumed(&self, message: Message) {
        let mut pending = self.commands.lock();
        pending.consumed_bytes += message.length as u64;
        if pending.spare.len() < pending.most_spare {
            pending.spare.push(message.buffer);
        }
        self.commands.wake_up(&pending);
    }

    /// Go on with another congestion controller.
    pub fn set_mode(&self, mode: Mode) {
        let mut pending = self.commands.lock();
        pending.mode = Some(mode);
        self.commands.wake_up(&pending);
    }

    /// Limit the rate; 0 for a pause.
    pub fn limit(&self, bytes_per_s: Option<u64>) {
        let mut pending = self.commands.lock();
        pending.limit = Some(bytes_per_s);
        self.commands.wake_up(&pending);
    }

    /// Statistics, at most 100 ms old.
    pub fn status(&self) -> Status {
        self.commands.lock().status.clone()
    }

    /// Close when everything has been delivered; returns when that is done, or was given up.
    pub fn close(&self) {
        let mut pending = self.commands.lock();
        pending.close = true;
        self.commands.wake_up(&pending);
        drop(pending);
        self.join();
    }

    /// Close at once.
    pub fn abort(&self) {
        let mut pending = self.commands.lock();
        pending.abort = true;
        pending.over = true;
        self.commands.wake_up(&pending);
        drop(pending);
        self.commands.heard.notify_all();
        self.commands.backpressure.notify();
    }

    /// Another way is taken: it ends without a word.
    pub fn give_up(&self) {
        self.commands.lock().given_up = true;
        self.abort();
    }

    fn join(&self) {
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
            // A panic was printed on stderr already.
            let _ = thread.join();
        }
    }
}

impl Drop for UdpConnection {
    fn drop(&mut self) {
        self.abort();
        self.join();
    }
}
