//! Frames: the contents of a packet, once opened.
//!
//! Arrives: the opened part of a packet, or frames to write. Leaves: frames, or bytes. Must not know: connections,
//! time, keys.
//!
//! Frames follow one another to the end of the packet; `docs/reference/wide-area-protocol.md` lists them in a table.

use crate::error::Error;
use crate::packet::Stamp;
use crate::varint::{put, put_prefixed, size, Reader};

/// A reason of [`Frame::Close`] is cut to this length.
pub const MAX_REASON: usize = 256;

const PADDING: u8 = 0;
const PING: u8 = 1;
const DATA: u8 = 2;
const DATA_LAST: u8 = 1;
const DATA_SIZED: u8 = 2;
const DATA_END: u8 = DATA + DATA_LAST + DATA_SIZED;
const ACK: u8 = 6;
const HISTORY: u8 = 7;
const HISTORY_REQUEST: u8 = 8;
const CLOSE: u8 = 9;
const CHALLENGE: u8 = 10;
const RESPONSE: u8 = 11;
const CONTROL: u8 = 12;

/// A frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame<'a> {
    /// Nothing; pads a packet.
    Padding,
    /// Requests an acknowledgement.
    Ping,
    /// Bytes of an extent.
    Data {
        /// The extent.
        extent: u64,
        /// The offset in the extent.
        offset: u64,
        /// Whether the extent ends with them.
        last: bool,
        /// The bytes.
        bytes: &'a [u8],
    },
    /// An acknowledgement of recent packets.
    Ack(Ack<'a>),
    /// An acknowledgement of earlier packets: the answer to [`Frame::HistoryRequest`].
    History(Bitmap<'a>),
    /// No acknowledgement covered the packets `from..to`: requests their history.
    HistoryRequest {
        /// The first packet number.
        from: u64,
        /// One more than the last.
        to: u64,
    },
    /// The connection ends.
    Close {
        /// Zero for a clean end.
        code: u64,
        /// Why, for people.
        reason: &'a [u8],
    },
    /// To be returned from the address that it was sent to (RFC 9000, section 8.2).
    Challenge(u64),
    /// A returned challenge.
    Response(u64),
    /// Bytes of the control stream.
    Control {
        /// The offset in the stream.
        offset: u64,
        /// The bytes.
        bytes: &'a [u8],
    },
}

/// Which packets have arrived, from one number on: bit i of byte i/8, lowest first, is for packet `from + i`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bitmap<'a> {
    /// The packet of the first bit.
    pub from: u64,
    /// The number of packets that it covers.
    pub count: u64,
    /// The bits; those after `count` are zero.
    pub bits: &'a [u8],
}

impl Bitmap<'_> {
    /// Whether the packet `from + index` has arrived.
    #[must_use]
    pub fn has(&self, index: u64) -> bool {
        self.bits.get((index / 8) as usize).is_some_and(|byte| byte >> (index % 8) & 1 == 1)
    }

    fn put(&self, out: &mut Vec<u8>) {
        put(out, self.from);
        put(out, self.count);
        out.extend_from_slice(self.bits);
    }

    fn read<'a>(reader: &mut Reader<'a>) -> Result<Bitmap<'a>, Error> {
        let from = reader.varint()?;
        let count = reader.varint()?;
        if count == 0 || from.checked_add(count).is_none_or(|end| end > crate::packet::MAX_NUMBER) {
            return Err(Error::Malformed("a bitmap of packets that cannot be"));
        }
        let length = usize::try_from(count.div_ceil(8))
            .map_err(|_| Error::Malformed("a bitmap is too long"))?;
        Ok(Bitmap { from, count, bits: reader.take(length)? })
    }
}

/// An acknowledgement: which packets have arrived, when, and how much credit the sender has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ack<'a> {
    /// The time stamp of the fastest packet since the previous acknowledgement.
    pub echo: Stamp,
    /// The time since that packet arrived, in microseconds.
    pub echo_held_us: u64,
    /// Bytes of all datagrams received and opened so far.
    pub received_bytes: u64,
    /// The receiver's clock when the latest of them arrived, in microseconds since the connection began.
    pub received_at_us: u64,
    /// Bytes that arrived since the previous acknowledgement, without their first datagram.
    pub burst_bytes: u64,
    /// The time from the first datagram to the last, in microseconds.
    pub burst_us: u64,
    /// The delay of the slowest packet since the previous acknowledgement less that of the fastest, in microseconds.
    pub spread_us: u64,
    /// Datagrams so far with an ECN mark.
    pub marked_packets: u64,
    /// How many bytes of extents may be sent in total, each counted once.
    pub credit_bytes: u64,
    /// Which packets have arrived; the last one always has.
    pub bitmap: Bitmap<'a>,
}

