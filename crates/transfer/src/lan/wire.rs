//! The frames of the protocol, version 1. Bytes in, frames out; no sockets here.
//!
//! A frame is its tag (one byte), the length of what follows (four, big-endian) and that. For each set
//! of files the client says `Hello`. To get, it asks for each file by name; the server answers each with
//! `File`, the contents bare, and `Digest`. To put, the client sends those three for each file, and the
//! server answers the whole set with `Done`. Where the server cannot go on it says `Refused` and
//! closes. A connection carries any number of sets, one after the other.

use std::fmt;

use super::error::ErrorKind;

/// The version of the protocol; ends of different versions do not talk.
pub const VERSION: u16 = 1;
/// What every `Hello` begins with, so that a stranger is told from a peer.
pub const MAGIC: [u8; 4] = *b"WSLM";
/// The longest name of a file, from its module on.
pub const MAX_NAME_BYTES: usize = 1024;
/// The longest explanation in `Refused`; a longer one is cut.
pub const MAX_TEXT_BYTES: usize = 512;
/// The most files in a set.
pub const MAX_FILES: u32 = 65_536;
/// The tag and the length.
pub const HEADER_BYTES: usize = 5;
/// The longest frame without its header: a `File` with the longest name.
pub const MAX_PAYLOAD_BYTES: usize = MAX_NAME_BYTES + 8;

/// Which way a set of files goes, seen from the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From the server to the client.
    Get,
    /// From the client to the server.
    Put,
}

/// What one end says to the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// The client begins a set.
    Hello {
        /// Which way its files go.
        way: Way,
        /// How many files it has, at least one.
        files: u32,
    },
    /// The client wants this file.
    Ask {
        /// Module, `/`, and the way from there.
        name: Vec<u8>,
    },
    /// A file's contents follow, `size` bytes without any frame.
    File {
        /// As in `Ask`.
        name: Vec<u8>,
        /// Its bytes.
        size: u64,
    },
    /// The XXH3 digest, 128 bits, of the contents before it.
    Digest(u128),
    /// The server has every file of a put under its name.
    Done,
    /// The server cannot go on.
    Refused {
        /// What the client can act on.
        kind: ErrorKind,
        /// A sentence for people.
        text: String,
    },
}

/// Bytes that are no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed(&'static str);

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Malformed {}

const HELLO: u8 = 1;
const ASK: u8 = 2;
const FILE: u8 = 3;
const DIGEST: u8 = 4;
const DONE: u8 = 5;
const REFUSED: u8 = 6;

