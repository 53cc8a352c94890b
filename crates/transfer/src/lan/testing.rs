//! A folder for a test, which goes with it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process;

pub(crate) struct Scratch(PathBuf);

impl Scratch {
    /// `name` must be the test's own.
    pub(crate) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("waystage-{}-{name}", process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).unwrap();
        let mut names: Vec<String> =
            entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
