//! Augmentation for Python: `Augmentation`, `augment_image`, `check_operation`.

use std::path::PathBuf;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use numpy::{PyArray1, PyArrayMethods, PyReadonlyArray1};
use pyo3::create_exception;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use waystage_augment::{
    AugmentError as RunError, Augmentation as Engine, Encoding, Limits, Made, Operation, Options,
    Pixels, Recipe, Source, Target,
};
use waystage_catalog::check::Recorded;

create_exception!(
    waystage._native,
    AugmentError,
    PyRuntimeError,
    "Images could not be made; the message says why."
);

/// How often a wait looks whether Python has had a signal.
const LOOK_ROUND: Duration = Duration::from_millis(100);

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("AugmentError", module.py().get_type::<AugmentError>())?;
    module.add_class::<Augmentation>()?;
    module.add_function(wrap_pyfunction!(augment_image, module)?)?;
    module.add_function(wrap_pyfunction!(check_operation, module)?)
}

/// Path offsets, paths, sizes, mtimes, ctimes and inodes of files.
type PyImages<'py> = (
    PyReadonlyArray1<'py, i64>,
    PyReadonlyArray1<'py, u8>,
    PyReadonlyArray1<'py, i64>,
    PyReadonlyArray1<'py, i64>,
    PyReadonlyArray1<'py, i64>,
    PyReadonlyArray1<'py, u64>,
);

/// Images being made.
#[pyclass(frozen, module = "waystage._native")]
struct Augmentation(Mutex<Option<Engine>>);

fn raise(error: &RunError) -> PyErr {
    AugmentError::new_err(error.to_string())
}

fn recipe(
    operations: &[String],
    seed: u64,
    encoding: &str,
    quality: u8,
    max_pixels: u64,
) -> PyResult<Recipe> {
    let operations = operations.iter().map(|text| text.parse::<Operation>());
    let operations = operations.collect::<Result<_, _>>();
    let encoding = match encoding {
        "same" => Encoding::Same,
        "png" => Encoding::Png,
        "jpeg" => Encoding::Jpeg(quality),
        _ => return Err(PyValueError::new_err("images are written as same, png or jpeg")),
    };
    Ok(Recipe {
        operations: operations.map_err(|error| PyValueError::new_err(error.to_string()))?,
        seed,
        encoding,
        limits: Limits { pixels: max_pixels },
    })
}

#[pymethods]
impl Augmentation {
    #[new]
    #[allow(clippy::too_many_arguments, reason = "in Python they are keywords")]
    #[pyo3(signature = (root, files, *, operations, seed, encoding="same", quality=90, max_pixels, first_copy=0,
        copies=1, threads, bytes_per_s=0, target, path=None, overwrite=false))]
    fn new(
        py: Python<'_>,
        root: PathBuf,
        files: PyImages<'_>,
        operations: Vec<String>,
        seed: u64,
        encoding: &str,
        quality: u8,
        max_pixels: u64,
        first_copy: u32,
        copies: u32,
        threads: usize,
        bytes_per_s: u64,
        target: &str,
        path: Option<PathBuf>,
        overwrite: bool,
    ) -> PyResult<Self> {
        let target = match (target, path) {
            ("tree", Some(path)) => Target::Tree(path),
            ("shard", Some(path)) => Target::Shard(path),
            ("files", None) => Target::Files,
            ("pixels", None) => Target::Pixels,
            _ => {
                return Err(PyValueError::new_err(
                    "a target is tree or shard with a path, files or pixels",
                ))
            }
        };
        let recipe = recipe(&operations, seed, encoding, quality, max_pixels)?;
        let sources = sources(&files)?;
        let copies = (first_copy, copies);
        let options = Options { root, recipe, copies, threads, bytes_per_s, target, overwrite };
        let started = py.detach(|| Engine::start(options, sources));
        Ok(Self(Mutex::new(Some(started.map_err(|error| raise(&error))?))))
    }

    /// The next image of a target that is asked: (path, copy, name, bytes), or (path, copy, height, width, channels,
    /// pixels); None when all have come.
    fn next<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        loop {
            let (made, over) = self.with(|run| py.detach(|| run.next(LOOK_ROUND)))?;
            if let Some(made) = made {
                return pack(py, made).map(Some);
            }
            if over {
                return Ok(None);
            }
            py.check_signals()?;
        }
    }

    /// Wait until all is written, for at most so long; whether it is.
    fn wait(&self, py: Python<'_>, timeout_s: f64) -> PyResult<bool> {
        let timeout = Duration::try_from_secs_f64(timeout_s)
            .map_err(|_| PyValueError::new_err(format!("{timeout_s} is no number of seconds")))?;
        let deadline = Instant::now() + timeout;
        self.with(|run| py.detach(|| run.wait(deadline.saturating_duration_since(Instant::now()))))
    }

    /// (bytes read, files done with, files there are).
    fn progress(&self) -> PyResult<(u64, u64, u64)> {
        self.with(Engine::progress)
    }

    /// End it early; `finish` then raises.
    fn stop(&self) -> PyResult<()> {
        self.with(Engine::stop)
    }

    /// Wait for the end: (counts by name, [(path, what befell it)]).
    #[allow(clippy::type_complexity, reason = "a pair, named in the stub")]
    fn finish<'py>(
        &self,
        py: Python<'py>,
    ) -> PyResult<(Bound<'py, PyDict>, Vec<(Bound<'py, PyBytes>, String)>)> {
        let mut held =
            self.0.lock().map_err(|_| PyRuntimeError::new_err("an earlier call panicked"))?;
        let run = held.take().ok_or_else(|| PyRuntimeError::new_err("it was finished before"))?;
        let (counts, errors) = py.detach(|| run.finish()).map_err(|error| raise(&error))?;
        let found = PyDict::new(py);
        for (name, number) in [
            ("images", counts.images),
            ("bytes_in", counts.bytes_in),
            ("made", counts.made),
            ("bytes_out", counts.bytes_out),
            ("kept", counts.kept),
            ("broken", counts.broken),
            ("others", counts.others),
            ("vanished", counts.vanished),
            ("unreadable", counts.unreadable),
            ("changed", counts.changed),
        ] {
            found.set_item(name, number)?;
        }
        let errors = errors.into_iter().map(|(path, text)| (PyBytes::new(py, &path), text));
        Ok((found, errors.collect()))
    }
}

