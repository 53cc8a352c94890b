//! Several connections of one copy: the first one begins it, others join it.
//!
//! Arrives: connections whose client names a copy that is under way. Leaves: members of that copy's lane. Must not know: files.

use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

use waystage_protocol::congestion::coupled::Group;

use super::visit::{Coming, Visit};
use crate::control::Control;
use crate::error::{WanError, WanErrorKind};
use crate::identity::PublicKey;
use crate::lane::Lane;
use crate::member::Member;
use crate::session::{kinds, nonsense};
use crate::udp::UdpLane;

/// Whoever waits looks again this often.
const LOOK_ROUND: Duration = Duration::from_millis(100);

/// What the clients call their copies.
pub(super) type Name = [u8; 16];

/// A copy that others may join.
#[derive(Clone)]
pub(super) struct Joint {
    key: PublicKey,
    lane: Arc<Lane>,
    pub(super) group: Option<Group>,
    most: u32,
    /// Connections that it was given so far.
    given: u32,
    over: Arc<AtomicBool>,
}

/// The copies that have more than one connection, by name.
#[derive(Default)]
pub(super) struct Copies(Mutex<HashMap<Name, Joint>>);

impl Copies {
    fn lock(&self) -> MutexGuard<'_, HashMap<Name, Joint>> {
        self.0.lock()
    }

    /// Let others join the copy for as long as what this returns is there. False where the name is taken.
    pub(super) fn open(
        &self,
        name: Name,
        key: &PublicKey,
        lane: &Arc<Lane>,
        (group, most): (Option<Group>, u32),
    ) -> Option<Open<'_>> {
        let over = Arc::new(AtomicBool::new(false));
        let mut copies = self.lock();
        if copies.contains_key(&name) {
            return None;
        }
        let joint = Joint {
            key: key.clone(),
            lane: Arc::clone(lane),
            group,
            most,
            given: 1,
            over: Arc::clone(&over),
        };
        copies.insert(name, joint);
        Some(Open { copies: self, name, over })
    }

    /// The copy of this name, if it is this key's and may have one more connection.
    pub(super) fn join(&self, name: Name, key: &PublicKey) -> Result<Joint, WanError> {
        let mut copies = self.lock();
        // Another's copy is told the same as none.
        let joint = copies.get_mut(&name).filter(|joint| joint.key == *key).ok_or_else(|| {
            WanError::new(
                WanErrorKind::Refused,
                "the copy that this connection is for is not there",
            )
        })?;
        if joint.given >= joint.most {
            let text = format!("the copy has its {} connections already", joint.most);
            return Err(WanError::new(
                WanErrorKind::Files(waystage_copy::CopyErrorKind::Busy),
                text,
            ));
        }
        joint.given += 1;
        Ok(joint.clone())
    }
}

/// A copy that others may join until this is dropped.
pub(super) struct Open<'a> {
    copies: &'a Copies,
    name: Name,
    over: Arc<AtomicBool>,
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.copies.lock().remove(&self.name);
        self.over.store(true, Ordering::SeqCst);
    }
}

impl Visit<'_> {
    /// Carry messages of the copy until it is over.
    pub(super) fn carry(
        &mut self,
        control: &Arc<Control>,
        joint: &Joint,
        coming: Coming<'_>,
    ) -> Result<String, WanError> {
        self.comes_in();
        let lane = &joint.lane;
        control.deliver_to(lane.inbox());
        control.limit(coming.limit);
        let mut welcome = coming.welcome;
        let member = lane.add(|number| {
            let udp = coming.udp.and_then(|endpoint| {
                let to = (Arc::clone(lane.inbox()), Arc::clone(lane.room()), number);
                UdpLane::answer(Arc::clone(endpoint), coming.agreed, to).ok()
            });
            welcome.udp = udp.is_some();
            Ok(Member::later(Arc::clone(control), udp, Arc::clone(lane.room())))
        })?;
        control.send(kinds::WELCOME, &welcome.encode());
        while !joint.over.load(Ordering::SeqCst) {
            if self.book.is_stopped() {
                lane.end("the server is being stopped");
                return Err(self.book.verdict());
            }
            match control.receive(LOOK_ROUND) {
                Ok(None) => {}
                Ok(Some((kinds::WAY, body))) if matches!(body[..], [0 | 1]) => {
                    if !member.choose(body[0] == 1) {
                        return Err(nonsense());
                    }
                }
                Ok(Some(_)) => {
                    lane.end("the other end broke the protocol");
                    return Err(nonsense());
                }
                // The copy ends with it, or has ended before it.
                Err(_) => break,
            }
        }
        Ok("was one more connection of a copy".to_owned())
    }
}
