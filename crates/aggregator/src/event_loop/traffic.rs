//! Carries effects out: what leaves.
//!
//! Arrives: effects. Leaves: messages and data on connections, storage requests. Must not know: why.

use waystage_collective_wire::local::ToRank;
use waystage_collective_wire::peer::Peer;

use super::{EventLoop, Sent, Way};
use crate::clock::now_ns;
use crate::connection::Parts;
use crate::effect::Effect;

impl EventLoop {
    pub(super) fn carry_out(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::ToRank(rank, message) => self.send_rank(rank, &message),
                Effect::DropRank(number, _) | Effect::DropNode(number, _) => {
                    self.drop_later(number)
                }
                Effect::ToAggregator(address, message) => {
                    self.make_way(&address);
                    match self.ways.get_mut(&address) {
                        Some(Way::Making(bodies)) => bodies.push(message.encode()),
                        Some(Way::Made(number)) => {
                            let number = *number;
                            self.send(number, &message.encode());
                        }
                        None => {}
                    }
                }
                Effect::ToNode(link, message) => self.send(link, &message.encode()),
                Effect::SendData { address, message, pull, image, coverage } => {
                    let way = self.ways.get(&address);
                    if let Some(Way::Made(number)) = way {
                        let number = *number;
                        self.send_parts(
                            number,
                            &message,
                            Parts::new(image, coverage),
                            Sent::Data(address, pull),
                        );
                    }
                }
                Effect::SendCopy { address, message, image, coverage } => {
                    if let Some(Way::Made(number)) = self.ways.get(&address) {
                        let number = *number;
                        self.send_parts(number, &message, Parts::new(image, coverage), Sent::Copy);
                    }
                }
                Effect::SendRead { link, message, pull, image, coverage } => {
                    self.send_parts(
                        link,
                        &message,
                        Parts::new(image, coverage),
                        Sent::Read(link, pull),
                    );
                }
                Effect::Fill { image, runs, data } => self.pool.fill(image, &runs, &data),
                Effect::Open { file, path, flags } => self.storage.open(file, path, flags),
                Effect::Create { rank, file, path, flags } => {
                    self.storage.create(rank, file, path, flags)
                }
                Effect::Forget(file) => self.storage.forget(file),
                Effect::Unlink(path) => self.storage.unlink(path),
                Effect::Transfer(transfer) => self.storage.transfer(transfer),
                Effect::Cancel(job) => self.storage.cancel(job),
                Effect::Fsync { job, file } => self.storage.fsync(job, file),
                Effect::Prefetch { file, lo, hi } => self.storage.prefetch(file, lo, hi),
                Effect::Probe(address) => match self.ways.get(&address) {
                    Some(Way::Made(_)) => {
                        let effects = self.node.reached(&address, now_ns());
                        self.carry_out(effects);
                    }
                    _ => self.make_way(&address),
                },
                Effect::Notice(notice) => self.shared.notice(notice),
                // The state machines carry these out between themselves.
                Effect::PullOwn { .. }
                | Effect::KeepOwn { .. }
                | Effect::DataOwn { .. }
                | Effect::ReadOwn { .. }
                | Effect::ReadTaken { .. } => {}
            }
        }
    }

    pub(super) fn send_rank(&mut self, rank: u64, message: &ToRank) {
        let Some(open) = self.open.get_mut(&rank) else {
            return;
        };
        if matches!(message, ToRank::Welcome { .. }) {
            open.connection.with_pool(&message.encode());
            self.dirty.insert(rank);
        } else {
            self.send(rank, &message.encode());
        }
    }

    pub(super) fn send(&mut self, number: u64, body: &[u8]) {
        if let Some(open) = self.open.get_mut(&number) {
            if open.connection.message(body) {
                self.dirty.insert(number);
            } else {
                // It does not read.
                self.drop_later(number);
            }
        }
    }

    pub(super) fn send_parts(&mut self, number: u64, message: &Peer, parts: Parts, mark: Sent) {
        if let Some(open) = self.open.get_mut(&number) {
            open.connection.message(&message.encode());
            open.connection.parts(parts, mark);
            self.dirty.insert(number);
        }
    }

    /// Cut the connection at the next read, when no effect refers to it any longer.
    pub(super) fn drop_later(&mut self, number: u64) {
        if let Some(open) = self.open.get(&number) {
            let _ = rustix::net::shutdown(open.connection.socket(), rustix::net::Shutdown::Both);
        }
    }

    /// Send what is to be sent.
    pub(super) fn flush(&mut self, now: u64) {
        while let Some(number) = self.dirty.pop_first() {
            let Some(open) = self.open.get_mut(&number) else {
                continue;
            };
            open.sent_ns = now;
            match open.connection.flush(&self.pool) {
                Ok(marks) => {
                    let more = open.connection.has_output();
                    if more != open.writing {
                        open.writing = more;
                        let _ = self.poller.change(open.connection.socket(), number, more);
                    }
                    self.sent(marks, now);
                }
                Err(_) => self.end(number, false, now),
            }
        }
    }

    pub(super) fn sent(&mut self, marks: Vec<Sent>, now: u64) {
        for mark in marks {
            let effects = match mark {
                Sent::Data(address, pull) => self.node.data_sent(&address, pull, now),
                Sent::Read(link, pull) => self.node.delivered(link, pull, now),
                Sent::Copy => continue,
            };
            self.carry_out(effects);
        }
    }
}
