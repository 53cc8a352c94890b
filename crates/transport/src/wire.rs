//! Numbers and bytes in messages: little-endian, lengths before what they count.
//!
//! Arrives: values, or bytes of the peer. Leaves: bytes, or values, or nothing where they were cut short or lie about
//! lengths.

/// What cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed;

/// A value, or bytes that cannot be read.
pub type Read<T> = Result<T, Malformed>;

/// Puts values behind one another.
#[derive(Default)]
pub struct Writer(pub Vec<u8>);

impl Writer {
    /// A message of this kind.
    pub fn new(kind: u8) -> Self {
        Self::within(Vec::new(), kind)
    }

    /// The same in memory that may be filled again.
    pub fn within(mut memory: Vec<u8>, kind: u8) -> Self {
        memory.clear();
        memory.push(kind);
        Self(memory)
    }

    /// Append a byte.
    pub fn u8(&mut self, value: u8) -> &mut Self {
        self.0.push(value);
        self
    }

    /// Append a number.
    pub fn u32(&mut self, value: u32) -> &mut Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    /// Append a number.
    pub fn u64(&mut self, value: u64) -> &mut Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    /// Append a number.
    pub fn i64(&mut self, value: i64) -> &mut Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    /// Append a number.
    pub fn u128(&mut self, value: u128) -> &mut Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    /// As many bytes as both ends know there are.
    pub fn array(&mut self, value: &[u8]) -> &mut Self {
        self.0.extend_from_slice(value);
        self
    }

    /// Append a length and bytes.
    pub fn bytes(&mut self, value: &[u8]) -> &mut Self {
        self.count(value.len());
        self.0.extend_from_slice(value);
        self
    }

    /// A length; what is counted is far below 2^32.
    pub fn count(&mut self, count: usize) -> &mut Self {
        self.u32(u32::try_from(count).unwrap_or(u32::MAX))
    }

    /// Bytes written so far.
    pub fn written(&self) -> usize {
        self.0.len()
    }

    /// Write over 16 bytes that were kept free.
    pub fn set_u128(&mut self, at: usize, value: u128) {
        self.0[at..at + 16].copy_from_slice(&value.to_le_bytes());
    }
}

/// Takes values off the front.
#[derive(Clone, Copy)]
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    /// The next `length` bytes.
    pub fn take(&mut self, length: usize) -> Read<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(Malformed)?;
        self.0 = rest;
        Ok(taken)
    }

    /// The next `N` bytes.
    pub fn array<const N: usize>(&mut self) -> Read<[u8; N]> {
        self.take(N)?.try_into().map_err(|_| Malformed)
    }

    /// The next byte.
    pub fn u8(&mut self) -> Read<u8> {
        Ok(self.array::<1>()?[0])
    }

    /// The next number.
    pub fn u32(&mut self) -> Read<u32> {
        self.array().map(u32::from_le_bytes)
    }

    /// The next number.
    pub fn u64(&mut self) -> Read<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// The next number.
    pub fn i64(&mut self) -> Read<i64> {
        self.array().map(i64::from_le_bytes)
    }

    /// The next number.
    pub fn u128(&mut self) -> Read<u128> {
        self.array().map(u128::from_le_bytes)
    }

    /// The next length and its bytes.
    pub fn bytes(&mut self) -> Read<&'a [u8]> {
        let length = self.u32()? as usize;
        self.take(length)
    }

    /// The next length and its bytes as text.
    pub fn text(&mut self) -> Read<String> {
        Ok(String::from_utf8_lossy(self.bytes()?).into_owned())
    }

    /// The next byte, which is 0 or 1.
    pub fn flag(&mut self) -> Read<bool> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed),
        }
    }

    /// How many values of at least `least` bytes follow: never more than there can be.
    pub fn count(&mut self, least: usize) -> Read<usize> {
        let count = self.u32()? as usize;
        if count.checked_mul(least.max(1)).is_none_or(|bytes| bytes > self.0.len()) {
            return Err(Malformed);
        }
        Ok(count)
    }

    /// Whether all was read.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Nothing may follow.
    pub fn end(&self) -> Read<()> {
        if self.is_empty() {
            Ok(())
        } else {
            Err(Malformed)
        }
    }
}

/// The index of `one` among all values of a type, as it is sent.
pub fn place_of<T: PartialEq>(all: &[T], one: &T) -> u8 {
    all.iter().position(|each| each == one).unwrap_or(0) as u8
}

/// The value of an index.
pub fn at_place<T: Copy>(all: &[T], place: u8) -> Read<T> {
    all.get(usize::from(place)).copied().ok_or(Malformed)
}

/// A message of the TLS connection: its length, its kind, its bytes.
pub fn framed(kind: u8, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len() + 1).unwrap_or(u32::MAX);
    let mut frame = Vec::with_capacity(body.len() + 5);
    frame.extend_from_slice(&length.to_le_bytes());
    frame.push(kind);
    frame.extend_from_slice(body);
    frame
}
