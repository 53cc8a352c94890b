//! Augmentation: `Augmentation`, `augment_image`, `check_operation`.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use numpy::{PyArray1, PyArrayMethods, PyReadonlyArray1};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use waystage_augment::{
    Augmentation as Engine, Encoding, Limits, Made, Operation, Options, Pixels, Recipe, Source,
    Target,
};
use waystage_catalog::check::Recorded;
use waystage_pacing::Pace;

use crate::errors::{paths, uneven, AugmentError, OrRaise};
use crate::task::{self, by_name, wait, Running, Task};

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
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

/// `waystage.native_options.datasets.AugmentationOptions`.
#[derive(FromPyObject)]
struct AugmentationOptions {
    operations: Vec<String>,
    seed: u64,
    encoding: String,
    quality: u8,
    max_pixels: u64,
    first_copy: u32,
    copies: u32,
    threads: usize,
    bytes_per_s: u64,
    target: String,
    path: Option<PathBuf>,
    overwrite: bool,
}

impl AugmentationOptions {
    fn open(self, root: PathBuf) -> PyResult<Options> {
        let target = match (self.target.as_str(), self.path) {
            ("tree", Some(path)) => Target::Tree(path),
            ("shard", Some(path)) => Target::Shard(path),
            ("files", None) => Target::Files,
            ("pixels", None) => Target::Pixels,
            _ => {
                let known = "a target is tree or shard with a path, files or pixels";
                return Err(PyValueError::new_err(known));
            }
        };
        let (seed, quality, max_pixels) = (self.seed, self.quality, self.max_pixels);
        Ok(Options {
            root,
            recipe: recipe(&self.operations, seed, &self.encoding, quality, max_pixels)?,
            copies: (self.first_copy, self.copies),
            threads: self.threads,
            bytes_per_s: self.bytes_per_s,
            target,
            overwrite: self.overwrite,
        })
    }
}

impl task::Profile for Engine {
    fn wait(&self, timeout: Duration) -> bool {
        self.wait(timeout)
    }

    fn progress(&self) -> (u64, u64, u64) {
        self.progress()
    }

    fn stop(&self) {
        self.stop();
    }

    fn pace(&self) -> &Pace {
        self.pace()
    }

    fn bytes_total(&self) -> u64 {
        self.bytes_total()
    }
}

/// An augmentation in progress.
#[pyclass(frozen, extends = Task, module = "waystage._native")]
struct Augmentation(Arc<Running<Engine>>);

/// (path, error) of images that could not be used.
type PyErrors<'py> = Vec<(Bound<'py, PyBytes>, String)>;

#[pymethods]
impl Augmentation {
    #[new]
    fn new(
        py: Python<'_>,
        root: PathBuf,
        files: PyImages<'_>,
        options: AugmentationOptions,
    ) -> PyResult<PyClassInitializer<Self>> {
        let (options, sources) = (options.open(root)?, sources(&files)?);
        let engine = py.detach(|| Engine::start(options, sources)).or_raise()?;
        let running = Running::new(engine);
        Ok(Task::handle(running, Self))
    }

    /// The next image where `target` is `files` or `pixels`: (path, copy, name, bytes), or (path, copy, array of
    /// height, width, channels); None after the last.
    fn next<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let next = wait(py, None, |timeout| match self.0.with(|engine| engine.next(timeout)) {
            Ok((None, false)) => None,
            next => Some(next.map(|(made, _)| made)),
        })?;
        next.transpose()?.flatten().map(|made| pack(py, made)).transpose()
    }

    /// Wait for the end and take the result: (counts by name, [(path, error)]).
    fn finish<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyDict>, PyErrors<'py>)> {
        let engine = self.0.take(py)?;
        let (counts, errors) = py.detach(|| engine.finish()).or_raise()?;
        let counts = [
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
        ];
        let errors = errors.into_iter().map(|(path, text)| (PyBytes::new(py, &path), text));
        Ok((by_name(py, counts)?, errors.collect()))
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
    let uneven = || uneven("files");
    let (offsets, data) = (files.0.as_slice()?, files.1.as_slice()?);
    let (size, mtime, ctime) = (files.2.as_slice()?, files.3.as_slice()?, files.4.as_slice()?);
    let inode = files.5.as_slice()?;
    let count = size.len();
    if [mtime.len(), ctime.len(), inode.len()] != [count; 3] || offsets.len() != count + 1 {
        return Err(uneven());
    }
    let paths = paths(offsets, data).ok_or_else(uneven)?;
    let source = |(i, path): (usize, &[u8])| {
        let recorded = Recorded {
            kind: 0,
            size: size[i],
            mtime: mtime[i],
            ctime: ctime[i],
            inode: inode[i],
            generation: None,
        };
        Source { path: path.to_vec(), recorded }
    };
    Ok(paths.into_iter().enumerate().map(source).collect())
}

/// One image in memory: the new one, as a file.
#[pyfunction]
#[pyo3(signature = (data, operations, *, seed=0, encoding="same", max_pixels=1 << 26))]
fn augment_image<'py>(
    py: Python<'py>,
    data: &[u8],
    operations: Vec<String>,
    seed: u64,
    encoding: &str,
    max_pixels: u64,
) -> PyResult<Bound<'py, PyBytes>> {
    let recipe = recipe(&operations, seed, encoding, 90, max_pixels)?;
    let made = py.detach(|| recipe.encoded(data, b"", 0));
    let (bytes, _) = made.map_err(|broken| AugmentError::new_err(broken.to_string()))?;
    Ok(PyBytes::new(py, &bytes))
}

/// Raise ValueError where `text` is no operation.
#[pyfunction]
fn check_operation(text: &str) -> PyResult<()> {
    text.parse::<Operation>().map(drop).map_err(|error| PyValueError::new_err(error.to_string()))
}