impl Frame {
    /// The frame's bytes, header and all, behind what `out` holds.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&[0; HEADER_BYTES]);
        let tag = match self {
            Self::Hello { way, files } => {
                out.extend_from_slice(&MAGIC);
                out.extend_from_slice(&VERSION.to_be_bytes());
                out.push(match way {
                    Way::Get => 0,
                    Way::Put => 1,
                });
                out.extend_from_slice(&files.to_be_bytes());
                HELLO
            }
            Self::Ask { name } => {
                out.extend_from_slice(name);
                ASK
            }
            Self::File { name, size } => {
                out.extend_from_slice(&size.to_be_bytes());
                out.extend_from_slice(name);
                FILE
            }
            Self::Digest(digest) => {
                out.extend_from_slice(&digest.to_be_bytes());
                DIGEST
            }
            Self::Done => DONE,
            Self::Refused { kind, text } => {
                out.push(kind.code());
                out.extend_from_slice(cut(text).as_bytes());
                REFUSED
            }
        };
        let length = u32::try_from(out.len() - start - HEADER_BYTES).unwrap_or(u32::MAX);
        out[start] = tag;
        out[start + 1..start + HEADER_BYTES].copy_from_slice(&length.to_be_bytes());
    }

    /// How many bytes follow this header.
    pub fn payload_length(header: [u8; HEADER_BYTES]) -> Result<usize, Malformed> {
        let [tag, length @ ..] = header;
        if !(HELLO..=REFUSED).contains(&tag) {
            return Err(Malformed("a frame of no known kind"));
        }
        usize::try_from(u32::from_be_bytes(length))
            .ok()
            .filter(|length| *length <= MAX_PAYLOAD_BYTES)
            .ok_or(Malformed("a frame that is too long"))
    }

    /// The frame with that header's tag and these bytes behind it.
    pub fn decode(tag: u8, payload: &[u8]) -> Result<Self, Malformed> {
        match tag {
            HELLO => hello(payload),
            ASK => Ok(Self::Ask { name: name(payload)? }),
            FILE => {
                let (size, rest) = payload
                    .split_first_chunk::<8>()
                    .ok_or(Malformed("a file's frame without its size"))?;
                Ok(Self::File { size: u64::from_be_bytes(*size), name: name(rest)? })
            }
            DIGEST => <[u8; 16]>::try_from(payload)
                .map(|digest| Self::Digest(u128::from_be_bytes(digest)))
                .map_err(|_| Malformed("a digest that is not of 16 bytes")),
            DONE if payload.is_empty() => Ok(Self::Done),
            DONE => Err(Malformed("something behind a set's end")),
            REFUSED => {
                let (code, text) =
                    payload.split_first().ok_or(Malformed("a refusal without a reason"))?;
                let kind =
                    ErrorKind::from_code(*code).ok_or(Malformed("a refusal of no known kind"))?;
                let text = String::from_utf8_lossy(&text[..text.len().min(MAX_TEXT_BYTES)]);
                Ok(Self::Refused { kind, text: cut(&text).to_owned() })
            }
            _ => Err(Malformed("a frame of no known kind")),
        }
    }
}

/// The name split at its slashes, module first, once it is sure to lead nowhere but down.
pub fn parts(name: &[u8]) -> Result<Vec<&[u8]>, Malformed> {
    if name.is_empty() || name.len() > MAX_NAME_BYTES {
        return Err(Malformed("a name that is empty or too long"));
    }
    let parts: Vec<&[u8]> = name.split(|byte| *byte == b'/').collect();
    for part in &parts {
        if part.is_empty() || *part == b"." || *part == b".." || part.contains(&0) {
            return Err(Malformed("a name that does not lead down from a module"));
        }
    }
    if parts.len() < 2 {
        return Err(Malformed("a name without a module"));
    }
    Ok(parts)
}

fn hello(payload: &[u8]) -> Result<Frame, Malformed> {
    let payload =
        <[u8; 11]>::try_from(payload).map_err(|_| Malformed("a greeting of a wrong length"))?;
    let [m0, m1, m2, m3, v0, v1, way, files @ ..] = payload;
    if [m0, m1, m2, m3] != MAGIC {
        return Err(Malformed("a greeting of another protocol"));
    }
    if u16::from_be_bytes([v0, v1]) != VERSION {
        return Err(Malformed("another version of the protocol"));
    }
    let way = match way {
        0 => Way::Get,
        1 => Way::Put,
        _ => return Err(Malformed("neither get nor put")),
    };
    let files = u32::from_be_bytes(files);
    if !(1..=MAX_FILES).contains(&files) {
        return Err(Malformed("a set of no files, or of too many"));
    }
    Ok(Frame::Hello { way, files })
}

fn name(bytes: &[u8]) -> Result<Vec<u8>, Malformed> {
    parts(bytes).map(|_| bytes.to_vec())
}

