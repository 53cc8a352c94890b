//! The Python module `waystage._native`, the only PyO3 code of the project.
//!
//! Arrives: calls from Python.
//! Leaves: calls into the data plane's crates, with the GIL released, and their answers as Python values.
//! Must not know: anything else. Every function here unwraps, calls and wraps.

mod after;
mod agent;
mod aggregator;
mod augment;
mod catalog;
mod check;
mod contention;
mod copy;
mod copy_limits;
mod coupling;
mod dedup;
mod emulated_path;
mod errors;
mod flow_load;
mod flow_time;
mod layout;
mod load;
mod load_files;
mod load_model;
mod loss_meter;
mod path_probe;
mod peer;
mod pfs;
mod proxy;
mod remote_copy;
mod remote_tree;
mod restripe;
mod server;
mod shim;
mod tags;
mod task;
mod transfer;

use pyo3::prelude::*;

/// Data-plane engines of Waystage.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    for register in [
        errors::register,
        tags::register,
        task::register,
        after::register,
        agent::register,
        aggregator::register,
        augment::register,
        catalog::register,
        check::register,
        contention::register,
        copy::register,
        coupling::register,
        dedup::register,
        emulated_path::register,
        flow_load::register,
        flow_time::register,
        loss_meter::register,
        layout::register,
        load::register,
        load_files::register,
        load_model::register,
        path_probe::register,
        peer::register,
        pfs::register,
        proxy::register,
        remote_copy::register,
        remote_tree::register,
        restripe::register,
        server::register,
        shim::register,
        transfer::register,
    ] {
        register(module)?;
    }
    Ok(())
}
