//! Deduplication profiles: `DedupProfile`, and functions on their parts, on chunks and on patterns.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use numpy::{PyArray1, PyReadonlyArray1};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use waystage_catalog::Exclude;
use waystage_load::chunking::{Method, LARGEST};
use waystage_load::dedup::{
    self as engine, Count, Files, Options, Parameters, Profile, Report, Task as FileTask,
};
use waystage_load::digest::Digest;
use waystage_load::error::LoadError;
use waystage_pacing::Pace;

use crate::errors::{paths, uneven, OfProfile, OrRaise};
use crate::task::{self, by_name, Loaders, Running, Task};

/// Blocks of a part that are joined between checks for a signal: some ten milliseconds.
const BLOCKS_A_ROUND: u32 = 32;

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<DedupProfile>()?;
    module.add("DEDUP_SLICES", engine::SLICES)?;
    module.add_function(wrap_pyfunction!(dedup_merge, module)?)?;
    module.add_function(wrap_pyfunction!(dedup_estimate, module)?)?;
    module.add_function(wrap_pyfunction!(dedup_question, module)?)?;
    module.add_function(wrap_pyfunction!(excluded_paths, module)?)?;
    module.add_function(wrap_pyfunction!(chunk_lengths, module)?)?;
    module.add_function(wrap_pyfunction!(chunk_and_digest, module)?)
}

fn method_of(name: &str) -> PyResult<(Method, Digest)> {
    match name {
        "fsc" => Ok((Method::FscCdc8, Digest::Sha1)),
        "fast" => Ok((Method::Fast, Digest::Blake3)),
        other => {
            let size = other.strip_prefix("fixed:").and_then(|size| size.parse().ok());
            match size {
                Some(size) if (1..=LARGEST).contains(&size) => {
                    Ok((Method::Fixed(size), Digest::Blake3))
                }
                _ => Err(PyValueError::new_err(format!(
                    "method {other:?} is none of fast, fsc, fixed:N with N from 1 to {LARGEST}"
                ))),
            }
        }
    }
}

fn name_of(parameters: &Parameters) -> String {
    match parameters.method {
        Method::FscCdc8 => "fsc".to_owned(),
        Method::Fast => "fast".to_owned(),
        Method::Fixed(size) => format!("fixed:{size}"),
    }
}

/// Path offsets, paths, sizes, mtimes, ctimes, inodes, devices, links and targets of files.
type PyFiles<'py> = (
    PyReadonlyArray1<'py, i64>,
    PyReadonlyArray1<'py, u8>,
    PyReadonlyArray1<'py, i64>,
    PyReadonlyArray1<'py, i64>,
    PyReadonlyArray1<'py, i64>,
    PyReadonlyArray1<'py, u64>,
    PyReadonlyArray1<'py, u64>,
    PyReadonlyArray1<'py, u32>,
    PyReadonlyArray1<'py, u32>,
);

/// `waystage.native_options.datasets.DedupProfileOptions`.
#[derive(FromPyObject)]
struct DedupProfileOptions {
    method: String,
    threads: usize,
    bytes_per_s: u64,
    part: Option<PathBuf>,
    parts: u32,
    number: u32,
    label: String,
}

impl task::Profile for Profile {
    fn wait(&self, timeout: Duration) -> bool {
        self.wait(timeout)
    }

    fn progress(&self) -> (u64, u64, u64) {
        let now = self.progress();
        (now.bytes, now.files, now.of)
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

    const HAS_LOADERS: bool = true;

    fn set_loaders(&self, loaders: &Loaders) -> PyResult<()> {
        match loaders {
            Loaders::Each(most) => self.limit_readers(*most),
            Loaders::By(by) => {
                let limits = by.iter().map(|(number, most)| (*number, *most));
                self.limit_readers_of(limits).map_err(|unknown| {
                    let text = format!("no file is on storage target {unknown}");
                    PyValueError::new_err(text)
                })?;
            }
        }
        Ok(())
    }
}

/// A profile in progress.
#[pyclass(frozen, extends = Task, module = "waystage._native")]
struct DedupProfile(Arc<Running<Profile>>);

/// (path, error) of files that could not be used.
type PyErrors<'py> = Vec<(Bound<'py, PyBytes>, String)>;

#[pymethods]
impl DedupProfile {
    #[new]
    fn new(
        py: Python<'_>,
        root: PathBuf,
        files: PyFiles<'_>,
        options: DedupProfileOptions,
    ) -> PyResult<PyClassInitializer<Self>> {
        let DedupProfileOptions { method, threads, bytes_per_s, part, parts, number, label } =
            options;
        let (method, digest) = method_of(&method)?;
        let tasks = tasks(&files)?;
        let parameters = Parameters { method, digest, parts, part: number, label };
        let options = Options { root, parameters, threads, bytes_per_s, part };
        let profile = py.detach(|| Profile::start(options, tasks)).map_err(OfProfile).or_raise()?;
        let running = Running::new(profile);
        Ok(Task::handle(running, Self))
    }

