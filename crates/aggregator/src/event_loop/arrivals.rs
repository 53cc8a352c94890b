//! What arrives on connections.
//!
//! Arrives: bytes. Leaves: messages for the state machines. Must not know: what follows from them.

use std::sync::Arc;

use waystage_collective_wire::frame::MOST_BODY_BYTES;
use waystage_collective_wire::local::{ToNode, ToRank};
use waystage_collective_wire::peer::Peer;
use waystage_collective_wire::{Status as Code, VERSION};

use super::{EventLoop, Kind, Raw, BUDGET};
use crate::connection::{Arrived, Parts};
use crate::effect::Effect;

impl EventLoop {
    pub(super) fn serve(&mut self, number: u64, read: bool, write: bool, now: u64) {
        if write {
            self.dirty.insert(number);
        }
        if !read {
            return;
        }
        let mut budget = BUDGET;
        loop {
            let Some(open) = self.open.get_mut(&number) else {
                return;
            };
            open.heard_ns = now;
            let kind = open.kind.clone();
            let effects = match open.connection.next(&self.pool, &mut budget) {
                Ok(None) => return,
                Ok(Some(Arrived::Body(body))) => self.body(number, kind, &body, now),
                Ok(Some(Arrived::Raw(raw))) => Ok(self.raw(number, kind, raw, now)),
                Err(_) => Err("its connection ended"),
            };
            match effects {
                Ok(effects) => self.carry_out(effects),
                Err(_) => return self.end(number, false, now),
            }
        }
    }

    pub(super) fn body(
        &mut self,
        number: u64,
        kind: Kind,
        body: &[u8],
        now: u64,
    ) -> Result<Vec<Effect>, &'static str> {
        match kind {
            Kind::Rank { admitted: false } => self.hello(number, body, now),
            Kind::Rank { admitted: true } => {
                let message = ToNode::decode(body).map_err(|_| "a message that cannot be read")?;
                let pool = Arc::clone(&self.pool);
                Ok(self.node.rank_message(number, message, &|at, bytes| pool.read(at, bytes), now))
            }
            Kind::Node => match Peer::decode(body).map_err(|_| "a message that cannot be read")? {
                Peer::Ping {} => Ok(Vec::new()),
                Peer::Data { pull, coverage, next, bytes } => {
                    let target =
                        self.node.aggregator.data_target(number, pull, coverage.as_deref())?;
                    let (parts, then) = match target {
                        None => (None, Raw::Nothing),
                        // The answer to a read has no bytes.
                        Some((_, coverage)) if bytes == 0 => {
                            (None, Raw::Data { pull, coverage, next })
                        }
                        Some((image, coverage)) => {
                            let parts = Parts::new(image, coverage.clone());
                            if parts.left() != bytes {
                                return Err("data that do not fit their coverage");
                            }
                            (Some(parts), Raw::Data { pull, coverage, next })
                        }
                    };
                    self.expect(number, bytes, parts, then);
                    Ok(Vec::new())
                }
                Peer::Copy { file, copy, bytes } => {
                    let target = self.node.aggregator.copy_target(number, file, copy);
                    let (parts, then) = match target {
                        None => (None, Raw::Nothing),
                        Some((image, coverage)) => {
                            let parts = Parts::new(image, coverage);
                            if parts.left() != bytes {
                                return Err("data that do not fit their coverage");
                            }
                            (Some(parts), Raw::Copy { file, copy })
                        }
                    };
                    self.expect(number, bytes, parts, then);
                    Ok(Vec::new())
                }
                message => Ok(self.node.node_message(number, message, now)),
            },
            Kind::Aggregator(address) => {
                match Peer::decode(body).map_err(|_| "a message that cannot be read")? {
                    Peer::Ping {} => Ok(Vec::new()),
                    Peer::ReadData { pull, bytes } => {
                        let (parts, then) = match self.node.gatherer.read_target(&address, pull) {
                            None => (None, Raw::Nothing),
                            Some((image, coverage)) => {
                                let parts = Parts::new(image, coverage);
                                if parts.left() != bytes {
                                    return Err("data that do not fit their coverage");
                                }
                                (Some(parts), Raw::Read { pull })
                            }
                        };
                        self.expect(number, bytes, parts, then);
                        Ok(Vec::new())
                    }
                    message => Ok(self.node.aggregator_message(&address, message, now)),
                }
            }
        }
    }

    pub(super) fn expect(&mut self, number: u64, bytes: u64, parts: Option<Parts>, then: Raw) {
        if let Some(open) = self.open.get_mut(&number) {
            open.connection.expect(bytes, parts, then);
        }
    }

    pub(super) fn raw(&mut self, number: u64, kind: Kind, raw: Raw, now: u64) -> Vec<Effect> {
        match (raw, kind) {
            (Raw::Data { pull, coverage, next }, _) => {
                self.node.data(number, pull, coverage, next, now)
            }
            (Raw::Copy { file, copy }, Kind::Node) => self.node.copied(number, file, copy, now),
            (Raw::Read { pull }, Kind::Aggregator(address)) => {
                self.node.read_data(&address, pull, now)
            }
            _ => Vec::new(),
        }
    }

    /// A rank's first message.
    pub(super) fn hello(
        &mut self,
        number: u64,
        body: &[u8],
        now: u64,
    ) -> Result<Vec<Effect>, &'static str> {
        let refuse = |status, message: &str| {
            let message = message.to_owned();
            ToRank::Refused { status, message }
        };
        let refusal = match ToNode::decode(body) {
            Ok(ToNode::Hello { version, .. }) if version != VERSION => refuse(
                Code::Version,
                "the aggregator process is of another version: use one installation",
            ),
            Ok(ToNode::Hello { token, app, .. }) if self.secret.is(&token) => {
                let Some(open) = self.open.get_mut(&number) else {
                    return Ok(Vec::new());
                };
                open.kind = Kind::Rank { admitted: true };
                open.connection.set_most_body(MOST_BODY_BYTES);
                let app = if app.is_empty() {
                    self.options.app.as_str().into()
                } else {
                    app.as_str().into()
                };
                return Ok(self.node.rank_joined(number, app, now));
            }
            Ok(_) => refuse(
                Code::Refused,
                "the token is not this launch's: WAYSTAGE_IO_TOKEN is of another one",
            ),
            Err(_) => {
                refuse(Code::Version, "the first message cannot be read: use one installation")
            }
        };
        if let Some(open) = self.open.get_mut(&number) {
            open.connection.message(&refusal.encode());
            let _ = open.connection.flush(&self.pool);
        }
        Err("it was refused")
    }
}
