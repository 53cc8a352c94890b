//! Copies between hosts for Python: `WanCopy`, `WanServer`, keys, and how fast the loopback interface is.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use pyo3::create_exception;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use waystage_probe::Probing;
use waystage_protocol::congestion::Mode;
use waystage_remote_copy::{Client, CopyOptions, Dry, Ends, Request};
use waystage_server::{Account, Server, ServerOptions, SharedRoot, User};
use waystage_transport::identity::{Identity, PublicKey};
use waystage_transport::{Peer, MEMORY_BYTES};

use crate::copy::{duration, one_of, py_planned, words, NameList, PyPlanned};
use crate::proxy::rule;

create_exception!(
    waystage._native,
    WanError,
    PyRuntimeError,
    "A copy between hosts, or a server, that cannot be begun or go on; `kind` says what can be acted on, `server_key` is the key \
     that a server showed and that is not the one that is trusted."
);

/// How often a wait looks whether Python has had a signal.
pub(crate) const LOOK_ROUND: Duration = Duration::from_millis(100);

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("WanError", module.py().get_type::<WanError>())?;
    module.add_class::<WanCopy>()?;
    module.add_class::<WanServer>()?;
    module.add_function(wrap_pyfunction!(wan_make_key, module)?)?;
    module.add_function(wrap_pyfunction!(wan_read_key, module)?)?;
    module.add_function(wrap_pyfunction!(wan_fingerprint, module)?)?;
    module.add_function(wrap_pyfunction!(wan_loopback, module)?)?;
    module.add_function(wrap_pyfunction!(wan_tls_stream, module)?)
}

/// Make a key in a new file; the line that names its public half.
#[pyfunction]
fn wan_make_key(py: Python<'_>, path: PathBuf) -> PyResult<String> {
    let made = py.detach(|| Identity::create(&path));
    made.map(|identity| identity.public.line()).map_err(|error| raise(py, error))
}

/// The line that names the public half of the key in a file.
#[pyfunction]
fn wan_read_key(py: Python<'_>, path: PathBuf) -> PyResult<String> {
    let read = py.detach(|| Identity::load(&path));
    read.map(|identity| identity.public.line()).map_err(|error| raise(py, error))
}

/// The fingerprint of a key named by its line.
#[pyfunction]
fn wan_fingerprint(py: Python<'_>, line: &str) -> PyResult<String> {
    PublicKey::parse(line).map(|key| key.fingerprint()).map_err(|error| raise(py, error))
}

/// Seconds, bytes of a datagram, packets lost and sent, of so many connections on the loopback interface.
#[pyfunction]
#[pyo3(signature = (bytes, largest_datagram, mode, connections=1))]
fn wan_loopback(
    py: Python<'_>,
    bytes: u64,
    largest_datagram: usize,
    mode: &str,
    connections: u32,
) -> PyResult<(f64, u64, u64, u64)> {
    let mode = mode_of(mode)?;
    let measured =
        py.detach(|| waystage_loopback::datagrams(bytes, largest_datagram, mode, connections));
    let measured = measured.map_err(|error| raise(py, error))?;
    Ok((measured.seconds, measured.datagram_bytes, measured.lost_packets, measured.sent_packets))
}

/// Seconds that TLS over TCP takes on the loopback interface.
#[pyfunction]
fn wan_tls_stream(py: Python<'_>, bytes: u64, segment: u32) -> PyResult<f64> {
    py.detach(|| waystage_loopback::stream(bytes, segment)).map_err(|error| raise(py, error))
}

/// A copy between hosts under way.
#[pyclass(frozen, module = "waystage._native")]
struct WanCopy(Client);

