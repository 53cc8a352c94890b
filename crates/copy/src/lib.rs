//! Copies trees: in parallel, resumable, verified, and never outside source or destination.
//!
//! Arrives: a source, a destination, options; or pairs of files to compare.
//! Leaves: a copy whose files have their names only when complete, a journal where it was interrupted, counts, and
//! problems that name the path.
//! Must not know: Python, jobs, networks, how catalogs are stored.
//!
//! One engine serves every transport: [`source`] produces entries, [`plan`] decides what is done with each, [`sink`]
//! makes it, [`state`] holds counts, problems and the reason to end. [`Copy`] joins them on one machine;
//! `waystage-remote-copy` joins them over a channel between hosts.
//!
//! The decision here: the destination itself says what is complete. A file gets its name once its contents and times
//! are complete, so a name with the source's size and time is a complete file, and the journal need only hold what
//! names cannot tell: extents of large files in progress, and where a leftover may be. A journal of every file was
//! rejected: it costs a record for each small file and says nothing more.

pub mod after;
pub mod attributes;
pub mod backup;
mod compare;
mod counts;
mod ends;
mod engine;
pub mod error;
pub mod file_io;
mod local;
mod options;
mod own_names;
mod part_set;
pub mod plan;
pub mod restripe;
pub mod sink;
pub mod source;
pub mod stat;
pub mod state;
mod time;

pub use compare::{Comparison, Differing, Pair, Unlike};
pub use counts::{add, Counts, Done, Planned, Problem, ProblemKind, Report};
pub use engine::{Engine, Job};
pub use error::CopyError;
pub use local::{not_a_directory, Copy, CopyJob, Fill, FillJob, FillOptions};
pub use options::{Fsync, Limits, Options, Order, Reflink, Share, Update, Verify};
pub use part_set::{PartSet, RUN_BYTES};
pub use source::{Names, NamesError, MOST_LIST_BYTES};
pub use time::Time;
