//! The client of a copy: reaches a server, and copies to it or from it.
//!
//! Arrives: a server, two paths, options. Leaves: a copy in progress, that can be waited for, queried and stopped.
//! Must not know: Python, where keys are kept.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use crate::error::{protocol_violation, WanError};
use parking_lot::{Condvar, Mutex};
use waystage_copy::{Names, Planned, Problem};
use waystage_protocol::congestion::coupled::Group;
use waystage_transport::backpressure::Backpressure;
use waystage_transport::channel::Channel;
use waystage_transport::control::Control;
use waystage_transport::control_messages::{expect, kinds};
use waystage_transport::flow_limits::read_mode;
use waystage_transport::handshake::client::{
    start_handshake, ClientHandshake, Peer, SessionRequest,
};
use waystage_transport::handshake::hello::Purpose;
use waystage_transport::message_queue::MessageQueue;
use waystage_transport::stats::{Bottleneck, Recent};
use waystage_transport::tls::random;
use waystage_transport::wire::Reader;

use crate::copy_state::CopyState;
use crate::privileges::PeerPrivileges;
use crate::receive::receive;
use crate::receiver_state::Target;
use crate::request_filter::{names_it, RequestFilter};
use crate::send::{send, Origin};
use crate::session::{exchange, single_name, Ask, CopyOptions};
use crate::verdict::Verdict;
use crate::{endpoints, list};

/// Where a copy is from and to.
#[derive(Debug, Clone)]
pub enum Ends {
    /// From this machine to the server.
    Push {
        /// Here.
        local: PathBuf,
        /// There.
        remote: Vec<u8>,
    },
    /// From the server to this machine.
    Pull {
        /// There.
        remote: Vec<u8>,
        /// Here.
        local: PathBuf,
    },
}

/// What to copy with whom.
#[derive(Debug, Clone)]
pub struct Request {
    /// With which server, and as whom.
    pub server: Peer,
    /// What the server is called in a journal, where host and port change between runs.
    pub known_as: Option<String>,
    /// Threads that read or write files.
    pub workers: usize,
    /// Connections, each with its socket and thread, if the server allows this many.
    pub connections: u32,
    /// Memory for data in flight, at each end, over all connections; the server may have less.
    pub memory_bytes: u64,
    /// From where to where.
    pub ends: Ends,
    /// Only these of the source's entries, where [`CopyOptions::listed`] says so.
    pub names: Option<Names>,
    /// Whether a server may give owners, set-user-id bits, devices and attributes of the system to what is made here.
    pub privileged: bool,
    /// Whether contents are compressed on the path, where the server knows of it.
    pub compress: bool,
    /// How.
    pub options: CopyOptions,
}

#[derive(Default)]
pub(crate) struct Progress {
    notes: Vec<String>,
    verdict: Option<Verdict>,
    pub(crate) limit: String,
    result: Option<Result<(), WanError>>,
    pub(crate) channel: Option<Arc<Channel>>,
    /// The TLS connections, the first one first.
    controls: Vec<Arc<Control>>,
    pub(crate) recent: Recent,
}

pub(crate) struct Shared {
    pub(crate) request: Request,
    pub(crate) copy_state: CopyState,
    progress: Mutex<Progress>,
    ended: Condvar,
}

impl Shared {
    pub(crate) fn lock(&self) -> parking_lot::MutexGuard<'_, Progress> {
        self.progress.lock()
    }

    /// Let the copy check whether it is stopped, and its limit.
    pub(crate) fn interrupt(&self) {
        if let Some(control) = self.lock().controls.first() {
            control.interrupt();
        }
    }
}