#[pymethods]
impl WanCopy {
    #[new]
    #[allow(clippy::too_many_arguments, reason = "in Python they are keywords")]
    #[allow(clippy::fn_params_excessive_bools, reason = "in Python they are keywords")]
    #[pyo3(signature = (local, remote, *, push, host, port, user, key, trusted, mode, rate_bytes_per_s, udp_wait_s,
        workers, connections=1, memory_bytes=MEMORY_BYTES, known_as=None, exclude=Vec::new(), include=None, names=None, one_file_system=false, update="changed", fsync="none",
        verify="none",
        dry_run=None, restart=false, xattrs=true, owners=true, hard_links=true, privileged=false))]
    fn new(
        py: Python<'_>,
        local: PathBuf,
        remote: Vec<u8>,
        push: bool,
        host: String,
        port: u16,
        user: String,
        key: PathBuf,
        trusted: Option<&str>,
        mode: &str,
        rate_bytes_per_s: Option<u64>,
        udp_wait_s: Option<f64>,
        workers: usize,
        connections: u32,
        memory_bytes: u64,
        known_as: Option<String>,
        exclude: Vec<Vec<u8>>,
        include: Option<Vec<Vec<u8>>>,
        names: Option<Bound<'_, NameList>>,
        one_file_system: bool,
        update: &str,
        fsync: &str,
        verify: &str,
        dry_run: Option<&str>,
        restart: bool,
        xattrs: bool,
        owners: bool,
        hard_links: bool,
        privileged: bool,
    ) -> PyResult<Self> {
        let (update, fsync, verify) = words(update, fsync, verify)?;
        let dry = match dry_run {
            None => Dry::No,
            Some(what) => one_of(
                "dry_run",
                what,
                &[("plan", Dry::Plan), ("disk", Dry::Disk), ("network", Dry::Network)],
            )?,
        };
        let failed = |error| raise(py, error);
        let request = Request {
            server: Peer {
                host,
                port,
                user,
                identity: py.detach(|| Identity::load(&key)).map_err(failed)?,
                trusted: trusted.map(PublicKey::parse).transpose().map_err(failed)?,
                mode: mode_of(mode)?,
                rate_bytes_per_s,
                udp_wait: udp_wait_s.map(duration).transpose()?,
            },
            known_as,
            workers,
            connections,
            memory_bytes,
            ends: if push { Ends::Push { local, remote } } else { Ends::Pull { remote, local } },
            names: names.as_ref().map(|names| names.get().0.clone()),
            privileged,
            options: CopyOptions {
                exclude,
                include,
                listed: names.is_some(),
                one_file_system,
                update,
                fsync,
                verify,
                dry,
                restart,
                xattrs,
                owners,
                hard_links,
            },
        };
        py.detach(|| Client::start(request)).map(Self).map_err(|error| raise(py, error))
    }

    /// Whether it has ended within `timeout_s`; WanError where it could not go on.
    fn wait(&self, py: Python<'_>, timeout_s: f64) -> PyResult<bool> {
        let deadline = Instant::now() + duration(timeout_s)?;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match py.detach(|| self.0.wait(left.min(LOOK_ROUND))) {
                Some(Ok(())) => return Ok(true),
                Some(Err(error)) => return Err(raise(py, error)),
                None if left.is_zero() => return Ok(false),
                None => py.check_signals()?,
            }
        }
    }

    /// How far it is, by name.
    fn counts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let by_name = PyDict::new(py);
        for (name, count) in self.0.counts() {
            by_name.set_item(name, count)?;
        }
        Ok(by_name)
    }

    /// Whether all that was asked for is there, as far as it has come.
    #[getter]
    fn complete(&self) -> bool {
        let problems = ["errors", "changed", "vanished", "lost"];
        self.0.counts().iter().all(|(name, count)| *count == 0 || !problems.contains(name))
    }

    /// (path, kind, text) of what could not be copied, at both ends.
    fn problems<'py>(&self, py: Python<'py>) -> Vec<(Bound<'py, PyBytes>, &'static str, String)> {
        let problems = py.detach(|| self.0.problems());
        problems
            .into_iter()
            .map(|problem| (PyBytes::new(py, &problem.path), problem.kind.name(), problem.text))
            .collect()
    }

    /// (path, letter of the type, bytes) of what a dry run would make, the first ten thousand.
    fn planned<'py>(&self, py: Python<'py>) -> Vec<PyPlanned<'py>> {
        let planned = py.detach(|| self.0.planned());
        planned.into_iter().map(|each| py_planned(py, &each)).collect()
    }

    /// What the user should know of the connection, in sentences.
    fn notes(&self) -> Vec<String> {
        self.0.notes()
    }

    /// What both ends added up of all contents that were copied, in hexadecimal.
    fn digest(&self) -> String {
        format!("{:032x}", self.0.digest())
    }

    /// Numbers on the connection by name, and what limits it.
    fn connection<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyDict>, String)> {
        let (numbers, limit) = self.0.connection();
        let by_name = PyDict::new(py);
        for (name, number) in numbers {
            by_name.set_item(name, number)?;
        }
        Ok((by_name, limit))
    }

    /// Have no more than so many bytes a second sent from now on; None for as many as were agreed at first.
    fn limit(&self, bytes_per_s: Option<u64>) {
        self.0.limit(bytes_per_s);
    }

    /// End it; its threads are gone when this returns.
    fn stop(&self, py: Python<'_>) {
        py.detach(|| self.0.stop());
    }
}

/// Name, lines of keys, modes, networks with their bits, bytes a second, connections.
type PyUser = (String, Vec<String>, Vec<String>, Vec<(String, u8)>, Option<u64>, Option<usize>);

/// Name of a user, rules on what it may reach, rules on where it may have the server listen.
type PyRights = (String, Vec<String>, Vec<String>);

/// Name of a user, user id, group and groups of the account of this host as which the server acts for it.
type PyAccount = (String, u32, u32, Vec<u32>);

/// Path, whether it may be written, users, whether attributes of the system are taken over.
type PyRoot = (PathBuf, bool, Vec<String>, bool);

/// A server.
#[pyclass(frozen, module = "waystage._native")]
struct WanServer(Server);

