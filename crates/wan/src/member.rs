//! One connection of a lane: TLS over TCP, and UDP beside it where something comes back.
//!
//! Arrives: messages to send, which way was found to be open. Leaves: messages on that way; how much more it takes.
//! Must not know: what messages say, other members.
//!
//! Until it is known which way is open, which takes a round trip, a little may already be said over TLS, so that nothing waits for it.

use parking_lot::{Condvar, Mutex, MutexGuard};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::Duration;

use crate::control::Control;
use crate::lane::{Message, Status};
use crate::udp::UdpLane;

/// What may be said before the way is known: with what ended the handshake it is in TCP's first window, ten segments (RFC 6928).
pub(crate) const EARLY_BYTES: usize = 12 << 10;

/// Messages whose memory is kept, and how much is worth that. Threads that read take it as fast as it comes.
const MOST_FREE: usize = 4;
const LEAST_FREE_BYTES: usize = 1 << 20;

/// Where those wait who cannot send for now.
#[derive(Default)]
pub(crate) struct Room {
    turn: Mutex<u64>,
    changed: Condvar,
    waiting: AtomicUsize,
    /// Of messages that the other end holds, to be filled again.
    free: Mutex<Vec<Vec<u8>>>,
}

impl Room {
    /// There may be room.
    pub(crate) fn ring(&self) {
        *self.turn.lock() += 1;
        self.changed.notify_all();
    }

    pub(crate) fn seen(&self) -> u64 {
        *self.turn.lock()
    }

    /// Wait until somebody rang after `seen`.
    pub(crate) fn wait(&self, seen: u64, timeout: Duration) {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let mut turn = self.turn.lock();
        self.changed.wait_while_for(&mut turn, |turn| *turn == seen, timeout);
        drop(turn);
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }

    /// This message is the other end's: its memory may be filled again, if it is much.
    pub(crate) fn keep(&self, message: Vec<u8>) {
        let mut free = self.free.lock();
        if message.capacity() >= LEAST_FREE_BYTES && free.len() < MOST_FREE {
            free.push(message);
        }
    }

    /// Memory for a message, with what was in it.
    pub(crate) fn memory(&self) -> Vec<u8> {
        self.free.lock().pop().unwrap_or_default()
    }

    /// Whether somebody waits.
    pub(crate) fn is_wanted(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) > 0
    }
}

/// Which way a member's messages take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Undecided,
    Udp,
    Tcp,
}

/// One connection of a lane.
pub(crate) struct Member {
    /// None in measurements, which have only UDP.
    control: Option<Arc<Control>>,
    udp: Option<UdpLane>,
    /// And bytes said early.
    way: Mutex<(Way, usize)>,
    room: Arc<Room>,
}

impl Member {
    /// Over UDP, if something comes back; else over TLS.
    pub(crate) fn new(control: Arc<Control>, udp: Option<UdpLane>, room: Arc<Room>) -> Self {
        let way = if udp.is_some() { Way::Undecided } else { Way::Tcp };
        Self { control: Some(control), udp, way: Mutex::new((way, 0)), room }
    }

    /// The same for one that came later: nothing is said on it before its way is known.
    pub(crate) fn later(control: Arc<Control>, udp: Option<UdpLane>, room: Arc<Room>) -> Self {
        let member = Self::new(control, udp, room);
        member.decided().1 = EARLY_BYTES;
        member
    }

    /// Over UDP, come what may.
    pub(crate) fn only_udp(udp: UdpLane, room: Arc<Room>) -> Self {
        Self { control: None, udp: Some(udp), way: Mutex::new((Way::Udp, 0)), room }
    }

    /// One that takes nothing, for tests of what is received.
    #[cfg(test)]
    pub(crate) fn mute(room: Arc<Room>) -> Self {
        Self { control: None, udp: None, way: Mutex::new((Way::Tcp, 0)), room }
    }

    /// The UDP of it, if there is any.
    pub(crate) fn udp(&self) -> Option<&UdpLane> {
        self.udp.as_ref()
    }

    fn decided(&self) -> MutexGuard<'_, (Way, usize)> {
        let mut state = self.way.lock();
        // Only who has heard this end sends it messages over UDP.
        if state.0 == Way::Undecided && self.udp.as_ref().is_some_and(UdpLane::has_come) {
            state.0 = Way::Udp;
        }
        state
    }

    pub(crate) fn way(&self) -> Way {
        self.decided().0
    }

    /// The client says which way is taken. False where it cannot be taken any more.
    pub(crate) fn choose(&self, udp: bool) -> bool {
        let mut state = self.decided();
        let wanted = if udp { Way::Udp } else { Way::Tcp };
        if state.0 == Way::Undecided {
            state.0 = wanted;
            if let (false, Some(lane)) = (udp, &self.udp) {
                lane.give_up();
            }
        }
        let chosen = state.0 == wanted;
        drop(state);
        self.room.ring();
        chosen
    }

    /// How much of what it takes is there already; None where it takes nothing now. `early` for what may be said before the way is known.
    pub(crate) fn load(&self, early: bool) -> Option<f64> {
        let (way, said) = *self.decided();
        match way {
            Way::Undecided => (early && said < EARLY_BYTES).then_some(0.0),
            Way::Udp => self.udp.as_ref().map(UdpLane::load),
            Way::Tcp => self.control.as_ref().map(|control| control.load()),
        }
    }

    /// Take the message, or give it back where there is no room.
    pub(crate) fn offer(&self, message: Vec<u8>) -> Option<Vec<u8>> {
        let mut state = self.decided();
        match (state.0, &self.udp, &self.control) {
            (Way::Udp, Some(udp), _) => {
                drop(state);
                udp.offer(message)
            }
            (Way::Undecided, _, Some(control)) if state.1 + message.len() <= EARLY_BYTES => {
                state.1 += message.len();
                control.offer_bulk(&message);
                None
            }
            (Way::Tcp, _, Some(control)) => {
                drop(state);
                control.send_bulk(message)
            }
            _ => Some(message),
        }
    }

    /// Whether the other end holds all that was sent.
    pub(crate) fn delivered(&self, timeout: Duration) -> bool {
        match (self.way(), &self.udp) {
            (Way::Udp, Some(udp)) => udp.delivered(timeout),
            // TCP tells nobody.
            _ => true,
        }
    }

    pub(crate) fn consumed(&self, message: Message) {
        if let Some(udp) = &self.udp {
            udp.consumed(message);
        }
    }

    /// Something that the TLS connection's thread waits for has changed.
    pub(crate) fn look(&self) {
        if let Some(control) = &self.control {
            control.look();
        }
    }

    /// Send no faster than so many bytes a second, by either way.
    pub(crate) fn limit(&self, bytes_per_s: Option<u64>) {
        if let Some(udp) = &self.udp {
            udp.limit(bytes_per_s);
        }
        if let Some(control) = &self.control {
            control.hold(bytes_per_s);
        }
    }

    pub(crate) fn abort(&self) {
        if let Some(udp) = &self.udp {
            udp.abort();
        }
        self.look();
    }

    pub(crate) fn close(&self) {
        match (self.way(), &self.udp) {
            (Way::Udp, Some(udp)) => udp.close(),
            (_, Some(udp)) => udp.give_up(),
            _ => {}
        }
    }

    pub(crate) fn status(&self) -> Status {
        match (self.way(), &self.udp, &self.control) {
            (Way::Tcp, _, Some(control)) => control.status(),
            (_, Some(udp), _) => udp.status(),
            _ => Status::default(),
        }
    }
}
