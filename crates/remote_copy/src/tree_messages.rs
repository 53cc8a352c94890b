//! Messages about a server's directories beside copies.
//!
//! Arrives: requests, answers; bytes of the peer. Leaves: the same as bytes; or that they are malformed. Must not know:
//! who may do what.

use waystage_catalog::Exclude;
use waystage_copy::after::{Copied, Held, Key};
use waystage_copy::backup::Backup;
use waystage_copy::Limits;
use waystage_transport::wire::{Malformed, Read, Reader, Writer};

use crate::entry::path as checked;
use crate::wire_parts::{
    put_backup, put_held, put_limits, put_list, read_backup, read_held, read_limits, read_list,
    HELD_BYTES,
};

/// Problems that are listed; all end the command with an error.
pub(crate) const MOST_PROBLEMS: usize = 1000;

/// From these versions of the protocol on servers know of deletions and of sources that are removed.
const DELETION_VERSION: u32 = 5;
const REMOVAL_VERSION: u32 = 6;

/// What is said of a path: it is there, or stays.
pub(crate) const STAYED: u8 = 0;
/// It is not there.
pub(crate) const LACKED: u8 = 1;
/// It was deleted.
pub(crate) const DELETED: u8 = 2;
/// It could not be deleted or read, and a problem may say why.
pub(crate) const FAILED: u8 = 3;
/// It stays, as its contents are others.
pub(crate) const DIFFERS: u8 = 4;
/// It stays, as it was changed while it was compared.
pub(crate) const CHANGED: u8 = 5;
/// It stays, as it may be the destination's own file.
pub(crate) const ONE: u8 = 6;

/// Which entries a copy has put at its destination.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Chosen {
    /// None that match these patterns.
    pub exclude: Vec<Vec<u8>>,
    /// Of files only those that match one of these.
    pub include: Option<Vec<Vec<u8>>>,
    /// Whether directories on other file systems are left alone.
    pub one_file_system: bool,
    /// No backups, and not their directory.
    pub backup: Option<Backup>,
    /// Of regular files only those within these.
    pub limits: Limits,
}

impl Chosen {
    pub(crate) fn copied(&self) -> Copied {
        Copied {
            exclude: Exclude::new(self.exclude.iter().cloned()),
            include: self.include.clone().map(Exclude::new),
            one_file_system: self.one_file_system,
            limits: self.limits,
        }
    }
}

/// What is done with a server's directories.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TreeRequest {
    /// What is in this directory, of any other entry only itself; with `true` the directory itself, too.
    List(Vec<u8>, bool),
    /// Make this directory, and with `true` those above it, where it may exist.
    Make(Vec<u8>, bool),
    /// Remove this entry, of a directory with `true` all that is in it too.
    Remove(Vec<u8>, bool),
    /// Rename the first to the second, in place of what has that name only with `true`.
    Rename(Vec<u8>, Vec<u8>, bool),
    /// Read this file from an offset on, at most a number of bytes.
    Read(Vec<u8>, u64, u64),
    /// Every entry below this directory that a copy would have put there.
    Walk(Vec<u8>, Chosen),
    /// For each of these paths below this directory whether it is not there.
    Lacks(Vec<u8>, Vec<Vec<u8>>),
    /// Delete these entries below this directory, each by the letter of its type and its path, in this order; files are
    /// kept where that is wanted.
    Delete(Vec<u8>, Vec<(u8, Vec<u8>)>, Option<Backup>),
    /// Force what is below this directory to storage.
    Sync(Vec<u8>),
    /// What is at each of these paths below this directory, its contents as a digest with this key.
    Digests(Vec<u8>, Key, Vec<Vec<u8>>),
    /// Remove each of these paths below this directory where its contents are these.
    RemoveHeld(Vec<u8>, Key, Vec<(Vec<u8>, Held)>),
}

/// What a version of the protocol has brought, in words for who meets an older server.
pub(crate) struct Feature {
    pub(crate) version: u32,
    pub(crate) name: &'static str,
    pub(crate) undone: &'static str,
    pub(crate) option: &'static str,
}

const DELETION: Feature = Feature {
    version: DELETION_VERSION,
    name: "deletion after a copy",
    undone: "nothing was deleted",
    option: "--delete",
};

const REMOVAL: Feature = Feature {
    version: REMOVAL_VERSION,
    name: "removal of sources after a copy",
    undone: "nothing was removed",
    option: "--remove-source",
};

