//! The list of names that a client gives to a server that sends: in pieces, each of which is answered before much
//! more is sent.
//!
//! Arrives: a list, or pieces of one. Leaves: the pieces, or the list. Must not know: what its names lead to.

use std::path::Path;

use crate::error::WanError;
use waystage_copy::{not_a_directory, Names};
use waystage_transport::control::Control;
use waystage_transport::control_messages::{expect, kinds};

use crate::send::Origin;

/// Bytes of a piece, about.
const PIECE_BYTES: usize = 512 << 10;

/// A piece with its last name, which may be as long as a path can be.
const MOST_PIECE_BYTES: usize = PIECE_BYTES + (128 << 10);

/// Pieces without an answer.
const AHEAD: usize = 4;

/// Send the list; an empty piece ends it.
pub(crate) fn tell(control: &Control, names: &Names) -> Result<(), WanError> {
    let mut unanswered = 0;
    for piece in names.pieces(PIECE_BYTES) {
        if unanswered == AHEAD {
            expect(control, kinds::LISTED)?;
            unanswered -= 1;
        }
        control.send(kinds::LIST, &piece);
        unanswered += 1;
    }
    control.send(kinds::LIST, &[]);
    for _ in 0..unanswered {
        expect(control, kinds::LISTED)?;
    }
    Ok(())
}

/// What a name takes beside its bytes, once the list is read.
const NAME_BYTES: usize = 16;

/// Receive the client's list. Half of `most_bytes` bounds the list, the other half what is made of it.
pub(crate) fn hear(control: &Control, most_bytes: u64) -> Result<Names, WanError> {
    let (mut list, mut names) = (Vec::new(), 0);
    let most = most_bytes / 2;
    loop {
        let piece = expect(control, kinds::LIST)?;
        if piece.is_empty() {
            break;
        }
        names += piece.iter().filter(|byte| **byte == 0).count();
        let bytes = list.len() + piece.len() + names * NAME_BYTES;
        if piece.len() > MOST_PIECE_BYTES || bytes as u64 > most {
            return Err(WanError::input(format!(
                "the list takes more than the {} MiB that the server has for it: copy it in parts",
                most >> 20
            )));
        }
        list.extend_from_slice(&piece);
        control.send(kinds::LISTED, &[]);
    }
    Names::parse(&list, true).map_err(|error| WanError::input(format!("the list: {error}")))
}

/// Names lie below a directory: a list and a single file make no sense together.
pub(crate) fn suits(origin: &Origin, names: Option<&Names>, shown: &Path) -> Result<(), WanError> {
    match (names, &origin.source.single) {
        (Some(_), Some(_)) => Err(not_a_directory(shown).into()),
        _ => Ok(()),
    }
}
