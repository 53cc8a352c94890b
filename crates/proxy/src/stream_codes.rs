//! Codes of streams that were refused or reset.
//!
//! Arrives: nothing. Leaves: numbers of the protocol (`docs/reference/proxy.md`). Must not know: streams.

/// Codes of refused streams: the SOCKS reply, plus this.
pub(crate) const REPLY: u64 = 0x100;

/// The code of a stream that was reset.
pub(crate) const RESET: u64 = 0x200;
