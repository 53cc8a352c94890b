//! Messages of coupling: between ranks and the processes that hold directories and data, over unix sockets or TCP.
//!
//! Arrives: messages; bytes of a peer. Leaves: bytes; messages, checked. Must not know: sockets.
//!
//! A frame is its length (u32, little-endian, at most [`FRAME_MOST`]) and a body: a tag, then fields in the order of
//! the declaration. Integers are little-endian; a text is its length (u32) and UTF-8; a list is its length and items.
//! The bytes of [`Message::Data`] follow its frame, so that they are received straight into the reader's memory.

use crate::codec::{why_code, In, Out};
pub use crate::codec::{Malformed, Token, TEXT_MOST, TOKEN_BYTES};
use crate::region::Region;
use crate::request::{Answer, Found, Request, Role, Why, PIECES_MOST, VARIABLES_MOST};
use crate::slabs::FOUND_MOST;

/// The protocol's version, compared in the handshake.
pub const VERSION: u32 = 2;

/// Most bytes of a frame: [`PIECES_MOST`] pieces are sent in several commits' worth of frames of this size at most.
pub const FRAME_MOST: usize = 64 << 20;

/// Most runs of a [`Message::Write`].
pub const RUNS_MOST: usize = 1 << 16;
/// Most bytes of a [`Message::Write`].
pub const WRITE_MOST: u64 = 64 << 20;

/// Everything that is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Process, first: its version and a nonce.
    Challenge {
        /// [`VERSION`].
        version: u32,
        /// Random bytes.
        nonce: Token,
    },
    /// Client: the name, empty for the process itself, and the keyed hash of the nonce by the name's token.
    Hello {
        /// [`VERSION`].
        version: u32,
        /// A coupled name, or empty: the launch, whose token then is the key.
        name: String,
        /// BLAKE3 of the nonce, keyed with the token.
        proof: Token,
    },
    /// Process: the client may go on. `address` is where other processes reach this one.
    Welcome {
        /// Host, socket's path and TCP address.
        address: String,
    },
    /// Client of this launch: data of `name`, which readers prove to know by `token`, will be held here.
    Introduce {
        /// A coupled name.
        name: String,
        /// Its token.
        token: Token,
        /// Whether the directory is here too.
        home: bool,
    },
    /// Client of this launch, with a descriptor: `bytes` of a segment are a piece.
    Hold {
        /// A coupled name.
        name: String,
        /// The client's number of the segment.
        segment: u64,
        /// Length of the piece, from the start of the segment.
        bytes: u64,
        /// Whether the descriptor of the segment is attached; otherwise the process has it.
        attached: bool,
    },
    /// Process: the key of a piece that is held now.
    Held {
        /// The client's number of the segment.
        segment: u64,
        /// The key.
        key: u64,
    },
    /// Process: the client may use the segment again.
    Reuse {
        /// The client's number of the segment.
        segment: u64,
    },
    /// To the process with the directory.
    Ask {
        /// Number of the request on this connection.
        number: u64,
        /// The request.
        request: Request,
    },
    /// Its answer.
    Reply {
        /// Number of the request.
        number: u64,
        /// The answer.
        answer: Answer,
    },
    /// Between processes: these pieces are no longer needed.
    Free {
        /// Keys.
        keys: Vec<u64>,
    },
    /// A reader on the same host asks for the memory of a piece.
    Map {
        /// Key of the piece.
        key: u64,
    },
    /// The memory of a piece, with a descriptor where this connection has not had the segment before.
    Mapped {
        /// The process's number of the segment.
        segment: u64,
        /// Bytes of the segment.
        bytes: u64,
        /// Whether a descriptor is attached.
        attached: bool,
    },
    /// A reader asks for cells of a piece.
    Pull {
        /// Key of the piece.
        key: u64,
        /// The piece's box.
        region: Region,
        /// The cells.
        cut: Region,
        /// Bytes of an element.
        element_bytes: u32,
    },
    /// A writer writes to a piece that is part of a file: its bytes follow the frame, one run after the other.
    Write {
        /// Key of the piece.
        key: u64,
        /// Offset in the piece and length of each run.
        runs: Vec<(u64, u64)>,
    },
    /// They have been written.
    Written,
    /// Bytes follow the frame, as many as it says.
    Data {
        /// How many.
        bytes: u64,
    },
    /// Why the last message is not answered otherwise.
    Refused {
        /// What a caller acts on.
        why: Why,
        /// One sentence.
        text: String,
    },
}

