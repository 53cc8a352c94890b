//! The thread that owns a connection: feeds the protocol, sends what it gives, says what held it back.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use waystage_protocol::connection::{codes, Config, Connection, Ending, Event, HeldBack};
use waystage_protocol::protect::Sealed;

use super::store::{Coming, Store};
use super::{now_ns, Agreed, Mail, Mailbox, LEAST_UNDERWAY_BYTES, MOST_UNDERWAY, SPARE_BUFFERS};
use crate::lane::{Holder, Inbox, Message, Status};
use crate::socket::{Arrived, Socket, BATCH_BYTES};

/// Datagrams made before it is looked again what has arrived.
const TURN: usize = 128;

/// How long a close may take until the peer has answered it.
const CLOSE_TIME: Duration = Duration::from_secs(2);

/// Datagrams of one size to one address, to be sent in one call.
#[derive(Default)]
pub(super) struct Batch {
    bytes: Vec<u8>,
    segment: usize,
    count: usize,
    ended: bool,
    to: Option<SocketAddr>,
}

pub(super) struct Worker {
    pub(super) mailbox: Arc<Mailbox>,
    pub(super) socket: Arc<Socket>,
    pub(super) inbox: Arc<Inbox>,
    pub(super) store: Store,
    /// Which of this host's addresses the peer writes to.
    pub(super) from: Option<IpAddr>,
    pub(super) agreed: Agreed,
    /// When it was last looked what holds us back, and for how long what did.
    pub(super) held: (u64, [u64; Holder::ALL.len()]),
    pub(super) batch: Batch,
    /// Whether the connection was told to close.
    pub(super) told: bool,
}

impl Worker {
    pub(super) fn run(mut self, peer: Option<SocketAddr>) {
        // Sleeps are to end when they should: the kernel's slack of 50 us is a fifth of a burst.
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
        let mut connection = peer.map(|peer| {
            let mut connection = self.connection(peer);
            // Says the first word: a ping, repeated until it is answered.
            connection.moved(now_ns());
            connection
        });
        let mut datagram = Vec::new();
        let mut closing: Option<Instant> = None;
        loop {
            let (arrived, messages, consumed, close, abort) = self.mail(connection.as_ref());
            for arrived in arrived {
                self.arrived(&mut connection, arrived);
            }
            let Some(connection) = &mut connection else {
                if abort || close {
                    return self.over("the connection was closed");
                }
                continue;
            };
            for message in messages {
                let extent = connection.send(message.len() as u64);
                self.store.outgoing.insert(extent, message);
            }
            if consumed > 0 {
                connection.consumed(now_ns(), consumed);
            }
            if let Some(how) = self.store.broken.take() {
                connection.close(now_ns(), codes::BROKEN, how);
                self.over(&format!("the other end broke the protocol: {how}"));
            }
            self.events(connection);
            self.transmit(connection, &mut datagram);
            if abort || close {
                closing.get_or_insert_with(Instant::now);
            }
            if !self.told && (abort || (close && connection.all_delivered())) {
                self.told = true;
                connection.close(now_ns(), if abort { 2 } else { codes::CLEAN }, "");
            }
            if connection.is_closed() || closing.is_some_and(|since| since.elapsed() > CLOSE_TIME) {
                self.events(connection);
                return self.over("the connection was closed");
            }
        }
    }

    fn connection(&self, peer: SocketAddr) -> Connection {
        let agreed = &self.agreed;
        let mut config = Config::new(peer, agreed.rtt_ns.max(10_000));
        config.local_connection = agreed.local_connection;
        config.peer_connection = agreed.peer_connection;
        config.largest_datagram = agreed.largest_datagram;
        config.limits.unconsumed_bytes = agreed.memory_bytes;
        config.limits.open_extents = MOST_UNDERWAY + 64;
        config.secret = crate::session::random();
        let protect = Box::new(Sealed::new(&agreed.secret, agreed.side, agreed.suite));
        let mode = agreed.mode.start(agreed.rtt_ns.max(10_000), agreed.rate_bps);
        Connection::new(config, now_ns(), protect, mode)
    }

