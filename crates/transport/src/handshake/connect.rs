//! Connects to a server: TCP, then TLS that authenticates both ends.
//!
//! Arrives: an address, keys, what the connection is for. Leaves: a connection whose handshake is done; or a sentence
//! that says whom to ask for what. Must not know: what is said on it.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use rustls::pki_types::ServerName;
use rustls::{AlertDescription, ClientConnection, Connection};

use crate::error::{protocol_violation, Error};
use crate::identity::{Identity, PublicKey};
use crate::tls;

/// How long a host may take to accept a connection, and to answer in its handshake.
const CONNECT_TIME: Duration = Duration::from_secs(15);

/// A busy server rejects connections at once; the client tries again after this pause, doubled each time.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const MOST_PAUSES: u32 = 5;

/// Whom to reach, and as whom.
pub struct ConnectTarget<'a> {
    /// A name or an address.
    pub host: &'a str,
    /// TCP.
    pub port: u16,
    /// This end's key.
    pub identity: &'a Identity,
    /// The server's key, where it is known.
    pub trusted: Option<&'a PublicKey>,
    /// What the connection is for: see [`tls::ALPN`].
    pub alpn: &'a [u8],
}

/// A server that was reached.
pub struct Connected {
    /// TLS, with its handshake done.
    pub tls: Connection,
    /// The TCP connection.
    pub stream: TcpStream,
    /// Where it was found.
    pub address: SocketAddr,
    /// How long the answer in TLS's handshake took: a round trip to the server itself, where something on the way may
    /// answer for TCP.
    pub rtt: Duration,
}

/// Why a try came to nothing.
enum Miss {
    /// The server, or what stands before it, ended the connection without a word: another try may do better.
    TurnedAway(Error),
    Failed(Error),
}

/// Whether the peer put an end to a connection that it had taken.
fn is_wordless(error: &std::io::Error) -> bool {
    use ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected, UnexpectedEof};
    let wordless = [BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected, UnexpectedEof];
    wordless.contains(&error.kind())
}

/// Connect and come to know one another.
pub fn connect(server: &ConnectTarget<'_>) -> Result<Connected, Error> {
    let mut pauses = 0;
    loop {
        match attempt(server) {
            Ok(reached) => return Ok(reached),
            Err(Miss::TurnedAway(_)) if pauses < MOST_PAUSES => {
                std::thread::sleep(FIRST_PAUSE * (1 << pauses));
                pauses += 1;
            }
            Err(Miss::TurnedAway(error)) => {
                let text = format!(
                    "{error}: it turned away {} connections in a row, as it does where too many come from one address or at a \
                     time: try again in a minute",
                    pauses + 1
                );
                return Err(Error::Unreachable(text));
            }
            Err(Miss::Failed(error)) => return Err(error),
        }
    }
}

fn attempt(server: &ConnectTarget<'_>) -> Result<Connected, Miss> {
    let (stream, address) = connect_tcp(server.host, server.port)?;
    let began = Instant::now();
    let tls = handshake(server, &stream)?;
    Ok(Connected { tls, stream, address, rtt: began.elapsed() })
}

fn connect_tcp(host: &str, port: u16) -> Result<(TcpStream, SocketAddr), Miss> {
    let unreachable = |text: String| Error::Unreachable(text);
    let addresses = (host, port)
        .to_socket_addrs()
        .map_err(|error| Miss::Failed(unreachable(format!("{host} is not known: {error}"))))?;
    let mut last = Miss::Failed(unreachable(format!("{host} has no address")));
    for address in addresses {
        match TcpStream::connect_timeout(&address, CONNECT_TIME) {
            Ok(stream) => return Ok((stream, address)),
            // The reset of a server that turns a connection away may come before this call returns.
            Err(error) if is_wordless(&error) => {
                last = Miss::TurnedAway(turned_away(host, port, &error));
            }
            // One address that was turned away may let the next try in.
            Err(_) if matches!(last, Miss::TurnedAway(_)) => {}
            Err(error) => {
                last = Miss::Failed(unreachable(format!(
                    "{host} cannot be reached at {address}: {error}: is `waystage serve` running there, and does a \
                     firewall let TCP and UDP port {port} through?"
                )));
            }
        }
    }
    Err(last)
}

