//! The sending thread: every stream at its rate, without spinning.
//!
//! Arrives: sockets and rates. Leaves: packets, counts. Must not know: the receiver's counts.

use std::net::SocketAddrV4;
use std::sync::Arc;
use std::time::{Duration, Instant};

use socket2::Socket;

use crate::control::Control;
use crate::wire::{Header, Kind};

/// The shortest sleep between rounds: at 1,000 packets a second a packet is at most half a period late, and 84 streams
/// cost 2,000 wake-ups a second and not 84,000.
const ROUND: Duration = Duration::from_micros(500);

/// A stream that is later than this skips packets. A burst would overflow queues and count as loss.
const MAX_BEHIND_NS: u64 = 20_000_000;

/// The sending socket of a stream.
pub(crate) struct SourceSocket {
    pub(crate) socket: Arc<Socket>,
    pub(crate) target: SocketAddrV4,
    pub(crate) period_ns: u64,
}

/// The sender's counts of a stream.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sent {
    /// Packets that the system accepted.
    pub(crate) packets: u64,
    /// Packets that the system did not accept: a full queue, no route. They have no sequence number.
    pub(crate) refused: u64,
    /// Packets skipped because this thread did not get the processor in time.
    pub(crate) skipped: u64,
}

pub(crate) struct StreamSender<'a> {
    pub(crate) run: u32,
    pub(crate) kind: Kind,
    pub(crate) payload_bytes: usize,
    pub(crate) epoch: Instant,
    pub(crate) control: &'a Control,
}

/// Sends on every socket for which `wanted` is true, until the control stops it.
pub(crate) fn send_all(
    sources: &[SourceSocket],
    sender: &StreamSender<'_>,
    mut wanted: impl FnMut(usize) -> bool,
) -> Vec<Sent> {
    let mut sent = vec![Sent::default(); sources.len()];
    let mut packet = vec![0; sender.payload_bytes];
    let start = since(sender.epoch);
    // The phases are spread over the period, so that the streams do not send in one burst.
    let mut due: Vec<u64> = sources
        .iter()
        .enumerate()
        .map(|(index, source)| start + source.period_ns * index as u64 / sources.len() as u64)
        .collect();
    loop {
        let round = Instant::now();
        for (index, source) in sources.iter().enumerate() {
            let mut now = since(sender.epoch);
            if now >= due[index] && !wanted(index) {
                due[index] = now + source.period_ns;
            }
            let behind = now.saturating_sub(due[index]);
            if behind > MAX_BEHIND_NS {
                let missed = behind / source.period_ns;
                sent[index].skipped += missed;
                due[index] += missed * source.period_ns;
            }
            while now >= due[index] {
                let header = Header {
                    run: sender.run,
                    stream: index as u32,
                    kind: sender.kind,
                    sequence: sent[index].packets,
                    sent_ns: now,
                };
                header.write(&mut packet);
                sender.control.on_send();
                match source.socket.send_to(&packet, &source.target.into()) {
                    Ok(_) => sent[index].packets += 1,
                    Err(_) => {
                        sender.control.on_refused();
                        sent[index].refused += 1;
                    }
                }
                due[index] += source.period_ns;
                now = since(sender.epoch);
            }
        }
        let next = due.iter().copied().min().unwrap_or(u64::MAX);
        let until_next = Duration::from_nanos(next.saturating_sub(since(sender.epoch)));
        let until_round = ROUND.saturating_sub(round.elapsed());
        if !sender.control.sleep(until_next.max(until_round)) {
            return sent;
        }
    }
}

/// Nanoseconds since `epoch`.
pub(crate) fn since(epoch: Instant) -> u64 {
    u64::try_from(epoch.elapsed().as_nanos()).unwrap_or(u64::MAX)
}
