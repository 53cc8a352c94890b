//! What both sides want of a running copy or session: rates, pauses, a mode.
//!
//! Arrives: wishes of this side's user and control plane, and what the peer said. Leaves: what the peer is to hear, and
//! what holds here. Must not know: connections.

use parking_lot::Mutex;
use waystage_protocol::congestion::Mode;

use crate::control::Control;
use crate::control_messages::kinds;
use crate::error::{protocol_violation, Error};
use crate::wire::{Malformed, Read, Reader, Writer};

/// From this version of the protocol on an end can pause the other one and change the mode.
pub const CONTROLS_VERSION: u32 = 3;

/// Rates are in bytes a second.
#[derive(Debug, Default)]
struct State {
    /// The user's own limit.
    own: Option<u64>,
    /// What the control plane grants.
    granted: Option<u64>,
    theirs: Option<u64>,
    paused: bool,
    paused_by_peer: bool,
    mode: Option<Mode>,
    /// Changes of the mode so far.
    modes: u64,
    /// The version of the protocol in use, once it is known.
    version: Option<u32>,
}

/// What this side wants now.
#[derive(Debug, Default)]
pub struct FlowLimits(Mutex<State>);

/// What the peer is to hear.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FlowRequest {
    /// Bytes a second; 0 for what was agreed at the start.
    pub rate: u64,
    /// Whether neither end is to send.
    pub paused: bool,
    /// The mode, and the number of the change.
    pub mode: Option<(Mode, u64)>,
}

impl FlowLimits {
    /// This side's schedule has come to another limit; None for what was agreed at the start.
    pub fn set_own(&self, bytes_per_s: Option<u64>) {
        self.0.lock().own = bytes_per_s;
    }

    /// The control plane grants another rate; None for any. The lower of both holds.
    pub fn set_rate(&self, bytes_per_s: Option<u64>) {
        self.0.lock().granted = bytes_per_s;
    }

    /// This side pauses, or goes on.
    pub fn set_paused(&self, paused: bool) {
        self.0.lock().paused = paused;
    }

    /// This side wants another mode.
    pub fn set_mode(&self, mode: Mode) {
        let mut state = self.0.lock();
        state.mode = Some(mode);
        state.modes += 1;
    }

    /// The version that both ends speak.
    pub fn set_version(&self, version: u32) {
        self.0.lock().version = Some(version);
    }

    /// The version that both ends speak, once it is known.
    pub fn version(&self) -> Option<u32> {
        self.0.lock().version
    }

    /// The peer's limit has changed; 0 for what was agreed at the start.
    pub fn set_theirs(&self, bytes_per_s: u64) {
        self.0.lock().theirs = Some(bytes_per_s).filter(|rate| *rate > 0);
    }

    /// The peer pauses, or goes on.
    pub fn set_paused_by_peer(&self, paused: bool) {
        self.0.lock().paused_by_peer = paused;
    }

    /// Whether either side has paused.
    pub fn is_paused(&self) -> bool {
        let state = self.0.lock();
        state.paused || state.paused_by_peer
    }

    /// What the peer is to hear. One that knows no pause gets a rate of almost nothing.
    pub fn request(&self) -> FlowRequest {
        let state = self.0.lock();
        let own = [state.own, state.granted].into_iter().flatten().min();
        let own = own.map_or(0, |rate| rate.max(1));
        match state.version {
            None => FlowRequest { rate: own, ..FlowRequest::default() },
            Some(version) if version < CONTROLS_VERSION => {
                FlowRequest { rate: if state.paused { 1 } else { own }, ..FlowRequest::default() }
            }
            Some(_) => FlowRequest {
                rate: own,
                paused: state.paused,
                mode: state.mode.map(|mode| (mode, state.modes)),
            },
        }
    }

    /// Another peer: what the one before said no longer holds.
    pub fn new_peer(&self, version: u32) {
        let mut state = self.0.lock();
        (state.theirs, state.paused_by_peer, state.version) = (None, false, Some(version));
    }

    /// What both sides allow: None for what was agreed at the start, 0 in a pause.
    pub fn both(&self) -> Option<u64> {
        let state = self.0.lock();
        if state.paused || state.paused_by_peer {
            return Some(0);
        }
        let all = [state.own, state.granted, state.theirs];
        all.into_iter().flatten().min().map(|rate| rate.max(1))
    }
}

