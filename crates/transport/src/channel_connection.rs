//! One connection of a channel: TLS over TCP, and UDP beside it where something comes back.
//!
//! Arrives: messages to send, which way was found to be open. Leaves: messages on that way; how much more it takes.
//! Must not know: what messages say, other members.
//!
//! Until it is known which way is open, which takes a round trip, a little may already be said over TLS, so that
//! nothing waits for it.

use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use waystage_protocol::congestion::Mode;

use crate::backpressure::Backpressure;
use crate::control::Control;
use crate::message::Message;
use crate::route::{Route, Way};
use crate::stats::Status;
use crate::udp::UdpConnection;

/// One connection of a channel.
pub struct ChannelConnection {
    /// None in measurements, which have only UDP.
    control: Option<Arc<Control>>,
    udp: Option<UdpConnection>,
    route: Mutex<Route>,
    backpressure: Arc<Backpressure>,
}

impl ChannelConnection {
    /// Over UDP, if something comes back; else over TLS.
    pub fn new(
        control: Arc<Control>,
        udp: Option<UdpConnection>,
        backpressure: Arc<Backpressure>,
    ) -> Self {
        let route = Mutex::new(Route::new(udp.is_some()));
        joined(&control, udp.as_ref());
        Self { control: Some(control), udp, route, backpressure }
    }

    /// The same for one that came later: nothing is said on it before its way is known.
    pub fn later(
        control: Arc<Control>,
        udp: Option<UdpConnection>,
        backpressure: Arc<Backpressure>,
    ) -> Self {
        let route = Mutex::new(Route::patient(udp.is_some()));
        joined(&control, udp.as_ref());
        Self { control: Some(control), udp, route, backpressure }
    }

    /// Over UDP, come what may.
    pub fn only_udp(udp: UdpConnection, backpressure: Arc<Backpressure>) -> Self {
        Self { control: None, udp: Some(udp), route: Mutex::new(Route::udp()), backpressure }
    }

    /// One that takes nothing, for tests of receivers.
    #[doc(hidden)]
    pub fn mute(backpressure: Arc<Backpressure>) -> Self {
        Self { control: None, udp: None, route: Mutex::new(Route::new(false)), backpressure }
    }

    /// The UDP of it, if there is any.
    pub fn udp(&self) -> Option<&UdpConnection> {
        self.udp.as_ref()
    }

    fn route(&self) -> MutexGuard<'_, Route> {
        let mut route = self.route.lock();
        if self.udp.as_ref().is_some_and(UdpConnection::has_come) {
            route.udp_works();
        }
        route
    }

    /// The way that messages take now.
    pub fn way(&self) -> Way {
        self.route().way()
    }

    /// The client says which way is taken. False where it can no longer be taken.
    pub fn choose(&self, udp: bool) -> bool {
        let (chosen, gives_up) = self.route().choose(udp);
        if let (true, Some(connection)) = (gives_up, &self.udp) {
            connection.give_up();
        }
        match (chosen, udp, &self.udp, &self.control) {
            (true, true, Some(udp), Some(control)) => control.rely_on_udp(udp.control_path()),
            (true, false, _, Some(control)) => control.rely_on_tcp(),
            _ => {}
        }
        self.backpressure.notify();
        chosen
    }

    /// Its load, from 0 to 1; None where it takes nothing now. `early` for what may be sent before the way is known.
    pub fn load(&self, early: bool) -> Option<f64> {
        let route = self.route();
        match route.way() {
            Way::Undecided => (early && route.has_early_space()).then_some(0.0),
            Way::Udp => self.udp.as_ref().map(UdpConnection::load),
            Way::Tcp => self.control.as_ref().map(|control| control.load()),
        }
    }

    /// Take the message, or give it back where there is no room.
    pub fn offer(&self, message: Vec<u8>) -> Option<Vec<u8>> {
        let mut route = self.route();
        match (route.way(), &self.udp, &self.control) {
            (Way::Udp, Some(udp), _) => {
                drop(route);
                udp.offer(message)
            }
            (Way::Undecided, _, Some(control)) if route.takes_early(message.len()) => {
                control.offer_bulk(&message);
                None
            }
            (Way::Tcp, _, Some(control)) => {
                drop(route);
                control.send_bulk(message)
            }
            _ => Some(message),
        }
    }

    /// Wait until the peer holds all that was sent, or it is over; false after [`Self::interrupt`].
    pub fn delivered(&self) -> bool {
        match (self.way(), &self.udp) {
            (Way::Udp, Some(udp)) => udp.delivered(),
            // TCP does not report it.
            _ => true,
        }
    }

    /// Let a thread in [`Self::delivered`] return, now or when it next waits.
    pub fn interrupt(&self) {
        if let Some(udp) = &self.udp {
            udp.interrupt();
        }
    }

    /// The consumer has finished with a received message.
    pub fn consumed(&self, message: Message) {
        if let Some(udp) = &self.udp {
            udp.consumed(message);
        }
    }

    /// Something that the TLS connection's thread waits for has changed.
    pub fn look(&self) {
        if let Some(control) = &self.control {
            control.look();
        }
    }

    /// Go on with another congestion controller over UDP; TCP has its own.
    pub fn set_mode(&self, mode: Mode) {
        if let Some(udp) = &self.udp {
            udp.set_mode(mode);
        }
    }

    /// Limit the rate, by either way; 0 for a pause.
    pub fn limit(&self, bytes_per_s: Option<u64>) {
        if let Some(udp) = &self.udp {
            udp.limit(bytes_per_s);
        }
        if let Some(control) = &self.control {
            control.hold(bytes_per_s);
        }
    }

    /// Carry nothing more, at once; threads that wait to send return.
    pub fn abort(&self) {
        if let Some(udp) = &self.udp {
            udp.abort();
        }
        if let Some(control) = &self.control {
            control.stop_bulk();
        }
        self.look();
    }

    /// Close after everything was delivered.
    pub fn close(&self) {
        match (self.way(), &self.udp) {
            (Way::Udp, Some(udp)) => udp.close(),
            (_, Some(udp)) => udp.give_up(),
            _ => {}
        }
    }

    /// Statistics of the way in use.
    pub fn status(&self) -> Status {
        match (self.way(), &self.udp, &self.control) {
            (Way::Tcp, _, Some(control)) => control.status(),
            (_, Some(udp), _) => udp.status(),
            _ => Status::default(),
        }
    }
}

/// What the control stream brings goes to the owner of the TLS connection.
fn joined(control: &Control, udp: Option<&UdpConnection>) {
    if let Some(udp) = udp {
        udp.deliver_control_to(control.sink());
    }
}
