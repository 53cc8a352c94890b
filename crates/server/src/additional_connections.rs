//! Carries an additional connection of a copy: the first connection begins the copy, others join its channel.
//!
//! Arrives: a connection that joined a copy in progress. Leaves: a member of that copy's channel. Must not know: files.

use std::sync::Arc;
use std::time::Duration;

use waystage_remote_copy::CopyState;
use waystage_transport::channel::Channel;
use waystage_transport::channel_connection::ChannelConnection;
use waystage_transport::control::Control;
use waystage_transport::control_messages::kinds;
use waystage_transport::endpoint::Endpoint;
use waystage_transport::error::{protocol_violation, Error};
use waystage_transport::handshake::hello::Welcome;
use waystage_transport::parameters::TransportParameters;
use waystage_transport::udp::UdpConnection;

use crate::copies::Joint;

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
    joint: &Joint<Arc<Channel>>,
    offer: Offer<'_>,
    copy_state: &CopyState,
) -> Result<String, Error> {
    let channel = &joint.channel;
    control.deliver_to(channel.incoming());
    control.limit(offer.limit);
    let mut welcome = offer.welcome;
    control.set_version(welcome.version);
    let member = channel.add(|number| {
        let udp = offer.udp.and_then(|endpoint| {
            let to = (Arc::clone(channel.incoming()), Arc::clone(channel.backpressure()), number);
            UdpConnection::accept(Arc::clone(endpoint), offer.parameters, to).ok()
        });
        welcome.udp = udp.is_some();
        Ok(ChannelConnection::later(Arc::clone(control), udp, Arc::clone(channel.backpressure())))
    })?;
    control.send(kinds::WELCOME, &welcome.encode());
    let waiting = Arc::clone(control);
    joint.at_end(move || waiting.interrupt());
    while !joint.is_over() {
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
