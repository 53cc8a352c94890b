//! What an engine needs of the world: programs' sockets, names, a session's messages, the time.
//!
//! Arrives: addresses, names, sockets to watch. Leaves: sockets, which of them are ready, messages. Must not know:
//! rules, streams.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use waystage_transport::flow_limits::FlowLimits;
use waystage_transport::message::Message;
use waystage_transport::stats::Status;

use crate::destination::Destination;
use crate::listener::{Kind, Place};
use crate::poller::Ready;
use crate::resolver::Found;
use crate::tunnel::ProgramSocket;

/// The engine's own descriptors; those of connections are above, even, with a second one behind each.
pub(super) const WAKER: u64 = 0;
pub(super) const SESSION: u64 = 1;

/// The messages of a session, each way.
pub(super) trait Transport {
    /// The round-trip time, as it is known now.
    fn rtt_ns(&self) -> u64;
    /// Why it is over, if it is.
    fn ended(&self) -> Option<String>;
    /// Whether a message without bytes of a stream may be given.
    fn has_place(&self) -> bool;
    /// Whether a message with bytes of a stream may be given.
    fn has_room(&self) -> bool;
    /// Give a message.
    fn send(&mut self, message: Vec<u8>);
    /// Let limits hold, tell the peer what has changed of this end's, and hear the peer's.
    fn pace(&mut self, _limits: &FlowLimits) {}
    /// Take in what has come: messages, and buffers that are free again.
    fn receive(&mut self, came: &mut Vec<Message>, free: &mut Vec<Vec<u8>>);
    /// Buffers for messages to come.
    fn spare(&mut self, buffers: impl Iterator<Item = Vec<u8>>);
    /// Send what may leave now, up to a turn. Whether anything may have left.
    fn transmit(&mut self) -> bool;
    /// Whether nothing that was given has yet to reach the peer, as far as the close would not see to it.
    fn is_delivered(&self) -> bool;
    /// How long it may be left alone; None until it wakes the engine.
    fn rests_for(&self) -> Option<Duration>;
    /// Statistics.
    fn status(&self) -> Status;
    /// Clear its wake-ups.
    fn clear_waker(&self);
    /// Drop the connection at once.
    fn abort(&self);
    /// Close in good order: what was given reaches the peer first, if it answers.
    fn close(self);
}

/// A program's connection that was taken.
pub(super) struct Accepted<S> {
    pub(super) socket: S,
    pub(super) from: SocketAddr,
    pub(super) kind: Kind,
    /// Where it leads, where that is known at once.
    pub(super) found: Result<Option<Destination>, String>,
}

/// Where an engine's connections come from and go to.
pub(super) trait Network {
    type Socket: ProgramSocket;
    type Listener;
    type Transport: Transport;

    /// The time.
    fn now(&self) -> Instant;
    /// Take connections there, and tell of them by `token`.
    fn listen(&self, place: &Place, token: u64) -> std::io::Result<(Self::Listener, SocketAddr)>;
    /// Tell of a listener's connections, or no longer.
    fn watch_listener(&self, listener: &Self::Listener, token: Option<u64>);
    /// The next connection; `WouldBlock` where there is none.
    fn accept(&self, listener: &Self::Listener) -> std::io::Result<Accepted<Self::Socket>>;
    /// Tell once when a socket becomes ready for anything.
    fn watch(&self, socket: &Self::Socket, token: u64) -> std::io::Result<()>;
    /// Begin to connect; watched by `token`.
    fn connect(&self, address: SocketAddr, token: u64) -> std::io::Result<Self::Socket>;
    /// Resolve a name for `token`.
    fn resolve(&self, token: u64, name: &str, port: u16);
    /// Names that were found.
    fn resolved(&self) -> Vec<Found>;
    /// Tell of a session's messages, or no longer.
    fn attach(&self, transport: &Self::Transport) -> std::io::Result<()>;
    fn detach(&self, transport: &Self::Transport);
    /// Clear the owner's wake-ups.
    fn clear_waker(&self);
    /// Wait until something is ready, at most for `timeout` if there is one.
    fn wait(&self, timeout: Option<Duration>) -> Vec<Ready>;
}
