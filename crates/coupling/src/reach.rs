//! Connecting to a process that holds a directory or pieces of a name.

use std::io;
use std::time::{Duration, Instant};

use crate::address::{host, Address};
use crate::link::Link;
use crate::wire::Token;

/// Connects to a process, through shared memory's socket where it is on this host.
///
/// # Errors
/// The kernel's; `PermissionDenied` where the name or the token is unknown there.
pub fn connect(
    address: &Address,
    name: &str,
    token: &Token,
    lease: Duration,
) -> io::Result<(Link, String)> {
    let near = if address.host == host() { Link::to_path(&address.path).ok() } else { None };
    let link = match (near, address.tcp) {
        (Some(link), _) => link,
        (None, Some(tcp)) => Link::to_address(tcp, lease)?,
        (None, None) => return Err(io::ErrorKind::HostUnreachable.into()),
    };
    let found = link.introduce(name, token, Some(Instant::now() + lease))?;
    Ok((link, found))
}