fn turned_away(host: &str, port: u16, error: &std::io::Error) -> Error {
    Error::Unreachable(format!("{host}:{port} does not answer as `waystage serve` does: {error}"))
}

/// The handshake; or why there was none.
fn handshake(server: &ConnectTarget<'_>, mut stream: &TcpStream) -> Result<Connection, Miss> {
    let made = tls::client(server.identity, server.trusted.cloned(), server.alpn);
    let (config, verifier) = made.map_err(Miss::Failed)?;
    // Keys identify the server, not names: any name will do, and none is sent.
    let name =
        ServerName::try_from("waystage.invalid").map_err(|_| Miss::Failed(protocol_violation()))?;
    let mut tls = ClientConnection::new(config, name)
        .map_err(|error| Miss::Failed(Error::input(format!("TLS cannot be used: {error}"))))?;
    let failed = |error: std::io::Error| {
        if is_wordless(&error) {
            Miss::TurnedAway(turned_away(server.host, server.port, &error))
        } else {
            Miss::Failed(Error::io("set up the connection", &error))
        }
    };
    stream.set_read_timeout(Some(CONNECT_TIME)).map_err(failed)?;
    stream.set_write_timeout(Some(CONNECT_TIME)).map_err(failed)?;
    while tls.is_handshaking() {
        if let Err(error) = tls.complete_io(&mut stream) {
            // A key that is not believed is an error of another kind.
            return Err(if is_wordless(&error) {
                Miss::TurnedAway(turned_away(server.host, server.port, &error))
            } else {
                Miss::Failed(not_trusted(server, verifier.seen(), &error))
            });
        }
    }
    Ok(Connection::Client(tls))
}

fn not_trusted(
    server: &ConnectTarget<'_>,
    seen: Option<PublicKey>,
    error: &std::io::Error,
) -> Error {
    let (host, port) = (server.host, server.port);
    match seen {
        Some(key) if server.trusted.is_none() => Error::Untrusted { key: key.line(), text: format!(
                "{host}:{port} is not known yet; its key has the fingerprint {}: compare it with what `waystage serve \
                 --show-key` says there, and give --trust-new to believe it from now on",
                key.fingerprint()
            ) },
        Some(key) if server.trusted != Some(&key) => Error::Untrusted { key: key.line(), text: format!(
                "{host}:{port} shows another key than the one that is known: its fingerprint is {}. The connection may be \
                 intercepted; if the server was made anew, remove its line from the file of known hosts",
                key.fingerprint()
            ) },
        _ if server.alpn == tls::PROBE_ALPN && speaks_otherwise(error) => Error::Unreachable(format!("{host}:{port} knows nothing of probes: bring the Waystage there up to date"),
        ),
        _ => Error::Unreachable(format!("{host}:{port} does not answer as `waystage serve` does: {error}"),
        ),
    }
}

/// Whether the peer speaks TLS, but nothing on it that was asked for.
fn speaks_otherwise(error: &std::io::Error) -> bool {
    let told = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    matches!(told, Some(rustls::Error::AlertReceived(AlertDescription::NoApplicationProtocol)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_way_of_ending_a_connection_without_a_word_is_one() {
        use rustix::io::Errno;
        for errno in [Errno::CONNRESET, Errno::PIPE, Errno::CONNABORTED, Errno::NOTCONN] {
            assert!(is_wordless(&std::io::Error::from(errno)), "{errno}");
        }
        for errno in [Errno::CONNREFUSED, Errno::TIMEDOUT, Errno::HOSTUNREACH, Errno::INVAL] {
            assert!(!is_wordless(&std::io::Error::from(errno)), "{errno}");
        }
    }
}