/// As much of the text as a frame has room for, whole characters only.
fn cut(text: &str) -> &str {
    let mut end = text.len().min(MAX_TEXT_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_name() -> impl Strategy<Value = Vec<u8>> {
        let byte = any::<u8>().prop_filter("no separator", |b| *b != b'/' && *b != 0 && *b != b'.');
        let part = proptest::collection::vec(byte, 1..20);
        proptest::collection::vec(part, 2..6).prop_map(|parts| parts.join(&b'/'))
    }

    fn any_frame() -> impl Strategy<Value = Frame> {
        prop_oneof![
            (any::<bool>(), 1..=MAX_FILES).prop_map(|(get, files)| Frame::Hello {
                way: if get { Way::Get } else { Way::Put },
                files
            }),
            any_name().prop_map(|name| Frame::Ask { name }),
            (any_name(), any::<u64>()).prop_map(|(name, size)| Frame::File { name, size }),
            any::<u128>().prop_map(Frame::Digest),
            Just(Frame::Done),
            ("\\PC{0,100}", 1..=11_u8).prop_map(|(text, code)| Frame::Refused {
                kind: ErrorKind::from_code(code).unwrap(),
                text
            }),
        ]
    }

    fn read(bytes: &[u8]) -> Result<Frame, Malformed> {
        let (header, rest) = bytes.split_first_chunk().ok_or(Malformed("short"))?;
        let length = Frame::payload_length(*header)?;
        Frame::decode(header[0], rest.get(..length).ok_or(Malformed("short"))?)
    }

    proptest! {
        #[test]
        fn a_frame_is_read_as_it_was_written(frame in any_frame()) {
            let mut bytes = Vec::new();
            frame.encode(&mut bytes);
            prop_assert_eq!(read(&bytes), Ok(frame));
        }

        #[test]
        fn whatever_is_read_from_foreign_bytes_keeps_the_limits(
            tag in 0..8_u8, payload in proptest::collection::vec(any::<u8>(), 0..2000)
        ) {
            match Frame::decode(tag, &payload) {
                Ok(Frame::Ask { name } | Frame::File { name, .. }) => {
                    prop_assert!(name.len() <= MAX_NAME_BYTES && parts(&name).is_ok());
                }
                Ok(Frame::Hello { files, .. }) => prop_assert!((1..=MAX_FILES).contains(&files)),
                Ok(Frame::Refused { text, .. }) => prop_assert!(text.len() <= MAX_TEXT_BYTES),
                Ok(Frame::Digest(_) | Frame::Done) | Err(_) => {}
            }
        }

        #[test]
        fn a_damaged_frame_never_panics(frame in any_frame(), at in any::<usize>(), bit in 0..8_u8) {
            let mut bytes = Vec::new();
            frame.encode(&mut bytes);
            let at = at % bytes.len();
            bytes[at] ^= 1 << bit;
            let _ = read(&bytes);
        }

        #[test]
        fn no_header_makes_a_reader_wait_for_more_than_the_longest_frame(header in any::<[u8; 5]>()) {
            if let Ok(length) = Frame::payload_length(header) {
                prop_assert!(length <= MAX_PAYLOAD_BYTES);
            }
        }
    }

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        for name in [
            &b"data/../etc/passwd"[..],
            b"/etc/passwd",
            b"data//x",
            b"data/./x",
            b"data/x/",
            b"..",
            b"data",
            b"",
            b"data/a\0b",
            &[b'a'; MAX_NAME_BYTES + 1],
        ] {
            assert!(parts(name).is_err(), "{}", String::from_utf8_lossy(name));
        }
        assert_eq!(parts(b"data/..x/\xff").unwrap(), [&b"data"[..], b"..x", b"\xff"]);
    }

    #[test]
    fn other_versions_and_protocols_are_told_apart() {
        let mut bytes = Vec::new();
        Frame::Hello { way: Way::Get, files: 1 }.encode(&mut bytes);
        bytes[HEADER_BYTES + 5] += 1;
        assert!(read(&bytes).unwrap_err().to_string().contains("version"));
        bytes[HEADER_BYTES] = b'X';
        assert!(read(&bytes).unwrap_err().to_string().contains("another protocol"));
    }

    #[test]
    fn a_long_explanation_is_cut_between_characters() {
        let mut bytes = Vec::new();
        Frame::Refused { kind: ErrorKind::File, text: "\u{e9}".repeat(400) }.encode(&mut bytes);
        let Ok(Frame::Refused { text, .. }) = read(&bytes) else { panic!() };
        assert_eq!(text, "\u{e9}".repeat(MAX_TEXT_BYTES / 2));
    }
}