impl Augmentation {
    fn with<T>(&self, call: impl FnOnce(&Engine) -> T) -> PyResult<T> {
        let held =
            self.0.lock().map_err(|_| PyRuntimeError::new_err("an earlier call panicked"))?;
        held.as_ref().map(call).ok_or_else(|| PyRuntimeError::new_err("it was finished before"))
    }
}

fn pack(py: Python<'_>, made: Made) -> PyResult<Bound<'_, PyAny>> {
    match made {
        Made::File(path, copy, name, bytes) => {
            let of = |bytes: &[u8]| PyBytes::new(py, bytes);
            Ok((of(&path), copy, of(&name), of(&bytes)).into_pyobject(py)?.into_any())
        }
        Made::Pixels(path, copy, pixels) => {
            let Pixels { width, height, channels, data } = pixels;
            let shape = [height as usize, width as usize, usize::from(channels)];
            let array = PyArray1::from_vec(py, data).reshape(shape)?;
            Ok((PyBytes::new(py, &path), copy, array).into_pyobject(py)?.into_any())
        }
    }
}

fn sources(files: &PyImages<'_>) -> PyResult<Vec<Source>> {
    let uneven = || PyValueError::new_err("the columns of files do not fit together");
    let (offsets, paths) = (files.0.as_slice()?, files.1.as_slice()?);
    let (size, mtime, ctime) = (files.2.as_slice()?, files.3.as_slice()?, files.4.as_slice()?);
    let inode = files.5.as_slice()?;
    let count = size.len();
    if [mtime.len(), ctime.len(), inode.len()] != [count; 3] || offsets.len() != count + 1 {
        return Err(uneven());
    }
    let at = |i: usize| usize::try_from(offsets[i]).map_err(|_| uneven());
    (0..count)
        .map(|i| {
            let recorded = Recorded {
                kind: 0,
                size: size[i],
                mtime: mtime[i],
                ctime: ctime[i],
                inode: inode[i],
                generation: None,
            };
            let path = paths.get(at(i)?..at(i + 1)?).ok_or_else(uneven)?.to_vec();
            Ok(Source { path, recorded })
        })
        .collect()
}

/// One image in memory: the new one, as a file.
#[pyfunction]
#[pyo3(signature = (data, operations, *, seed=0, path=None, copy=0, encoding="same", quality=90, max_pixels=1 << 26))]
#[allow(clippy::too_many_arguments, reason = "in Python they are keywords")]
fn augment_image<'py>(
    py: Python<'py>,
    data: &[u8],
    operations: Vec<String>,
    seed: u64,
    path: Option<&[u8]>,
    copy: u32,
    encoding: &str,
    quality: u8,
    max_pixels: u64,
) -> PyResult<Bound<'py, PyBytes>> {
    let recipe = recipe(&operations, seed, encoding, quality, max_pixels)?;
    let made = py.detach(|| recipe.encoded(data, path.unwrap_or_default(), copy));
    let (bytes, _) = made.map_err(|broken| AugmentError::new_err(broken.to_string()))?;
    Ok(PyBytes::new(py, &bytes))
}

/// Raise ValueError where `text` is no operation.
#[pyfunction]
fn check_operation(text: &str) -> PyResult<()> {
    text.parse::<Operation>().map(drop).map_err(|error| PyValueError::new_err(error.to_string()))
}
