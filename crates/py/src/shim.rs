//! C sources of `shim/`, as they were when this was built.
//!
//! They are compiled on the machine where they are used, so the package contains them. Links from the package to
//! them were rejected: not every transport of a repository keeps links.

use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;

type Sources = &'static [(&'static str, &'static str)];

/// The files of a folder, by their names.
macro_rules! sources {
    ($($folder:literal: $($name:literal)*;)*) => {
        &[$($(($name, include_str!(concat!("../../../shim/", $folder, "/", $name))),)*)*]
    };
}

const POSIX: Sources = sources! {
    "include":
        "waystage_ring.h";
    "posix":
        "open_files.c" "open_files.h" "path_record.c" "path_record.h" "process.c" "program.c" "program.h" "real.h"
        "ring.c" "ring.h" "wrap.h" "wrap_attributes.c" "wrap_close.c" "wrap_exec.c" "wrap_io_uring.c" "wrap_names.c"
        "wrap_open.c" "wrap_syscall.c";
};

const IO: Sources = sources! {
    "include":
        "waystage_io.h";
    "io":
        "collective.c" "collective.h" "component.c" "file.c" "file.h" "hints.c" "hints.h" "library.c" "library.h"
        "named.c" "named.h" "node.c" "node.h" "ops.c" "ops.h" "real.h" "say.c" "say.h" "shared.c" "start.c" "start.h"
        "supervise.c" "types.c" "types.h" "view.c" "weak.h" "wrap.c" "wrap.h" "wrap_ops.c";
};

const PATHS: Sources = sources! {
    "paths":
        "agent.c" "agent.h" "calls.c" "calls.h" "order.c" "order.h" "sent.c" "sent.h" "stats.c" "stats.h" "symbols.c"
        "symbols.h" "wrap.c";
};

const TAGS: Sources = sources! {
    "tags":
        "announced.c" "announced.h" "service.c" "service.h" "stream.c" "stream.h" "wrap.c";
};

const MULTICAST: Sources = sources! {
    "paths":
        "agent.c" "agent.h";
    "multicast":
        "component.c" "datagram.h" "group.c" "group.h" "transfer.c" "transfer.h";
};

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(shim_sources, module)?)
}

/// Names and texts of the sources of a library: "posix", "io", "paths", "multicast" or "tags". KeyError for another.
#[pyfunction]
fn shim_sources(library: &str) -> PyResult<Vec<(&'static str, &'static str)>> {
    match library {
        "posix" => Ok(POSIX.to_vec()),
        "io" => Ok(IO.to_vec()),
        "paths" => Ok(PATHS.to_vec()),
        "multicast" => Ok(MULTICAST.to_vec()),
        "tags" => Ok(TAGS.to_vec()),
        _ => Err(PyKeyError::new_err(format!("there is no library {library}"))),
    }
}