/// A copy in progress. Dropping it stops it; what it has done stays, and the same copy goes on from there.
pub struct Client {
    pub(crate) shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Client {
    /// Start.
    pub fn start(request: Request) -> Result<Self, WanError> {
        let shared = Arc::new(Shared {
            request,
            copy_state: CopyState::default(),
            progress: Mutex::default(),
            ended: Condvar::new(),
        });
        let running = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("wan-copy".to_owned())
            .spawn(move || {
                let result = run(&running).map_err(|error| running.copy_state.explained(error));
                if result.is_err() {
                    // Nothing more is sent, and no thread has to wait.
                    let controls = running.lock().controls.clone();
                    controls.iter().for_each(|control| control.abort());
                }
                running.lock().result = Some(result);
                running.ended.notify_all();
            })
            .map_err(|error| WanError::io("start a thread", &error))?;
        Ok(Self { shared, thread: Mutex::new(Some(thread)) })
    }

    /// How it ended; None where it has not within `timeout`.
    pub fn wait(&self, timeout: Duration) -> Option<Result<(), WanError>> {
        let mut held = self.shared.lock();
        self.shared.ended.wait_while_for(&mut held, |p| p.result.is_none(), timeout);
        held.result.clone()
    }

    /// How far it is, by name; both ends' counts once it has ended.
    pub fn counts(&self) -> Vec<(&'static str, u64)> {
        let copy_state = &self.shared.copy_state;
        let ours = copy_state.report.tally.read();
        if let Some(verdict) = &self.shared.lock().verdict {
            return verdict.joined(ours);
        }
        let order = std::sync::atomic::Ordering::Relaxed;
        let (files, bytes) =
            (copy_state.moved_files.load(order), copy_state.moved_bytes.load(order));
        let sent = |name: &str, count: u64| match name {
            "files" => count.max(files),
            "bytes" => count.max(bytes),
            _ => count,
        };
        ours.by_name().into_iter().map(|(name, count)| (name, sent(name, count))).collect()
    }

    /// What could not be copied and why, at both ends.
    pub fn problems(&self) -> Vec<Problem> {
        let mut problems = self.shared.copy_state.report.problems();
        if let Some(verdict) = &self.shared.lock().verdict {
            problems.extend(verdict.problems.iter().cloned());
        }
        problems
    }

    /// What a dry run would make, the first ten thousand entries.
    pub fn planned(&self) -> Vec<Planned> {
        self.shared.copy_state.report.planned()
    }

    /// What the user should know: a mode that was not granted, UDP that is blocked.
    pub fn notes(&self) -> Vec<String> {
        self.shared.lock().notes.clone()
    }

    /// What both ends added up of all contents that were copied.
    pub fn digest(&self) -> u128 {
        self.shared.copy_state.sum()
    }

    /// End it; its threads are gone when this returns.
    pub fn stop(&self) {
        self.shared.copy_state.cancel();
        self.shared.interrupt();
        let channel = self.shared.lock().channel.clone();
        // Threads that wait to send are woken; the peer still gets a verdict.
        if let Some(channel) = channel {
            channel.end("the copy was stopped");
        }
        if self.wait(Duration::from_secs(3)).is_none() {
            let controls = self.shared.lock().controls.clone();
            controls.iter().for_each(|control| control.abort());
        }
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
            // A thread that panicked has written to the process's stderr.
            let _ = thread.join();
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.stop();
    }
}

/// What this end of a copy has ready before the server is reached, and what the server is asked for.
enum Plan<'a> {
    Push(Box<Origin>),
    Pull { remote: &'a [u8], local: &'a Path },
}

impl<'a> Plan<'a> {
    fn of(request: &'a Request) -> Result<(Self, Ask), WanError> {
        let options = request.options.clone();
        match &request.ends {
            Ends::Push { local, remote } => {
                let real =
                    local.canonicalize().map_err(|error| endpoints::unreadable(local, &error))?;
                let path = bytes(&real);
                let (open, follows) = (&endpoints::of_this_machine, options.copy_links);
                let origin = endpoints::origin(open, path, local, follows)?;
                let mut from = format!("wan:{}:", endpoints::this_host()).into_bytes();
                from.extend_from_slice(path);
                let single = origin.source.single.as_ref().map(|item| item.name.clone());
                list::suits(&origin, request.names.as_ref(), local)?;
                let ask = Ask { push: true, path: remote.clone(), single, from, options };
                Ok((Self::Push(Box::new(origin)), ask))
            }
            Ends::Pull { remote, local } => {
                let (single, from) = (None, Vec::new());
                // Made here.
                let options = CopyOptions { backup: None, ..options };
                let ask = Ask { push: false, path: remote.clone(), single, from, options };
                Ok((Self::Pull { remote, local }, ask))
            }
        }
    }
}

