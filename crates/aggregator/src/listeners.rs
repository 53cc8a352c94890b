//! The sockets on which the process is reached.
//!
//! Arrives: options. Leaves: listening sockets, the address for other nodes. Must not know: who connects.

use std::io;
use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use crate::options::Options;

/// The sockets.
pub struct Listeners {
    /// For ranks.
    pub unix: UnixListener,
    /// For processes of other nodes.
    pub tcp: TcpListener,
    /// `NAME@HOST:PORT`.
    pub address: String,
}

fn explained(error: &io::Error, text: String) -> io::Error {
    io::Error::new(error.kind(), format!("{text}: {error}"))
}

/// Bind both. A process that takes the place of one that was killed takes its port too, which other nodes know.
pub fn bind(options: &Options) -> io::Result<Listeners> {
    let unix = bind_unix(&options.socket)?;
    unix.set_nonblocking(true)?;
    let (host, port) = options.listen.rsplit_once(':').ok_or_else(|| {
        let text = format!("{:?} is no address to listen on: give ADDRESS:PORT", options.listen);
        io::Error::new(io::ErrorKind::InvalidInput, text)
    })?;
    let memo = PathBuf::from(format!("{}.port", options.socket.display()));
    let before = std::fs::read_to_string(&memo).ok().filter(|_| port == "0");
    let again = before.and_then(|port| TcpListener::bind(format!("{host}:{}", port.trim())).ok());
    let tcp = match again {
        Some(tcp) => tcp,
        None => TcpListener::bind(&options.listen)
            .map_err(|error| explained(&error, format!("cannot listen on {}", options.listen)))?,
    };
    tcp.set_nonblocking(true)?;
    let port = tcp.local_addr()?.port();
    // Without it a successor has another port, and its ranks say so.
    let _ = std::fs::write(&memo, port.to_string());
    Ok(Listeners { unix, tcp, address: format!("{}@{host}:{port}", options.name) })
}

fn bind_unix(path: &Path) -> io::Result<UnixListener> {
    let folder =
        path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let found = std::fs::metadata(folder).map_err(|error| {
        explained(&error, format!("the socket's directory {}", folder.display()))
    })?;
    let uid = rustix::process::geteuid().as_raw();
    if found.uid() != uid || found.permissions().mode() & 0o077 != 0 {
        let text = format!(
            "the socket's directory {} must belong to this user and have the mode 0700",
            folder.display()
        );
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
    }
    if path.exists() {
        if UnixStream::connect(path).is_ok() {
            let text = format!("{}: another process uses this socket already", path.display());
            return Err(io::Error::new(io::ErrorKind::AddrInUse, text));
        }
        std::fs::remove_file(path)?;
    }
    UnixListener::bind(path)
        .map_err(|error| explained(&error, format!("cannot listen on {}", path.display())))
}