impl Message {
    /// The frame, its length first.
    #[must_use]
    pub fn frame(&self) -> Vec<u8> {
        let mut out = Out(vec![0; 4]);
        self.put(&mut out);
        let bytes = u32::try_from(out.0.len() - 4).unwrap_or(u32::MAX).to_le_bytes();
        out.0[..4].copy_from_slice(&bytes);
        out.0
    }

    fn put(&self, out: &mut Out) {
        match self {
            Self::Challenge { version, nonce } => out.u8(1).u32(*version).raw(nonce),
            Self::Hello { version, name, proof } => out.u8(2).u32(*version).text(name).raw(proof),
            Self::Welcome { address } => out.u8(3).text(address),
            Self::Introduce { name, token, home } => {
                out.u8(4).text(name).raw(token).u8((*home).into())
            }
            Self::Hold { name, segment, bytes, attached } => {
                out.u8(5).text(name).u64(*segment).u64(*bytes).u8((*attached).into())
            }
            Self::Held { segment, key } => out.u8(6).u64(*segment).u64(*key),
            Self::Reuse { segment } => out.u8(7).u64(*segment),
            Self::Ask { number, request } => put_request(out.u8(8).u64(*number), request),
            Self::Reply { number, answer } => put_answer(out.u8(9).u64(*number), answer),
            Self::Free { keys } => out.u8(10).u64s(keys),
            Self::Map { key } => out.u8(11).u64(*key),
            Self::Mapped { segment, bytes, attached } => {
                out.u8(12).u64(*segment).u64(*bytes).u8((*attached).into())
            }
            Self::Pull { key, region, cut, element_bytes } => {
                out.u8(13).u64(*key).region(region).region(cut).u32(*element_bytes)
            }
            Self::Data { bytes } => out.u8(14).u64(*bytes),
            Self::Write { key, runs } => out.u8(16).u64(*key).list(runs, |out, run| {
                out.u64(run.0).u64(run.1);
            }),
            Self::Written => out.u8(17),
            Self::Refused { why, text } => out.u8(15).u8(why_code(*why)).text(text),
        };
    }

    /// The message of a frame's body.
    ///
    /// # Errors
    /// [`Malformed`] where it is none, or bytes are left over.
    pub fn parse(body: &[u8]) -> Result<Self, Malformed> {
        let mut from = In(body);
        let message = match from.u8()? {
            1 => Self::Challenge { version: from.u32()?, nonce: from.token()? },
            2 => Self::Hello { version: from.u32()?, name: from.text()?, proof: from.token()? },
            3 => Self::Welcome { address: from.text()? },
            4 => Self::Introduce { name: from.text()?, token: from.token()?, home: from.bool()? },
            5 => Self::Hold {
                name: from.text()?,
                segment: from.u64()?,
                bytes: from.u64()?,
                attached: from.bool()?,
            },
            6 => Self::Held { segment: from.u64()?, key: from.u64()? },
            7 => Self::Reuse { segment: from.u64()? },
            8 => Self::Ask { number: from.u64()?, request: get_request(&mut from)? },
            9 => Self::Reply { number: from.u64()?, answer: get_answer(&mut from)? },
            10 => Self::Free { keys: from.list(PIECES_MOST, 8, In::u64)? },
            11 => Self::Map { key: from.u64()? },
            12 => Self::Mapped { segment: from.u64()?, bytes: from.u64()?, attached: from.bool()? },
            13 => Self::Pull {
                key: from.u64()?,
                region: from.region()?,
                cut: from.region()?,
                element_bytes: from.u32()?,
            },
            14 => Self::Data { bytes: from.u64()? },
            15 => Self::Refused { why: from.why()?, text: from.text()? },
            16 => Self::Write {
                key: from.u64()?,
                runs: from.list(RUNS_MOST, 16, |from| Ok((from.u64()?, from.u64()?)))?,
            },
            17 => Self::Written,
            _ => return Err(Malformed),
        };
        if from.0.is_empty() {
            Ok(message)
        } else {
            Err(Malformed)
        }
    }
}

