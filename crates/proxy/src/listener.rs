//! Where connections of programs are taken, and what each of these places knows of where they are to lead.
//!
//! Arrives: an address and a kind. Leaves: sockets with, where it is known at once, a destination. Must not know:
//! sessions.

use std::net::{SocketAddr, TcpListener, TcpStream};

use crate::destination::Destination;
use crate::tunnel::prepare;

/// Connections that the kernel holds until they are taken.
const BACKLOG: i32 = 1024;

/// What a place for connections is.
#[derive(Debug, Clone)]
pub enum Kind {
    /// Clients say where to, by SOCKS 5.
    Socks,
    /// Always there.
    Fixed(Destination),
    /// To where they were going before the kernel's REDIRECT turned them here.
    Redirect,
    /// To where they are going: the kernel's TPROXY, or a local route, gives them to this socket unchanged.
    Transparent,
    /// To what the peer knows by this number.
    Reverse(u32),
}

/// A place for connections.
#[derive(Debug, Clone)]
pub struct Place {
    /// Address and port; port 0 for one that is free.
    pub listen: SocketAddr,
    /// What it is.
    pub kind: Kind,
}

pub(super) struct Listener {
    pub(super) socket: TcpListener,
    pub(super) kind: Kind,
}

impl Listener {
    pub(super) fn bind(place: &Place) -> std::io::Result<Self> {
        let domain = socket2::Domain::for_address(place.listen);
        let socket = socket2::Socket::new(domain, socket2::Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        if matches!(place.kind, Kind::Transparent) {
            match place.listen {
                SocketAddr::V4(_) => socket.set_ip_transparent_v4(true)?,
                SocketAddr::V6(_) => socket.set_ip_transparent_v6(true)?,
            }
        }
        socket.bind(&place.listen.into())?;
        socket.listen(BACKLOG)?;
        socket.set_nonblocking(true)?;
        Ok(Self { socket: socket.into(), kind: place.kind.clone() })
    }

    pub(super) fn address(&self) -> std::io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// The next connection, if there is one, and from where.
    pub(super) fn accept(&self) -> std::io::Result<(TcpStream, SocketAddr)> {
        let (socket, from) = self.socket.accept()?;
        prepare(&socket)?;
        Ok((socket, from))
    }

    /// Where a connection that was taken here was going.
    pub(super) fn destination(&self, socket: &TcpStream) -> Result<Option<Destination>, String> {
        let here = socket.local_addr().map_err(|error| format!("it has no address: {error}"))?;
        match &self.kind {
            Kind::Socks | Kind::Reverse(_) => Ok(None),
            Kind::Fixed(destination) => Ok(Some(destination.clone())),
            Kind::Transparent => Ok(Some(here.into())),
            Kind::Redirect => {
                let options = socket2::SockRef::from(socket);
                let found = if here.ip().to_canonical().is_ipv4() {
                    options.original_dst_v4()
                } else {
                    options.original_dst_v6()
                };
                let found = found.ok().and_then(|found| found.as_socket());
                let found = found.filter(|found| Destination::from(*found) != here.into());
                found.map(|found| Some(found.into())).ok_or_else(|| {
                    "the kernel did not redirect it here, so where it was going is not known"
                        .to_owned()
                })
            }
        }
    }
}
