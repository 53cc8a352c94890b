//! Additional connections of a copy: the first connection begins the copy, others join its channel.
//!
//! Arrives: connections whose client names a copy that is in progress. Leaves: members of that copy's channel. Must not
//! know: files.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use waystage_protocol::congestion::coupled::Group;
use waystage_remote_copy::CopyState;
use waystage_transport::channel::Channel;
use waystage_transport::channel_connection::ChannelConnection;
use waystage_transport::control::Control;
use waystage_transport::control_messages::kinds;
use waystage_transport::endpoint::Endpoint;
use waystage_transport::error::{protocol_violation, Error};
use waystage_transport::handshake::hello::Welcome;
use waystage_transport::identity::PublicKey;
use waystage_transport::parameters::TransportParameters;
use waystage_transport::udp::UdpConnection;

/// What the clients call their copies.
pub(crate) type Name = [u8; 16];

/// A copy that others may join.
#[derive(Clone)]
pub(crate) struct Joint {
    key: PublicKey,
    channel: Arc<Channel>,
    pub(crate) group: Option<Group>,
    most: u32,
    /// Connections that it was given so far.
    given: u32,
    end: Arc<End>,
}

/// The end of a copy, for those that carry its other connections.
#[derive(Default)]
struct End(Mutex<(bool, Vec<Arc<Control>>)>);

impl End {
    /// Interrupt this connection when the copy ends.
    fn notify(&self, control: &Arc<Control>) {
        self.0.lock().1.push(Arc::clone(control));
    }

    fn is_over(&self) -> bool {
        self.0.lock().0
    }

    fn declare(&self) {
        let mut state = self.0.lock();
        state.0 = true;
        state.1.drain(..).for_each(|control| control.interrupt());
    }
}

/// The copies that have more than one connection, by name.
#[derive(Default)]
pub(crate) struct Copies(Mutex<HashMap<Name, Joint>>);

impl Copies {
    fn lock(&self) -> MutexGuard<'_, HashMap<Name, Joint>> {
        self.0.lock()
    }

    /// Let others join the copy for as long as what this returns is there. False where the name is taken.
    pub(crate) fn open(
        &self,
        name: Name,
        key: &PublicKey,
        channel: &Arc<Channel>,
        (group, most): (Option<Group>, u32),
    ) -> Option<Open<'_>> {
        let end = Arc::<End>::default();
        let mut copies = self.lock();
        if copies.contains_key(&name) {
            return None;
        }
        let joint = Joint {
            key: key.clone(),
            channel: Arc::clone(channel),
            group,
            most,
            given: 1,
            end: Arc::clone(&end),
        };
        copies.insert(name, joint);
        Some(Open { copies: self, name, end })
    }

    /// The copy of this name, if it is this key's and may have one more connection.
    pub(crate) fn join(&self, name: Name, key: &PublicKey) -> Result<Joint, Error> {
        let mut copies = self.lock();
        // The answer is the same for another key's copy and for none.
        let joint = copies.get_mut(&name).filter(|joint| joint.key == *key).ok_or_else(|| {
            Error::Denied("the copy that this connection is for is not there".into())
        })?;
        if joint.given >= joint.most {
            let text = format!("the copy has its {} connections already", joint.most);
            return Err(Error::Busy(text));
        }
        joint.given += 1;
        Ok(joint.clone())
    }
}

/// A copy that others may join until this is dropped.
pub(crate) struct Open<'a> {
    copies: &'a Copies,
    name: Name,
    end: Arc<End>,
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.copies.lock().remove(&self.name);
        self.end.declare();
    }
}

/// What one more connection is granted.
pub(crate) struct Offer<'a> {
    pub(crate) welcome: Welcome,
    pub(crate) parameters: TransportParameters,
    pub(crate) udp: Option<&'a Arc<Endpoint>>,
    /// Bytes a second over TLS.
    pub(crate) limit: Option<u64>,
}

/// Carry messages of a copy on one more connection until the copy is over.
pub(crate) fn carry(
    control: &Arc<Control>,
    joint: &Joint,
    offer: Offer<'_>,
    copy_state: &CopyState,
) -> Result<String, Error> {
    let channel = &joint.channel;
    control.deliver_to(channel.incoming());
    control.limit(offer.limit);
    let mut welcome = offer.welcome;
    let member = channel.add(|number| {
        let udp = offer.udp.and_then(|endpoint| {
            let to = (Arc::clone(channel.incoming()), Arc::clone(channel.backpressure()), number);
            UdpConnection::accept(Arc::clone(endpoint), offer.parameters, to).ok()
        });
        welcome.udp = udp.is_some();
        Ok(ChannelConnection::later(Arc::clone(control), udp, Arc::clone(channel.backpressure())))
    })?;
    control.send(kinds::WELCOME, &welcome.encode());
    joint.end.notify(control);
    while !joint.end.is_over() {
        if copy_state.is_stopped() {
            channel.end("the server is being stopped");
            return Err(copy_state.verdict().into());
        }
        match control.receive(Duration::MAX) {
            Ok(None) => {}
            Ok(Some((kinds::WAY, body))) if matches!(body[..], [0 | 1]) => {
                if !member.choose(body[0] == 1) {
                    return Err(protocol_violation());
                }
            }
            Ok(Some(_)) => {
                channel.end("the peer broke the protocol");
                return Err(protocol_violation());
            }
            // The copy ends with it, or has ended before it.
            Err(_) => break,
        }
    }
    Ok("was one more connection of a copy".to_owned())
}
