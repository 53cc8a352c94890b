//! The server's TLS handshake.
//!
//! Arrives: an accepted TCP connection. Leaves: a connection whose handshake is done, and the client's key. Must not
//! know: users.

use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::{Connection, ServerConfig, ServerConnection};

use crate::error::Error;
use crate::identity::PublicKey;
use crate::tls;

/// The TLS handshake with a client, and its key. It fails where it takes longer than `time`.
pub fn accept(
    config: &Arc<ServerConfig>,
    mut stream: &TcpStream,
    time: Duration,
) -> Result<(Connection, PublicKey), Error> {
    let failed = |error: std::io::Error| Error::lost(format!("no handshake: {error}"));
    stream.set_nonblocking(false).map_err(failed)?;
    stream.set_read_timeout(Some(time)).map_err(failed)?;
    stream.set_write_timeout(Some(time)).map_err(failed)?;
    let mut tls = ServerConnection::new(Arc::clone(config))
        .map_err(|error| Error::lost(format!("no handshake: {error}")))?;
    let deadline = Instant::now() + time;
    while tls.is_handshaking() || tls.wants_write() {
        if tls.wants_write() {
            tls.write_tls(&mut stream).map_err(failed)?;
            continue;
        }
        // A client that sends a byte now and then is not waited for either.
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Error::lost("no handshake within its time"));
        }
        stream.set_read_timeout(Some(left)).map_err(failed)?;
        if tls.read_tls(&mut stream).map_err(failed)? == 0 {
            return Err(Error::lost("no handshake: it went away"));
        }
        if let Err(error) = tls.process_new_packets() {
            // Send the alert, if the client speaks TLS at all.
            let _ = tls.write_tls(&mut stream);
            return Err(Error::lost(format!("no handshake: {error}")));
        }
    }
    let tls = Connection::Server(tls);
    let key = tls::peer_key(&tls).ok_or_else(|| Error::lost("it showed no key"))?;
    Ok((tls, key))
}