fn run(shared: &Shared) -> Result<(), WanError> {
    let request = &shared.request;
    let (plan, ask) = Plan::of(request)?;
    let (incoming, backpressure) =
        (Arc::new(MessageQueue::default()), Arc::new(Backpressure::default()));
    incoming.allow(request.memory_bytes);
    let connections = request.connections.max(1);
    let group = (connections > 1).then(Group::default);
    let session_request = SessionRequest {
        purpose: Purpose::Copy,
        copy: random(),
        connections,
        memory_bytes: request.memory_bytes,
        group,
    };
    let words = [(kinds::ASK, ask.encode())];
    let handshake = start_handshake(
        &request.server,
        &session_request,
        &words,
        Arc::clone(&incoming),
        |control| {
            shared.lock().controls.push(Arc::clone(control));
        },
    )?;
    let first = handshake.member(&request.server, &backpressure, 0)?;
    let channel = Arc::new(Channel::new(incoming, backpressure, first));
    shared.lock().channel = Some(Arc::clone(&channel));
    std::thread::scope(|scope| {
        let call = Call {
            shared,
            handshake: &handshake,
            session_request: &session_request,
            channel: &channel,
            scope,
        };
        let copied = call.copy(&plan);
        let (result, verdict) = match copied {
            Ok(copied) => copied,
            Err(error) => {
                channel.end("the copy was given up");
                return Err(error);
            }
        };
        {
            let mut progress = shared.lock();
            progress.limit = match (&plan, &verdict) {
                (Plan::Pull { .. }, Some(verdict)) => verdict.limit.clone(),
                _ => channel.status().limit().map_or("", Bottleneck::name).to_owned(),
            };
            progress.verdict = verdict;
            let left = shared.copy_state.owners_left.load(std::sync::atomic::Ordering::Relaxed);
            if left > 0 {
                progress.notes.push(format!(
                    "{left} entries are this user's and not their owners': owners, like set-user-id bits, devices and attributes of \
                     the system, are taken from another host with --privileged only (--no-owners leaves this note out)"
                ));
            }
        }
        let controls = shared.lock().controls.clone();
        // All goodbyes cross the path together.
        controls.iter().for_each(|control| control.begin_close());
        if result.is_ok() {
            channel.close();
        } else {
            channel.end("the copy was given up");
        }
        controls.iter().for_each(|control| control.close());
        result
    })
}

/// A copy with a server that has the request, and has not answered yet.
#[derive(Clone, Copy)]
struct Call<'scope, 'env> {
    shared: &'env Shared,
    handshake: &'env ClientHandshake,
    session_request: &'env SessionRequest,
    channel: &'env Channel,
    scope: &'scope std::thread::Scope<'scope, 'env>,
}

impl Call<'_, '_> {
    fn copy(&self, plan: &Plan<'_>) -> Result<(Result<(), WanError>, Option<Verdict>), WanError> {
        let (copy_state, request) = (&self.shared.copy_state, &self.shared.request);
        let (options, channel) = (&request.options, self.channel);
        let control = &self.handshake.control;
        match plan {
            // Offers go out before anything has come back.
            Plan::Push(origin) => Ok(exchange(
                control,
                channel,
                copy_state,
                |kind, body| match kind {
                    kinds::WELCOME => self.welcomed(body),
                    kinds::ACCEPTED => Ok(()),
                    kinds::MODE => self.mode_granted(body),
                    _ => Err(protocol_violation()),
                },
                || {
                    send(
                        origin,
                        request.names.as_ref(),
                        options,
                        channel,
                        copy_state,
                        request.workers,
                    )
                },
            )),
            Plan::Pull { remote, local } => {
                let welcome = expect(control, kinds::WELCOME)?;
                if let Some(names) = &request.names {
                    list::tell(control, names)?;
                }
                self.welcomed(&welcome)?;
                let accepted = expect(control, kinds::ACCEPTED)?;
                let mut reader = Reader(&accepted);
                let single = match reader.bytes().map_err(|_| protocol_violation())? {
                    b"" => None,
                    name => Some(single_name(name).map_err(|_| protocol_violation())?),
                };
                if let Some(name) = single.as_ref().filter(|name| !names_it(remote, name)) {
                    return Err(WanError::lost(format!(
                        "the peer broke the protocol: it sends \"{}\", which was not asked for",
                        String::from_utf8_lossy(name).escape_debug()
                    )));
                }
                let held = endpoints::target(
                    &endpoints::of_this_machine,
                    bytes(local),
                    single.as_deref(),
                    local,
                    options.dry,
                )?;
                let Peer { user, host, port, .. } = &request.server;
                let mut from = match &request.known_as {
                    Some(name) => format!("wan:{name}:"),
                    None => format!("wan:{user}@{host}:{port}:"),
                }
                .into_bytes();
                from.extend_from_slice(remote);
                let target = Target {
                    root: held.root,
                    _held: held.held,
                    rename: held.rename,
                    shown: local.to_path_buf(),
                    from,
                    privileges: PeerPrivileges::in_server(request.privileged),
                    filter: RequestFilter::of(options, request.names.as_ref(), single.as_deref()),
                };
                Ok(exchange(
                    control,
                    channel,
                    copy_state,
                    |kind, body| match kind {
                        kinds::MODE => self.mode_granted(body),
                        _ => Err(protocol_violation()),
                    },
                    || receive(&target, options, channel, copy_state, request.workers),
                ))
            }
        }
    }