#[pymethods]
impl WanServer {
    #[new]
    #[allow(clippy::too_many_arguments, reason = "in Python they are keywords")]
    #[pyo3(signature = (listen, key, users, roots, *, rate_bytes_per_s, connections, memory_bytes, udp, workers, proxy=Vec::new(),
        probe_users=Vec::new(), probe_rate_bytes_per_s=None, probe_s=0.0, copy_connections=1, sockets=1, accounts=Vec::new()))]
    fn new(
        py: Python<'_>,
        listen: &str,
        key: PathBuf,
        users: Vec<PyUser>,
        roots: Vec<PyRoot>,
        rate_bytes_per_s: Option<u64>,
        connections: usize,
        memory_bytes: u64,
        udp: bool,
        workers: usize,
        proxy: Vec<PyRights>,
        probe_users: Vec<String>,
        probe_rate_bytes_per_s: Option<u64>,
        probe_s: f64,
        copy_connections: u32,
        sockets: usize,
        accounts: Vec<PyAccount>,
    ) -> PyResult<Self> {
        let listen: SocketAddr = listen.parse().map_err(|_| {
            PyValueError::new_err(format!("{listen:?} is no address and port, such as [::]:7900"))
        })?;
        let mut users =
            users.into_iter().map(|user| user_of(py, user)).collect::<PyResult<Vec<User>>>()?;
        let rules = |lines: &[String]| lines.iter().map(|line| rule(line)).collect::<PyResult<_>>();
        for (name, reach, listen) in &proxy {
            for user in users.iter_mut().filter(|user| user.name == *name) {
                (user.reach, user.listen) = (rules(reach)?, rules(listen)?);
            }
        }
        for (name, uid, gid, groups) in accounts {
            for user in users.iter_mut().filter(|user| user.name == name) {
                user.account = Some(Account { uid, gid, groups: groups.clone() });
            }
        }
        let roots = roots
            .into_iter()
            .map(|(path, write, users, privileged)| SharedRoot { path, write, users, privileged })
            .collect();
        let options = ServerOptions {
            listen,
            identity: py.detach(|| Identity::load(&key)).map_err(|error| raise(py, error))?,
            users,
            roots,
            rate_bytes_per_s,
            connections,
            copy_connections,
            sockets,
            memory_bytes,
            udp,
            workers,
            probing: Probing {
                users: probe_users,
                rate_bytes_per_s: probe_rate_bytes_per_s,
                longest: duration(probe_s)?,
            },
        };
        py.detach(|| Server::start(options)).map(Self).map_err(|error| raise(py, error))
    }

    /// Where it listens.
    #[getter]
    fn address(&self) -> String {
        self.0.address().to_string()
    }

    /// Connections there are.
    fn connections(&self) -> usize {
        self.0.connections()
    }

    /// Datagrams that belonged to no connection.
    fn strange_datagrams(&self) -> u64 {
        self.0.strange_datagrams()
    }

    /// What became of those who knocked, by name.
    fn counts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let by_name = PyDict::new(py);
        for (name, count) in self.0.counts() {
            by_name.set_item(name, count)?;
        }
        Ok(by_name)
    }

    /// Have no connection carry more than so many bytes a second from now on, and those of some users even less.
    fn limit(&self, bytes_per_s: Option<u64>, users: HashMap<String, u64>) {
        self.0.limit(bytes_per_s, users);
    }

    /// Lines for the log since the last call.
    fn log(&self) -> Vec<String> {
        self.0.log()
    }

    /// Let nobody in any more; who is there may finish.
    fn drain(&self, py: Python<'_>) {
        py.detach(|| self.0.drain());
    }

    /// End every connection; all threads are gone when this returns.
    fn stop(&self, py: Python<'_>) {
        py.detach(|| self.0.stop());
    }
}

fn user_of(py: Python<'_>, user: PyUser) -> PyResult<User> {
    let (name, keys, modes, networks, rate_bytes_per_s, connections) = user;
    let keys = keys
        .iter()
        .map(|line| PublicKey::parse(line).map_err(|error| raise(py, error)))
        .collect::<PyResult<_>>()?;
    let modes = modes.iter().map(|mode| mode_of(mode)).collect::<PyResult<_>>()?;
    let networks = networks
        .into_iter()
        .map(|(address, bits)| {
            let address: IpAddr = address
                .parse()
                .map_err(|_| PyValueError::new_err(format!("{address:?} is no address")))?;
            Ok((address, bits))
        })
        .collect::<PyResult<_>>()?;
    let (account, reach, listen) = Default::default();
    Ok(User { name, keys, modes, networks, rate_bytes_per_s, connections, account, reach, listen })
}

pub(crate) fn mode_of(name: &str) -> PyResult<Mode> {
    name.parse()
        .map_err(|unknown: waystage_protocol::Error| PyValueError::new_err(unknown.to_string()))
}

pub(crate) fn raise(py: Python<'_>, error: impl Into<waystage_transport::Error>) -> PyErr {
    let error = error.into();
    let raised = WanError::new_err(error.to_string());
    let value = raised.value(py);
    let server_key = match &error {
        waystage_transport::Error::Untrusted { key, .. } => Some(key.clone()),
        _ => None,
    };
    let set =
        value.setattr("kind", error.kind()).and_then(|()| value.setattr("server_key", server_key));
    match set {
        Ok(()) => raised,
        Err(odd) => odd,
    }
}