/// Tell the peer what has changed since `told`.
pub fn tell(control: &Control, request: &FlowRequest, told: &FlowRequest) {
    if request.rate != told.rate {
        control.send(kinds::LIMIT, &request.rate.to_le_bytes());
    }
    if request.paused != told.paused {
        control.send(kinds::PAUSE, &[u8::from(request.paused)]);
    }
    if let Some((mode, _)) = request.mode.filter(|_| request.mode != told.mode) {
        control.send(kinds::MODE, &mode_message(mode, ""));
    }
}

/// A mode, and why it is not the one asked for.
#[must_use]
pub fn mode_message(mode: Mode, note: &str) -> Vec<u8> {
    let mut out = Writer::default();
    out.bytes(mode.to_string().as_bytes()).bytes(note.as_bytes());
    out.0
}

/// What [`mode_message`] says.
pub fn read_mode(body: &[u8]) -> Result<(Mode, String), Error> {
    let mut reader = Reader(body);
    let mut read = || -> Read<(Mode, String)> {
        let mode = reader.text()?.parse().map_err(|_| Malformed)?;
        let note = reader.text()?;
        reader.end()?;
        Ok((mode, note))
    };
    read().map_err(|_| protocol_violation())
}

impl FlowLimits {
    /// Take in a rate or a pause of the peer. False where the message is of another kind.
    pub fn hear(&self, kind: u8, body: &[u8]) -> Result<bool, Error> {
        match (kind, body) {
            (kinds::LIMIT, body) => {
                let rate = Reader(body).u64().map_err(|_| protocol_violation())?;
                self.set_theirs(rate);
            }
            (kinds::PAUSE, [paused @ (0 | 1)]) => self.set_paused_by_peer(*paused == 1),
            (kinds::PAUSE, _) => return Err(protocol_violation()),
            _ => return Ok(false),
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_lowest_rate_holds_and_each_is_lifted_alone() {
        let limits = FlowLimits::default();
        assert_eq!((limits.both(), limits.request().rate), (None, 0));
        limits.set_own(Some(500));
        limits.set_rate(Some(300));
        limits.set_theirs(400);
        assert_eq!((limits.both(), limits.request().rate), (Some(300), 300));
        limits.set_rate(None);
        assert_eq!((limits.both(), limits.request().rate), (Some(400), 500));
        limits.set_theirs(0);
        assert_eq!(limits.both(), Some(500));
        limits.set_own(Some(0));
        assert_eq!(limits.both(), Some(1), "a rate of nothing is no pause");
    }

    #[test]
    fn a_pause_of_either_side_holds_until_both_go_on() {
        let limits = FlowLimits::default();
        limits.set_rate(Some(300));
        limits.set_paused(true);
        limits.set_paused_by_peer(true);
        assert_eq!(limits.both(), Some(0));
        limits.set_paused(false);
        assert!(limits.is_paused() && limits.both() == Some(0));
        limits.set_paused_by_peer(false);
        assert_eq!(limits.both(), Some(300));
    }

    #[test]
    fn an_older_peer_hears_only_rates() {
        let limits = FlowLimits::default();
        limits.set_rate(Some(300));
        limits.set_paused(true);
        limits.set_mode(Mode::Modest);
        let rate = |rate| FlowRequest { rate, ..FlowRequest::default() };
        assert_eq!(limits.request(), rate(300), "before its version is known");
        limits.set_version(2);
        assert_eq!(limits.request(), rate(1));
        limits.set_paused(false);
        assert_eq!(limits.request(), rate(300));
        limits.set_paused(true);
        limits.set_version(3);
        assert_eq!(
            limits.request(),
            FlowRequest { rate: 300, paused: true, mode: Some((Mode::Modest, 1)) }
        );
    }

    #[test]
    fn a_mode_is_read_as_it_was_written_and_an_unknown_one_is_a_violation() {
        for mode in Mode::all() {
            assert_eq!(read_mode(&mode_message(mode, "why")), Ok((mode, "why".to_owned())));
        }
        let mut unknown = Writer::default();
        unknown.bytes(b"eager").bytes(b"");
        assert_eq!(read_mode(&unknown.0), Err(protocol_violation()));
    }

    proptest! {
        #[test]
        fn no_bytes_make_a_reader_panic(kind: u8, body in prop::collection::vec(any::<u8>(), 0..60)) {
            let _ = read_mode(&body);
            let limits = FlowLimits::default();
            let heard = limits.hear(kind, &body);
            prop_assert_eq!(heard == Ok(false), !matches!(kind, kinds::LIMIT | kinds::PAUSE));
        }
    }
}
