//! The server of a session with another host, and keys.

use std::path::PathBuf;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use waystage_protocol::congestion::Mode;
use waystage_transport::identity::{Identity, PublicKey};
use waystage_transport::Peer;

use crate::errors::OrRaise;
use crate::task::duration;

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(wan_make_key, module)?)?;
    module.add_function(wrap_pyfunction!(wan_read_key, module)?)?;
    module.add_function(wrap_pyfunction!(wan_fingerprint, module)?)?;
    module.add_function(wrap_pyfunction!(wan_loopback, module)?)?;
    module.add_function(wrap_pyfunction!(wan_tls_stream, module)?)
}

/// `waystage.native_options.peers.Peer`.
#[derive(FromPyObject)]
pub(crate) struct PyPeer {
    host: String,
    port: u16,
    user: String,
    key: PathBuf,
    trusted: Option<String>,
    mode: String,
    rate_bytes_per_s: Option<u64>,
    udp_wait_s: Option<f64>,
}

impl PyPeer {
    /// The peer, with this host's key read from its file.
    pub(crate) fn open(self, py: Python<'_>) -> PyResult<Peer> {
        Ok(Peer {
            host: self.host,
            port: self.port,
            user: self.user,
            identity: py.detach(|| Identity::load(&self.key)).or_raise()?,
            trusted: self.trusted.as_deref().map(PublicKey::parse).transpose().or_raise()?,
            mode: mode_of(&self.mode)?,
            rate_bytes_per_s: self.rate_bytes_per_s,
            udp_wait: self.udp_wait_s.map(duration).transpose()?,
        })
    }
}

pub(crate) fn mode_of(name: &str) -> PyResult<Mode> {
    name.parse()
        .map_err(|unknown: waystage_protocol::Error| PyValueError::new_err(unknown.to_string()))
}

/// Make a key in a new file; the line with its public half.
#[pyfunction]
fn wan_make_key(py: Python<'_>, path: PathBuf) -> PyResult<String> {
    py.detach(|| Identity::create(&path)).map(|identity| identity.public.line()).or_raise()
}

/// The line with the public half of the key in a file.
#[pyfunction]
fn wan_read_key(py: Python<'_>, path: PathBuf) -> PyResult<String> {
    py.detach(|| Identity::load(&path)).map(|identity| identity.public.line()).or_raise()
}

/// The fingerprint of the key on a line.
#[pyfunction]
fn wan_fingerprint(line: &str) -> PyResult<String> {
    PublicKey::parse(line).map(|key| key.fingerprint()).or_raise()
}

/// Seconds, bytes of a datagram, packets lost and sent, of transfers over the loopback interface.
#[pyfunction]
#[pyo3(signature = (bytes, largest_datagram, mode, connections=1))]
fn wan_loopback(
    py: Python<'_>,
    bytes: u64,
    largest_datagram: usize,
    mode: &str,
    connections: u32,
) -> PyResult<(f64, u64, u64, u64)> {
    let mode = mode_of(mode)?;
    let measured = py
        .detach(|| waystage_loopback::datagrams(bytes, largest_datagram, mode, connections))
        .or_raise()?;
    Ok((measured.seconds, measured.datagram_bytes, measured.lost_packets, measured.sent_packets))
}

/// Seconds that TLS over TCP takes on the loopback interface.
#[pyfunction]
fn wan_tls_stream(py: Python<'_>, bytes: u64, segment: u32) -> PyResult<f64> {
    py.detach(|| waystage_loopback::stream(bytes, segment)).or_raise()
}
