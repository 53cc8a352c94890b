//! How two ends come to an understanding, and how a copy between them ends.
//!
//! Arrives: a TLS connection. Leaves: who, how fast, what is copied where; both ends' verdicts. Must not know: files.
//! The messages are specified in `docs/reference/wide-area-copy.md`.

use std::time::Duration;

use crate::error::{protocol_violation, WanError};
use parking_lot::{Condvar, Mutex};
use waystage_copy::backup::Backup;
use waystage_copy::{Fsync, Limits, Update, Verify};
use waystage_transport::channel::Channel;
use waystage_transport::control::Control;
use waystage_transport::control_messages::{kinds, refused};
use waystage_transport::error::Error;
use waystage_transport::flow_limits::{tell, FlowRequest};
use waystage_transport::stats::Bottleneck;
use waystage_transport::wire::{at_place, place_of, Malformed, Read, Reader, Writer};

use crate::copy_state::CopyState;
use crate::verdict::Verdict;
use crate::wire_parts::{put_backup, put_limits, put_list, read_backup, read_limits, read_list};

/// Whether anything is copied, or only tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dry {
    /// Copy.
    No,
    /// Only say what would be copied.
    Plan,
    /// Read it as well; nothing is sent.
    Disk,
    /// Send as many bytes that were made up; no contents are read, nothing is written.
    Network,
}

impl Dry {
    /// Whether the destination stays as it is.
    pub(crate) fn is_dry(self) -> bool {
        self != Self::No
    }
}

/// How to copy.
#[derive(Debug, Clone)]
pub struct CopyOptions {
    /// Patterns of what is left out.
    pub exclude: Vec<Vec<u8>>,
    /// Where given, files that match none of these are left out as well.
    pub include: Option<Vec<Vec<u8>>>,
    /// Whether symbolic links of the client's are followed, where it is the source. A server follows none, and is not
    /// told.
    pub copy_links: bool,
    /// Where files go that are replaced: a directory of this is below the destination.
    pub backup: Option<Backup>,
    /// Of regular files only those within these.
    pub limits: Limits,
    /// Whether a list names what is copied.
    pub listed: bool,
    /// Whether directories on other file systems are left out.
    pub one_file_system: bool,
    /// When to copy files that are there already.
    pub update: Update,
    /// When to force data out.
    pub fsync: Fsync,
    /// Whether to read back.
    pub verify: Verify,
    /// Whether this only tries.
    pub dry: Dry,
    /// Throw away what an interrupted copy left.
    pub restart: bool,
    /// Keep extended attributes.
    pub xattrs: bool,
    /// Keep owners and groups, as far as the receiving end may.
    pub owners: bool,
    /// Files of the same inode become links again.
    pub hard_links: bool,
}

const UPDATES: [Update; 5] =
    [Update::Changed, Update::Newer, Update::Missing, Update::Content, Update::Always];
const FSYNCS: [Fsync; 3] = [Fsync::None, Fsync::End, Fsync::Each];
const VERIFIES: [Verify; 3] = [Verify::None, Verify::Cached, Verify::Storage];
const DRIES: [Dry; 4] = [Dry::No, Dry::Plan, Dry::Disk, Dry::Network];

impl CopyOptions {
    fn put(&self, out: &mut Writer) {
        put_list(&self.exclude, out);
        out.u8(u8::from(self.include.is_some()));
        put_list(self.include.as_deref().unwrap_or_default(), out);
        out.u8(u8::from(self.listed)).u8(u8::from(self.one_file_system));
        out.u8(place_of(&UPDATES, &self.update));
        out.u8(place_of(&FSYNCS, &self.fsync));
        out.u8(place_of(&VERIFIES, &self.verify)).u8(place_of(&DRIES, &self.dry));
        for flag in [self.restart, self.xattrs, self.owners, self.hard_links] {
            out.u8(u8::from(flag));
        }
        // Last, and only where there are any: peers without them understand all else.
        if self.limits != Limits::default() || self.backup.is_some() {
            put_limits(&self.limits, out);
        }
        if let Some(backup) = &self.backup {
            put_backup(backup, out);
        }
    }

