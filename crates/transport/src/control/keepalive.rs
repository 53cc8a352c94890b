//! When a silent peer counts as gone.
//!
//! Arrives: a TCP connection. Leaves: its keepalive set. Must not know: TLS, messages.

use std::net::TcpStream;
use std::time::Duration;

/// Unanswered keepalives, five seconds apart, after which a peer's machine has vanished where nothing is to be sent.
pub(super) const KEEPALIVE_RETRIES: u32 = 4;

/// The same where UDP tells whether the peer is there: its packets, and their absence for the idle timeout. On a path
/// that loses a tenth of all packets both ways, four keepalives in a row are lost once in a few hours; this is the
/// kernel's maximum (tcp(7), TCP_KEEPCNT).
pub(super) const PATIENT_RETRIES: u32 = 127;

/// Sets the keepalive of a connection.
pub(super) fn set_keepalive(stream: &TcpStream, retries: u32) -> std::io::Result<()> {
    let keep = socket2::TcpKeepalive::new()
        .with_time(Duration::from_secs(10))
        .with_interval(Duration::from_secs(5))
        .with_retries(retries);
    socket2::SockRef::from(stream).set_tcp_keepalive(&keep)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_waits_ten_minutes_where_udp_tells_and_half_a_minute_elsewhere() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let socket = socket2::SockRef::from(&stream);
        for retries in [KEEPALIVE_RETRIES, PATIENT_RETRIES] {
            set_keepalive(&stream, retries).unwrap();
            assert!(socket.keepalive().unwrap());
            assert_eq!(socket.tcp_keepalive_retries().unwrap(), retries);
            assert_eq!(socket.tcp_keepalive_interval().unwrap(), Duration::from_secs(5));
        }
    }
}
