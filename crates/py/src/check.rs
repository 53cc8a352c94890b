//! Entries of a catalog compared with the file system: `CheckedTree`.

use std::os::fd::IntoRawFd;
use std::path::PathBuf;

use numpy::{PyArray1, PyReadonlyArray1};
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use waystage_catalog::check::{Differences, Recorded};
use waystage_catalog::checksum::Rule;
use waystage_catalog::layout::reader_at;
use waystage_catalog::{self as data, Columns, Objects};

use crate::errors::uneven;

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let names: Vec<_> = Differences::ALL.iter().map(|(_, name)| *name).collect();
    module.add("CHECK_KINDS", names)?;
    module.add("CHECKSUM_ALGORITHM", data::checksum::ALGORITHM)?;
    module.add_function(wrap_pyfunction!(hash_paths, module)?)?;
    module.add_class::<CheckedTree>()
}

/// A number for each path, the same wherever the path is met.
#[pyfunction]
fn hash_paths<'py>(
    py: Python<'py>,
    directories: Strings<'py>,
    directory: PyReadonlyArray1<'py, i32>,
    names: Strings<'py>,
) -> PyResult<Bound<'py, PyArray1<u64>>> {
    let directories = (directories.0.as_slice()?, directories.1.as_slice()?);
    let names = (names.0.as_slice()?, names.1.as_slice()?);
    let directory = directory.as_slice()?;
    let hashes = py
        .detach(|| data::hash_paths(directories, directory, names))
        .map_err(|_| uneven("paths"))?;
    Ok(PyArray1::from_vec(py, hashes))
}

/// A catalogued tree whose files are opened with a check.
#[pyclass(frozen, module = "waystage._native")]
struct CheckedTree(data::CheckedTree);

/// (type, size, mtime, ctime, inode, layout, generation): see `Recorded`.
type PyRecorded = (i8, i64, i64, i64, u64, i8, u32);

/// (file or None, differences, (type, size, mtime, ctime, inode) now, layout now or None, errno).
type PyOpened<'py> =
    (Option<i32>, u16, Option<(i8, i64, i64, i64, u64)>, Option<Bound<'py, PyDict>>, i32);

/// (component or -1, object, target or None, offset, length, digest or None).
type PySum<'py> = (i32, u64, Option<u32>, u64, u64, Option<Bound<'py, PyBytes>>);

/// (differences, (type, size, mtime, ctime, inode, layout, generation) now or None, sums or None, errno).
type PySummed<'py> = (u16, Option<PyRecorded>, Option<Vec<PySum<'py>>>, i32);

/// Offsets and bytes of strings.
pub(crate) type Strings<'py> = (PyReadonlyArray1<'py, i32>, PyReadonlyArray1<'py, u8>);

/// Columns of a catalog's entries, by name.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct CheckColumns<'py> {
    directories: Strings<'py>,
    directory: PyReadonlyArray1<'py, i32>,
    names: Strings<'py>,
    kind: PyReadonlyArray1<'py, i8>,
    size: PyReadonlyArray1<'py, i64>,
    mtime: PyReadonlyArray1<'py, i64>,
    ctime: PyReadonlyArray1<'py, i64>,
    inode: PyReadonlyArray1<'py, u64>,
}

#[pymethods]
impl CheckedTree {
    #[new]
    fn new(py: Python<'_>, root: PathBuf) -> PyResult<Self> {
        let opened = py.detach(|| data::CheckedTree::open(&root));
        opened.map(Self).map_err(|error| {
            let number = error.raw_os_error();
            PyOSError::new_err((number, "cannot be opened as a directory", root))
        })
    }

