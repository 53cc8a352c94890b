//! Where new images go: each is whole, or not there.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Where to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// Files below a folder, as the images they are made from lie below theirs.
    Tree(PathBuf),
    /// One tar file, in the order of the images.
    Shard(PathBuf),
    /// To whoever asks, in the order of the images: files.
    Files,
    /// The same, as pixels.
    Pixels,
}

const UNFINISHED: &str = "unfinished";

/// What a new image is called: the whole old name stays in it, so that no two become one.
pub(crate) fn name_of(path: &[u8], copy: u32, ending: &str) -> Vec<u8> {
    [path, format!("-{copy}.{ending}").as_bytes()].concat()
}

/// Write a file at one moment, with the folders it lies in.
pub(crate) fn write_file(folder: &Path, name: &[u8], bytes: &[u8]) -> io::Result<()> {
    let path = folder.join(OsStr::from_bytes(name));
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    let unfinished = beside(&path);
    let written = fs::write(&unfinished, bytes).and_then(|()| fs::rename(&unfinished, &path));
    if written.is_err() {
        // What is left of it would be in the way; where even that cannot be removed, its name says what it is.
        let _ = fs::remove_file(&unfinished);
    }
    written
}

/// The unfinished form of a file. The name may be of 255 bytes already, so it is hidden by a short one of its own.
fn beside(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default();
    let short = &blake3::hash(name.as_bytes()).to_hex()[..16];
    path.with_file_name(format!(".{short}.{UNFINISHED}"))
}

/// A tar file under way; dropped before it is finished it leaves nothing.
pub(crate) struct Shard {
    tar: Option<tar::Builder<BufWriter<File>>>,
    path: PathBuf,
    unfinished: PathBuf,
}

impl Shard {
    pub(crate) fn create(path: &Path) -> io::Result<Self> {
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(".");
        name.push(UNFINISHED);
        let unfinished = path.with_file_name(name);
        let file = BufWriter::with_capacity(1 << 18, File::create(&unfinished)?);
        Ok(Self { tar: Some(tar::Builder::new(file)), path: path.to_owned(), unfinished })
    }

    pub(crate) fn add(&mut self, name: &[u8], bytes: &[u8]) -> io::Result<()> {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        // The same images give the same shard, whenever and by whomever.
        header.set_mtime(0);
        match &mut self.tar {
            Some(tar) => tar.append_data(&mut header, OsStr::from_bytes(name), bytes),
            None => Ok(()),
        }
    }

    pub(crate) fn finish(mut self) -> io::Result<()> {
        if let Some(tar) = self.tar.take() {
            let mut file = tar.into_inner()?;
            file.flush()?;
            file.get_ref().sync_all()?;
            fs::rename(&self.unfinished, &self.path)?;
        }
        Ok(())
    }
}

impl Drop for Shard {
    fn drop(&mut self) {
        // Gone already where it was finished.
        let _ = fs::remove_file(&self.unfinished);
    }
}
