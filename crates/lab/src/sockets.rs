//! The sockets of streams, each in its host's network namespace.
//!
//! Arrives: streams. Leaves: sockets. Must not know: packets.

use std::collections::hash_map::{Entry, HashMap};
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;

use nix::sys::socket::{setsockopt, sockopt};
use socket2::{Domain, Protocol, Socket, Type};
use waystage_netns::within;

use crate::sender::SourceSocket;
use crate::stream::{Stream, MAX_PAYLOAD_BYTES, MAX_RATE_PPS};
use crate::wire::HEADER_BYTES;
use crate::LossMeterError;

/// Room while a receiver waits for the processor: 4 MiB hold about 5,000 small packets.
const BUFFER_BYTES: usize = 4 << 20;

pub(crate) fn check(stream: &Stream, payload_bytes: usize) -> Result<(), String> {
    if !(1..=MAX_RATE_PPS).contains(&stream.rate_pps) {
        return Err(format!(
            "rate {} is not between 1 and {MAX_RATE_PPS} a second",
            stream.rate_pps
        ));
    }
    if stream.dscp > 63 {
        return Err(format!("code point {} is not between 0 and 63", stream.dscp));
    }
    if stream.port == 0 {
        return Err("port 0 is no target: choose one from 1 to 65535".into());
    }
    if !(HEADER_BYTES..=MAX_PAYLOAD_BYTES).contains(&payload_bytes) {
        return Err(format!(
            "a payload of {payload_bytes} bytes is not between {HEADER_BYTES} and {MAX_PAYLOAD_BYTES}"
        ));
    }
    Ok(())
}

pub(crate) fn open_sources(streams: &[Stream]) -> Result<Vec<SourceSocket>, LossMeterError> {
    let mut sockets: HashMap<(Option<&str>, Ipv4Addr, u8), Arc<Socket>> = HashMap::new();
    let mut sources = Vec::with_capacity(streams.len());
    for (index, stream) in streams.iter().enumerate() {
        let namespace = stream.source_namespace.as_deref();
        let key = (namespace, stream.source, stream.dscp);
        let socket = if let Some(socket) = sockets.get(&key) {
            Arc::clone(socket)
        } else {
            let what = || format!("stream {index}, sending from {}", stream.source);
            let bound = SocketAddrV4::new(stream.source, 0);
            let socket = Arc::new(open_socket(namespace, bound, what, |socket| {
                socket.set_tos_v4(u32::from(stream.dscp) << 2)?;
                socket.set_send_buffer_size(BUFFER_BYTES)
            })?);
            sockets.insert(key, Arc::clone(&socket));
            socket
        };
        sources.push(SourceSocket {
            socket,
            target: SocketAddrV4::new(stream.target, stream.port),
            period_ns: 1_000_000_000 / u64::from(stream.rate_pps),
        });
    }
    Ok(sources)
}

pub(crate) fn open_targets(streams: &[Stream]) -> Result<Vec<Socket>, LossMeterError> {
    let mut sockets: HashMap<(Option<&str>, Ipv4Addr, u16), Socket> = HashMap::new();
    for (index, stream) in streams.iter().enumerate() {
        let namespace = stream.target_namespace.as_deref();
        let key = (namespace, stream.target, stream.port);
        if let Entry::Vacant(place) = sockets.entry(key) {
            let bound = SocketAddrV4::new(stream.target, stream.port);
            let what = || format!("stream {index}, receiving at {bound}");
            let socket = open_socket(namespace, bound, what, |socket| {
                // Only root may exceed the system's limit; otherwise the limit applies.
                if setsockopt(socket, sockopt::RcvBufForce, &BUFFER_BYTES).is_err() {
                    socket.set_recv_buffer_size(BUFFER_BYTES)?;
                }
                Ok(())
            })?;
            place.insert(socket);
        }
    }
    Ok(sockets.into_values().collect())
}

fn open_socket(
    namespace: Option<&str>,
    bound: SocketAddrV4,
    what: impl Fn() -> String + Sync,
    configure: impl Fn(&Socket) -> io::Result<()> + Sync,
) -> Result<Socket, LossMeterError> {
    within(namespace, || {
        let open = || {
            let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
            configure(&socket)?;
            socket.set_nonblocking(true)?;
            socket.bind(&bound.into())?;
            Ok(socket)
        };
        open().map_err(|source| LossMeterError::Socket { what: what(), source })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_sent_with_its_code_point_and_sockets_are_shared() {
        let stream = |dscp| Stream {
            source_namespace: None,
            source: Ipv4Addr::LOCALHOST,
            target_namespace: None,
            target: Ipv4Addr::LOCALHOST,
            port: 9,
            dscp,
            rate_pps: 1,
        };
        let sources = open_sources(&[stream(10), stream(0), stream(10)]).unwrap();
        let marks = sources.iter().map(|source| source.socket.tos_v4().unwrap() >> 2);
        assert_eq!(marks.collect::<Vec<_>>(), [10, 0, 10]);
        assert!(Arc::ptr_eq(&sources[0].socket, &sources[2].socket));
    }
}
