//! BeeGFS: the answers of two ioctls on an open file, as the client's header declares them.
//!
//! ```text
//! 0x800C6619 stripe info, 12 bytes:  pattern u32@0  chunk_size u32@4  target_count u16@8  2 of padding
//! 0x8106661A target, 262 bytes:      index u16@0 (asked)  target u16@2  node u16@4  node_name char[256]@6
//! ```
//! Numbers are in the machine's order, which is little-endian wherever BeeGFS runs. [`parse`] takes
//! the first answer, followed by one answer of the second for each target in turn.

use std::io;
use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use rustix::ioctl::{ioctl, Updater};

use super::reader::{LayoutReader, OpenFile};
use super::{Component, Layout, LayoutError, Object, Striping, Target};

/// BeeGFS through its kernel client.
#[derive(Clone, Copy, Debug)]
pub struct Reader;

impl LayoutReader for Reader {
    fn name(&self) -> &'static str {
        "beegfs"
    }

    fn magic_numbers(&self) -> &'static [u64] {
        &[0x1983_0326]
    }

    fn parse(&self, bytes: &[u8]) -> Result<Layout, LayoutError> {
        parse(bytes)
    }

    fn read(&self, file: &OpenFile<'_>) -> Result<Option<Layout>, LayoutError> {
        if file.directory {
            return Ok(None);
        }
        match answers(file.fd) {
            Ok(answers) => parse(&answers).map(Some),
            Err(Errno::NOTTY | Errno::OPNOTSUPP) => Ok(None),
            Err(error) => Err(LayoutError::io("BeeGFS stripe info", io::Error::from(error))),
        }
    }
}

/// The answers that [`parse`] takes, of an open file.
fn answers(fd: BorrowedFd<'_>) -> Result<Vec<u8>, Errno> {
    let mut info = [0_u8; INFO_BYTES];
    // SAFETY: the request writes as many bytes as its number says, 12, and `info` has them.
    #[allow(unsafe_code)]
    unsafe {
        ioctl(fd, Updater::<{ GET_STRIPE_INFO }, _>::new(&mut info))?;
    }
    let mut answers = info.to_vec();
    for index in 0..target_count(&info).map_err(|_| Errno::IO)? {
        let mut target = [0_u8; TARGET_BYTES];
        target[..2].copy_from_slice(&index.to_ne_bytes());
        // SAFETY: as above, with 262 bytes, the first two of which it reads.
        #[allow(unsafe_code)]
        unsafe {
            ioctl(fd, Updater::<{ GET_STRIPE_TARGET }, _>::new(&mut target))?;
        }
        answers.extend(target);
    }
    Ok(answers)
}

/// The request for a file's striping.
const GET_STRIPE_INFO: u32 = 0x800C_6619;
/// The request for one target of a file.
const GET_STRIPE_TARGET: u32 = 0x8106_661A;
/// Bytes of the answer on a file's striping.
const INFO_BYTES: usize = 12;
/// Bytes of the answer on one target.
const TARGET_BYTES: usize = 262;

const RAID0: u32 = 1;
/// Targets that are mirrored groups of two; the client answers with each group's primary.
const BUDDY_MIRROR: u32 = 3;

/// The number of targets that the answer on a file's striping promises.
///
/// # Errors
/// Where the answer is too short.
fn target_count(info: &[u8]) -> Result<u16, LayoutError> {
    match info {
        [_, _, _, _, _, _, _, _, low, high, ..] => Ok(u16::from_le_bytes([*low, *high])),
        _ => Err(LayoutError::truncated("BeeGFS stripe info: fewer than 12 bytes")),
    }
}

/// The layout of a file.
///
/// # Errors
/// Where answers are missing, or the pattern is none that this knows.
pub fn parse(bytes: &[u8]) -> Result<Layout, LayoutError> {
    let Some((info, answers)) = bytes.split_at_checked(INFO_BYTES) else {
        return Err(LayoutError::truncated("BeeGFS stripe info: fewer than 12 bytes"));
    };
    let word = |at: usize| u32::from_le_bytes([info[at], info[at + 1], info[at + 2], info[at + 3]]);
    let (pattern, chunk) = (word(0), word(4));
    if pattern != RAID0 && pattern != BUDDY_MIRROR {
        return Err(LayoutError::unsupported(format!("BeeGFS: unknown stripe pattern {pattern}")));
    }
    let count = usize::from(target_count(info)?);
    if count == 0 {
        return Err(LayoutError::invalid("BeeGFS: the file has no target"));
    }
    if answers.len() < count * TARGET_BYTES {
        return Err(LayoutError::truncated(format!(
            "BeeGFS: {count} targets need {} bytes, and there are {}",
            count * TARGET_BYTES,
            answers.len()
        )));
    }
    let objects =
        answers.chunks_exact(TARGET_BYTES).take(count).map(object).collect::<Result<_, _>>()?;
    let striping = Striping::round(u64::from(chunk), count as u64);
    Layout::new(Reader.name(), 0, vec![Component { striping, objects, ..Component::whole() }])
}

fn object(answer: &[u8]) -> Result<Object, LayoutError> {
    let half = |at: usize| u16::from_le_bytes([answer[at], answer[at + 1]]);
    let name = answer[6..].split(|byte| *byte == 0).next().unwrap_or_default();
    let host = std::str::from_utf8(name)
        .map_err(|_| LayoutError::invalid("BeeGFS: a node's name is not UTF-8"))?;
    Ok(Object::on(Target::on_node("beegfs", u32::from(half(2)), host)))
}

/// The answers of a client for this chunk size and these targets: number, node, node's name.
#[must_use]
pub fn encode(chunk: u32, targets: &[(u16, u16, &str)]) -> Vec<u8> {
    let count = u16::try_from(targets.len()).unwrap_or(u16::MAX);
    let mut bytes = Vec::with_capacity(INFO_BYTES + targets.len() * TARGET_BYTES);
    bytes.extend(RAID0.to_le_bytes());
    bytes.extend(chunk.to_le_bytes());
    bytes.extend(count.to_le_bytes());
    bytes.extend([0; 2]);
    for (index, (target, node, name)) in (0..count).zip(targets) {
        let end = bytes.len() + TARGET_BYTES;
        for number in [index, *target, *node] {
            bytes.extend(number.to_le_bytes());
        }
        // The name's last byte is its terminator.
        bytes.extend(name.bytes().take(255));
        bytes.resize(end, 0);
    }
    bytes
}
