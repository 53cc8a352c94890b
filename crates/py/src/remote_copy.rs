//! Copies between hosts: `RemoteCopy`.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use waystage_pacing::FlowCounts;
use waystage_remote_copy::{Client, CopyOptions as WireOptions, Dry, Ends, Request};

use crate::copy::{py_planned, py_problems, CopyOptions, PyPlanned, PyProblem};
use crate::errors::OrRaise;
use crate::peer::{mode_of, PyPeer};
use crate::task::{by_name, one_of, Control, Task, Work};

/// Counts above zero that make a copy incomplete.
const INCOMPLETE: [&str; 4] = ["errors", "changed", "vanished", "lost"];

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<RemoteCopy>()
}

/// What `waystage.native_options.copies.RemoteCopyOptions` adds to `CopyOptions`.
#[derive(FromPyObject)]
struct RemoteCopyOptions {
    workers: usize,
    connections: u32,
    memory_bytes: u64,
    known_as: Option<String>,
    dry_run: Option<String>,
    privileged: bool,
    compress: bool,
}

impl Work for Client {
    fn wait(&self, timeout: Duration) -> Option<PyResult<bool>> {
        self.wait(timeout).map(|ended| ended.map(|()| true).or_raise())
    }

    fn progress(&self) -> Vec<(&'static str, u64)> {
        self.counts()
    }

    fn cancel(&self) {
        self.stop();
    }

    fn controls(&self) -> &'static [Control] {
        &[Control::Rate, Control::Mode, Control::Pause]
    }

    fn set_rate(&self, bytes_per_s: Option<u64>) {
        self.set_rate(bytes_per_s);
    }

    fn set_paused(&self, paused: bool) {
        self.set_paused(paused);
    }

    fn set_mode(&self, mode: &str) -> PyResult<()> {
        self.set_mode(mode_of(mode)?).or_raise()
    }

    fn flow(&self) -> FlowCounts {
        self.flow()
    }
}

/// A copy between hosts in progress.
#[pyclass(frozen, extends = Task, module = "waystage._native")]
struct RemoteCopy(Arc<Client>);

#[pymethods]
impl RemoteCopy {
    #[new]
    #[pyo3(signature = (local, remote, peer, options, *, push))]
    fn new(
        local: PathBuf,
        remote: Vec<u8>,
        peer: PyPeer,
        options: &Bound<'_, PyAny>,
        push: bool,
    ) -> PyResult<PyClassInitializer<Self>> {
        let py = options.py();
        let (how, more): (CopyOptions<'_>, RemoteCopyOptions) =
            (options.extract()?, options.extract()?);
        let dry = match more.dry_run.as_deref() {
            None => Dry::No,
            Some(what) => one_of(
                "dry_run",
                what,
                &[("plan", Dry::Plan), ("disk", Dry::Disk), ("network", Dry::Network)],
            )?,
        };
        let names = how.names();
        let request = Request {
            options: WireOptions {
                listed: names.is_some(),
                copy_links: how.copy_links,
                backup: how.backup(),
                one_file_system: how.one_file_system,
                update: how.update()?,
                fsync: how.fsync()?,
                verify: how.verify()?,
                dry,
                restart: how.restart,
                xattrs: how.xattrs,
                owners: how.owners,
                hard_links: how.hard_links,
                exclude: how.exclude,
                limits: how.limits.limits(),
                include: how.include,
            },
            server: peer.open(py)?,
            known_as: more.known_as,
            workers: more.workers,
            connections: more.connections,
            memory_bytes: more.memory_bytes,
            ends: ends(local, remote, push),
            names,
            privileged: more.privileged,
            compress: more.compress,
        };
        let client = py.detach(|| Client::start(request)).or_raise()?;
        Ok(Task::handle(client, Self))
    }

    /// Whether everything requested has been copied, as far as the copy has come.
    #[getter]
    fn complete(&self) -> bool {
        self.0.counts().iter().all(|(name, count)| *count == 0 || !INCOMPLETE.contains(name))
    }

    /// (path, kind, text) of what could not be copied, at both hosts.
    fn problems<'py>(&self, py: Python<'py>) -> Vec<PyProblem<'py>> {
        py_problems(py, py.detach(|| self.0.problems()))
    }

    /// (path, letter of the type, bytes) of what a dry run would make, the first ten thousand.
    fn planned<'py>(&self, py: Python<'py>) -> Vec<PyPlanned<'py>> {
        py_planned(py, py.detach(|| self.0.planned()))
    }

    /// What the user should know of the connection, in sentences.
    fn notes(&self) -> Vec<String> {
        self.0.notes()
    }

    /// The digest of all copied contents, on which both hosts agree, in hexadecimal.
    fn digest(&self) -> String {
        format!("{:032x}", self.0.digest())
    }

    /// Statistics of the connection by name, and what limits it.
    fn connection<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyDict>, String)> {
        let (numbers, limit) = self.0.connection();
        Ok((by_name(py, numbers)?, limit))
    }

    /// Limit the rate from now on; None for the rate agreed on at first.
    fn limit(&self, bytes_per_s: Option<u64>) {
        self.0.limit(bytes_per_s);
    }
}

/// The server's path is the destination where `push`, and the source otherwise.
pub(crate) fn ends(local: PathBuf, remote: Vec<u8>, push: bool) -> Ends {
    if push {
        Ends::Push { local, remote }
    } else {
        Ends::Pull { remote, local }
    }
}