impl Frame<'_> {
    /// Whether the receiver must acknowledge a packet with this frame (RFC 9002, section 2).
    #[must_use]
    pub fn is_ack_eliciting(&self) -> bool {
        matches!(
            self,
            Self::Ping
                | Self::Data { .. }
                | Self::Challenge(_)
                | Self::Close { .. }
                | Self::Control { .. }
        )
    }

    /// Appends the frame. A data frame is written with its length.
    pub fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::Padding => out.push(PADDING),
            Self::Ping => out.push(PING),
            Self::Data { extent, offset, last, bytes } => {
                put_data_head(out, *extent, *offset, *last, Some(bytes.len()));
                out.extend_from_slice(bytes);
            }
            Self::Ack(ack) => {
                out.push(ACK);
                ack.echo.put(out);
                for value in [
                    ack.echo_held_us,
                    ack.received_bytes,
                    ack.received_at_us,
                    ack.burst_bytes,
                    ack.burst_us,
                    ack.spread_us,
                    ack.marked_packets,
                    ack.credit_bytes,
                ] {
                    put(out, value);
                }
                ack.bitmap.put(out);
            }
            Self::History(bitmap) => {
                out.push(HISTORY);
                bitmap.put(out);
            }
            Self::HistoryRequest { from, to } => {
                out.push(HISTORY_REQUEST);
                put(out, *from);
                put(out, *to);
            }
            Self::Close { code, reason } => {
                out.push(CLOSE);
                put(out, *code);
                put_prefixed(out, &reason[..reason.len().min(MAX_REASON)]);
            }
            Self::Challenge(value) => {
                out.push(CHALLENGE);
                out.extend_from_slice(&value.to_be_bytes());
            }
            Self::Response(value) => {
                out.push(RESPONSE);
                out.extend_from_slice(&value.to_be_bytes());
            }
            Self::Control { offset, bytes } => {
                out.push(CONTROL);
                put(out, *offset);
                put_prefixed(out, bytes);
            }
        }
    }

    /// Reads the next frame.
    pub fn read<'a>(reader: &mut Reader<'a>) -> Result<Frame<'a>, Error> {
        let kind = reader.fixed(1)? as u8;
        Ok(match kind {
            PADDING => Frame::Padding,
            PING => Frame::Ping,
            DATA..=DATA_END => {
                let flags = kind - DATA;
                let extent = reader.varint()?;
                let offset = reader.varint()?;
                let bytes =
                    if flags & DATA_SIZED != 0 { reader.prefixed()? } else { reader.rest() };
                if offset + bytes.len() as u64 > crate::varint::MAX {
                    return Err(Error::Malformed("an extent is too long"));
                }
                Frame::Data { extent, offset, last: flags & DATA_LAST != 0, bytes }
            }
            ACK => {
                let echo = Stamp::from_bits(reader.fixed(3)?);
                let mut values = [0; 8];
                for value in &mut values {
                    *value = reader.varint()?;
                }
                let bitmap = Bitmap::read(reader)?;
                if !bitmap.has(bitmap.count - 1) {
                    return Err(Error::Malformed(
                        "an acknowledgement whose last packet has not arrived",
                    ));
                }
                Frame::Ack(Ack {
                    echo,
                    echo_held_us: values[0],
                    received_bytes: values[1],
                    received_at_us: values[2],
                    burst_bytes: values[3],
                    burst_us: values[4],
                    spread_us: values[5],
                    marked_packets: values[6],
                    credit_bytes: values[7],
                    bitmap,
                })
            }
            HISTORY => Frame::History(Bitmap::read(reader)?),
            HISTORY_REQUEST => {
                let (from, to) = (reader.varint()?, reader.varint()?);
                if from >= to {
                    return Err(Error::Malformed("a history request for no packets"));
                }
                Frame::HistoryRequest { from, to }
            }
            CLOSE => {
                let (code, reason) = (reader.varint()?, reader.prefixed()?);
                Frame::Close { code, reason: &reason[..reason.len().min(MAX_REASON)] }
            }
            CHALLENGE => Frame::Challenge(reader.fixed(8)?),
            RESPONSE => Frame::Response(reader.fixed(8)?),
            CONTROL => {
                let (offset, bytes) = (reader.varint()?, reader.prefixed()?);
                if offset + bytes.len() as u64 > crate::varint::MAX {
                    return Err(Error::Malformed("a control stream is too long"));
                }
                Frame::Control { offset, bytes }
            }
            _ => return Err(Error::Malformed("a frame of an unknown kind")),
        })
    }
}

/// Appends the head of a data frame. Without a length, its bytes extend to the end of the packet.
pub fn put_data_head(
    out: &mut Vec<u8>,
    extent: u64,
    offset: u64,
    last: bool,
    length: Option<usize>,
) {
    let sized = if length.is_some() { DATA_SIZED } else { 0 };
    out.push(DATA + u8::from(last) * DATA_LAST + sized);
    put(out, extent);
    put(out, offset);
    if let Some(length) = length {
        put(out, length as u64);
    }
}

/// The size of the head of a data frame without a length.
#[must_use]
pub fn data_head_size(extent: u64, offset: u64) -> usize {
    1 + size(extent) + size(offset)
}
