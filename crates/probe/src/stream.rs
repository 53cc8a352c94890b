//! The comparison: one TCP connection that carries as much as it can for a while.
//!
//! Arrives: which way, how long, how fast at most. Leaves: bytes and times at the receiving end, what the kernel says
//! at the sending one. Must not know: what else is measured.
//!
//! Its start is authenticated: a TLS handshake, the session's token in it. After that both ends leave TLS and use the
//! bare socket, so that TCP is measured and not the cipher. Nothing that is sent then means anything.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use waystage_transport::error::{protocol_violation, Error};
use waystage_transport::tls::Connection;
use waystage_transport::wire::{Read, Reader, Writer};

use crate::messages::Token;

/// What a call writes or reads.
const PIECE_BYTES: usize = 128 << 10;

/// Calls on the socket wait at most for this, so that a stop or the end of the time is noticed.
const STOP_LATENCY: Duration = Duration::from_millis(100);

/// No stream lasts longer.
const LONGEST: Duration = Duration::from_secs(600);

/// How long the first byte may take, and the TLS part.
pub(crate) const PATIENCE: Duration = Duration::from_secs(15);

/// The server's word that the stream begins, and the client's, outside TLS already: what follows GO would else be read
/// as TLS.
const GO: u8 = 1;
const READY: u8 = 2;

/// What a stream is to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Order {
    pub(crate) token: Token,
    /// Whether the client sends.
    pub(crate) up: bool,
    pub(crate) duration: Duration,
    /// Bytes a second at most.
    pub(crate) rate: u64,
}

/// The bytes of an order.
const ORDER_BYTES: usize = 16 + 1 + 8 + 8;

impl Order {
    fn encode(&self) -> Vec<u8> {
        let mut out = Writer::default();
        let duration_ns = u64::try_from(self.duration.as_nanos()).unwrap_or(u64::MAX);
        out.u128(u128::from_be_bytes(self.token)).u8(u8::from(self.up));
        out.u64(duration_ns).u64(self.rate);
        out.0
    }

    pub(crate) fn read(bytes: &[u8]) -> Result<Self, Error> {
        let mut reader = Reader(bytes);
        let mut read = || -> Read<Self> {
            let order = Self {
                token: reader.u128()?.to_be_bytes(),
                up: reader.flag()?,
                duration: Duration::from_nanos(reader.u64()?).min(LONGEST),
                rate: reader.u64()?.max(1),
            };
            reader.end()?;
            Ok(order)
        };
        read().map_err(|_| protocol_violation())
    }
}

/// What a stream carried, as one end saw it: each fills in what it knows.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Streamed {
    /// Bytes that came.
    pub bytes: u64,
    /// From the first to the last of them.
    pub ns: u64,
    /// Bytes in the second half of the time, when it was no longer beginning.
    pub late_bytes: u64,
    /// The sender's congestion control.
    pub congestion: String,
    /// Segments that the sender sent again.
    pub retransmits: u64,
    /// The sender's smoothed round trip.
    pub rtt_us: u64,
    /// The sender's window, in bytes.
    pub window_bytes: u64,
}

impl Streamed {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Writer::default();
        out.u64(self.bytes).u64(self.ns).u64(self.late_bytes).bytes(self.congestion.as_bytes());
        out.u64(self.retransmits).u64(self.rtt_us).u64(self.window_bytes);
        out.0
    }

    pub(crate) fn read(bytes: &[u8]) -> Result<Self, Error> {
        let mut reader = Reader(bytes);
        let mut read = || -> Read<Self> {
            Ok(Self {
                bytes: reader.u64()?,
                ns: reader.u64()?,
                late_bytes: reader.u64()?,
                congestion: reader.text()?,
                retransmits: reader.u64()?,
                rtt_us: reader.u64()?,
                window_bytes: reader.u64()?,
            })
        };
        read().map_err(|_| protocol_violation())
    }

    /// What both ends know.
    pub(crate) fn joined(receiver: &Self, sender: &Self) -> Self {
        Self {
            bytes: receiver.bytes,
            ns: receiver.ns,
            late_bytes: receiver.late_bytes,
            ..sender.clone()
        }
    }
}

fn failed(error: std::io::Error) -> Error {
    Error::io("measure a TCP stream", &error)
}

fn complete(tls: &mut Connection, stream: &mut &TcpStream) -> Result<(), Error> {
    while tls.wants_write() {
        tls.write_tls(stream).map_err(failed)?;
    }
    Ok(())
}

/// Exactly `bytes.len()` bytes out of TLS.
fn plain(tls: &mut Connection, stream: &mut &TcpStream, bytes: &mut [u8]) -> Result<(), Error> {
    let mut at = 0;
    while at < bytes.len() {
        match tls.reader().read(&mut bytes[at..]) {
            Ok(0) => return Err(Error::lost("the peer has closed the stream")),
            Ok(count) => at += count,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                if tls.read_tls(stream).map_err(failed)? == 0 {
                    return Err(Error::lost("the peer has gone away"));
                }
                tls.process_new_packets()
                    .map_err(|error| Error::lost(format!("the stream was disturbed: {error}")))?;
            }
            Err(error) => return Err(failed(error)),
        }
    }
    Ok(())
}

/// The client's part: ask for a stream on its own connection, and be one end of it.
pub(crate) fn ask(
    mut tls: Connection,
    stream: &TcpStream,
    order: &Order,
    stopped: &dyn Fn() -> bool,
) -> Result<Streamed, Error> {
    stream.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
    let mut socket = stream;
    tls.writer().write_all(&order.encode()).map_err(failed)?;
    complete(&mut tls, &mut socket)?;
    let mut word = [0];
    plain(&mut tls, &mut socket, &mut word)?;
    if word != [GO] {
        return Err(Error::lost("the server does not take part in a TCP stream"));
    }
    socket.write_all(&[READY]).map_err(failed)?;
    run(stream, order.up, order, stopped)
}