    fn read(reader: &mut Reader<'_>) -> Read<Self> {
        let exclude = read_list(reader)?;
        let included = reader.flag()?;
        let include = read_list(reader)?;
        let mut options = Self {
            exclude,
            include: included.then_some(include),
            copy_links: false,
            backup: None,
            limits: Limits::default(),
            listed: reader.flag()?,
            one_file_system: reader.flag()?,
            update: at_place(&UPDATES, reader.u8()?)?,
            fsync: at_place(&FSYNCS, reader.u8()?)?,
            verify: at_place(&VERIFIES, reader.u8()?)?,
            dry: at_place(&DRIES, reader.u8()?)?,
            restart: reader.flag()?,
            xattrs: reader.flag()?,
            owners: reader.flag()?,
            hard_links: reader.flag()?,
        };
        if !reader.0.is_empty() {
            options.limits = read_limits(reader)?;
        }
        if !reader.0.is_empty() {
            options.backup = Some(read_backup(reader)?);
        }
        Ok(options)
    }
}

/// What the client wants copied.
#[derive(Debug, Clone)]
pub(crate) struct Ask {
    /// Whether the client sends.
    pub(crate) push: bool,
    /// At the server.
    pub(crate) path: Vec<u8>,
    /// The name of the one file that the client sends.
    pub(crate) single: Option<Vec<u8>>,
    /// How the client's end is called, for the journal.
    pub(crate) from: Vec<u8>,
    pub(crate) options: CopyOptions,
}

impl Ask {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Writer::default();
        out.u8(u8::from(self.push)).bytes(&self.path).u8(u8::from(self.single.is_some()));
        out.bytes(self.single.as_deref().unwrap_or_default()).bytes(&self.from);
        self.options.put(&mut out);
        out.0
    }

    pub(crate) fn read(bytes: &[u8]) -> Result<Self, WanError> {
        let mut reader = Reader(bytes);
        let mut read = || -> Read<Self> {
            let (push, path) = (reader.flag()?, reader.bytes()?.to_vec());
            let (is_single, single) = (reader.flag()?, reader.bytes()?);
            let single = if is_single { Some(single_name(single)?) } else { None };
            let from = reader.bytes()?.to_vec();
            let options = CopyOptions::read(&mut reader)?;
            reader.end()?;
            Ok(Self { push, path, single, from, options })
        };
        read().map_err(|_| protocol_violation())
    }
}

/// One name, without a slash.
pub(crate) fn single_name(bytes: &[u8]) -> Read<Vec<u8>> {
    let name = crate::entry::path(bytes)?;
    if name.contains(&b'/') {
        return Err(Malformed);
    }
    Ok(name)
}

/// What the peer has said of its end.
#[derive(Default)]
struct Heard {
    verdict: Option<Verdict>,
    /// No verdict is waited for any longer.
    nothing_more: bool,
}

/// Calls its function when dropped, in a panic as well.
struct OnDrop<F: Fn()>(F);

