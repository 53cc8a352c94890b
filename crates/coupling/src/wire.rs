//! Messages of coupling: between ranks and the processes that hold directories and data, over unix sockets or TCP.
//!
//! Arrives: messages; bytes of a peer. Leaves: bytes; messages, checked. Must not know: sockets.
//!
//! A frame is its length (u32, little-endian, at most [`FRAME_MOST`]) and a body: a tag, then fields in the order of
//! the declaration. Integers are little-endian; a text is its length (u32) and UTF-8; a list is its length and items.
//! The bytes of [`Message::Data`] follow its frame, so that they are received straight into the reader's memory.

use crate::region::{Region, DIMENSIONS_MOST};
use crate::request::{Answer, Piece, Request, Role, Variable, Why, PIECES_MOST, VARIABLES_MOST};

/// The protocol's version, compared in the handshake.
pub const VERSION: u32 = 1;

/// Most bytes of a frame: [`PIECES_MOST`] pieces are sent in several commits' worth of frames of this size at most.
pub const FRAME_MOST: usize = 64 << 20;

/// Most bytes of a text: a name, a path, an error.
pub const TEXT_MOST: usize = 4096;

/// Bytes of a token, of a nonce and of a proof.
pub const TOKEN_BYTES: usize = 32;

/// A secret, a nonce, or a proof of knowing a secret.
pub type Token = [u8; TOKEN_BYTES];

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

/// Bytes that are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a message of another program, or a damaged one")]
pub struct Malformed;

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
        _ => return Err(Malformed),
    })
}

fn put_answer<'a>(out: &'a mut Out, answer: &Answer) -> &'a mut Out {
    match answer {
        Answer::Done => out.u8(1),
        Answer::Version(version) => out.u8(2).u64(*version),
        Answer::Found(variable, pieces) => out.u8(3).variable(variable).pieces(pieces),
        Answer::Failed(why, text) => out.u8(4).u8(why_code(*why)).text(text),
    }
}

fn get_answer(from: &mut In<'_>) -> Result<Answer, Malformed> {
    Ok(match from.u8()? {
        1 => Answer::Done,
        2 => Answer::Version(from.u64()?),
        3 => Answer::Found(from.variable()?, from.list(PIECES_MOST, 20, In::piece)?),
        4 => Answer::Failed(from.why()?, from.text()?),
        _ => return Err(Malformed),
    })
}

fn why_code(why: Why) -> u8 {
    match why {
        Why::Argument => 1,
        Why::Lost => 2,
        Why::NoSuchVariable => 3,
        Why::Ended => 4,
        Why::Memory => 5,
    }
}

struct Out(Vec<u8>);

impl Out {
    fn u8(&mut self, value: u8) -> &mut Self {
        self.0.push(value);
        self
    }

    fn u32(&mut self, value: u32) -> &mut Self {
        self.raw(&value.to_le_bytes())
    }

    fn u64(&mut self, value: u64) -> &mut Self {
        self.raw(&value.to_le_bytes())
    }

    fn raw(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    fn count(&mut self, count: usize) -> &mut Self {
        self.u32(u32::try_from(count).unwrap_or(u32::MAX))
    }

    /// A text, cut where it is longer than a peer accepts.
    fn text(&mut self, text: &str) -> &mut Self {
        let mut end = text.len().min(TEXT_MOST);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        self.count(end).raw(&text.as_bytes()[..end])
    }

    fn u64s(&mut self, values: &[u64]) -> &mut Self {
        self.list(values, |out, value| {
            out.u64(*value);
        })
    }

    fn list<T>(&mut self, items: &[T], put: impl Fn(&mut Self, &T)) -> &mut Self {
        self.count(items.len());
        for item in items {
            put(self, item);
        }
        self
    }

    fn region(&mut self, region: &Region) -> &mut Self {
        self.u8(u8::try_from(region.dimensions()).unwrap_or(u8::MAX));
        for value in region.starts().iter().chain(region.counts()) {
            self.u64(*value);
        }
        self
    }

    fn variable(&mut self, variable: &Variable) -> &mut Self {
        self.text(&variable.name).text(&variable.element).u32(variable.element_bytes);
        self.u8(u8::try_from(variable.shape.len()).unwrap_or(u8::MAX));
        for side in &variable.shape {
            self.u64(*side);
        }
        self
    }

    fn variables(&mut self, variables: &[Variable]) -> &mut Self {
        self.list(variables, |out, variable| {
            out.variable(variable);
        })
    }

    fn pieces(&mut self, pieces: &[Piece]) -> &mut Self {
        self.list(pieces, |out, piece| {
            out.piece(piece);
        })
    }

    fn piece(&mut self, piece: &Piece) -> &mut Self {
        self.u32(piece.variable).region(&piece.region).text(&piece.owner).u64(piece.key)
    }
}

struct In<'a>(&'a [u8]);

impl<'a> In<'a> {
    fn take(&mut self, bytes: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(bytes).ok_or(Malformed)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        self.take(N)?.try_into().map_err(|_| Malformed)
    }

    fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(self.array::<1>()?[0])
    }

    fn bool(&mut self) -> Result<bool, Malformed> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed),
        }
    }

    fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_le_bytes)
    }

    fn token(&mut self) -> Result<Token, Malformed> {
        self.array()
    }

    fn text(&mut self) -> Result<String, Malformed> {
        let bytes = self.u32()? as usize;
        if bytes > TEXT_MOST {
            return Err(Malformed);
        }
        String::from_utf8(self.take(bytes)?.to_vec()).map_err(|_| Malformed)
    }

    /// Items of at least `least` bytes each, so that a count cannot ask for more memory than the frame has.
    fn list<T>(
        &mut self,
        most: usize,
        least: usize,
        get: impl Fn(&mut Self) -> Result<T, Malformed>,
    ) -> Result<Vec<T>, Malformed> {
        let count = self.u32()? as usize;
        if count > most || count.saturating_mul(least) > self.0.len() {
            return Err(Malformed);
        }
        (0..count).map(|_| get(self)).collect()
    }

    fn sides(&mut self, count: usize) -> Result<Vec<u64>, Malformed> {
        (0..count).map(|_| self.u64()).collect()
    }

    fn dimensions(&mut self) -> Result<usize, Malformed> {
        Some(usize::from(self.u8()?)).filter(|count| *count <= DIMENSIONS_MOST).ok_or(Malformed)
    }

    fn region(&mut self) -> Result<Region, Malformed> {
        let dimensions = self.dimensions()?;
        let starts = self.sides(dimensions)?;
        Region::new(&starts, &self.sides(dimensions)?).ok_or(Malformed)
    }

    fn variable(&mut self) -> Result<Variable, Malformed> {
        let (name, element, element_bytes) = (self.text()?, self.text()?, self.u32()?);
        let dimensions = self.dimensions()?;
        Ok(Variable { name, element, element_bytes, shape: self.sides(dimensions)? })
    }

    fn piece(&mut self) -> Result<Piece, Malformed> {
        Ok(Piece {
            variable: self.u32()?,
            region: self.region()?,
            owner: self.text()?,
            key: self.u64()?,
        })
    }

    fn why(&mut self) -> Result<Why, Malformed> {
        Ok(match self.u8()? {
            1 => Why::Argument,
            2 => Why::Lost,
            3 => Why::NoSuchVariable,
            4 => Why::Ended,
            5 => Why::Memory,
            _ => return Err(Malformed),
        })
    }
}

#[cfg(test)]
#[path = "wire_tests.rs"]
mod tests;
