//! A rank's part of an operation: it packs and unpacks windows as the process of its node asks.
//!
//! Arrives: requests of the process. Leaves: bytes in the pool and in the rank's memory. Must not know: files.

use std::time::Instant;

use waystage_collective_wire::local::{ToNode, ToRank};
use waystage_collective_wire::{FileId, Status, Window};

use crate::error::Result;
use crate::memory::{Image, Transfer};
use crate::node::{failure, unexpected, Session};

/// Serves the process's requests until the operation has ended; where a read met the file's end.
pub(crate) fn serve(
    session: &mut Session,
    (file, op): (FileId, u64),
    transfer: &Transfer<'_>,
    deadline: &dyn Fn() -> Instant,
) -> Result<u64> {
    loop {
        match session.receive(Some(deadline()))? {
            ToRank::Pack {
                request,
                file: of,
                op: number,
                window,
                image,
                list,
                list_capacity,
                from,
            } if (of, number) == (file, op) => {
                let image = match image {
                    Some(at) => Some(image_at(session, at, &window)?),
                    None => None,
                };
                let capacity = list_capacity as usize;
                let (found, upto) = transfer.pack(&window, image, capacity, from);
                put_list(session, list, capacity, &found)?;
                session.send(&ToNode::Packed {
                    request,
                    list_bytes: u32::try_from(found.len()).unwrap_or(u32::MAX),
                    upto,
                    next: transfer.next(window.hi),
                })?;
            }
            ToRank::Unpack { request, file: of, op: number, window, image }
                if (of, number) == (file, op) =>
            {
                transfer.unpack(&window, image_at(session, image, &window)?);
                session.send(&ToNode::Unpacked { request })?;
            }
            ToRank::Done { file: of, op: number, status, message, eof }
                if (of, number) == (file, op) =>
            {
                return done(status, message).map(|()| eof);
            }
            message => stale(&message)?,
        }
    }
}

/// The image of a window, at an offset of the pool.
#[allow(unsafe_code)]
fn image_at(session: &Session, at: u64, window: &Window) -> Result<Image> {
    let start = inside(session, at, window.bytes())?;
    // SAFETY: `inside` found these bytes in the pool, which is mapped while the connection is.
    Ok(unsafe { Image::new(start, window.bytes()) })
}

#[allow(unsafe_code)]
fn put_list(session: &Session, at: u64, capacity: usize, list: &[u8]) -> Result<()> {
    if list.is_empty() {
        return Ok(());
    }
    let to = inside(session, at, capacity as u64)?;
    // SAFETY: `capacity` bytes at `to` are in the pool, and the list has no more.
    unsafe { std::ptr::copy_nonoverlapping(list.as_ptr(), to, list.len().min(capacity)) };
    Ok(())
}

/// Address of `bytes` bytes at an offset of the pool.
fn inside(session: &Session, at: u64, bytes: u64) -> Result<*mut u8> {
    let pool = session.pool().ok_or_else(unexpected)?;
    let end = at.checked_add(bytes).ok_or_else(unexpected)?;
    if end > pool.len() as u64 {
        return Err(unexpected());
    }
    let at = usize::try_from(at).map_err(|_| unexpected())?;
    Ok(pool.start().wrapping_add(at))
}

/// Success, or the error of a status.
pub(crate) fn done(status: Status, message: String) -> Result<()> {
    if status == Status::Ok {
        Ok(())
    } else {
        Err(failure(status, message))
    }
}

/// Messages of an operation that this rank gave up are passed over; others have no place here.
pub(crate) fn stale(message: &ToRank) -> Result<()> {
    match message {
        ToRank::Welcome { .. } | ToRank::Refused { .. } => Err(unexpected()),
        _ => Ok(()),
    }
}
