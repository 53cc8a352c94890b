//! CoDel: RFC 8289.

use crate::packet::Offered;

const TARGET_NS: u64 = 5_000_000;
const INTERVAL_NS: u64 = 100_000_000;
/// No packet is dropped where no more bytes than one packet are queued (RFC 8289, `maxpacket`).
const LARGEST_PACKET: u64 = 1514;

/// The state of the RFC's section 5.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CoDel {
    /// When the wait will have been above the target for an interval; none while it is below.
    first_above_ns: Option<u64>,
    dropping: bool,
    next_ns: u64,
    count: u64,
    /// The count at the beginning of the last dropping state.
    last_count: u64,
}

impl CoDel {
    fn after(&self, at_ns: u64) -> u64 {
        at_ns + (INTERVAL_NS as f64 / (self.count.max(1) as f64).sqrt()) as u64
    }

    fn persists(&mut self, leaves_ns: u64, waits_ns: u64, queued_bytes: u64) -> bool {
        if waits_ns < TARGET_NS || queued_bytes <= LARGEST_PACKET {
            self.first_above_ns = None;
            return false;
        }
        leaves_ns >= *self.first_above_ns.get_or_insert(leaves_ns + INTERVAL_NS)
    }

    /// Whether a packet is dropped at the time at which it would leave the queue.
    pub(crate) fn drops(&mut self, packet: &Offered) -> bool {
        let leaves_ns = packet.free_ns.max(packet.now_ns);
        let waits_ns = leaves_ns - packet.now_ns;
        if !self.persists(leaves_ns, waits_ns, packet.queued_bytes) {
            self.dropping = false;
            return false;
        }
        if self.dropping {
            if leaves_ns < self.next_ns {
                return false;
            }
            self.count += 1;
            self.next_ns = self.after(self.next_ns);
            return true;
        }
        self.dropping = true;
        let delta = self.count - self.last_count;
        let recent = leaves_ns < self.next_ns + 16 * INTERVAL_NS;
        self.count = if delta > 1 && recent { delta } else { 1 };
        self.next_ns = self.after(leaves_ns);
        self.last_count = self.count;
        true
    }
}