impl TreeRequest {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Writer::default();
        match self {
            Self::List(path, itself) => out.u8(0).u8(u8::from(*itself)).bytes(path),
            Self::Make(path, parents) => out.u8(1).u8(u8::from(*parents)).bytes(path),
            Self::Remove(path, all) => out.u8(2).u8(u8::from(*all)).bytes(path),
            Self::Rename(from, to, replace) => {
                out.u8(3).u8(u8::from(*replace)).bytes(from).bytes(to)
            }
            Self::Read(path, offset, length) => out.u8(4).u64(*offset).u64(*length).bytes(path),
            Self::Walk(path, chosen) => {
                out.u8(5).u8(u8::from(chosen.one_file_system)).bytes(path);
                out.u8(u8::from(chosen.include.is_some()));
                put_list(&chosen.exclude, &mut out);
                put_list(chosen.include.as_deref().unwrap_or_default(), &mut out);
                put_kept(chosen.backup.as_ref(), &mut out);
                // Last, and only where there are any: servers without them understand all else.
                if chosen.limits != Limits::default() {
                    put_limits(&chosen.limits, &mut out);
                }
                &mut out
            }
            Self::Lacks(path, names) => {
                out.u8(6).bytes(path);
                put_list(names, &mut out);
                &mut out
            }
            Self::Delete(path, entries, backup) => {
                out.u8(7).bytes(path).count(entries.len());
                entries.iter().for_each(|(letter, path)| {
                    out.u8(*letter).bytes(path);
                });
                put_kept(backup.as_ref(), &mut out)
            }
            Self::Sync(path) => out.u8(8).bytes(path),
            Self::Digests(path, key, names) => {
                out.u8(9).array(key).bytes(path);
                put_list(names, &mut out);
                &mut out
            }
            Self::RemoveHeld(path, key, entries) => {
                out.u8(10).array(key).bytes(path).count(entries.len());
                for (path, held) in entries {
                    out.bytes(path);
                    put_held(held, &mut out);
                }
                &mut out
            }
        };
        out.0
    }

    pub(crate) fn read(bytes: &[u8]) -> Read<Self> {
        let mut reader = Reader(bytes);
        let request = match reader.u8()? {
            0 => {
                let itself = reader.flag()?;
                Self::List(reader.bytes()?.to_vec(), itself)
            }
            1 => {
                let parents = reader.flag()?;
                Self::Make(reader.bytes()?.to_vec(), parents)
            }
            2 => {
                let all = reader.flag()?;
                Self::Remove(reader.bytes()?.to_vec(), all)
            }
            3 => {
                let replace = reader.flag()?;
                Self::Rename(reader.bytes()?.to_vec(), reader.bytes()?.to_vec(), replace)
            }
            4 => {
                let (offset, length) = (reader.u64()?, reader.u64()?);
                Self::Read(reader.bytes()?.to_vec(), offset, length)
            }
            5 => {
                let one_file_system = reader.flag()?;
                let path = reader.bytes()?.to_vec();
                let included = reader.flag()?;
                let (exclude, include) = (read_list(&mut reader)?, read_list(&mut reader)?);
                let include = included.then_some(include);
                let backup = read_kept(&mut reader)?;
                let limits = match reader.0.is_empty() {
                    true => Limits::default(),
                    false => read_limits(&mut reader)?,
                };
                Self::Walk(path, Chosen { exclude, include, one_file_system, backup, limits })
            }
            6 => {
                let path = reader.bytes()?.to_vec();
                Self::Lacks(path, read_paths(&mut reader)?)
            }
            7 => {
                let path = reader.bytes()?.to_vec();
                let count = reader.count(5)?;
                let entry = |_| Ok((reader.u8()?, checked(reader.bytes()?)?));
                let entries = (0..count).map(entry).collect::<Read<_>>()?;
                Self::Delete(path, entries, read_kept(&mut reader)?)
            }
            8 => Self::Sync(reader.bytes()?.to_vec()),
            9 => {
                let (key, path) = (reader.array()?, reader.bytes()?.to_vec());
                Self::Digests(path, key, read_paths(&mut reader)?)
            }
            10 => {
                let (key, path) = (reader.array()?, reader.bytes()?.to_vec());
                let count = reader.count(4 + HELD_BYTES)?;
                let entry = |_| Ok((checked(reader.bytes()?)?, read_held(&mut reader)?));
                Self::RemoveHeld(path, key, (0..count).map(entry).collect::<Read<_>>()?)
            }
            _ => return Err(Malformed),
        };
        reader.end()?;
        Ok(request)
    }

    /// Bytes of data that answers to it have at most.
    pub(crate) fn most_data(&self) -> u64 {
        match self {
            Self::Read(_, _, length) => *length,
            Self::Lacks(_, paths) => paths.len() as u64,
            Self::Delete(_, paths, _) => paths.len() as u64,
            Self::Digests(_, _, paths) => (paths.len() * (1 + HELD_BYTES)) as u64,
            Self::RemoveHeld(_, _, entries) => entries.len() as u64,
            _ => 0,
        }
    }

    /// Whether an entry of this name belongs to an answer to it: one of the directory, or for a walk one below it.
    pub(crate) fn may_name(&self, entry: &TreeEntry) -> bool {
        match self {
            Self::Walk(..) => checked(&entry.name).is_ok(),
            _ => entry.is_named_well(),
        }
    }

    /// What servers have to know for it, where not all do.
    pub(crate) fn needs(&self) -> Option<&'static Feature> {
        match self {
            Self::Walk(_, chosen) if chosen.limits != Limits::default() => Some(&REMOVAL),
            Self::Walk(..) | Self::Lacks(..) | Self::Delete(..) => Some(&DELETION),
            Self::Sync(..) | Self::Digests(..) | Self::RemoveHeld(..) => Some(&REMOVAL),
            _ => None,
        }
    }

    /// Whether it may be asked again where the answer was lost.
    pub(crate) fn is_repeatable(&self) -> bool {
        // What is gone is not missed.
        !matches!(self, Self::Make(..) | Self::Remove(..) | Self::Rename(..) | Self::Walk(..))
    }
}

