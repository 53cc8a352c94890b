//! Storing a coupled name's versions as they pass: one NumPy file a variable and version.
//!
//! Arrives: boxes of variables, versions that are complete. Leaves: `FOLDER/NAME.VARIABLE.VERSION.npy`.
//! Must not know: connections.
//!
//! Every rank writes its cells to one temporary file, whose name all ranks derive from the version; the rank that
//! completes the version renames it. The format is NumPy's NPY version 1.0 (numpy.lib.format), header padded to 64.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use waystage_coupling::region::Region;
use waystage_coupling::request::Variable;

use crate::error::{argument, Error, Result};

/// Where versions are stored.
pub(crate) struct Store {
    folder: PathBuf,
    name: String,
    /// Variables of the version that is being written.
    written: BTreeSet<String>,
}

impl Store {
    /// Stores versions of `name` in a folder, which is made where it is missing.
    pub(crate) fn new(folder: &Path, name: &str) -> Result<Self> {
        std::fs::create_dir_all(folder)
            .map_err(|error| Error::system(format!("store in {}", folder.display()), &error))?;
        Ok(Self { folder: folder.to_owned(), name: name.to_owned(), written: BTreeSet::new() })
    }

    fn path(&self, version: u64, variable: &str, end: &str) -> PathBuf {
        self.folder.join(format!("{}.{variable}.{version}.npy{end}", self.name))
    }

    /// Writes a box's cells, which are in C order.
    pub(crate) fn put(
        &mut self,
        version: u64,
        variable: &Variable,
        region: &Region,
        cells: &[u8],
    ) -> Result<()> {
        let name = &variable.name;
        if name.contains(['/', '\0']) || name.starts_with('.') {
            return Err(argument(format!("{name:?} cannot be part of a file's name to be stored")));
        }
        let path = self.path(version, name, ".part");
        let failed = |error: io::Error| Error::system(format!("store {}", path.display()), &error);
        let file = self.open(&path).map_err(failed)?;
        let header = header(variable);
        if region.starts().iter().all(|start| *start == 0) {
            file.write_all_at(&header, 0).map_err(failed)?;
        }
        let whole =
            Region::whole(&variable.shape).ok_or_else(|| argument("the shape overflows"))?;
        let element = u64::from(variable.element_bytes);
        let mut result = Ok(());
        region.shared_runs(&whole, region, |from, to, run| {
            let range = (from * element) as usize..((from + run) * element) as usize;
            if let (Ok(()), Some(bytes)) = (&result, cells.get(range)) {
                result = file.write_all_at(bytes, header.len() as u64 + to * element);
            }
        });
        result.map_err(failed)?;
        self.written.insert(name.clone());
        Ok(())
    }

    fn open(&self, path: &Path) -> io::Result<File> {
        let nofollow = libc::O_NOFOLLOW;
        OpenOptions::new().write(true).create(true).custom_flags(nofollow).open(path)
    }

    /// Brings a version's cells to the storage.
    pub(crate) fn flush(&self, version: u64) -> Result<()> {
        for name in &self.written {
            let path = self.path(version, name, ".part");
            let synced = self.open(&path).and_then(|file| file.sync_data());
            synced.map_err(|error| Error::system(format!("store {}", path.display()), &error))?;
        }
        Ok(())
    }

    /// The version was committed; the rank that completed it gives the files their names.
    pub(crate) fn finish(&mut self, version: u64, complete: bool) -> Result<()> {
        let written = std::mem::take(&mut self.written);
        if !complete {
            return Ok(());
        }
        let start = format!("{}.", self.name);
        let end = format!(".{version}.npy.part");
        let failed =
            |error: io::Error| Error::system(format!("store in {}", self.folder.display()), &error);
        let mut names = written;
        // Other ranks may have variables that this one has not.
        for entry in std::fs::read_dir(&self.folder).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            let name = name.to_str().and_then(|name| name.strip_prefix(&start)?.strip_suffix(&end));
            names.extend(name.map(str::to_owned));
        }
        for name in &names {
            let part = self.path(version, name, ".part");
            std::fs::rename(&part, self.path(version, name, "")).map_err(failed)?;
        }
        Ok(())
    }
}

/// The header of an NPY file of the variable in C order.
fn header(variable: &Variable) -> Vec<u8> {
    let sides: Vec<String> = variable.shape.iter().map(u64::to_string).collect();
    let comma = if sides.len() == 1 { "," } else { "" };
    // An element that is no NumPy type is stored as raw bytes.
    let bytes = variable.element_bytes;
    let plain = variable
        .element
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || b"<>|=".contains(&byte));
    let element = if plain && variable.element.len() > 1 {
        variable.element.clone()
    } else {
        format!("|V{bytes}")
    };
    let mut text = format!(
        "{{'descr': '{element}', 'fortran_order': False, 'shape': ({}{comma}), }}",
        sides.join(", ")
    );
    // Magic, version and length take 10 bytes, and a newline ends the header.
    while (10 + text.len() + 1) % 64 != 0 {
        text.push(' ');
    }
    text.push('\n');
    let mut header = b"\x93NUMPY\x01\x00".to_vec();
    header.extend_from_slice(&u16::try_from(text.len()).unwrap_or(u16::MAX).to_le_bytes());
    header.extend_from_slice(text.as_bytes());
    header
}
