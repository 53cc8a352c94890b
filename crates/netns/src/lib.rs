//! Sockets inside other network namespaces.
//!
//! Arrives: the name of a namespace, a function that opens sockets. Leaves: its result. Must not know: their purpose.
//!
//! A socket stays in the namespace of the thread that created it. A short-lived thread therefore enters the namespace,
//! opens the sockets and ends; no other thread changes its namespace.

use std::fs::File;
use std::io;
use std::panic;
use std::thread;

use nix::sched::{setns, CloneFlags};

/// The network namespace cannot be entered: it does not exist, or this process is not root.
#[derive(Debug, thiserror::Error)]
#[error(
    "network namespace {name}: {source} (entering one needs root, and it must be in /run/netns)"
)]
pub struct NamespaceError {
    /// Its name under `/run/netns`.
    pub name: String,
    /// The cause.
    pub source: io::Error,
}

/// Runs `open` in the network namespace `name` of `/run/netns`, or in the caller's own for `None`.
///
/// # Errors
/// [`NamespaceError`], or the error of `open`.
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
    fn a_missing_namespace_is_named() {
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