/// An entry of a server's directory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TreeEntry {
    /// The letter of its type, as in [`waystage_catalog::TYPE_LETTERS`].
    pub letter: u8,
    /// Its name in the directory.
    pub name: Vec<u8>,
    /// Bytes.
    pub size: u64,
    /// When its contents changed, in seconds since 1970.
    pub mtime: i64,
    /// Nanoseconds beyond them.
    pub mtime_nanos: u32,
    /// Permission bits and the three above them.
    pub mode: u32,
    /// Its owner.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// What it points to, if it is a symbolic link.
    pub target: Vec<u8>,
}

fn read_paths(reader: &mut Reader<'_>) -> Read<Vec<Vec<u8>>> {
    read_list(reader)?.iter().map(|path| checked(path)).collect()
}

fn put_kept<'w>(backup: Option<&Backup>, out: &'w mut Writer) -> &'w mut Writer {
    out.u8(u8::from(backup.is_some()));
    if let Some(backup) = backup {
        put_backup(backup, out);
    }
    out
}

fn read_kept(reader: &mut Reader<'_>) -> Read<Option<Backup>> {
    let kept = reader.flag()?;
    kept.then(|| read_backup(reader)).transpose()
}

impl TreeEntry {
    /// Whether its name is that of one entry of a directory, or the directory's own, `.`.
    pub(crate) fn is_named_well(&self) -> bool {
        self.name == b"." || !self.name.contains(&b'/') && crate::entry::path(&self.name).is_ok()
    }
}

/// What the server answers, page by page.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TreeAnswer {
    /// Entries of the directory.
    pub entries: Vec<TreeEntry>,
    /// Entries removed.
    pub removed: u64,
    /// Paths that were left and why, the first thousand.
    pub problems: Vec<(Vec<u8>, String)>,
    /// Contents of a file.
    pub data: Vec<u8>,
}

impl TreeAnswer {
    pub(crate) fn encode(&self, last: bool) -> Vec<u8> {
        let mut out = Writer::default();
        out.u8(u8::from(last)).u64(self.removed).count(self.entries.len());
        for entry in &self.entries {
            out.u8(entry.letter).bytes(&entry.name).u64(entry.size);
            out.i64(entry.mtime).u32(entry.mtime_nanos);
            out.u32(entry.mode).u32(entry.uid).u32(entry.gid).bytes(&entry.target);
        }
        out.count(self.problems.len());
        for (path, text) in &self.problems {
            out.bytes(path).bytes(text.as_bytes());
        }
        out.bytes(&self.data);
        out.0
    }

