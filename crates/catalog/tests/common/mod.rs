//! What the tests of this crate share.

use std::fs;
use std::path::PathBuf;

/// A folder that is empty at first and gone in the end.
pub struct Scratch(pub PathBuf);

impl Scratch {
    pub fn new(name: &str) -> Self {
        let test = env!("CARGO_CRATE_NAME");
        let path =
            std::env::temp_dir().join(format!("waystage-{test}-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
