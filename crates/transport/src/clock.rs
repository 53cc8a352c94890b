//! The monotonic clock of all connections.
//!
//! Leaves: nanoseconds. Must not know: what they are used for.

use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const DAY: Duration = Duration::from_secs(86_400);

/// Nanoseconds of a clock that never goes back, not zero. It began as the time of day (UTC), so that flows of hosts
/// that know it look at a path at the same moments; a clock that is set later changes nothing here.
pub fn now_ns() -> u64 {
    static BEGAN: OnceLock<(Instant, Duration)> = OnceLock::new();
    let (began, offset) = BEGAN.get_or_init(|| {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let of_day = since_epoch.as_nanos() % DAY.as_nanos();
        (Instant::now(), DAY + Duration::from_nanos(of_day as u64))
    });
    u64::try_from((*offset + began.elapsed()).as_nanos()).unwrap_or(u64::MAX / 2)
}
