//! The second way of small messages: the control stream of the connection over UDP.
//!
//! Arrives: nothing. Leaves: what the TLS connection's owner and the connection over UDP call of one another. Must not
//! know: either of them.

/// Takes bytes for the peer's control stream.
pub trait ControlPath: Send + Sync {
    /// Send bytes, behind those before them.
    fn send(&self, bytes: &[u8]);

    /// The peer may be dead: end unless it answers soon.
    fn expect_answer(&self);
}

/// Takes what the control stream brings.
pub trait ControlSink: Send + Sync {
    /// The next bytes.
    fn control_bytes(&self, bytes: &[u8]);

    /// The connection over UDP has ended: why, and whether because the peer is silent.
    fn udp_ended(&self, why: &str, silent: bool);
}