    /// Open a file and hold it against what was recorded of it. The descriptor is the caller's to close.
    fn open<'py>(
        &self,
        py: Python<'py>,
        path: &[u8],
        recorded: PyRecorded,
    ) -> PyResult<PyOpened<'py>> {
        let recorded = unpacked(recorded);
        match py.detach(|| self.0.open_file(path, &recorded)) {
            Err(failed) => {
                let number = failed.error.raw_os_error();
                Ok((None, failed.differences.bits(), None, None, number))
            }
            Ok(opened) => {
                let now = data::check::as_recorded(&opened.stat);
                let now = (now.kind, now.size, now.mtime, now.ctime, now.inode);
                let layout = opened.layout.map(|layout| objects(py, &layout)).transpose()?;
                let bits = opened.differences.bits();
                Ok((Some(opened.file.into_raw_fd()), bits, Some(now), layout, 0))
            }
        }
    }

    /// The checksum of each object of a file, which is held against what was recorded of it.
    fn sum<'py>(
        &self,
        py: Python<'py>,
        path: &[u8],
        recorded: PyRecorded,
        version: u32,
    ) -> PyResult<PySummed<'py>> {
        let (recorded, rule) = (unpacked(recorded), rule_of(version)?);
        let summed = match py.detach(|| self.0.sum_file(path, &recorded, rule)) {
            Ok(summed) => summed,
            Err(failed) => {
                return Ok((failed.differences.bits(), None, None, failed.error.raw_os_error()));
            }
        };
        let now = summed.now;
        let (layout, generation) = summed.layout;
        let now = (now.kind, now.size, now.mtime, now.ctime, now.inode, layout, generation);
        let plain = |(sum, number): (data::checksum::Sum, Option<u32>)| {
            let component = sum.component.and_then(|index| i32::try_from(index).ok());
            let digest = sum.digest.map(|digest| PyBytes::new(py, &digest));
            (component.unwrap_or(-1), sum.object, number, sum.offset, sum.length, digest)
        };
        let sums = summed.sums.map(|sums| sums.into_iter().map(plain).collect());
        Ok((summed.differences.bits(), Some(now), sums, 0))
    }

    /// Repair objects from the file of the same path below `donor`: which of `wanted` were.
    fn repair(
        &self,
        py: Python<'_>,
        donor: &Self,
        path: &[u8],
        recorded: PyRecorded,
        version: u32,
        wanted: Vec<(usize, [u8; 16])>,
    ) -> PyResult<Vec<bool>> {
        let (recorded, rule) = (unpacked(recorded), rule_of(version)?);
        let repaired = py.detach(|| self.0.repair_file(&donor.0, path, &recorded, rule, &wanted));
        repaired.map_err(|error| {
            let text = std::io::Error::from(error).to_string();
            let text = text.split(" (os error").next().unwrap_or_default().to_owned();
            PyOSError::new_err((error.raw_os_error(), text))
        })
    }

    /// The differences of each of these entries, as bits; only directories are opened.
    fn check<'py>(
        &self,
        py: Python<'py>,
        columns: CheckColumns<'py>,
    ) -> PyResult<Bound<'py, PyArray1<u16>>> {
        let of = columns;
        let columns = Columns {
            directories: (of.directories.0.as_slice()?, of.directories.1.as_slice()?),
            directory: of.directory.as_slice()?,
            names: (of.names.0.as_slice()?, of.names.1.as_slice()?),
            kind: of.kind.as_slice()?,
            size: of.size.as_slice()?,
            mtime: of.mtime.as_slice()?,
            ctime: of.ctime.as_slice()?,
            inode: of.inode.as_slice()?,
        };
        let found = py.detach(|| self.0.compare_entries(&columns)).map_err(|_| {
            PyValueError::new_err("the columns of entries do not fit together, or are damaged")
        })?;
        let bits = found.into_iter().map(Differences::bits).collect();
        Ok(PyArray1::from_vec(py, bits))
    }

    /// How many entries were `checked` and `stale`, and how many differed in each kind.
    fn counts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let counts = self.0.counts();
        let by_name = PyDict::new(py);
        by_name.set_item("checked", counts.checked)?;
        by_name.set_item("stale", counts.stale)?;
        for ((_, name), count) in Differences::ALL.iter().zip(counts.by_kind) {
            by_name.set_item(name, count)?;
        }
        Ok(by_name)
    }

    /// Bytes of files summed so far, those of files in hand among them.
    fn summed_bytes(&self) -> u64 {
        self.0.summed_bytes()
    }

    /// Paths of entries that did not hold, and whether these are all.
    fn stale_paths<'py>(&self, py: Python<'py>) -> (Vec<Bound<'py, PyBytes>>, bool) {
        let (paths, all) = self.0.stale_paths();
        (paths.iter().map(|path| PyBytes::new(py, path)).collect(), all)
    }

    /// (number, name) of the storage targets of layouts that were read anew.
    fn targets(&self) -> Vec<(u32, String)> {
        self.0.targets()
    }
}

fn rule_of(version: u32) -> PyResult<Rule> {
    Rule::of_version(version)
        .ok_or_else(|| PyValueError::new_err(format!("checksums have no version {version}")))
}

fn unpacked((kind, size, mtime, ctime, inode, layout, generation): PyRecorded) -> Recorded {
    let generation = Recorded::generation_of(layout, generation);
    Recorded { kind, size, mtime, ctime, inode, generation }
}

/// A layout in the columns of a catalog.
fn objects<'py>(py: Python<'py>, layout: &Objects) -> PyResult<Bound<'py, PyDict>> {
    let of = PyDict::new(py);
    of.set_item("layout", reader_at(layout.kind).map(|reader| reader.name()))?;
    of.set_item("layout_generation", layout.generation)?;
    of.set_item("stripe_size", layout.stripe_size)?;
    let held: Vec<_> =
        layout.objects.iter().map(|held| (held.target, held.offset, held.length)).collect();
    of.set_item("objects", held)?;
    Ok(of)
}
