//! The C library of collective I/O.

pub mod error;
mod registry;
