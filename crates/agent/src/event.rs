//! The event that a record describes. Its bytes are untrusted: any bytes parse to an event or to None.

use waystage_catalog::Attributes;

use crate::abi;

/// What a call did to a path: a reason to look it up, and no statement of what will be found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    Opened,
    Moved,
    Removed,
    Linked,
    Symlink,
    Made,
    Truncated,
    Attributes,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event<'a> {
    /// The path is absolute and has no NUL. The token identifies the open, or is the time of a call that removed a
    /// name, or 0.
    Changed { kind: Kind, path: &'a [u8], token: u64 },
    /// A file was closed; the result of fstat(2) just before.
    Closed { token: u64, attributes: Attributes },
    /// A process starts a program, or its start failed or succeeded: see `abi::PROGRAM_*`. The state is unchecked.
    Program { process: u32, state: u32, name: &'a [u8], when_ns: u64 },
}

impl Kind {
    fn of(number: u8) -> Option<Self> {
        Some(match number {
            abi::OPENED => Self::Opened,
            abi::MOVED => Self::Moved,
            abi::REMOVED => Self::Removed,
            abi::LINKED => Self::Linked,
            abi::SYMLINK => Self::Symlink,
            abi::MADE => Self::Made,
            abi::TRUNCATED => Self::Truncated,
            abi::ATTRIBUTES => Self::Attributes,
            _ => return None,
        })
    }

    /// Whether the call follows a symbolic link that the path ends in, or may.
    pub(crate) fn follows(self) -> bool {
        matches!(self, Self::Opened | Self::Truncated | Self::Attributes | Self::Linked)
    }
}

/// Read a record that is `record.len()` bytes long, header and padding included.
pub(crate) fn parse(record: &[u8]) -> Option<Event<'_>> {
    let (header, body) = record.split_at_checked(abi::RECORD_BYTES)?;
    let token = u64::from_ne_bytes(header[8..16].try_into().ok()?);
    if header[6] == abi::CLOSED {
        let attributes = attributes(body.get(..abi::STAT_BYTES)?)?;
        return Some(Event::Closed { token, attributes });
    }
    if header[6] == abi::PROGRAM {
        let (of, name) = body.split_at_checked(abi::PROGRAM_BYTES)?;
        let length = usize::from(u16::from_ne_bytes([header[4], header[5]]));
        return Some(Event::Program {
            process: u32::from_ne_bytes(of[..4].try_into().ok()?),
            state: u32::from_ne_bytes(of[4..].try_into().ok()?),
            name: name.get(..length)?,
            when_ns: token,
        });
    }
    let kind = Kind::of(header[6])?;
    let length = usize::from(u16::from_ne_bytes([header[4], header[5]]));
    let path = body.get(..length)?;
    if path.first() != Some(&b'/') || path.contains(&0) {
        return None;
    }
    Some(Event::Changed { kind, path, token })
}

fn attributes(body: &[u8]) -> Option<Attributes> {
    let word =
        |index: usize| body.get(8 * index..8 * index + 8)?.try_into().ok().map(u64::from_ne_bytes);
    let signed = |index: usize| word(index).map(|bits| i64::from_ne_bytes(bits.to_ne_bytes()));
    let half =
        |index: usize| body.get(4 * index..4 * index + 4)?.try_into().ok().map(u32::from_ne_bytes);
    Some(Attributes {
        device: word(0)?,
        inode: word(1)?,
        size: word(2)?,
        blocks: word(3)?,
        mtime: signed(4)?,
        ctime: signed(5)?,
        atime: signed(6)?,
        mode: u16::try_from(half(14)?).ok()?,
        uid: half(15)?,
        gid: half(16)?,
        links: half(17)?,
        beyond: [None; 3],
    })
}
