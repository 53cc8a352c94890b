//! Who may speak to the process: those who know the token of the launch.
//!
//! Arrives: tokens, nonces, streams of peers that may be hostile. Leaves: proofs; streams of peers that are admitted.
//! Must not know: what is said afterwards.
//!
//! Each side proves the token over both nonces by keyed BLAKE3. The token is never sent between nodes. Data are not
//! encrypted: they stay on the interconnect of one cluster, as MPI's do.

use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use waystage_collective_wire::frame::{framed, Frames};
use waystage_collective_wire::peer::Peer;
use waystage_collective_wire::VERSION;

/// How long a greeting may take.
pub const GREETING: Duration = Duration::from_secs(5);

/// Bytes of a message before the peer is known.
pub const GREETING_BYTES: usize = 1024;

/// What proves that one knows the token.
#[derive(Clone)]
pub struct Secret([u8; 32]);

impl Secret {
    /// Of the token's text.
    pub fn new(token: &str) -> Self {
        Self(blake3::derive_key("waystage 2026 token of a launch", token.as_bytes()))
    }

    /// Whether the text is the token; in constant time.
    pub fn is(&self, token: &str) -> bool {
        blake3::Hash::from(self.0) == blake3::Hash::from(Self::new(token).0)
    }

    fn proof(
        &self,
        role: &str,
        first: &[u8; 32],
        second: &[u8; 32],
        address: &str,
    ) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(role.as_bytes()).update(first).update(second).update(address.as_bytes());
        hasher.finalize()
    }
}

/// 32 random bytes.
fn nonce() -> std::io::Result<[u8; 32]> {
    let mut found = [0; 32];
    let mut done = 0;
    while done < found.len() {
        done += rustix::rand::getrandom(&mut found[done..], rustix::rand::GetRandomFlags::empty())?;
    }
    Ok(found)
}

fn send(stream: &mut TcpStream, message: &Peer) -> std::io::Result<()> {
    stream.write_all(&framed(&message.encode()))
}

/// The next message. It takes no byte beyond it, so that the stream can be handed on.
fn receive(stream: &mut TcpStream, until: Instant) -> std::io::Result<Peer> {
    let wrong = |error| std::io::Error::new(std::io::ErrorKind::InvalidData, error);
    let mut frames = Frames::default();
    let mut byte = [0; 1];
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(std::io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        stream.read_exact(&mut byte)?;
        frames.push(&byte);
        if let Some(body) = frames.next_body(GREETING_BYTES).map_err(wrong)? {
            return Peer::decode(&body).map_err(wrong);
        }
    }
}

fn refused(why: &str) -> std::io::Error {
    std::io::Error::new(std::io::ErrorKind::PermissionDenied, why.to_owned())
}

