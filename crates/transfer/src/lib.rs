//! Moves files between hosts: verified, cancellable, outside Python.
//!
//! Arrives: which files go which way, and between which addresses.
//! Leaves: the files, whole and verified, or an error whose kind a caller can act on.
//! Must not know: Python, jobs, paths through the network, policies.

pub mod lan;
