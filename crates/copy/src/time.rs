//! Points in time as file systems keep them: a number of nanoseconds in 64 bits ends in 2262.

use rustix::fs::{StatxTimestamp, Timespec};

const NANOSECONDS: i64 = 1_000_000_000;

/// A time since 1970; before it the seconds are negative and the nanoseconds still count forwards.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time {
    /// Whole seconds.
    pub seconds: i64,
    /// The rest, below a second.
    pub nanoseconds: u32,
}

impl Time {
    /// From what the system says.
    #[must_use]
    pub fn of(time: &StatxTimestamp) -> Self {
        Self { seconds: time.tv_sec, nanoseconds: time.tv_nsec }
    }

    /// From nanoseconds since 1970.
    #[must_use]
    pub fn from_ns(ns: i64) -> Self {
        // The remainder is below a second.
        Self { seconds: ns.div_euclid(NANOSECONDS), nanoseconds: ns.rem_euclid(NANOSECONDS) as u32 }
    }

    /// Nanoseconds since 1970, or the nearest that 64 bits hold.
    #[must_use]
    pub fn ns(self) -> i64 {
        let ns = i128::from(self.seconds) * i128::from(NANOSECONDS) + i128::from(self.nanoseconds);
        ns.clamp(i64::MIN.into(), i64::MAX.into()) as i64
    }

    /// The time that many seconds earlier.
    #[must_use]
    pub fn before(self, seconds: i64) -> Self {
        Self { seconds: self.seconds.saturating_sub(seconds), ..self }
    }

    pub(crate) fn timespec(self) -> Timespec {
        Timespec { tv_sec: self.seconds, tv_nsec: self.nanoseconds.into() }
    }
}

/// Whether nanoseconds since 1970 may stand for a time that 64 bits do not hold: the last second at either end.
pub(crate) fn may_be_clamped(ns: i64) -> bool {
    ns >= i64::MAX - NANOSECONDS || ns <= i64::MIN + NANOSECONDS
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn nanoseconds_are_kept_both_ways(ns: i64) {
            let time = Time::from_ns(ns);
            prop_assert_eq!(time.ns(), ns);
            prop_assert!(i64::from(time.nanoseconds) < NANOSECONDS);
        }

        #[test]
        fn times_are_in_the_order_of_their_nanoseconds(one: i64, other: i64) {
            prop_assert_eq!(one.cmp(&other), Time::from_ns(one).cmp(&Time::from_ns(other)));
        }
    }

    #[test]
    fn beyond_64_bits_the_order_stands_and_nanoseconds_are_the_nearest() {
        let (early, late) = (
            Time { seconds: -99_999_999_999, nanoseconds: 999_999_999 },
            Time { seconds: 99_999_999_999, nanoseconds: 1 },
        );
        assert!(early < Time::default() && Time::default() < late);
        assert_eq!((early.ns(), late.ns()), (i64::MIN, i64::MAX));
        assert!(may_be_clamped(early.ns()) && may_be_clamped(late.ns()) && !may_be_clamped(0));
    }
}
