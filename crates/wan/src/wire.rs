//! Numbers and bytes in messages: little-endian, lengths before what they count.
//!
//! Arrives: values, or bytes of the other end. Leaves: bytes, or values, or nothing where they were cut short or lie about lengths.

/// What cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Malformed;

pub(crate) type Read<T> = Result<T, Malformed>;

/// Puts values behind one another.
#[derive(Default)]
pub(crate) struct Writer(pub(crate) Vec<u8>);

impl Writer {
    pub(crate) fn new(kind: u8) -> Self {
        Self::within(Vec::new(), kind)
    }

    /// The same in memory that may be filled again.
    pub(crate) fn within(mut memory: Vec<u8>, kind: u8) -> Self {
        memory.clear();
        memory.push(kind);
        Self(memory)
    }

    pub(crate) fn u8(&mut self, value: u8) -> &mut Self {
        self.0.push(value);
        self
    }

    pub(crate) fn u32(&mut self, value: u32) -> &mut Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    pub(crate) fn u64(&mut self, value: u64) -> &mut Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    pub(crate) fn i64(&mut self, value: i64) -> &mut Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    pub(crate) fn u128(&mut self, value: u128) -> &mut Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    /// As many bytes as both ends know there are.
    pub(crate) fn array(&mut self, value: &[u8]) -> &mut Self {
        self.0.extend_from_slice(value);
        self
    }

    pub(crate) fn bytes(&mut self, value: &[u8]) -> &mut Self {
        self.count(value.len());
        self.0.extend_from_slice(value);
        self
    }

    /// A length; what is counted is far below 2^32.
    pub(crate) fn count(&mut self, count: usize) -> &mut Self {
        self.u32(u32::try_from(count).unwrap_or(u32::MAX))
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Write over 16 bytes that were kept free.
    pub(crate) fn set_u128(&mut self, at: usize, value: u128) {
        self.0[at..at + 16].copy_from_slice(&value.to_le_bytes());
    }
}

/// Takes values off the front.
#[derive(Clone, Copy)]
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn take(&mut self, length: usize) -> Read<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(Malformed)?;
        self.0 = rest;
        Ok(taken)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Read<[u8; N]> {
        self.take(N)?.try_into().map_err(|_| Malformed)
    }

    pub(crate) fn u8(&mut self) -> Read<u8> {
        Ok(self.array::<1>()?[0])
    }

    pub(crate) fn u32(&mut self) -> Read<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Read<u64> {
        self.array().map(u64::from_le_bytes)
    }

    pub(crate) fn i64(&mut self) -> Read<i64> {
        self.array().map(i64::from_le_bytes)
    }

    pub(crate) fn u128(&mut self) -> Read<u128> {
        self.array().map(u128::from_le_bytes)
    }

    pub(crate) fn bytes(&mut self) -> Read<&'a [u8]> {
        let length = self.u32()? as usize;
        self.take(length)
    }

    pub(crate) fn text(&mut self) -> Read<String> {
        Ok(String::from_utf8_lossy(self.bytes()?).into_owned())
    }

    pub(crate) fn flag(&mut self) -> Read<bool> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed),
        }
    }

    /// How many values of at least `least` bytes follow: never more than there can be.
    pub(crate) fn count(&mut self, least: usize) -> Read<usize> {
        let count = self.u32()? as usize;
        if count.checked_mul(least.max(1)).is_none_or(|bytes| bytes > self.0.len()) {
            return Err(Malformed);
        }
        Ok(count)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Nothing may follow.
    pub(crate) fn end(&self) -> Read<()> {
        if self.is_empty() {
            Ok(())
        } else {
            Err(Malformed)
        }
    }
}

/// A message of the TLS connection: its length, its kind, its bytes.
pub(crate) fn framed(kind: u8, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len() + 1).unwrap_or(u32::MAX);
    let mut frame = Vec::with_capacity(body.len() + 5);
    frame.extend_from_slice(&length.to_le_bytes());
    frame.push(kind);
    frame.extend_from_slice(body);
    frame
}

#[cfg(test)]
pub(crate) mod testing {
    //! A folder of a test, gone afterwards.

    use std::path::{Path, PathBuf};
    use std::sync::atomic::{AtomicU32, Ordering};

    pub(crate) struct Folder(PathBuf);

    impl Folder {
        pub(crate) fn path(&self) -> &Path {
            &self.0
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    pub(crate) fn folder() -> Folder {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("waystage-wan-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Folder(path)
    }
}
