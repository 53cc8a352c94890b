//! The destination of new images: each appears when it is complete.

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
    /// To the consumer, in the order of the images: files.
    Files,
    /// The same, as pixels.
    Pixels,
}

const UNFINISHED: &str = "unfinished";

/// What a new image is called: the whole old name stays in it, so that no two become one.
pub(crate) fn name_of(path: &[u8], copy: u32, ending: &str) -> Vec<u8> {
    [path, format!("-{copy}.{ending}").as_bytes()].concat()
}

/// Write a file atomically, and the folders above it.
pub(crate) fn write_file(folder: &Path, name: &[u8], bytes: &[u8]) -> io::Result<()> {
    let path = folder.join(OsStr::from_bytes(name));
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    refuse_special(&path)?;
    let unfinished = beside(&path);
    let written = fresh(&unfinished)
        .and_then(|mut file| file.write_all(bytes))
        .and_then(|()| fs::rename(&unfinished, &path));
    if written.is_err() {
        // What is left of it would be in the way; where even that cannot be removed, its name says what it is.
        let _ = fs::remove_file(&unfinished);
    }
    written
}

/// The temporary name of a file. The name may have 255 bytes already, so the temporary one is short and hidden.
fn beside(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default();
    let short = &blake3::hash(name.as_bytes()).to_hex()[..16];
    path.with_file_name(format!(".{short}.{UNFINISHED}"))
}

/// A device, FIFO or socket keeps its place: programs hang on it.
fn refuse_special(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(about) if !about.is_file() && !about.is_dir() && !about.is_symlink() => {
            let text = "is a device, FIFO or socket, which is not replaced";
            Err(io::Error::new(io::ErrorKind::AlreadyExists, text))
        }
        _ => Ok(()),
    }
}

/// A new file: what an interrupted run left makes room, and a link that others have put there is not followed.
fn fresh(path: &Path) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => File::options().write(true).create_new(true).open(path),
    }
}

/// A tar file in progress; dropped before it is finished it is removed.
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
        refuse_special(path)?;
        let file = BufWriter::with_capacity(1 << 18, fresh(&unfinished)?);
        Ok(Self { tar: Some(tar::Builder::new(file)), path: path.to_owned(), unfinished })
    }

    pub(crate) fn add(&mut self, name: &[u8], bytes: &[u8]) -> io::Result<()> {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        // The same images give the same shard at any time, for any user.
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn others_links_are_not_followed_and_sockets_keep_their_place() {
        let folder = std::env::temp_dir().join(format!("waystage-sink-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let (victim, image) = (folder.join("victim"), folder.join("image.png"));
        fs::write(&victim, b"mine").expect("written");
        symlink(&victim, beside(&image)).expect("a planted link");
        write_file(&folder, b"image.png", b"new").expect("written");
        assert_eq!(fs::read(&victim).expect("read"), b"mine");
        assert_eq!(fs::read(&image).expect("read"), b"new");
        symlink(&victim, folder.join("all.tar.unfinished")).expect("a planted link");
        Shard::create(&folder.join("all.tar")).expect("begun").finish().expect("written");
        assert_eq!(fs::read(&victim).expect("read"), b"mine");
        let socket = folder.join("socket.png");
        let _listening = UnixListener::bind(&socket).expect("a socket");
        assert!(write_file(&folder, b"socket.png", b"new").is_err());
        assert!(Shard::create(&socket).is_err());
        assert!(!socket.is_file());
        fs::remove_dir_all(&folder).expect("removed");
    }
}