    /// The server has answered: find out which way is open, and make the other connections, beside what else there is
    /// to do.
    fn welcomed(&self, body: &[u8]) -> Result<(), WanError> {
        let Self { shared, handshake, channel, scope, .. } = *self;
        let peer = &shared.request.server;
        let welcomed = handshake.welcomed(peer, body)?;
        let wanted = self.session_request.connections;
        let granted = welcomed.connections.clamp(1, wanted);
        let mut notes: Vec<String> = welcomed.note.iter().cloned().collect();
        if granted < wanted {
            notes.push(format!(
                "the server allows {granted} connections for one copy, not {wanted}: its copy_connections says so"
            ));
        }
        if shared.request.compress {
            let push = matches!(shared.request.ends, Ends::Push { .. });
            let compression = &shared.copy_state.compression;
            notes.extend(compression.agree(&handshake.control, push, welcomed.version));
        }
        shared.lock().notes.extend(notes);
        shared.copy_state.limits.set_version(welcomed.version);
        for _ in 1..granted {
            let call = *self;
            scope.spawn(move || {
                if let Err(error) = call.add_connection(granted) {
                    if channel.incoming().ended().is_none() {
                        let note = format!(
                            "the copy goes on with fewer connections than {granted}: {error}"
                        );
                        shared.lock().notes.push(note);
                    }
                }
            });
        }
        scope.spawn(move || {
            let note = handshake.decide(peer, &channel.first(), &welcomed);
            shared.lock().notes.extend(note);
        });
        Ok(())
    }

    /// The server has answered the wish for another mode.
    fn mode_granted(&self, body: &[u8]) -> Result<(), WanError> {
        let (mode, note) = read_mode(body)?;
        self.channel.set_mode(mode);
        let mut progress = self.shared.lock();
        if !note.is_empty() && !progress.notes.contains(&note) {
            progress.notes.push(note);
        }
        Ok(())
    }

    /// One more connection of this copy.
    fn add_connection(&self, connections: u32) -> Result<(), WanError> {
        let (peer, channel) = (&self.shared.request.server, self.channel);
        let session_request =
            SessionRequest { purpose: Purpose::More, connections, ..self.session_request.clone() };
        let begun = |control: &Arc<Control>| {
            self.shared.lock().controls.push(Arc::clone(control));
        };
        // Until the server has taken it in, its end is not that of the copy.
        let mut handshake =
            start_handshake(peer, &session_request, &[], Arc::new(MessageQueue::default()), begun)?;
        handshake.incoming = Arc::clone(channel.incoming());
        let member =
            channel.add(|number| handshake.member(peer, channel.backpressure(), number))?;
        let welcomed = handshake.wait_for_welcome(peer).inspect_err(|_| member.close())?;
        handshake.control.deliver_to(channel.incoming());
        // What the first connection found out of the way it has told the user.
        let _ = handshake.decide(peer, &member, &welcomed);
        Ok(())
    }
}

fn bytes(path: &Path) -> &[u8] {
    std::os::unix::ffi::OsStrExt::as_bytes(path.as_os_str())
}