    /// Wait for the end and take the result: (report, [(path, error)]).
    fn finish<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyDict>, PyErrors<'py>)> {
        let profile = self.0.take(py)?;
        let done = py.detach(|| profile.finish()).map_err(OfProfile).or_raise()?;
        let errors = done.errors.into_iter();
        let errors = errors.map(|(path, error)| (PyBytes::new(py, &path), error)).collect();
        Ok((describe(py, &done.report)?, errors))
    }
}

fn tasks(files: &PyFiles<'_>) -> PyResult<Vec<FileTask>> {
    let uneven = || uneven("files");
    let (offsets, data) = (files.0.as_slice()?, files.1.as_slice()?);
    let (size, mtime, ctime) = (files.2.as_slice()?, files.3.as_slice()?, files.4.as_slice()?);
    let (inode, device) = (files.5.as_slice()?, files.6.as_slice()?);
    let (links, target) = (files.7.as_slice()?, files.8.as_slice()?);
    let count = size.len();
    if [mtime.len(), ctime.len(), inode.len(), device.len(), links.len(), target.len()]
        != [count; 6]
        || offsets.len() != count + 1
    {
        return Err(uneven());
    }
    let paths = paths(offsets, data).ok_or_else(uneven)?;
    (0..count)
        .map(|i| {
            Ok(FileTask {
                path: paths[i].to_vec(),
                size: u64::try_from(size[i]).map_err(|_| uneven())?,
                mtime_ns: mtime[i],
                ctime_ns: ctime[i],
                inode: inode[i],
                device: device[i],
                links: links[i],
                target: target[i],
            })
        })
        .collect()
}

/// Join slices of parts, `slices[0]` to `slices[1]`: (parameters, report). `progress` is called with the number of
/// chunks joined.
#[pyfunction]
#[pyo3(signature = (parts, progress, slices = (0, engine::SLICES)))]
fn dedup_merge<'py>(
    py: Python<'py>,
    parts: Vec<PathBuf>,
    progress: Py<PyAny>,
    slices: (usize, usize),
) -> PyResult<(Bound<'py, PyDict>, Bound<'py, PyDict>)> {
    let mut reporter = Reporter::new(progress);
    let (first, end) = slices;
    let joined = py.detach(|| engine::merge(&parts, first..end, |chunks| reporter.go_on(chunks)));
    let (parameters, report) = reporter.result(joined)?;
    Ok((describe_question(py, &parameters)?, describe(py, &report)?))
}

/// Estimate from parts, in bounded memory: (parameters, estimate).
#[pyfunction]
fn dedup_estimate<'py>(
    py: Python<'py>,
    parts: Vec<PathBuf>,
    sample: usize,
    seed: u64,
    progress: Py<PyAny>,
) -> PyResult<(Bound<'py, PyDict>, Bound<'py, PyDict>)> {
    let mut reporter = Reporter::new(progress);
    let done =
        py.detach(|| engine::estimate(&parts, sample, seed, |chunks| reporter.go_on(chunks)));
    let (parameters, found) = reporter.result(done)?;
    let estimate = PyDict::new(py);
    estimate.set_item("files", describe_files(py, found.files)?)?;
    estimate.set_item("chunks", found.chunks)?;
    estimate.set_item("bytes", found.bytes)?;
    estimate.set_item("sample", found.sample)?;
    estimate.set_item("distinct_share", found.distinct_share)?;
    estimate.set_item("error", found.error)?;
    estimate.set_item("confidence", engine::CONFIDENCE)?;
    Ok((describe_question(py, &parameters)?, estimate))
}

/// Checks for signals and reports progress while parts are read without the GIL.
struct Reporter {
    progress: Py<PyAny>,
    blocks: u32,
    raised: Option<PyErr>,
}

impl Reporter {
    fn new(progress: Py<PyAny>) -> Self {
        Self { progress, blocks: 0, raised: None }
    }

    fn go_on(&mut self, chunks: u64) -> bool {
        self.blocks += 1;
        if !self.blocks.is_multiple_of(BLOCKS_A_ROUND) {
            return true;
        }
        let called = Python::attach(|py| {
            py.check_signals()?;
            self.progress.call1(py, (chunks,)).map(drop)
        });
        self.raised = called.err();
        self.raised.is_none()
    }

    fn result<T>(self, result: Result<T, LoadError>) -> PyResult<T> {
        self.raised.map_or_else(|| result.map_err(OfProfile).or_raise(), Err)
    }
}

