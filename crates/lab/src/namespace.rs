//! Sockets inside other network namespaces.
//!
//! A socket belongs for good to the namespace of the thread that created it. So a short-lived thread
//! enters the namespace, opens the sockets and ends; no thread that lives on ever changes its own.

use std::fs::File;
use std::io;
use std::thread;

use nix::sched::{setns, CloneFlags};

use crate::ProbeError;

/// Run `open` in the network namespace `name` of `/run/netns`, or in the caller's own for `None`.
pub(crate) fn within<T, F>(name: Option<&str>, open: F) -> Result<T, ProbeError>
where
    T: Send,
    F: FnOnce() -> Result<T, ProbeError> + Send,
{
    let Some(name) = name else { return open() };
    let failed = |source: io::Error| ProbeError::Namespace { name: name.to_owned(), source };
    if name.is_empty() || name.contains(['/', '\0']) || name.starts_with('.') {
        return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, "not a namespace's name")));
    }
    let handle = File::open(format!("/run/netns/{name}")).map_err(failed)?;
    thread::scope(|scope| {
        scope
            .spawn(|| {
                setns(&handle, CloneFlags::CLONE_NEWNET).map_err(|errno| failed(errno.into()))?;
                open()
            })
            .join()
            .unwrap_or(Err(ProbeError::State("opening sockets in a namespace panicked")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_that_is_not_there_is_named() {
        let error = within(Some("waystage-no-such"), || Ok(())).unwrap_err();
        assert!(error.to_string().contains("waystage-no-such"), "{error}");
    }

    #[test]
    fn a_name_cannot_leave_the_folder_of_namespaces() {
        for name in ["../../proc/1/ns/net", "", ".hidden", "a/b"] {
            assert!(matches!(within(Some(name), || Ok(())), Err(ProbeError::Namespace { .. })));
        }
    }
}
