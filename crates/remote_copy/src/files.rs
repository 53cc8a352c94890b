//! Copies of listed files into one directory, over any channel: what the staging of a cluster needs.
//!
//! Arrives: a directory, names, a channel. Leaves: the files, under their last names. Must not know: how messages
//! travel.

use std::os::fd::OwnedFd;
use std::path::Path;

use waystage_catalog::Root;
use waystage_copy::source::Source;
use waystage_copy::{Fsync, Limits, Names, Update, Verify};

use crate::channel::Channel;
use crate::copy_state::CopyState;
use crate::endpoints::name_of;
use crate::error::WanError;
use crate::privileges::PeerPrivileges;
use crate::receive::receive;
use crate::receiver_state::Target;
use crate::request_filter::RequestFilter;
use crate::send::{send, Origin};
use crate::session::{CopyOptions, Dry};

/// Files are copied always, and without owners or extended attributes.
fn options() -> CopyOptions {
    CopyOptions {
        exclude: Vec::new(),
        include: None,
        copy_links: false,
        backup: None,
        limits: Limits::default(),
        listed: true,
        one_file_system: false,
        update: Update::Always,
        fsync: Fsync::None,
        verify: Verify::None,
        dry: Dry::No,
        restart: true,
        xattrs: false,
        owners: false,
        hard_links: false,
    }
}

/// Send the files that have these names below `root`; returns when the channel has taken them.
///
/// # Errors
/// Where the channel has ended or the peer gave the copy up. Files that could not be read are problems of `state`.
pub fn send_files(
    root: OwnedFd,
    names: &Names,
    channel: &dyn Channel,
    state: &CopyState,
) -> Result<(), WanError> {
    let path = name_of(&root);
    let opened = Root::open(&path).map_err(|error| WanError::io("open the source", &error))?;
    let source = Source { root: opened, path, single: None };
    let origin = Origin { source, _held: root, flat: true };
    send(&origin, Some(names), &options(), channel, state, 1)
}

/// Receive files into `directory`; returns when all are complete. `asked` holds the only names that may come, where
/// the sender does not choose them.
///
/// # Errors
/// Where the channel has ended, the peer breaks the protocol, or the directory cannot be written.
pub fn receive_files(
    directory: OwnedFd,
    shown: &Path,
    asked: Option<&Names>,
    channel: &dyn Channel,
    state: &CopyState,
) -> Result<(), WanError> {
    let options = options();
    let target = Target {
        root: name_of(&directory),
        _held: directory,
        rename: None,
        shown: shown.to_path_buf(),
        from: b"staging:".to_vec(),
        privileges: PeerPrivileges::in_client(false),
        filter: asked.map_or_else(RequestFilter::anything, |names| {
            RequestFilter::of(&options, Some(names), None)
        }),
    };
    receive(&target, &options, channel, state, 1)
}
