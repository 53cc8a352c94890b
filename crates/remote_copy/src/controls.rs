//! What may be changed while a client's copy runs, and what limits it.
//!
//! Arrives: rates, pauses, modes. Leaves: the same for both ends; bytes and what they wait for. Must not know: Python.

use std::time::Instant;

use waystage_pacing::{Cause, FlowCounts};
use waystage_protocol::congestion::Mode;
use waystage_transport::flow_limits::CONTROLS_VERSION;

use crate::client::{Client, Ends};
use crate::error::WanError;

impl Client {
    /// The user's limit of both ends from now on, in bytes a second; None for the rate that was agreed at first.
    pub fn limit(&self, bytes_per_s: Option<u64>) {
        self.shared.copy_state.limits.set_own(bytes_per_s);
        self.shared.interrupt();
    }

    /// The control plane's rate, beside the user's limit: the lower one holds.
    pub fn set_rate(&self, bytes_per_s: Option<u64>) {
        self.shared.copy_state.limits.set_rate(bytes_per_s);
        self.shared.interrupt();
    }

    /// Send nothing more, at both ends, or go on. The connections stay.
    pub fn set_paused(&self, paused: bool) {
        self.shared.copy_state.set_paused(paused);
        self.shared.interrupt();
    }

    /// Go on with another congestion controller, if the server grants it.
    ///
    /// # Errors
    /// Where the server is too old to change a mode while a copy runs.
    pub fn set_mode(&self, mode: Mode) -> Result<(), WanError> {
        let limits = &self.shared.copy_state.limits;
        let old = limits.version().filter(|version| *version < CONTROLS_VERSION);
        let pushes = matches!(self.shared.request.ends, Ends::Push { .. });
        match old {
            // What only this end sends, and every user may have, needs nothing of the server.
            Some(_) if pushes && mode.is_free() => {
                if let Some(channel) = &self.shared.lock().channel {
                    channel.set_mode(mode);
                }
            }
            Some(version) => {
                return Err(WanError::input(format!(
                    "the server speaks version {version} of the protocol, which cannot change the mode of a copy while it runs: \
                     bring the Waystage of the server up to date, or start the copy again with the mode"
                )));
            }
            None => {
                limits.set_mode(mode);
                self.shared.interrupt();
            }
        }
        Ok(())
    }

    /// How the connection is doing, and what limits it: names and numbers.
    pub fn connection(&self) -> (Vec<(&'static str, f64)>, String) {
        let progress = self.shared.lock();
        let Some(channel) = &progress.channel else { return (Vec::new(), String::new()) };
        let status = channel.status();
        let limit = if progress.limit.is_empty() {
            status.limit().map_or("", waystage_transport::stats::Bottleneck::name).to_owned()
        } else {
            progress.limit.clone()
        };
        (status.numbers(), limit)
    }

    /// Bytes moved and found, and what limits the copy: at the sender what its connections wait for, at the receiver
    /// what its threads do.
    pub fn flow(&self) -> FlowCounts {
        let state = &self.shared.copy_state;
        let counts = state.report.tally.read();
        let bytes_done = state.moved();
        let measured = state.pace.limited_by();
        let limited_by = match self.shared.request.ends {
            _ if state.limits.is_paused() => Some(Cause::Paused),
            Ends::Push { .. } => self.sending_waits_for(),
            Ends::Pull { .. } => measured,
        };
        FlowCounts { bytes_done, bytes_total: counts.found_bytes, limited_by }
    }

    fn sending_waits_for(&self) -> Option<Cause> {
        let mut progress = self.shared.lock();
        let status = progress.channel.as_ref()?.status();
        progress.recent.limit(Instant::now(), &status.held_ns)?.cause()
    }
}
