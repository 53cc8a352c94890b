//! Which files a copy takes, and where those go that it replaces: options of copies as Python gives them.

use std::path::PathBuf;

use pyo3::prelude::*;
use waystage_copy::backup::Backup;
use waystage_copy::Limits;

/// `waystage.native_options.copies.FileLimits`.
#[derive(FromPyObject)]
pub(crate) struct PyLimits {
    min_size: Option<u64>,
    max_size: Option<u64>,
    since: Option<i64>,
    until: Option<i64>,
}

impl PyLimits {
    pub(crate) fn limits(&self) -> Limits {
        let Self { min_size, max_size, since, until } = *self;
        Limits { min_size, max_size, since, until }
    }
}

/// `waystage.native_options.copies.BackupOptions`.
#[derive(Clone, FromPyObject)]
pub(crate) struct PyBackup {
    directory: Option<PathBuf>,
    suffix: Vec<u8>,
}

impl PyBackup {
    pub(crate) fn backup(self) -> Backup {
        Backup { directory: self.directory, suffix: self.suffix }
    }
}
