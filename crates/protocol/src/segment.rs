//! What a packet carries: segments of extents.
//!
//! Arrives: nothing. Leaves: the types that the send buffer, loss recovery and the connection exchange. Must not
//! know: any of them.

/// Bytes of an extent that one packet carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The extent.
    pub extent: u64,
    /// The offset in the extent.
    pub offset: u64,
    /// The number of bytes.
    pub length: u32,
    /// Whether the extent ends with them.
    pub last: bool,
}

/// The contents of a packet that matter when it is acknowledged or lost.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Payload {
    /// Nothing to send again: an acknowledgement, a ping.
    #[default]
    Nothing,
    /// One segment, as nearly always.
    Segment(Segment),
    /// Several small ones.
    Segments(Box<[Segment]>),
    /// A probe of the path's packet size, whose loss is no evidence of congestion.
    MtuProbe,
    /// Bytes of the control stream, by their offsets.
    Control(std::ops::Range<u64>),
}

impl Payload {
    /// The segments in it.
    #[must_use]
    pub fn segments(&self) -> &[Segment] {
        match self {
            Self::Nothing | Self::MtuProbe | Self::Control(_) => &[],
            Self::Segment(segment) => std::slice::from_ref(segment),
            Self::Segments(segments) => segments,
        }
    }
}
