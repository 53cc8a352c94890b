//! The Python module `waystage._native`, the only PyO3 code of the project.
//!
//! Arrives: calls from Python.
//! Leaves: calls into the data plane's crates, with the GIL released, and their answers as Python values.
//! Must not know: anything else. Every function here unwraps, calls and wraps.

mod probe;

use pyo3::prelude::*;

/// Data-plane engines of Waystage.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    probe::register(module)
}
