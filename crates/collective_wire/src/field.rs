//! Fields of messages, little endian, each with its bound.
//!
//! Arrives: values; foreign bytes. Leaves: bytes; values, or what is wrong. Must not know: which messages there are.

use crate::{Status, Window};

/// Why bytes are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// It ends too early.
    #[error(
        "a message of collective I/O is cut short: the peer sent other bytes than it announced"
    )]
    Short,
    /// It goes on after its end.
    #[error(
        "a message of collective I/O has bytes after its end: the peer speaks another version"
    )]
    Long,
    /// A type, a value or a length that there is not.
    #[error("a message of collective I/O has a wrong {0}: the peer speaks another version")]
    Wrong(&'static str),
    /// It says that it is longer than any message.
    #[error("a message of collective I/O claims {0} bytes, above the limit")]
    TooLong(u64),
}

/// The random identity of an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct FileId(pub [u8; 16]);

/// Bytes of a text, such as a path, at most.
pub const MOST_TEXT_BYTES: usize = 4096;

/// Bytes of an encoded view, server map or coverage, at most: a bitmap of the largest window.
pub const MOST_BLOB_BYTES: usize = 4 << 20;

/// Entries of a list, at most: nodes of a file, hints, ranks of a node.
pub const MOST_ENTRIES: usize = 1 << 17;

/// Reads fields one after the other.
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], WireError> {
        let (head, rest) = self.0.split_at_checked(count).ok_or(WireError::Short)?;
        self.0 = rest;
        Ok(head)
    }
}

/// A value with its encoding.
pub(crate) trait Field: Sized {
    fn put(&self, into: &mut Vec<u8>);
    fn get(from: &mut Reader<'_>) -> Result<Self, WireError>;
}

macro_rules! numbers {
    ($($kind:ty),*) => {$(
        impl Field for $kind {
            fn put(&self, into: &mut Vec<u8>) {
                into.extend_from_slice(&self.to_le_bytes());
            }
            fn get(from: &mut Reader<'_>) -> Result<Self, WireError> {
                let bytes = from.take(size_of::<$kind>())?;
                bytes.try_into().map(<$kind>::from_le_bytes).map_err(|_| WireError::Short)
            }
        }
    )*};
}

numbers!(u8, u16, u32, u64, i32, i64);

impl Field for bool {
    fn put(&self, into: &mut Vec<u8>) {
        u8::from(*self).put(into);
    }
    fn get(from: &mut Reader<'_>) -> Result<Self, WireError> {
        match u8::get(from)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(WireError::Wrong("truth value")),
        }
    }
}

impl<const N: usize> Field for [u8; N] {
    fn put(&self, into: &mut Vec<u8>) {
        into.extend_from_slice(self);
    }
    fn get(from: &mut Reader<'_>) -> Result<Self, WireError> {
        from.take(N)?.try_into().map_err(|_| WireError::Short)
    }
}

impl Field for FileId {
    fn put(&self, into: &mut Vec<u8>) {
        self.0.put(into);
    }
    fn get(from: &mut Reader<'_>) -> Result<Self, WireError> {
        Field::get(from).map(Self)
    }
}

fn put_length(length: usize, into: &mut Vec<u8>) {
    u32::try_from(length).unwrap_or(u32::MAX).put(into);
}

fn get_length(from: &mut Reader<'_>, most: usize, what: &'static str) -> Result<usize, WireError> {
    let length = u32::get(from)? as usize;
    if length > most {
        return Err(WireError::Wrong(what));
    }
    Ok(length)
}

impl Field for String {
    fn put(&self, into: &mut Vec<u8>) {
        put_length(self.len(), into);
        into.extend_from_slice(self.as_bytes());
    }
    fn get(from: &mut Reader<'_>) -> Result<Self, WireError> {
        let length = get_length(from, MOST_TEXT_BYTES, "length of a text")?;
        let text = std::str::from_utf8(from.take(length)?);
        text.map(str::to_owned).map_err(|_| WireError::Wrong("text"))
    }
}

/// Opaque bytes: a path, an encoded view, a server map.
impl Field for Vec<u8> {
    fn put(&self, into: &mut Vec<u8>) {
        put_length(self.len(), into);
        into.extend_from_slice(self);
    }
    fn get(from: &mut Reader<'_>) -> Result<Self, WireError> {
        let length = get_length(from, MOST_BLOB_BYTES, "length of bytes")?;
        from.take(length).map(<[u8]>::to_vec)
    }
}

/// Lists of what is no byte. Room is made as entries are read: a claimed length allocates nothing.
fn get_list<T: Field>(from: &mut Reader<'_>) -> Result<Vec<T>, WireError> {
    let count = get_length(from, MOST_ENTRIES, "length of a list")?;
    let mut found = Vec::with_capacity(count.min(from.0.len() / size_of::<T>().max(1)));
    for _ in 0..count {
        found.push(T::get(from)?);
    }
    Ok(found)
}

fn put_list<T: Field>(list: &[T], into: &mut Vec<u8>) {
    put_length(list.len(), into);
    list.iter().for_each(|entry| entry.put(into));
}

macro_rules! lists {
    ($($kind:ty),*) => {$(
        impl Field for Vec<$kind> {
            fn put(&self, into: &mut Vec<u8>) {
                put_list(self, into);
            }
            fn get(from: &mut Reader<'_>) -> Result<Self, WireError> {
                get_list(from)
            }
        }
    )*};
}

lists!(u32, u64, String, (String, String), RankRange);

impl<A: Field, B: Field> Field for (A, B) {
    fn put(&self, into: &mut Vec<u8>) {
        self.0.put(into);
        self.1.put(into);
    }
    fn get(from: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok((A::get(from)?, B::get(from)?))
    }
}

impl<T: Field> Field for Option<T> {
    fn put(&self, into: &mut Vec<u8>) {
        self.is_some().put(into);
        if let Some(value) = self {
            value.put(into);
        }
    }
    fn get(from: &mut Reader<'_>) -> Result<Self, WireError> {
        bool::get(from)?.then(|| T::get(from)).transpose()
    }
}

impl Field for Window {
    fn put(&self, into: &mut Vec<u8>) {
        [self.lo, self.hi, self.block, self.stride].iter().for_each(|value| value.put(into));
    }
    fn get(from: &mut Reader<'_>) -> Result<Self, WireError> {
        let [lo, hi, block, stride] =
            [u64::get(from)?, u64::get(from)?, u64::get(from)?, u64::get(from)?];
        Self::new(lo, hi, block, stride).ok_or(WireError::Wrong("window"))
    }
}

impl Field for Status {
    fn put(&self, into: &mut Vec<u8>) {
        self.code().put(into);
    }
    fn get(from: &mut Reader<'_>) -> Result<Self, WireError> {
        Self::from_code(i32::get(from)?).ok_or(WireError::Wrong("status"))
    }
}

/// What a rank of a node moves by its view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankRange {
    /// The node's number of the view.
    pub view: u32,
    /// The first byte of the data in the view.
    pub data_offset: u64,
    /// Bytes of data.
    pub bytes: u64,
}

impl Field for RankRange {
    fn put(&self, into: &mut Vec<u8>) {
        self.view.put(into);
        self.data_offset.put(into);
        self.bytes.put(into);
    }
    fn get(from: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Self { view: u32::get(from)?, data_offset: u64::get(from)?, bytes: u64::get(from)? })
    }
}
