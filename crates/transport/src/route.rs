//! Whether a connection's messages go over UDP or TLS, and what may be sent before that is known.
//!
//! Arrives: whether there is UDP, what came back, the client's choice. Leaves: the way of the next message. Must not
//! know: sockets, messages.

/// Bytes that may be sent before the way is known: with what ended the handshake it is in TCP's first window, ten
/// segments (RFC 6928).
pub const EARLY_BYTES: usize = 12 << 10;

/// Which way messages take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// It is not known yet whether UDP is blocked.
    Undecided,
    /// Extents of the protocol over UDP.
    Udp,
    /// Messages on the TLS connection.
    Tcp,
}

/// The way of one connection.
pub(crate) struct Route {
    way: Way,
    early_bytes: usize,
}

impl Route {
    /// Over UDP if something comes back, else over TLS.
    pub(crate) fn new(has_udp: bool) -> Self {
        Self { way: if has_udp { Way::Undecided } else { Way::Tcp }, early_bytes: 0 }
    }

    /// The same, without messages before the way is known.
    pub(crate) fn patient(has_udp: bool) -> Self {
        Self { early_bytes: EARLY_BYTES, ..Self::new(has_udp) }
    }

    /// Over UDP in any case.
    pub(crate) fn udp() -> Self {
        Self { way: Way::Udp, early_bytes: 0 }
    }

    pub(crate) fn way(&self) -> Way {
        self.way
    }

    /// A message came over UDP: only a peer that has received packets of this end sends messages over UDP.
    pub(crate) fn udp_works(&mut self) {
        if self.way == Way::Undecided {
            self.way = Way::Udp;
        }
    }

    /// The client has chosen: whether the way is the chosen one now, and whether UDP is to be given up.
    pub(crate) fn choose(&mut self, udp: bool) -> (bool, bool) {
        let wanted = if udp { Way::Udp } else { Way::Tcp };
        let was_open = self.way == Way::Undecided;
        if was_open {
            self.way = wanted;
        }
        (self.way == wanted, was_open && !udp)
    }

    /// Whether a message of any size may still be sent before the way is known.
    pub(crate) fn has_early_space(&self) -> bool {
        self.early_bytes < EARLY_BYTES
    }

    /// Whether a message of this size goes over TLS before the way is known; if so, it is counted.
    pub(crate) fn takes_early(&mut self, bytes: usize) -> bool {
        let fits = self.way == Way::Undecided && self.early_bytes + bytes <= EARLY_BYTES;
        if fits {
            self.early_bytes += bytes;
        }
        fits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_little_goes_over_tls_until_the_way_is_known() {
        let mut route = Route::new(true);
        assert!(route.has_early_space() && route.takes_early(EARLY_BYTES - 10));
        assert!(!route.takes_early(11), "above what fits into the first window");
        assert!(route.takes_early(10) && !route.has_early_space());
        route.udp_works();
        assert_eq!(route.way(), Way::Udp);
        assert!(!Route::patient(true).takes_early(1));
        assert!(!Route::new(false).takes_early(1), "the way is known");
    }

    #[test]
    fn the_first_decision_stays() {
        let mut route = Route::new(true);
        assert_eq!(route.choose(false), (true, true));
        route.udp_works();
        assert_eq!((route.way(), route.choose(true)), (Way::Tcp, (false, false)));
        let mut route = Route::new(true);
        route.udp_works();
        assert_eq!(route.choose(false), (false, false), "messages went over UDP already");
        assert_eq!(Route::udp().choose(true), (true, false));
        assert_eq!(Route::new(false).choose(false), (true, false));
    }
}
