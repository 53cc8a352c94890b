//! What follows a copy: `TreeDelete`, `SourceRemove`.

use std::path::PathBuf;
use std::sync::Arc;

use pyo3::prelude::*;
use waystage_catalog::Exclude;
use waystage_copy::after::{
    Copied, Delete, DeleteJob, DeleteOptions, Deletion, Removal, Remove, RemoveJob, RemoveOptions,
    Taken,
};
use waystage_remote_copy::{delete, remove, Chosen, Selected};

use crate::copy::{
    engine_handle, py_done, py_planned, py_problems, CopyOptions, EngineJob, PyDone, PyPlanned,
    PyProblem,
};
use crate::copy_limits::PyBackup;
use crate::errors::OrRaise;
use crate::peer::PyPeer;
use crate::remote_copy::ends;
use crate::task::Task;

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<TreeDelete>()?;
    module.add_class::<SourceRemove>()
}

/// `waystage.native_options.copies.DeleteOptions`.
#[derive(FromPyObject)]
struct PyDeleteOptions {
    exclude: Vec<Vec<u8>>,
    include: Option<Vec<Vec<u8>>>,
    copy_links: bool,
    one_file_system: bool,
    most: Option<u64>,
    backup: Option<PyBackup>,
    workers: usize,
    dry_run: bool,
    log: bool,
}

/// What `waystage.native_options.copies.RemoveOptions` adds.
#[derive(FromPyObject)]
struct PyRemoveOptions {
    single: Option<(Vec<u8>, Vec<u8>)>,
    workers: usize,
    dry_run: bool,
    log: bool,
}

impl PyDeleteOptions {
    fn how(&self, shown: String) -> Deletion {
        Deletion {
            shown,
            most: self.most,
            workers: self.workers,
            dry_run: self.dry_run,
            log: self.log,
        }
    }
}

impl PyRemoveOptions {
    fn how(&self) -> Removal {
        Removal { workers: self.workers, dry_run: self.dry_run, log: self.log }
    }
}

impl EngineJob for DeleteJob {}
impl EngineJob for RemoveJob {}

engine_handle!(
    /// A deletion in progress.
    TreeDelete,
    Delete,
    #[new]
    fn new(
        py: Python<'_>,
        source: PathBuf,
        destination: PathBuf,
        options: PyDeleteOptions,
    ) -> PyResult<PyClassInitializer<Self>> {
        let how = options.how(destination.display().to_string());
        let request = DeleteOptions {
            source,
            destination,
            copy_links: options.copy_links,
            copied: Copied {
                exclude: Exclude::new(options.exclude),
                include: options.include.map(Exclude::new),
                one_file_system: options.one_file_system,
                ..Copied::default()
            },
            backup: options.backup.map(PyBackup::backup),
        };
        let delete = py.detach(|| Delete::start(request, how)).or_raise()?;
        Ok(Task::handle(delete, Self))
    }

    /// With one end at a server; `push` where that is the destination.
    #[staticmethod]
    #[pyo3(signature = (local, remote, peer, options, *, push))]
    fn between(
        py: Python<'_>,
        local: PathBuf,
        remote: Vec<u8>,
        peer: PyPeer,
        options: PyDeleteOptions,
        push: bool,
    ) -> PyResult<Py<Self>> {
        let shown = match push {
            true => String::from_utf8_lossy(&remote).into_owned(),
            false => local.display().to_string(),
        };
        let how = options.how(shown);
        let chosen = Chosen {
            exclude: options.exclude,
            include: options.include,
            one_file_system: options.one_file_system,
            backup: options.backup.map(PyBackup::backup),
            ..Chosen::default()
        };
        let (peer, copy_links) = (peer.open(py)?, options.copy_links);
        let ends = ends(local, remote, push);
        let delete = py.detach(|| delete(peer, ends, chosen, copy_links, how)).or_raise()?;
        Py::new(py, Task::handle(delete, Self))
    }
);

engine_handle!(
    /// A removal of copied files in progress.
    SourceRemove,
    Remove,
    #[new]
    fn new(
        source: PathBuf,
        destination: PathBuf,
        options: &Bound<'_, PyAny>,
    ) -> PyResult<PyClassInitializer<Self>> {
        let (how, more): (CopyOptions<'_>, PyRemoveOptions) =
            (options.extract()?, options.extract()?);
        let request = RemoveOptions {
            source,
            destination,
            single: more.single.clone(),
            taken: Taken {
                exclude: Exclude::new(how.exclude.clone()),
                include: how.include.clone().map(Exclude::new),
                names: how.names(),
                limits: how.limits(),
                one_file_system: how.one_file_system,
            },
        };
        let how = more.how();
        let remove = options.py().detach(|| Remove::start(request, how)).or_raise()?;
        Ok(Task::handle(remove, Self))
    }

    /// With one end at a server; `push` where that is the destination. Both paths are those of the copy.
    #[staticmethod]
    #[pyo3(signature = (local, remote, peer, options, *, push))]
    fn between(
        py: Python<'_>,
        local: PathBuf,
        remote: Vec<u8>,
        peer: PyPeer,
        options: &Bound<'_, PyAny>,
        push: bool,
    ) -> PyResult<Py<Self>> {
        let (copied, more): (CopyOptions<'_>, PyRemoveOptions) =
            (options.extract()?, options.extract()?);
        let selected = Selected {
            exclude: copied.exclude.clone(),
            include: copied.include.clone(),
            names: copied.names(),
            limits: copied.limits(),
            one_file_system: copied.one_file_system,
        };
        let (peer, how) = (peer.open(py)?, more.how());
        let ends = ends(local, remote, push);
        let remove = py.detach(|| remove(peer, ends, selected, how)).or_raise()?;
        Py::new(py, Task::handle(remove, Self))
    }
);
