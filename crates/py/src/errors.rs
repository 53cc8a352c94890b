//! How errors of the crates become Python exceptions: the only place that defines or maps them.
//!
//! Arrives: error types of the crates.
//! Leaves: exceptions, with `kind` and the like as attributes where a caller can act on them.
//! Must not know: which call failed. `waystage.cli.errors` maps exceptions to exit statuses.

use pyo3::create_exception;
use pyo3::exceptions::{PyOSError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;

macro_rules! exceptions {
    ($(($name:ident, $base:ty, $text:literal)),* $(,)?) => {
        $(create_exception!(waystage._native, $name, $base, $text);)*

        pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
            $(module.add(stringify!($name), module.py().get_type::<$name>())?;)*
            Ok(())
        }
    };
}

exceptions![
    (AggregatorError, PyRuntimeError, "An aggregator process that cannot start or go on; the message says why."),
    (AugmentError, PyRuntimeError, "Images that cannot be made; the message says why."),
    (CopyError, PyRuntimeError, "A copy that cannot start or continue; `kind` says what a caller can act on."),
    (DedupError, PyRuntimeError, "A deduplication profile that cannot be made; the message says why."),
    (DedupPartError, DedupError, "A file that is no complete part of a profile, or parts of different profiles."),
    (FileNotLoaded, PyRuntimeError, "A file that could not be delivered; `path` and `trouble` say which and why."),
    (FlowError, PyValueError, "An interconnect, pairs of hosts or paths that cannot be used."),
    (LayoutError, PyRuntimeError, "A layout that cannot be parsed; `kind` says why."),
    (LoadRefused, PyValueError, "Options, files or a state that a loader cannot use; the message says which."),
    (PfsError, PyRuntimeError, "An emulated file system that cannot be mounted."),
    (LossMeterError, PyRuntimeError, "Probes that cannot be set up or run."),
    (TransferError, PyRuntimeError, "Files that cannot be moved or served; `kind` says what a caller can act on."),
    (
        WanError,
        PyRuntimeError,
        "A session with another host that cannot start or continue; `kind` says what a caller can act on, `server_key` is the \
         untrusted key that a server presented."
    ),
    (WanPathError, PyRuntimeError, "An emulated path that cannot be set up."),
];

/// An error of a crate as the exception that Python sees.
pub(crate) trait IntoPyErr {
    /// The exception. Takes the GIL where it sets attributes.
    fn into_py_err(self) -> PyErr;
}

/// Results of the crates as results of the binding.
pub(crate) trait OrRaise<T> {
    fn or_raise(self) -> PyResult<T>;
}

impl<T, E: IntoPyErr> OrRaise<T> for Result<T, E> {
    fn or_raise(self) -> PyResult<T> {
        self.map_err(IntoPyErr::into_py_err)
    }
}

/// Errors of which the message says everything.
macro_rules! by_message {
    ($($error:ty => $exception:ty),* $(,)?) => {$(
        impl IntoPyErr for $error {
            fn into_py_err(self) -> PyErr {
                <$exception>::new_err(self.to_string())
            }
        }
    )*};
}

by_message! {
    waystage_augment::AugmentError => AugmentError,
    waystage_flowsim::FlowError => FlowError,
    waystage_lab::LossMeterError => LossMeterError,
    waystage_pfs::PfsError => PfsError,
    waystage_wanpath::error::PathError => WanPathError,
}

impl IntoPyErr for waystage_copy::CopyError {
    fn into_py_err(self) -> PyErr {
        with_attribute(CopyError::new_err(self.to_string()), "kind", self.kind())
    }
}

impl IntoPyErr for waystage_transport::Error {
    fn into_py_err(self) -> PyErr {
        let raised = with_attribute(WanError::new_err(self.to_string()), "kind", self.kind());
        let server_key = match self {
            Self::Untrusted { key, .. } => Some(key),
            _ => None,
        };
        with_attribute(raised, "server_key", server_key)
    }
}

impl IntoPyErr for waystage_remote_copy::WanError {
    fn into_py_err(self) -> PyErr {
        waystage_transport::Error::from(self).into_py_err()
    }
}

impl IntoPyErr for waystage_staging::StagingError {
    fn into_py_err(self) -> PyErr {
        with_attribute(TransferError::new_err(self.to_string()), "kind", self.kind())
    }
}

impl IntoPyErr for waystage_catalog::layout::LayoutError {
    fn into_py_err(self) -> PyErr {
        with_attribute(LayoutError::new_err(self.text.to_string()), "kind", self.kind.name())
    }
}

/// An error of a deduplication profile: its crate has one type for profiles and loads.
pub(crate) struct OfProfile(pub(crate) waystage_load::error::LoadError);

impl IntoPyErr for OfProfile {
    fn into_py_err(self) -> PyErr {
        use waystage_load::error::LoadError;
        match self.0 {
            LoadError::Part(..) | LoadError::Option(_) => {
                DedupPartError::new_err(self.0.to_string())
            }
            other => DedupError::new_err(other.to_string()),
        }
    }
}

impl IntoPyErr for waystage_load::error::LoadError {
    fn into_py_err(self) -> PyErr {
        match self {
            Self::Io(path, error) => os_error(&error, path),
            other => LoadRefused::new_err(other.to_string()),
        }
    }
}

impl IntoPyErr for waystage_load::error::Failure {
    fn into_py_err(self) -> PyErr {
        let message = format!("{}: {}", self.path.display(), self.message);
        let raised = with_attribute(FileNotLoaded::new_err(message), "path", self.path.as_os_str());
        with_attribute(raised, "trouble", trouble_name(self.trouble))
    }
}

/// The word for why a file was not delivered.
pub(crate) fn trouble_name(trouble: waystage_load::error::Trouble) -> &'static str {
    use waystage_load::error::Trouble;
    match trouble {
        Trouble::Vanished => "vanished",
        Trouble::NotAFile => "not_a_file",
        Trouble::Unreadable => "unreadable",
        Trouble::Grown => "grown",
        Trouble::Resized => "resized",
    }
}

/// OSError with errno, the system's words and the path: Rust appends the number to the words.
pub(crate) fn os_error(error: &std::io::Error, path: std::path::PathBuf) -> PyErr {
    let text = error.to_string();
    let words = text.split(" (os error").next().unwrap_or_default().to_owned();
    PyOSError::new_err((error.raw_os_error(), words, path))
}

/// The paths of a column in Arrow's form; None where an offset is outside of `data`.
pub(crate) fn paths<'a>(offsets: &[i64], data: &'a [u8]) -> Option<Vec<&'a [u8]>> {
    let at =
        |pair: &[i64]| data.get(usize::try_from(pair[0]).ok()?..usize::try_from(pair[1]).ok()?);
    offsets.windows(2).map(at).collect()
}

/// Columns of different lengths.
pub(crate) fn uneven(what: &str) -> PyErr {
    PyValueError::new_err(format!("the columns of {what} do not fit together"))
}

/// An array's elements.
pub(crate) fn contiguous<'a, T: numpy::Element>(
    array: &'a numpy::PyReadonlyArray1<'_, T>,
) -> PyResult<&'a [T]> {
    array.as_slice().map_err(|_| {
        FlowError::new_err("an array is not contiguous: pass numpy.ascontiguousarray of it")
    })
}

fn with_attribute(raised: PyErr, name: &str, value: impl for<'py> IntoPyObject<'py>) -> PyErr {
    Python::attach(|py| match raised.value(py).setattr(name, value) {
        Ok(()) => raised,
        Err(failed) => failed,
    })
}
