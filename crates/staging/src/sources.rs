//! The files of a transfer: checked before anything is sent.
//!
//! Arrives: names. Leaves: the names under which they are copied; or why one is not. Must not know: connections.

use std::os::fd::AsFd;

use rustix::io::Errno;
use waystage_catalog::Root;
use waystage_copy::stat::{letter, split, stat_at};
use waystage_copy::Names;

use crate::error::{shown, StagingError};

/// All of these are regular files.
pub(crate) fn check_sources(root: &Root, names: &Names) -> Result<(), StagingError> {
    for name in names.iter() {
        let (directory, last) = split(name);
        let failed = |errno: Errno| StagingError::file(name, errno);
        let folder = root.directory(directory).map_err(failed)?;
        let stat = stat_at(folder.as_fd(), last).map_err(failed)?;
        if letter(stat.stx_mode) != b'f' {
            let text = format!("{}: is no regular file", shown(name));
            return Err(StagingError::Refused(text));
        }
    }
    Ok(())
}

/// The last names of files, under which they are copied.
pub(crate) fn last_names(names: &Names) -> Result<Names, StagingError> {
    let mut list = Vec::new();
    for name in names.iter() {
        list.extend_from_slice(split(name).1);
        list.push(0);
    }
    Names::parse(&list, true).map_err(|error| StagingError::Refused(format!("the files: {error}")))
}