    /// A page, and whether it is the last.
    pub(crate) fn read(bytes: &[u8]) -> Read<(Self, bool)> {
        let mut reader = Reader(bytes);
        let (last, removed) = (reader.flag()?, reader.u64()?);
        let mut entries = Vec::new();
        for _ in 0..reader.count(41)? {
            entries.push(TreeEntry {
                letter: reader.u8()?,
                name: reader.bytes()?.to_vec(),
                size: reader.u64()?,
                mtime: reader.i64()?,
                mtime_nanos: reader.u32()?,
                mode: reader.u32()?,
                uid: reader.u32()?,
                gid: reader.u32()?,
                target: reader.bytes()?.to_vec(),
            });
        }
        let mut problems = Vec::new();
        for _ in 0..reader.count(8)? {
            problems.push((reader.bytes()?.to_vec(), reader.text()?));
        }
        let data = reader.bytes()?.to_vec();
        reader.end()?;
        Ok((Self { entries, removed, problems, data }, last))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(any::<u8>(), 0..20)
    }

    fn held(number: u64) -> Held {
        let changed = number.cast_signed();
        Held { letter: b'f', size: number, inode: !number, changed, digest: [number as u8; 32] }
    }

    proptest! {
        #[test]
        fn what_is_asked_is_read_as_it_was_written(one in bytes(), other in bytes(), flag: bool, offset: u64) {
            for request in [
                TreeRequest::List(one.clone(), flag),
                TreeRequest::Make(one.clone(), flag),
                TreeRequest::Remove(one.clone(), flag),
                TreeRequest::Read(one.clone(), offset, !offset),
                TreeRequest::Rename(one.clone(), other.clone(), flag),
                TreeRequest::Walk(one.clone(), Chosen {
                    exclude: vec![other.clone()], include: flag.then(|| vec![other]), one_file_system: flag,
                    backup: flag.then(|| Backup { directory: None, suffix: b"~".to_vec() }),
                    limits: Limits { min_size: flag.then_some(offset), ..Limits::default() },
                }),
                TreeRequest::Sync(one.clone()),
                TreeRequest::Digests(one.clone(), [7; 32], vec![b"a/b".to_vec(), b"\n".to_vec()]),
                TreeRequest::RemoveHeld(one.clone(), [8; 32], vec![(b"a/b".to_vec(), held(offset))]),
                TreeRequest::Lacks(one.clone(), vec![b"a/b".to_vec(), b"\n".to_vec()]),
                TreeRequest::Delete(
                    one,
                    vec![(b'f', b"a/b".to_vec()), (b'd', b"a".to_vec())],
                    Some(Backup { directory: Some("old".into()), suffix: Vec::new() }),
                ),
            ] {
                prop_assert_eq!(TreeRequest::read(&request.encode()).unwrap(), request);
            }
        }

        #[test]
        fn what_is_answered_is_read_as_it_was_written(
            name in bytes(), target in bytes(), size: u64, mtime: i64, mode: u32, removed: u64, last: bool,
            data in bytes(),
        ) {
            let entry = TreeEntry { letter: b'l', name, size, mtime, mtime_nanos: mode, mode, uid: 1, gid: 2, target };
            let problems = vec![(b"path".to_vec(), "why".to_owned())];
            let answer = TreeAnswer { entries: vec![entry.clone(), entry], removed, problems, data };
            prop_assert_eq!(TreeAnswer::read(&answer.encode(last)).unwrap(), (answer, last));
        }

        #[test]
        fn no_path_leads_out_of_the_directory(name in "[./a]{0,6}") {
            let name = name.into_bytes();
            let good = checked(&name).is_ok();
            prop_assert!(!good || !name.split(|byte| *byte == b'/').any(|part| part == b".."));
            for request in [
                TreeRequest::Lacks(Vec::new(), vec![name.clone()]),
                TreeRequest::Delete(Vec::new(), vec![(b'f', name.clone())], None),
                TreeRequest::Digests(Vec::new(), [0; 32], vec![name.clone()]),
                TreeRequest::RemoveHeld(Vec::new(), [0; 32], vec![(name.clone(), held(1))]),
            ] {
                prop_assert_eq!(TreeRequest::read(&request.encode()).is_ok(), good);
            }
        }

        #[test]
        fn foreign_bytes_are_a_message_or_malformed(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = TreeRequest::read(&bytes);
            let _ = TreeAnswer::read(&bytes);
        }
    }
}
