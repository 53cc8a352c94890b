//! The network of an engine that runs: TCP sockets, the resolver, a session with a peer.
//!
//! Arrives: addresses, names, sockets to watch. Leaves: sockets, which of them are ready. Must not know: rules,
//! streams.

use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use waystage_transport::error::Error;
use waystage_transport::waker::Waker;

use crate::listener::{Listener, Place};
use crate::network::{Accepted, Network, SESSION, WAKER};
use crate::poller::{Poller, Ready};
use crate::resolver::{Found, Resolver};
use crate::session_transport::SessionTransport;
use crate::tunnel::connecting;

/// TCP sockets, watched by one `epoll` together with the owner's waker and the session's.
pub(super) struct Sockets {
    poller: Poller,
    resolver: Resolver,
    waker: Arc<Waker>,
}

impl Sockets {
    pub(super) fn new(waker: Arc<Waker>) -> Result<Self, Error> {
        let failed = |error: std::io::Error| Error::io("wait for sockets", &error);
        let poller = Poller::new().map_err(failed)?;
        poller.watch_level(&*waker, WAKER).map_err(failed)?;
        Ok(Self { poller, resolver: Resolver::new(Arc::clone(&waker)), waker })
    }
}

impl Network for Sockets {
    type Socket = TcpStream;
    type Listener = Listener;
    type Transport = SessionTransport;

    fn now(&self) -> Instant {
        Instant::now()
    }

    fn listen(&self, place: &Place, token: u64) -> std::io::Result<(Listener, SocketAddr)> {
        let listener = Listener::bind(place)?;
        let address = listener.address()?;
        self.poller.watch_level(&listener.socket, token)?;
        Ok((listener, address))
    }

    fn watch_listener(&self, listener: &Listener, token: Option<u64>) {
        match token {
            // It is watched already only if it never was forgotten.
            Some(token) => drop(self.poller.watch_level(&listener.socket, token)),
            None => self.poller.forget(&listener.socket),
        }
    }

    fn accept(&self, listener: &Listener) -> std::io::Result<Accepted<TcpStream>> {
        let (socket, from) = listener.accept()?;
        let found = listener.destination(&socket);
        Ok(Accepted { socket, from, kind: listener.kind.clone(), found })
    }

    fn watch(&self, socket: &TcpStream, token: u64) -> std::io::Result<()> {
        self.poller.watch_edge(socket, token)
    }

    fn connect(&self, address: SocketAddr, token: u64) -> std::io::Result<TcpStream> {
        let socket = connecting(address)?;
        self.poller.watch_edge(&socket, token)?;
        Ok(socket)
    }

    fn resolve(&self, token: u64, name: &str, port: u16) {
        self.resolver.ask(token, name, port);
    }

    fn resolved(&self) -> Vec<Found> {
        self.resolver.found()
    }

    fn attach(&self, transport: &SessionTransport) -> std::io::Result<()> {
        self.poller.watch_level(transport.waker(), SESSION)?;
        match transport.socket() {
            Some(socket) => self.poller.watch_level(socket, SESSION),
            None => Ok(()),
        }
    }

    fn detach(&self, transport: &SessionTransport) {
        self.poller.forget(transport.waker());
        if let Some(socket) = transport.socket() {
            self.poller.forget(socket);
        }
    }

    fn clear_waker(&self) {
        self.waker.clear();
    }

    fn wait(&self, timeout: Option<Duration>) -> Vec<Ready> {
        self.poller.wait(timeout)
    }
}