/// The parameters that a part answers.
#[pyfunction]
fn dedup_question(py: Python<'_>, part: PathBuf) -> PyResult<Bound<'_, PyDict>> {
    let parameters = py.detach(|| engine::parameters_of(&part)).map_err(OfProfile).or_raise()?;
    describe_question(py, &parameters)
}

/// Which paths a walk with these patterns would not have reached.
#[pyfunction]
fn excluded_paths<'py>(
    py: Python<'py>,
    patterns: Vec<Vec<u8>>,
    offsets: PyReadonlyArray1<'py, i64>,
    data: PyReadonlyArray1<'py, u8>,
) -> PyResult<Bound<'py, PyArray1<bool>>> {
    let exclude = Exclude::new(patterns);
    let (offsets, data) = (offsets.as_slice()?, data.as_slice()?);
    let found: Option<Vec<bool>> = py.detach(|| {
        let paths = paths(offsets, data)?;
        Some(paths.into_iter().map(|path| exclude.covers(path)).collect())
    });
    let found = found.ok_or_else(|| PyValueError::new_err("a path is outside its column"))?;
    Ok(PyArray1::from_vec(py, found))
}

/// How long the chunks of `data` are, as by `method`.
#[pyfunction]
fn chunk_lengths(py: Python<'_>, data: &[u8], method: &str) -> PyResult<Vec<usize>> {
    let (method, _) = method_of(method)?;
    Ok(py.detach(|| {
        let mut ends = Vec::new();
        method.cut(data, true, &mut Vec::new(), &mut ends);
        let starts = std::iter::once(0).chain(ends.iter().copied());
        ends.iter().zip(starts).map(|(end, start)| end - start).collect()
    }))
}

/// Cut `data` and take the digest of every chunk, in this thread, as a run does: how many chunks there are.
#[pyfunction]
fn chunk_and_digest(py: Python<'_>, data: &[u8], method: &str) -> PyResult<usize> {
    let (method, digest) = method_of(method)?;
    Ok(py.detach(|| engine::digests(method, digest, data, |_| ())))
}

fn describe_question<'py>(
    py: Python<'py>,
    parameters: &Parameters,
) -> PyResult<Bound<'py, PyDict>> {
    let found = PyDict::new(py);
    found.set_item("method", name_of(parameters))?;
    found.set_item("label", &parameters.label)?;
    found.set_item("parts", parameters.parts)?;
    found.set_item("part", parameters.part)?;
    Ok(found)
}

fn describe<'py>(py: Python<'py>, report: &Report) -> PyResult<Bound<'py, PyDict>> {
    let found = PyDict::new(py);
    let pair = |total: Count, distinct: Count| {
        let row = PyDict::new(py);
        row.set_item("chunks", total.chunks)?;
        row.set_item("bytes", total.bytes)?;
        row.set_item("distinct_chunks", distinct.chunks)?;
        row.set_item("distinct_bytes", distinct.bytes)?;
        PyResult::Ok(row)
    };
    found.set_item("files", describe_files(py, report.files)?)?;
    found.set_item("all", pair(report.total.all, report.distinct.all)?)?;
    let types = PyDict::new(py);
    for (number, name) in report.types.iter().enumerate() {
        let of = |kinds: &[Count]| kinds.get(number).copied().unwrap_or_default();
        let total = of(&report.total.kinds);
        if total.chunks > 0 {
            types.set_item(name, pair(total, of(&report.distinct.kinds))?)?;
        }
    }
    found.set_item("types", types)?;
    let sizes = PyDict::new(py);
    for (bin, (total, distinct)) in (0..).zip(report.total.bins.iter().zip(&report.distinct.bins)) {
        if total.chunks > 0 {
            sizes.set_item(engine::bin_floor(bin), pair(*total, *distinct)?)?;
        }
    }
    found.set_item("sizes", sizes)?;
    found.set_item("zero_chunks", report.zeros.chunks)?;
    found.set_item("zero_bytes", report.zeros.bytes)?;
    found.set_item("repeated_files", report.repeated.files)?;
    found.set_item("repeated_bytes", report.repeated.bytes)?;
    found.set_item("index_bytes", report.index_bytes)?;
    found.set_item("has_hole_chunk", report.has_hole_chunk)?;
    Ok(found)
}

fn describe_files(py: Python<'_>, files: Files) -> PyResult<Bound<'_, PyDict>> {
    let counts = [
        ("read", files.read),
        ("bytes", files.bytes),
        ("empty", files.empty),
        ("links", files.links),
        ("vanished", files.vanished),
        ("unreadable", files.unreadable),
        ("changed", files.changed),
        ("hole_chunks", files.hole_chunks),
        ("hole_bytes", files.hole_bytes),
    ];
    by_name(py, counts)
}
