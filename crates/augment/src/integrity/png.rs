//! PNG: every chunk up to the last is present, and its checksum is right (PNG specification, section 5.3).

use super::bytes::damaged;
use crate::error::ImageError;

const SIGNATURE: usize = 8;

/// Length, type and checksum of a chunk.
const AROUND: usize = 12;

/// Whether all chunks are whole.
pub(crate) fn check(data: &[u8]) -> Result<(), ImageError> {
    let mut at = SIGNATURE;
    loop {
        let rest = data.get(at..).unwrap_or_default();
        let Some(head) = rest.first_chunk::<8>() else {
            return damaged("it is cut off: its last chunk, IEND, is missing");
        };
        let [a, b, c, d, kind @ ..] = head;
        let length = u32::from_be_bytes([*a, *b, *c, *d]) as usize;
        let name = kind.escape_ascii();
        let Some(chunk) = length.checked_add(AROUND).and_then(|all| rest.get(..all)) else {
            return damaged(format!(
                "it is cut off or damaged: chunk {name} is longer than the file"
            ));
        };
        let (held, sum) = chunk.split_at(length + 8);
        if sum != crc32fast::hash(&held[4..]).to_be_bytes() {
            return damaged(format!("it is damaged: the checksum of chunk {name} is wrong"));
        }
        if kind == b"IEND" {
            return Ok(());
        }
        at += chunk.len();
    }
}