/// Connect to the process at an address `NAME@HOST:PORT`, and greet it.
pub fn connect(address: &str, own: &str, secret: &Secret) -> std::io::Result<TcpStream> {
    let place = address.split_once('@').map_or(address, |(_, place)| place);
    let mut last = std::io::Error::from(std::io::ErrorKind::AddrNotAvailable);
    for place in place.to_socket_addrs()?.take(4) {
        match TcpStream::connect_timeout(&place, GREETING) {
            Ok(stream) => return greet(stream, own, secret),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn prepare(stream: &TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(GREETING))
}

fn greet(mut stream: TcpStream, own: &str, secret: &Secret) -> std::io::Result<TcpStream> {
    prepare(&stream)?;
    let (until, mine) = (Instant::now() + GREETING, nonce()?);
    send(&mut stream, &Peer::Hello { version: VERSION, nonce: mine, address: own.to_owned() })?;
    let Peer::Challenge { version, nonce: theirs, proof } = receive(&mut stream, until)? else {
        return Err(refused("it sent another message than a challenge"));
    };
    if version != VERSION {
        return Err(refused("it is of another version"));
    }
    if secret.proof("accept", &mine, &theirs, "") != blake3::Hash::from(proof) {
        return Err(refused("it does not know this launch's token"));
    }
    let proof = *secret.proof("connect", &mine, &theirs, own).as_bytes();
    send(&mut stream, &Peer::Proof { proof })?;
    Ok(stream)
}

/// Greet a process that connected; its address.
pub fn accept(stream: &mut TcpStream, secret: &Secret) -> std::io::Result<String> {
    prepare(stream)?;
    let until = Instant::now() + GREETING;
    let Peer::Hello { version, nonce: theirs, address } = receive(stream, until)? else {
        return Err(refused("it sent another message than a greeting"));
    };
    let mine = nonce()?;
    let proof = *secret.proof("accept", &theirs, &mine, "").as_bytes();
    send(stream, &Peer::Challenge { version: VERSION, nonce: mine, proof })?;
    if version != VERSION {
        return Err(refused("it is of another version"));
    }
    let Peer::Proof { proof } = receive(stream, until)? else {
        return Err(refused("it sent another message than a proof"));
    };
    if secret.proof("connect", &theirs, &mine, &address) != blake3::Hash::from(proof) {
        return Err(refused("it does not know this launch's token"));
    }
    Ok(address)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use std::net::TcpListener;

    fn greeting(of: &str, with: &str) -> (std::io::Result<TcpStream>, std::io::Result<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("x@{}", listener.local_addr().unwrap());
        let secret = Secret::new(of);
        let server = std::thread::spawn(move || accept(&mut listener.accept().unwrap().0, &secret));
        let client = connect(&address, "me@h:1", &Secret::new(with));
        if client.is_err() {
            drop(client);
            return (Err(std::io::ErrorKind::PermissionDenied.into()), server.join().unwrap());
        }
        (client, server.join().unwrap())
    }

    #[test]
    fn those_with_the_token_are_admitted_and_others_are_not_on_either_side() {
        let (client, server) = greeting("one", "one");
        assert_eq!((client.is_ok(), server.unwrap()), (true, "me@h:1".to_owned()));
        let (client, server) = greeting("one", "two");
        assert!(client.is_err() && server.is_err());
    }

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig::with_cases(48))]

        #[test]
        fn any_other_version_is_refused_by_both_sides(
            version in proptest::prelude::any::<u16>(),
            known in proptest::prelude::any::<bool>(),
            noise in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..80),
        ) {
            proptest::prop_assume!(version != VERSION);
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = format!("x@{}", listener.local_addr().unwrap());
            let stranger = std::thread::spawn(move || {
                let mut stream = listener.accept().unwrap().0;
                let until = Instant::now() + GREETING;
                let Ok(Peer::Hello { nonce: theirs, .. }) = receive(&mut stream, until) else {
                    return;
                };
                let secret = Secret::new(if known { "one" } else { "two" });
                let proof = *secret.proof("accept", &theirs, &[1; 32], "").as_bytes();
                let _ = send(&mut stream, &Peer::Challenge { version, nonce: [1; 32], proof });
                let _ = stream.write_all(&noise);
            });
            let error = connect(&address, "me@h:1", &Secret::new("one")).unwrap_err();
            proptest::prop_assert!(error.to_string().contains("another version"), "{error}");
            stranger.join().unwrap();
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let hello = Peer::Hello { version, nonce: [2; 32], address: "x@h:1".into() };
            send(&mut client, &hello).unwrap();
            let error = accept(&mut listener.accept().unwrap().0, &Secret::new("one")).unwrap_err();
            proptest::prop_assert!(error.to_string().contains("another version"), "{error}");
        }
    }

    #[test]
    fn noise_and_silence_end_a_greeting() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        client.write_all(&[0xff; 64]).unwrap();
        assert!(accept(&mut listener.accept().unwrap().0, &Secret::new("x")).is_err());
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        drop(client);
        assert!(accept(&mut listener.accept().unwrap().0, &Secret::new("x")).is_err());
    }
}
