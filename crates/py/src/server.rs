//! Servers of copies, probes and proxies: `WanServer`.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use waystage_pacing::{Cause, FlowCounts};
use waystage_probe::Probing;
use waystage_server::{Account, Server, ServerOptions, SessionFlow, SharedRoot, User};
use waystage_transport::identity::{Identity, PublicKey};

use crate::errors::OrRaise;
use crate::peer::mode_of;
use crate::proxy::rule;
use crate::task::{duration, Control, Task, Work};

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<WanServer>()
}

/// `waystage.native_options.servers.ServerOptions`.
#[derive(FromPyObject)]
struct PyServerOptions {
    listen: String,
    key: PathBuf,
    users: Vec<PyUser>,
    roots: Vec<PyRoot>,
    rate_bytes_per_s: Option<u64>,
    connections: usize,
    copy_connections: u32,
    sockets: usize,
    memory_bytes: u64,
    udp: bool,
    workers: usize,
    probe_rate_bytes_per_s: Option<u64>,
    probe_s: f64,
}

/// `waystage.native_options.servers.ServerUser`.
#[derive(FromPyObject)]
struct PyUser {
    name: String,
    keys: Vec<String>,
    modes: Vec<String>,
    networks: Vec<(String, u8)>,
    rate_bytes_per_s: Option<u64>,
    connections: Option<usize>,
    account: Option<(u32, u32, Vec<u32>)>,
    reach: Vec<String>,
    listen: Vec<String>,
    probe: bool,
}

/// `waystage.native_options.servers.ServerRoot`.
#[derive(FromPyObject)]
struct PyRoot {
    path: PathBuf,
    write: bool,
    users: Vec<String>,
    privileged: bool,
}

impl PyServerOptions {
    fn open(self, py: Python<'_>) -> PyResult<ServerOptions> {
        let listen: SocketAddr = self.listen.parse().map_err(|_| {
            let what = format!("{:?} is no address and port, such as [::]:7900", self.listen);
            PyValueError::new_err(what)
        })?;
        let probing = Probing {
            users: self.users.iter().filter(|user| user.probe).map(|u| u.name.clone()).collect(),
            rate_bytes_per_s: self.probe_rate_bytes_per_s,
            longest: duration(self.probe_s)?,
        };
        let root = |PyRoot { path, write, users, privileged }| SharedRoot {
            path,
            write,
            users,
            privileged,
        };
        Ok(ServerOptions {
            listen,
            identity: py.detach(|| Identity::load(&self.key)).or_raise()?,
            users: self.users.into_iter().map(PyUser::open).collect::<PyResult<_>>()?,
            roots: self.roots.into_iter().map(root).collect(),
            rate_bytes_per_s: self.rate_bytes_per_s,
            connections: self.connections,
            copy_connections: self.copy_connections,
            sockets: self.sockets,
            memory_bytes: self.memory_bytes,
            udp: self.udp,
            workers: self.workers,
            probing,
            newest_version: u32::MAX,
        })
    }
}

impl PyUser {
    fn open(self) -> PyResult<User> {
        let network = |(address, bits): (String, u8)| {
            let parsed: Result<IpAddr, _> = address.parse();
            let wrong = |_| PyValueError::new_err(format!("{address:?} is no address"));
            parsed.map(|address| (address, bits)).map_err(wrong)
        };
        let rules = |lines: &[String]| lines.iter().map(|line| rule(line)).collect::<PyResult<_>>();
        Ok(User {
            keys: self
                .keys
                .iter()
                .map(|line| PublicKey::parse(line).or_raise())
                .collect::<PyResult<_>>()?,
            modes: self.modes.iter().map(|mode| mode_of(mode)).collect::<PyResult<_>>()?,
            networks: self.networks.into_iter().map(network).collect::<PyResult<_>>()?,
            rate_bytes_per_s: self.rate_bytes_per_s,
            connections: self.connections,
            account: self.account.map(|(uid, gid, groups)| Account { uid, gid, groups }),
            reach: rules(&self.reach)?,
            listen: rules(&self.listen)?,
            name: self.name,
        })
    }
}

impl Work for Server {
    fn wait(&self, timeout: Duration) -> Option<PyResult<bool>> {
        self.wait(timeout).map(Ok)
    }

    fn progress(&self) -> Vec<(&'static str, u64)> {
        self.counts()
    }

    fn cancel(&self) {
        self.stop();
    }

    fn controls(&self) -> &'static [Control] {
        &[Control::Rate, Control::Pause]
    }

    fn set_rate(&self, bytes_per_s: Option<u64>) {
        self.set_rate(bytes_per_s);
    }

    fn set_paused(&self, paused: bool) {
        self.set_paused(paused);
    }

    fn flow(&self) -> FlowCounts {
        self.flow()
    }
}

/// Number, user, address; whether the client sends files, whether it is a proxy, the tree; bytes done and in total, and
/// what limits them.
type PySession = (u64, String, String, (bool, bool, PathBuf), (u64, u64, &'static str));

/// A server.
#[pyclass(frozen, extends = Task, module = "waystage._native")]
struct WanServer(Arc<Server>);

#[pymethods]
impl WanServer {
    #[new]
    fn new(py: Python<'_>, options: PyServerOptions) -> PyResult<PyClassInitializer<Self>> {
        let options = options.open(py)?;
        let server = py.detach(|| Server::start(options)).or_raise()?;
        Ok(Task::handle(server, Self))
    }

    /// Where it listens.
    #[getter]
    fn address(&self) -> String {
        self.0.address().to_string()
    }

    /// Limit each connection's rate from now on, and that of some users further.
    fn limit(&self, bytes_per_s: Option<u64>, users: HashMap<String, u64>) {
        self.0.limit(bytes_per_s, users);
    }

    /// The copies and proxies in progress.
    fn sessions(&self, py: Python<'_>) -> Vec<PySession> {
        let found = py.detach(|| self.0.sessions());
        let each = |session: SessionFlow| {
            let SessionFlow { id, user, from, work, counts } = session;
            let limit = counts.limited_by.map_or("", Cause::name);
            let moved = (counts.bytes_done, counts.bytes_total, limit);
            (id, user, from.to_string(), (work.push, work.proxy, work.tree), moved)
        };
        found.into_iter().map(each).collect()
    }

    /// The rate of one session, beside that of all.
    fn set_session_rate(&self, py: Python<'_>, session: u64, bytes_per_s: Option<u64>) {
        py.detach(|| self.0.set_session_rate(session, bytes_per_s));
    }

    /// Pause one session, or let it go on.
    fn set_session_paused(&self, py: Python<'_>, session: u64, paused: bool) {
        py.detach(|| self.0.set_session_paused(session, paused));
    }

    /// Lines for the log since the last call.
    fn log(&self) -> Vec<String> {
        self.0.log()
    }

    /// Stop accepting; active sessions continue.
    fn drain(&self, py: Python<'_>) {
        py.detach(|| self.0.drain());
    }
}