    /// What others have brought; sleeps until there is something or the connection wants to be called.
    #[allow(clippy::type_complexity, reason = "taken apart at once, at the only place that calls")]
    fn mail(
        &mut self,
        connection: Option<&Connection>,
    ) -> (Vec<Arrived>, VecDeque<Vec<u8>>, u64, bool, bool) {
        let wake_ns = connection.map_or(u64::MAX, |c| c.wake_ns().unwrap_or(u64::MAX));
        let mailbox = Arc::clone(&self.mailbox);
        let mut mail = mailbox.lock();
        let now = now_ns();
        let quiet = mail.datagrams.is_empty()
            && mail.messages.is_empty()
            && mail.consumed_bytes == 0
            && (self.told
                || !(mail.abort || mail.close && connection.is_none_or(Connection::all_delivered)));
        let slept = quiet && wake_ns > now;
        let holder = connection.and_then(|c| self.holder(c, &mail, slept));
        if let Some(connection) = connection {
            self.publish(connection, &mut mail);
        }
        self.account(now, None);
        if slept {
            // Whatever else happens, somebody looks after a while.
            let timeout = Duration::from_nanos(wake_ns.saturating_sub(now).min(100_000_000));
            mail.sleeping = true;
            mail =
                mailbox.wake.wait_timeout(mail, timeout).unwrap_or_else(PoisonError::into_inner).0;
            mail.sleeping = false;
            self.account(now_ns(), holder);
        } else if let Some(Holder::Processor) = holder {
            self.held.0 = now;
        }
        if self.store.spare.len() < SPARE_BUFFERS {
            let spare = std::mem::take(&mut mail.spare);
            self.store.spare.extend(spare);
        }
        mail.datagram_bytes = 0;
        (
            std::mem::take(&mut mail.datagrams),
            std::mem::take(&mut mail.messages),
            std::mem::take(&mut mail.consumed_bytes),
            mail.close,
            mail.abort,
        )
    }

    /// Whose the time from now on is.
    fn holder(&self, connection: &Connection, mail: &Mail, slept: bool) -> Option<Holder> {
        if !slept {
            return Some(Holder::Processor);
        }
        Some(match connection.held_back_by() {
            HeldBack::Credit => Holder::Destination,
            HeldBack::Window => Holder::Path,
            HeldBack::Pace
                if connection.mode().control().rate_bps > 0.97 * self.agreed.rate_bps =>
            {
                Holder::Cap
            }
            HeldBack::Pace => Holder::Path,
            HeldBack::Application if mail.senders_waiting > 0 => Holder::Memory,
            HeldBack::Application => Holder::Source,
        })
    }

    /// Time up to now was held by `holder`; work was done in it where nobody is named.
    fn account(&mut self, now: u64, holder: Option<Holder>) {
        let passed = now.saturating_sub(self.held.0);
        self.held.0 = now;
        self.held.1[holder.unwrap_or(Holder::Processor) as usize] += passed;
    }

    fn publish(&self, connection: &Connection, mail: &mut Mail) {
        let counters = connection.counters();
        let control = connection.mode().control();
        // What is underway on the path, twice over, and something to be sent in the meantime.
        mail.most_underway_bytes = (2 * control.window_bytes.min(1 << 40) + LEAST_UNDERWAY_BYTES)
            .min(self.agreed.memory_bytes);
        mail.status = Status {
            udp: true,
            rtt_ns: connection.rtt().smoothed_ns(),
            rate_bps: control.rate_bps,
            datagram_bytes: connection.datagram_size() as u64,
            sent_packets: counters.sent_packets,
            lost_packets: counters.lost_packets.saturating_sub(counters.late_packets),
            repaired_bytes: counters.repaired_bytes,
            duplicate_bytes: counters.duplicate_bytes,
            refused_packets: counters.refused_packets,
            held_ns: self.held.1,
        };
    }

