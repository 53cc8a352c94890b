//! A server's directories beside copies: `RemoteTree`.

use std::sync::Arc;

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use waystage_remote_copy::{TreeAnswer, TreeEntry, TreeRequest, TreeSession};
use waystage_sync::ProcessLocal;

use crate::path_probe::watched;
use crate::peer::PyPeer;

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<RemoteTree>()
}

/// Letter of the type, name, bytes, seconds and nanoseconds of the last change, mode, owner, group, target of a link.
type PyEntry<'py> = (char, Bound<'py, PyBytes>, u64, i64, u32, u32, u32, u32, Bound<'py, PyBytes>);

/// Entries, how many were removed, paths that were not and why.
type PyAnswer<'py> = (Vec<PyEntry<'py>>, u64, Vec<(Bound<'py, PyBytes>, String)>);

/// The directories of a server, over one connection that is made at the first request.
#[pyclass(frozen, module = "waystage._native")]
struct RemoteTree(ProcessLocal<Arc<TreeSession>>);

const FORKED: &str =
    "the connection is that of the process that this one was forked from: open one here";

impl RemoteTree {
    fn answer(&self, py: Python<'_>, request: TreeRequest) -> PyResult<TreeAnswer> {
        if !self.0.is_ours() {
            return Err(PyRuntimeError::new_err(FORKED));
        }
        let session = Arc::clone(&self.0);
        let work = move || session.ask(&request);
        let stop = |thread: std::thread::JoinHandle<()>| {
            self.0.abort();
            // A panic has been reported on stderr; an attempt to connect has a timeout.
            drop(thread);
        };
        watched(py, work, stop)
    }
}

fn entry<'py>(py: Python<'py>, entry: TreeEntry) -> PyEntry<'py> {
    let bytes = |text: &[u8]| PyBytes::new(py, text);
    let TreeEntry { letter, name, size, mtime, mtime_nanos, mode, uid, gid, target } = entry;
    (char::from(letter), bytes(&name), size, mtime, mtime_nanos, mode, uid, gid, bytes(&target))
}

#[pymethods]
impl RemoteTree {
    #[new]
    fn new(py: Python<'_>, peer: PyPeer) -> PyResult<Self> {
        Ok(Self(ProcessLocal::new(Arc::new(TreeSession::new(peer.open(py)?)))))
    }

    /// `list`, `make`, `remove` or `rename`; `flag` asks for the entry itself, or allows parents, contents or a
    /// replacement.
    fn ask<'py>(
        &self,
        py: Python<'py>,
        what: &str,
        paths: Vec<Vec<u8>>,
        flag: bool,
    ) -> PyResult<PyAnswer<'py>> {
        let request = match (what, &paths[..]) {
            ("list", [path]) => TreeRequest::List(path.clone(), flag),
            ("make", [path]) => TreeRequest::Make(path.clone(), flag),
            ("remove", [path]) => TreeRequest::Remove(path.clone(), flag),
            ("rename", [from, to]) => TreeRequest::Rename(from.clone(), to.clone(), flag),
            _ => return Err(PyValueError::new_err(format!("{what} with {} paths", paths.len()))),
        };
        let TreeAnswer { entries, removed, problems, .. } = self.answer(py, request)?;
        let problems =
            problems.into_iter().map(|(path, text)| (PyBytes::new(py, &path), text)).collect();
        Ok((entries.into_iter().map(|each| entry(py, each)).collect(), removed, problems))
    }

    /// At most `length` bytes of a file from `offset` on, and its entry after they were read.
    fn read<'py>(
        &self,
        py: Python<'py>,
        path: Vec<u8>,
        offset: u64,
        length: u64,
    ) -> PyResult<(Bound<'py, PyBytes>, Option<PyEntry<'py>>)> {
        let answer = self.answer(py, TreeRequest::Read(path, offset, length))?;
        let found = answer.entries.into_iter().next().map(|each| entry(py, each));
        Ok((PyBytes::new(py, &answer.data), found))
    }

    /// Close the connection, if there is one.
    fn close(&self, py: Python<'_>) {
        if self.0.is_ours() {
            py.detach(|| self.0.close());
        }
    }
}
