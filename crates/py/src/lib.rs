//! The Python module `waystage._native`, the only PyO3 code of the project.
//!
//! Arrives: calls from Python.
//! Leaves: calls into the data plane's crates, with the GIL released, and their answers as Python values.
//! Must not know: anything else. Every function here unwraps, calls and wraps.

mod agent;
mod augment;
mod catalog;
mod check;
mod contention;
mod copy;
mod dedup;
mod flow_load;
mod flow_time;
mod layout;
mod load;
mod load_model;
mod pfs;
mod probe;
mod probing;
mod proxy;
mod remote_copy;
mod shim;
mod transfer;
mod wan;

use pyo3::prelude::*;

/// Data-plane engines of Waystage.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    agent::register(module)?;
    augment::register(module)?;
    catalog::register(module)?;
    check::register(module)?;
    contention::register(module)?;
    copy::register(module)?;
    dedup::register(module)?;
    flow_load::register(module)?;
    flow_time::register(module)?;
    layout::register(module)?;
    load::register(module)?;
    load_model::register(module)?;
    pfs::register(module)?;
    probe::register(module)?;
    probing::register(module)?;
    shim::register(module)?;
    transfer::register(module)?;
    remote_copy::register(module)?;
    proxy::register(module)?;
    wan::register(module)
}