    fn arrived(&mut self, connection: &mut Option<Connection>, mut arrived: Arrived) {
        let now = now_ns();
        let opened = |connection: &Option<Connection>| {
            connection.as_ref().map_or(0, |connection| connection.counters().received_packets)
        };
        let before = opened(connection);
        for datagram in arrived.bytes.chunks_mut(arrived.stride) {
            match connection {
                Some(connection) => {
                    connection.receive(
                        now,
                        arrived.from,
                        arrived.marked,
                        datagram,
                        &mut self.store,
                    );
                }
                None => {
                    // Only who has the keys may say what the client's address is.
                    let mut candidate = self.connection(arrived.from);
                    candidate.receive(now, arrived.from, arrived.marked, datagram, &mut self.store);
                    if candidate.counters().received_packets > 0 {
                        *connection = Some(candidate);
                    }
                }
            }
        }
        if opened(connection) > before {
            self.from = arrived.at;
            if before == 0 {
                self.mailbox.lock().heard = true;
                self.mailbox.room.notify_all();
            }
        }
    }

    fn events(&mut self, connection: &mut Connection) {
        let (mut delivered, mut delivered_bytes) = (0, 0);
        while let Some(event) = connection.next_event() {
            match event {
                Event::Delivered(extent) => {
                    if let Some(message) = self.store.outgoing.remove(&extent) {
                        delivered += 1;
                        delivered_bytes += message.len() as u64;
                    }
                }
                Event::Complete { extent, length } => {
                    let Coming { buffer, end } =
                        self.store.incoming.remove(&extent).unwrap_or_default();
                    self.store.coming_bytes -= end as u64;
                    let length = usize::try_from(length).unwrap_or(0).min(buffer.len());
                    self.inbox.put(Message { buffer, length });
                }
                Event::Moved(_) => {}
                Event::Closed(ending) => self.inbox.end(&in_words(&ending)),
            }
        }
        if delivered > 0 {
            let mut mail = self.mailbox.lock();
            mail.underway -= delivered;
            mail.underway_bytes -= delivered_bytes;
            self.mailbox.room.notify_all();
        }
    }

    fn transmit(&mut self, connection: &mut Connection, datagram: &mut Vec<u8>) {
        for _ in 0..TURN {
            let Some(to) = connection.transmit(now_ns(), &mut self.store, datagram) else { break };
            let batch = &mut self.batch;
            let fits = batch.to == Some(to)
                && !batch.ended
                && datagram.len() <= batch.segment
                && batch.count < self.socket.most_segments()
                && batch.bytes.len() + datagram.len() < BATCH_BYTES - 256;
            if !fits {
                self.flush();
                self.batch.segment = datagram.len();
                self.batch.to = Some(to);
            }
            let batch = &mut self.batch;
            batch.bytes.extend_from_slice(datagram);
            batch.count += 1;
            // A shorter one is the last of its batch.
            batch.ended = datagram.len() < batch.segment;
        }
        self.flush();
    }

    fn flush(&mut self) {
        let batch = &mut self.batch;
        if let Some(to) = batch.to.take() {
            self.socket.send(to, self.from, batch.segment, &batch.bytes);
        }
        batch.bytes.clear();
        (batch.count, batch.ended) = (0, false);
    }

    /// Nothing more is sent or comes in.
    fn over(&self, why: &str) {
        self.inbox.end(why);
        let mut mail = self.mailbox.lock();
        mail.over = true;
        self.mailbox.room.notify_all();
    }
}

fn in_words(ending: &Ending) -> String {
    match ending {
        Ending::Here(_) | Ending::Peer(codes::CLEAN, _) => "the connection was closed".to_owned(),
        Ending::Peer(_, reason) if !reason.is_empty() => {
            format!("the other end closed the connection: {reason}")
        }
        Ending::Peer(..) => "the other end gave the copy up".to_owned(),
        Ending::Broken(how) => format!("the other end broke the protocol: {how}"),
        Ending::Silent => "nothing has been heard of the other end for half a minute".to_owned(),
    }
}
