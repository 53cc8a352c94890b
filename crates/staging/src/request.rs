//! What a client asks a server for.
//!
//! Arrives: a request, or the bytes of one. Leaves: bytes; or a request of bounded size. Must not know: sockets, files.

use waystage_copy::Names;
use waystage_transport::wire::{Malformed, Read, Reader, Writer};

/// Files to be copied once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StagingRequest {
    /// From the client into this directory of the server: module, `/`, and the path below it.
    Put {
        /// The directory.
        directory: Vec<u8>,
        /// Bytes of the largest file.
        largest: u64,
    },
    /// From the server to the client: names that begin with a module.
    Get {
        /// The files.
        names: Names,
        /// Bytes that are free where they are to be copied to.
        room: u64,
    },
}

impl StagingRequest {
    /// As bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::default();
        match self {
            Self::Put { directory, largest } => out.u8(1).bytes(directory).u64(*largest),
            Self::Get { names, room } => {
                let names = names.pieces(usize::MAX).collect::<Vec<_>>().concat();
                out.u8(0).bytes(&names).u64(*room)
            }
        };
        out.0
    }

    /// From the bytes of a peer.
    ///
    /// # Errors
    /// Where they are no request, or a name leads out of the server's root.
    pub fn read(bytes: &[u8]) -> Read<Self> {
        let mut reader = Reader(bytes);
        let is_put = reader.flag()?;
        let (body, bytes) = (reader.bytes()?, reader.u64()?);
        reader.end()?;
        let names = Names::parse(body, true).map_err(|_| Malformed)?;
        if !is_put {
            return Ok(Self::Get { names, room: bytes });
        }
        match names.iter().collect::<Vec<_>>()[..] {
            [directory] => Ok(Self::Put { directory: directory.to_vec(), largest: bytes }),
            _ => Err(Malformed),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_request_is_read_as_it_was_written_and_leads_nowhere_else() {
        let names = Names::parse(b"data/a\0jobs/b\n\0", true).expect("names");
        for request in [
            StagingRequest::Get { names, room: 5 },
            StagingRequest::Put { directory: b"jobs/x".to_vec(), largest: u64::MAX },
        ] {
            assert_eq!(StagingRequest::read(&request.encode()), Ok(request));
        }
        for bad in ["data/../../secret", "/etc/passwd", "..", "a\0b"] {
            let request = StagingRequest::Put { directory: bad.into(), largest: 0 };
            assert_eq!(StagingRequest::read(&request.encode()), Err(Malformed), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_a_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = StagingRequest::read(&bytes);
        }
    }
}
