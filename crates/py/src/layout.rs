//! Layouts of files: `parse_layout`, `read_layout`.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use waystage_catalog::layout::{
    gluster, reader_named, Component, FileSystems, Flags, Layout, LayoutReader, Mirrors, Object,
    ObjectId, Sample, EOF, READERS,
};

use crate::errors::OrRaise;

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(parse_layout, module)?)?;
    module.add_function(wrap_pyfunction!(read_layout, module)?)?;
    module.add_function(wrap_pyfunction!(storage_targets, module)?)
}

/// The layout that `data` says a file of `size` bytes has.
#[pyfunction]
#[pyo3(signature = (kind, data, size, *, block_size=None, mirrors="all", limit=1000))]
fn parse_layout<'py>(
    py: Python<'py>,
    kind: &str,
    data: &[u8],
    size: u64,
    block_size: Option<u64>,
    mirrors: &str,
    limit: usize,
) -> PyResult<Bound<'py, PyDict>> {
    let Some(reader) = reader_named(kind) else {
        let names = READERS.map(LayoutReader::name).join(", ");
        return Err(PyValueError::new_err(format!("kind {kind:?} is none of {names}")));
    };
    let parsed = py.detach(|| match block_size {
        Some(block_size) if kind == gluster::Reader.name() => {
            gluster::parse_sharded(&[Some(data)], block_size)
        }
        _ => reader.parse(data),
    });
    let layout = parsed.or_raise()?;
    describe(py, &layout, size, mirrors, limit)
}

/// The layout of the file or directory at `path`, as its file system tells; None where it tells none.
#[pyfunction]
#[pyo3(signature = (path, *, size=None, mirrors="all", limit=1000))]
fn read_layout<'py>(
    py: Python<'py>,
    path: PathBuf,
    size: Option<u64>,
    mirrors: &str,
    limit: usize,
) -> PyResult<Option<Bound<'py, PyDict>>> {
    // What blocks when it is opened, or does something, is no file and has no layout.
    let about = py.detach(|| std::fs::metadata(&path)).map_err(|error| os_error(&path, &error))?;
    if !about.is_file() && !about.is_dir() {
        return Ok(None);
    }
    let read = py
        .detach(|| open(&path).map(|file| FileSystems::new().layout_of(file)))
        .map_err(|error| os_error(&path, &error))?;
    let layout = read.or_raise()?;
    let size = size.unwrap_or(if about.is_file() { about.len() } else { 0 });
    layout.map(|layout| describe(py, &layout, size, mirrors, limit)).transpose()
}

/// The names of the storage targets of a tree or a file, from a sample.
#[pyfunction]
#[pyo3(signature = (path, *, files=64, entries=1024))]
fn storage_targets(py: Python<'_>, path: PathBuf, files: usize, entries: usize) -> Vec<String> {
    let found = py.detach(|| Sample { files, entries }.targets(&path));
    found.iter().map(ToString::to_string).collect()
}

fn open(path: &Path) -> std::io::Result<File> {
    // O_NONBLOCK: what became a FIFO meanwhile must not keep us.
    const O_NONBLOCK: i32 = 0o4000;
    OpenOptions::new().read(true).custom_flags(O_NONBLOCK).open(path)
}

/// OSError(number, text, path), of which Python makes FileNotFoundError and the like.
fn os_error(path: &Path, error: &std::io::Error) -> PyErr {
    let text = error.to_string();
    // Rust appends the number in parentheses, which Python puts before.
    let text = text.split(" (os error").next().unwrap_or_default().to_owned();
    PyOSError::new_err((error.raw_os_error(), text, path.to_path_buf()))
}

