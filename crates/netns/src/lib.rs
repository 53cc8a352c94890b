//! Sockets inside other network namespaces.
//!
//! Arrives: a namespace's name, and what to open in it.
//! Leaves: what was opened.
//! Must not know: what the sockets are for.
//!
//! A socket belongs for good to the namespace of the thread that created it. So a short-lived thread
//! enters the namespace, opens the sockets and ends; no thread that lives on ever changes its own.

use std::fmt;
use std::fs::File;
use std::io;
use std::panic;
use std::thread;

use nix::sched::{setns, CloneFlags};

/// The named network namespace cannot be entered: it is not there, or this process is not root.
#[derive(Debug)]
pub struct NamespaceError {
    /// Its name under `/run/netns`.
    pub name: String,
    /// What the system said.
    pub source: io::Error,
}

impl fmt::Display for NamespaceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "network namespace {}: {} (entering one needs root, and it must be in /run/netns)",
            self.name, self.source
        )
    }
}

impl std::error::Error for NamespaceError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

/// Run `open` in the network namespace `name` of `/run/netns`, or in the caller's own for `None`.
pub fn within<T, E, F>(name: Option<&str>, open: F) -> Result<T, E>
where
    T: Send,
    E: From<NamespaceError> + Send,
    F: FnOnce() -> Result<T, E> + Send,
{
    let Some(name) = name else { return open() };
    let failed = |source: io::Error| NamespaceError { name: name.to_owned(), source };
    if name.is_empty() || name.contains(['/', '\0']) || name.starts_with('.') {
        let source = io::Error::new(io::ErrorKind::InvalidInput, "not a namespace's name");
        return Err(failed(source).into());
    }
    let handle = File::open(format!("/run/netns/{name}")).map_err(failed)?;
    thread::scope(|scope| {
        scope
            .spawn(|| {
                setns(&handle, CloneFlags::CLONE_NEWNET).map_err(|errno| failed(errno.into()))?;
                open()
            })
            .join()
            .unwrap_or_else(|cause| panic::resume_unwind(cause))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_that_is_not_there_is_named() {
        let error = within(Some("waystage-no-such"), || Ok::<_, NamespaceError>(())).unwrap_err();
        assert!(error.to_string().contains("waystage-no-such"), "{error}");
    }

    #[test]
    fn a_name_cannot_leave_the_folder_of_namespaces() {
        for name in ["../../proc/1/ns/net", "", ".hidden", "a/b"] {
            let error = within(Some(name), || Ok::<_, NamespaceError>(())).unwrap_err();
            assert_eq!(error.source.kind(), io::ErrorKind::InvalidInput);
        }
    }

    #[test]
    fn without_a_name_it_runs_here() {
        let here = thread::current().id();
        let there = within(None, || Ok::<_, NamespaceError>(thread::current().id()));
        assert_eq!(there.unwrap(), here);
    }
}