/// The server's part: what is asked for.
pub(crate) fn asked(tls: &mut Connection, stream: &TcpStream) -> Result<Order, Error> {
    let mut bytes = [0; ORDER_BYTES];
    plain(tls, &mut &*stream, &mut bytes)?;
    Order::read(&bytes)
}

/// The server's part, once the order was found good.
pub(crate) fn grant(
    mut tls: Connection,
    stream: &TcpStream,
    order: &Order,
    stopped: &dyn Fn() -> bool,
) -> Result<Streamed, Error> {
    tls.writer().write_all(&[GO]).map_err(failed)?;
    let mut socket = stream;
    complete(&mut tls, &mut socket)?;
    let mut word = [0];
    socket.read_exact(&mut word).map_err(failed)?;
    if word != [READY] {
        return Err(protocol_violation());
    }
    run(stream, !order.up, order, stopped)
}

fn run(
    stream: &TcpStream,
    sends: bool,
    order: &Order,
    stopped: &dyn Fn() -> bool,
) -> Result<Streamed, Error> {
    stream.set_read_timeout(Some(STOP_LATENCY)).map_err(failed)?;
    stream.set_write_timeout(Some(STOP_LATENCY)).map_err(failed)?;
    let streamed =
        if sends { give(stream, order, stopped)? } else { take(stream, order.duration, stopped)? };
    if stopped() {
        return Err(Error::Stopped("the probe was stopped".into()));
    }
    Ok(streamed)
}

fn waits(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), WouldBlock | TimedOut | Interrupted)
}

fn give(
    mut stream: &TcpStream,
    order: &Order,
    stopped: &dyn Fn() -> bool,
) -> Result<Streamed, Error> {
    let piece = vec![0x5a; PIECE_BYTES];
    let began = Instant::now();
    // The receiver has its own clock and ends it; this is for one that does not.
    let most = order.duration + PATIENCE;
    let mut bytes = 0_u64;
    let (mut said, mut said_at) = (kernel_says(stream), began);
    while began.elapsed() < most && !stopped() {
        // After a reset the kernel no longer answers.
        if said_at.elapsed() >= STOP_LATENCY {
            (said, said_at) = (kernel_says(stream), Instant::now());
        }
        let due = Duration::from_secs_f64(bytes as f64 / order.rate as f64);
        if let Some(early) = due.checked_sub(began.elapsed()).filter(|early| !early.is_zero()) {
            std::thread::sleep(early.min(STOP_LATENCY));
            continue;
        }
        match stream.write(&piece) {
            Ok(count) => bytes += count as u64,
            Err(error) if waits(&error) => {}
            // The receiver has had enough.
            Err(_) => break,
        }
    }
    Ok(said)
}

fn take(
    mut stream: &TcpStream,
    duration: Duration,
    stopped: &dyn Fn() -> bool,
) -> Result<Streamed, Error> {
    let mut piece = vec![0; PIECE_BYTES];
    let (asked, mut streamed) = (Instant::now(), Streamed::default());
    let mut began: Option<Instant> = None;
    loop {
        let over = match began {
            Some(began) => began.elapsed() >= duration,
            None => asked.elapsed() >= PATIENCE,
        };
        if over || stopped() {
            return Ok(streamed);
        }
        match stream.read(&mut piece) {
            Ok(0) => return Ok(streamed),
            Ok(count) => {
                // What comes first says when it began, not how fast it goes.
                let Some(began) = began else {
                    began = Some(Instant::now());
                    continue;
                };
                let passed = began.elapsed();
                streamed.bytes += count as u64;
                streamed.ns = u64::try_from(passed.as_nanos()).unwrap_or(u64::MAX);
                if passed >= duration / 2 {
                    streamed.late_bytes += count as u64;
                }
            }
            Err(error) if waits(&error) => {}
            Err(error) if streamed.bytes == 0 => return Err(failed(error)),
            Err(_) => return Ok(streamed),
        }
    }
}

/// What the sending end's kernel knows of a connection (tcp(7), TCP_INFO).
fn kernel_says(stream: &TcpStream) -> Streamed {
    let congestion = socket2::SockRef::from(stream).tcp_congestion().unwrap_or_default();
    let name: Vec<u8> = congestion.into_iter().take_while(|byte| *byte != 0).collect();
    let mut streamed =
        Streamed { congestion: String::from_utf8_lossy(&name).into_owned(), ..Streamed::default() };
    if let Some(info) = tcp_info(stream) {
        streamed.retransmits = u64::from(info.tcpi_total_retrans);
        streamed.rtt_us = u64::from(info.tcpi_rtt);
        streamed.window_bytes = u64::from(info.tcpi_snd_cwnd) * u64::from(info.tcpi_snd_mss);
    }
    streamed
}

fn tcp_info(stream: &TcpStream) -> Option<libc::tcp_info> {
    #[allow(unsafe_code)]
    // SAFETY: all of it is numbers, of which zero is one.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut size = std::mem::size_of_val(&info) as libc::socklen_t;
    #[allow(unsafe_code)]
    // SAFETY: `info` is valid for writes of `size` bytes for the length of the call; an older kernel writes fewer.
    let status = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut info).cast(),
            &raw mut size,
        )
    };
    (status == 0).then_some(info)
}