/// A layout as plain values, with at most `limit` extents and as many shares.
fn describe<'py>(
    py: Python<'py>,
    layout: &Layout,
    size: u64,
    mirrors: &str,
    limit: usize,
) -> PyResult<Bound<'py, PyDict>> {
    let way = match mirrors {
        "all" => Mirrors::All,
        "best" => Mirrors::Best,
        number => Mirrors::One(number.parse().map_err(|_| {
            PyValueError::new_err(format!("mirrors {number:?} is neither all, best, nor a number"))
        })?),
    };
    let answer = PyDict::new(py);
    answer.set_item("kind", layout.kind())?;
    answer.set_item("generation", layout.generation())?;
    answer.set_item("template", layout.is_template())?;
    answer.set_item("size", size)?;
    answer.set_item("mirrors", layout.mirrors())?;
    answer.set_item("targets", names(layout))?;
    let components = layout.components().iter().map(|component| of_component(py, component));
    answer.set_item("components", components.collect::<PyResult<Vec<_>>>()?)?;
    answer.set_item("extent_count", layout.extents(size, way).left())?;
    let extents = layout.extents(size, way).take(limit).map(|extent| {
        let of = PyDict::new(py);
        of.set_item("target", extent.target.map(ToString::to_string))?;
        of.set_item("mirror", extent.mirror)?;
        of.set_item("component", extent.component)?;
        of.set_item("object", extent.object)?;
        of.set_item("offset", extent.file_offset)?;
        of.set_item("object_offset", extent.object_offset)?;
        of.set_item("length", extent.length)?;
        of.set_item("flags", flag_names(extent.flags))?;
        Ok(of)
    });
    answer.set_item("extents", extents.collect::<PyResult<Vec<_>>>()?)?;
    let shares = layout.shares(size, way).take(limit).map(|share| {
        let of = PyDict::new(py);
        of.set_item("target", share.target.map(ToString::to_string))?;
        of.set_item("mirror", share.mirror)?;
        of.set_item("component", share.component)?;
        of.set_item("object", share.object)?;
        of.set_item("offset", share.file_offset)?;
        of.set_item("object_offset", share.object_offset)?;
        of.set_item("bytes", share.bytes)?;
        of.set_item("flags", flag_names(share.flags))?;
        Ok(of)
    });
    answer.set_item("objects", shares.collect::<PyResult<Vec<_>>>()?)?;
    Ok(answer)
}

fn of_component<'py>(py: Python<'py>, component: &Component) -> PyResult<Bound<'py, PyDict>> {
    let of = PyDict::new(py);
    let limited = |number: u64| (number != EOF).then_some(number);
    of.set_item("mirror", component.mirror)?;
    of.set_item("start", component.start)?;
    of.set_item("end", limited(component.end))?;
    of.set_item("flags", flag_names(component.flags))?;
    if let Some(planned) = component.planned {
        of.set_item("stripe_size", planned.unit)?;
        of.set_item("stripe_count", planned.count)?;
    } else {
        of.set_item("stripe_size", limited(component.striping.unit))?;
        of.set_item("stripe_count", component.striping.count)?;
    }
    of.set_item("object_size", limited(component.striping.object_size))?;
    of.set_item("pool", component.pool.as_deref())?;
    let objects = component.objects.iter().map(|object| of_object(py, object));
    of.set_item("objects", objects.collect::<PyResult<Vec<_>>>()?)?;
    Ok(of)
}

fn of_object<'py>(py: Python<'py>, object: &Object) -> PyResult<Bound<'py, PyDict>> {
    let of = PyDict::new(py);
    of.set_item("target", object.target.as_ref().map(ToString::to_string))?;
    match &object.id {
        ObjectId::Implied => of.set_item("id", py.None())?,
        ObjectId::Numbers(first, second) => of.set_item("id", format!("{first:#x}:{second:#x}"))?,
        ObjectId::Path(path) => of.set_item("id", PyBytes::new(py, path))?,
    }
    of.set_item("flags", flag_names(object.flags))?;
    Ok(of)
}

fn names(layout: &Layout) -> Vec<String> {
    layout.targets().into_iter().map(ToString::to_string).collect()
}

fn flag_names(flags: Flags) -> Vec<&'static str> {
    flags.names().collect()
}