impl<F: Fn()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// Do this side's part while listening to the peer; both verdicts. `hear` is given what else the peer
/// says, and says whether that is to be said here.
pub(crate) fn exchange(
    control: &Control,
    channel: &Channel,
    copy_state: &CopyState,
    hear: impl Fn(u8, &[u8]) -> Result<(), WanError> + Sync,
    work: impl FnOnce() -> Result<(), WanError>,
) -> (Result<(), WanError>, Option<Verdict>) {
    let (heard, changed) = (Mutex::new(Heard::default()), Condvar::new());
    let report = |change: &dyn Fn(&mut Heard)| {
        change(&mut heard.lock());
        changed.notify_all();
    };
    let over = std::sync::atomic::AtomicBool::new(false);
    let order = std::sync::atomic::Ordering::SeqCst;
    // Threads that wait for the channel have to be woken, too.
    let end = |error: WanError| {
        let why = error.to_string();
        copy_state.end_for(error);
        channel.end(&why);
    };
    std::thread::scope(|scope| {
        let listening = scope.spawn(|| {
            let _ended = OnDrop(|| report(&|heard| heard.nothing_more = true));
            let (mut told, mut held) = (FlowRequest::default(), None);
            // The channel's owner interrupts the connection after each change of what is checked here.
            while !over.load(order) {
                if copy_state.is_cancelled() {
                    // Also for threads that wait to send.
                    channel.end("the copy was stopped");
                    report(&|heard| heard.nothing_more = true);
                }
                let (wanted, both) = (copy_state.limits.request(), copy_state.limits.both());
                tell(control, &wanted, &told);
                told = wanted;
                if both != held {
                    held = both;
                    channel.limit(both);
                    copy_state.pace.gate.set_paused(both == Some(0));
                }
                match control.receive(Duration::MAX) {
                    Ok(None) => {}
                    Ok(Some((kinds::VERDICT, body))) => match Verdict::read(&body) {
                        Ok(verdict) => {
                            if let Some(error) = &verdict.failed {
                                end(error.clone());
                            }
                            // Its end is still listened for: this end may have much to do yet.
                            report(&|heard| heard.verdict = Some(verdict.clone()));
                        }
                        Err(_) => return end(protocol_violation()),
                    },
                    Ok(Some((kinds::REFUSED, body))) => return end(refused(&body).into()),
                    Ok(Some((kind, body))) => {
                        let heard = match copy_state.limits.hear(kind, &body) {
                            Ok(false) => hear(kind, &body),
                            other => other.map(drop).map_err(WanError::from),
                        };
                        if let Err(error) = heard {
                            return end(error);
                        }
                    }
                    Err(error) => return end(error.into()),
                }
            }
        });
        let ours = work();
        let limit = channel.status().limit().map_or("", Bottleneck::name);
        let verdict = Verdict::of(copy_state, ours.as_ref().err().cloned(), limit);
        control.send(kinds::VERDICT, &verdict.encode());
        // A side that failed does not wait long; one that is done waits for the peer, whose disk may be slow.
        let waits = |heard: &mut Heard| heard.verdict.is_none() && !heard.nothing_more;
        let mut held = heard.lock();
        if ours.is_ok() {
            changed.wait_while(&mut held, waits);
        } else {
            changed.wait_while_for(&mut held, waits, Duration::from_secs(2));
        }
        drop(held);
        over.store(true, order);
        control.interrupt();
        let _ = listening.join();
        let theirs = heard.lock().verdict.take();
        let ours = match (&ours, &theirs) {
            (Ok(()), Some(Verdict { failed: Some(error), .. })) => Err(error.clone()),
            (Ok(()), None) => Err(copy_state.verdict()),
            (Err(WanError::Session(Error::Lost(_))), _) => Err(copy_state.verdict()),
            _ => ours,
        };
        (ours, theirs)
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    pub(crate) fn options() -> CopyOptions {
        CopyOptions {
            exclude: vec![b"*.tmp".to_vec()],
            include: Some(vec![b"*.h5".to_vec()]),
            copy_links: false,
            backup: Some(Backup { directory: Some("old/of today".into()), suffix: b"~".to_vec() }),
            limits: Limits { min_size: Some(1), until: Some(-7), ..Limits::default() },
            listed: true,
            one_file_system: true,
            update: Update::Newer,
            fsync: Fsync::Each,
            verify: Verify::Storage,
            dry: Dry::Network,
            restart: false,
            xattrs: true,
            owners: false,
            hard_links: true,
        }
    }

    #[test]
    fn what_is_asked_is_read_as_it_was_written() {
        let ask = Ask {
            push: true,
            path: b"/data".to_vec(),
            single: Some(b"name".to_vec()),
            from: b"wan:".to_vec(),
            options: options(),
        };
        let read = Ask::read(&ask.encode()).unwrap();
        assert_eq!(format!("{ask:?}"), format!("{read:?}"));
        for (limits, backup) in [
            (Limits::default(), None),
            (options().limits, None),
            (Limits::default(), Some(Backup { directory: None, suffix: b".old".to_vec() })),
        ] {
            let plain = CopyOptions { limits, backup, ..options() };
            let ask = Ask { options: plain, ..ask.clone() };
            let read = Ask::read(&ask.encode()).unwrap();
            assert_eq!(format!("{ask:?}"), format!("{read:?}"));
        }
        for (directory, suffix) in
            [("../out", "~"), ("/etc", "~"), ("", ""), ("a", "/../x"), ("a/", "~")]
        {
            let directory = (!directory.is_empty()).then(|| directory.into());
            let backup = Some(Backup { directory, suffix: suffix.as_bytes().to_vec() });
            let ask = Ask { options: CopyOptions { backup, ..options() }, ..ask.clone() };
            assert!(Ask::read(&ask.encode()).is_err(), "a backup out of the destination");
        }
        let bad = Ask { single: Some(b"../name".to_vec()), ..ask };
        assert!(Ask::read(&bad.encode()).is_err(), "a name is no path");
    }

    proptest! {
        #[test]
        fn no_bytes_make_a_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Ask::read(&bytes);
            let _ = Verdict::read(&bytes);
        }
    }
}