fn put_request<'a>(out: &'a mut Out, request: &Request) -> &'a mut Out {
    match request {
        Request::Join { role, rank, size, depth } => {
            out.u8(1).u8((*role == Role::Reader).into()).u32(*rank).u32(*size).u32(*depth)
        }
        Request::Admit { version } => out.u8(2).u64(*version),
        Request::Commit { version, variables, pieces } => {
            out.u8(3).u64(*version).variables(variables).pieces(pieces)
        }
        Request::Find { version, variable, region } => {
            let out = out.u8(4).u64(*version).text(variable).u8(region.is_some().into());
            match region {
                Some(region) => out.region(region),
                None => out,
            }
        }
        Request::Next { after } => {
            out.u8(5).u8(after.is_some().into()).u64(after.unwrap_or_default())
        }
        Request::Release { version } => out.u8(6).u64(*version),
        Request::Cancel { request } => out.u8(7).u64(*request),
        Request::Close => out.u8(8),
        Request::Drain => out.u8(9),
        Request::Open { version } => out.u8(10).u64(*version),
        Request::Locate { version, first, units, write } => out
            .u8(11)
            .u64(*version)
            .u64(*first)
            .u64(*units)
            .u8(write.is_some().into())
            .u64(write.unwrap_or_default()),
        Request::Provide { version, first, owner, key } => {
            out.u8(12).u64(*version).u64(*first).text(owner).u64(*key)
        }
        Request::Resize { version, bytes } => out.u8(13).u64(*version).u64(*bytes),
        Request::CommitFile { version, keep } => out.u8(14).u64(*version).u8((*keep).into()),
    }
}

fn get_request(from: &mut In<'_>) -> Result<Request, Malformed> {
    Ok(match from.u8()? {
        1 => Request::Join {
            role: if from.bool()? { Role::Reader } else { Role::Writer },
            rank: from.u32()?,
            size: from.u32()?,
            depth: from.u32()?,
        },
        2 => Request::Admit { version: from.u64()? },
        3 => Request::Commit {
            version: from.u64()?,
            variables: from.list(VARIABLES_MOST, 16, In::variable)?,
            pieces: from.list(PIECES_MOST, 20, In::piece)?,
        },
        4 => Request::Find {
            version: from.u64()?,
            variable: from.text()?,
            region: if from.bool()? { Some(from.region()?) } else { None },
        },
        5 => {
            let given = from.bool()?;
            let after = from.u64()?;
            Request::Next { after: given.then_some(after) }
        }
        6 => Request::Release { version: from.u64()? },
        7 => Request::Cancel { request: from.u64()? },
        8 => Request::Close,
        9 => Request::Drain,
        10 => Request::Open { version: from.u64()? },
        11 => {
            let (version, first, units) = (from.u64()?, from.u64()?, from.u64()?);
            let given = from.bool()?;
            let upto = from.u64()?;
            Request::Locate { version, first, units, write: given.then_some(upto) }
        }
        12 => Request::Provide {
            version: from.u64()?,
            first: from.u64()?,
            owner: from.text()?,
            key: from.u64()?,
        },
        13 => Request::Resize { version: from.u64()?, bytes: from.u64()? },
        14 => Request::CommitFile { version: from.u64()?, keep: from.bool()? },
        _ => return Err(Malformed),
    })
}

fn put_answer<'a>(out: &'a mut Out, answer: &Answer) -> &'a mut Out {
    match answer {
        Answer::Done => out.u8(1),
        Answer::Version(version) => out.u8(2).u64(*version),
        Answer::Found(variable, pieces) => out.u8(3).variable(variable).pieces(pieces),
        Answer::Failed(why, text) => out.u8(4).u8(why_code(*why)).text(text),
        Answer::Slabs(found) => {
            out.u8(5).u64(found.bytes).u64(found.end).list(&found.slabs, |out, slab| {
                out.slab(slab);
            })
        }
    }
}

fn get_answer(from: &mut In<'_>) -> Result<Answer, Malformed> {
    Ok(match from.u8()? {
        1 => Answer::Done,
        2 => Answer::Version(from.u64()?),
        3 => Answer::Found(from.variable()?, from.list(PIECES_MOST, 20, In::piece)?),
        4 => Answer::Failed(from.why()?, from.text()?),
        5 => Answer::Slabs(Found {
            bytes: from.u64()?,
            end: from.u64()?,
            slabs: from.list(FOUND_MOST, 19, In::slab)?,
        }),
        _ => return Err(Malformed),
    })
}

#[cfg(test)]
#[path = "wire_tests.rs"]
mod tests;
