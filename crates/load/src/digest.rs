//! Fingerprints of chunks.
//!
//! Arrives: bytes. Leaves: fingerprints of 160 bits. Must not know: anything else.

use sha1::{Digest as _, Sha1};

/// Which function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Digest {
    /// SHA-1, as FS-C takes by default.
    Sha1,
    /// BLAKE3, its first 160 bits: faster, and no collision is known.
    Blake3,
}

/// What a chunk, or a file, is known by.
pub type Fingerprint = [u8; 20];

impl Digest {
    /// The fingerprint of some bytes.
    #[must_use]
    pub fn of(self, data: &[u8]) -> Fingerprint {
        match self {
            Self::Sha1 => Sha1::digest(data).into(),
            Self::Blake3 => {
                let mut fingerprint = [0; 20];
                fingerprint.copy_from_slice(&blake3::hash(data).as_bytes()[..20]);
                fingerprint
            }
        }
    }
}
