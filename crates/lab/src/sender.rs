//! The sending thread: every stream at its own pace, without burning a core.

use std::net::SocketAddrV4;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use socket2::Socket;

use crate::wire::{Header, Kind};

/// The thread sleeps at least this long between rounds: at 1,000 packets a second a packet is at
/// most half a period late, and 84 streams cost 2,000 wake-ups a second and not 84,000.
const ROUND: Duration = Duration::from_micros(500);

/// A stream that is further behind than this skips ahead instead of sending a burst that would
/// overflow queues and be counted as loss.
const FURTHEST_BEHIND_NS: u64 = 20_000_000;

/// One stream's end at the sender.
pub(crate) struct Outlet {
    pub(crate) socket: Arc<Socket>,
    pub(crate) target: SocketAddrV4,
    pub(crate) period_ns: u64,
}

/// What the sender did for one stream.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sent {
    /// Packets that the system took.
    pub(crate) packets: u64,
    /// Packets the system did not take: a full queue, no route. They have no sequence number.
    pub(crate) refused: u64,
    /// Packets not even tried, because this thread did not get the CPU in time.
    pub(crate) skipped: u64,
}

pub(crate) struct Pace<'a> {
    pub(crate) run: u32,
    pub(crate) kind: Kind,
    pub(crate) payload_bytes: usize,
    pub(crate) epoch: Instant,
    pub(crate) stop: &'a AtomicBool,
    /// Sum over all streams, for a look while it runs.
    pub(crate) total: &'a AtomicU64,
}

/// Send on every outlet for which `wanted` answers true, until told to stop.
pub(crate) fn send_all(
    outlets: &[Outlet],
    pace: &Pace<'_>,
    mut wanted: impl FnMut(usize) -> bool,
) -> Vec<Sent> {
    let mut sent = vec![Sent::default(); outlets.len()];
    let mut packet = vec![0; pace.payload_bytes];
    let start = since(pace.epoch);
    // Phases are spread over the period, so that the streams do not send in one burst.
    let mut due: Vec<u64> = outlets
        .iter()
        .enumerate()
        .map(|(index, outlet)| start + outlet.period_ns * index as u64 / outlets.len() as u64)
        .collect();
    while !pace.stop.load(Ordering::Relaxed) {
        let round = Instant::now();
        for (index, outlet) in outlets.iter().enumerate() {
            let mut now = since(pace.epoch);
            if now >= due[index] && !wanted(index) {
                due[index] = now + outlet.period_ns;
            }
            let behind = now.saturating_sub(due[index]);
            if behind > FURTHEST_BEHIND_NS {
                let missed = behind / outlet.period_ns;
                sent[index].skipped += missed;
                due[index] += missed * outlet.period_ns;
            }
            while now >= due[index] {
                let header = Header {
                    run: pace.run,
                    stream: index as u32,
                    kind: pace.kind,
                    sequence: sent[index].packets,
                    sent_ns: now,
                };
                header.write(&mut packet);
                // Before it leaves: it may arrive before this thread goes on.
                pace.total.fetch_add(1, Ordering::Release);
                match outlet.socket.send_to(&packet, &outlet.target.into()) {
                    Ok(_) => sent[index].packets += 1,
                    Err(_) => {
                        pace.total.fetch_sub(1, Ordering::Release);
                        sent[index].refused += 1;
                    }
                }
                due[index] += outlet.period_ns;
                now = since(pace.epoch);
            }
        }
        let next = due.iter().copied().min().unwrap_or(u64::MAX);
        let until_next = Duration::from_nanos(next.saturating_sub(since(pace.epoch)));
        let until_round = ROUND.saturating_sub(round.elapsed());
        // A stop is seen within 50 ms, however slow the streams are.
        thread::sleep(until_next.max(until_round).min(Duration::from_millis(50)));
    }
    sent
}

/// Nanoseconds since `epoch`.
pub(crate) fn since(epoch: Instant) -> u64 {
    u64::try_from(epoch.elapsed().as_nanos()).unwrap_or(u64::MAX)
}
