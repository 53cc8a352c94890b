//! Copies trees between mounted file systems: in parallel, resumable, verified, and never outside either tree.
//!
//! Arrives: two paths and options; or pairs of files to set side by side.
//! Leaves: a copy whose files bear their names only when whole, a journal where it was interrupted, counts, and
//! problems that name the path.
//! Must not know: Python, jobs, networks, how catalogs are stored.
//!
//! The decision here: what is finished is told by the destination itself. A file gets its name once its
//! contents and times are complete, so a name with the source's size and time is a finished file, and the journal need
//! only hold what names cannot tell: extents of large files under way, and where a leftover may lie. A journal of
//! every file was rejected: it costs a record for each small file and says nothing more.

mod acl;
mod attributes;
mod compare;
mod contents;
mod counts;
mod destination;
mod direct;
mod draft;
mod ends;
mod engine;
mod error;
mod extents;
mod feed;
mod item;
pub mod journal;
mod large;
mod leftovers;
mod links;
mod listed;
mod names;
mod options;
mod own;
mod own_files;
mod pace;
mod project;
mod queue;
mod small;
mod special;
mod time;
mod worker;
mod xattr;

pub use compare::{Comparison, Differing, Pair, Unlike};
pub use counts::{Counts, Planned, Problem, ProblemKind};
pub use engine::Copy;
pub use error::{CopyError, CopyErrorKind};
pub use names::{Names, NamesError, MOST_LIST_BYTES};
pub use options::{Fsync, Options, Update, Verify};

/// What copies between hosts share with copies on one: how an entry is seen, made and given its name.
pub mod parts {
    pub use crate::acl::mode_without;
    pub use crate::attributes::{all as xattrs_of, both, Attribute, Keeper, Lost};
    pub use crate::contents::{for_data, forget, write_all, SHRUNK};
    pub use crate::counts::{add, Report, Tally};
    pub use crate::destination::{Destination, Folder};
    pub use crate::draft::{drafted, Draft};
    pub use crate::ends::unwritable;
    pub use crate::engine::{begin, doubtful_since, no_directory, session_of, Beginning};
    pub use crate::error::{said, At, End, Failure};
    pub use crate::extents::{Parts, RUN_BYTES};
    pub use crate::item::{letter, look, look_at, split, About, Item, Seen};
    pub use crate::leftovers::{larges as remove_larges, sweep, workers as remove_drafts};
    pub use crate::listed::{listed, Listed};
    pub use crate::own::{create, fresh_name, is_journal_folder, large_name, random, reopen};
    pub use crate::own_files::{OwnFiles, Whose};
    pub use crate::pace::Debt;
    pub use crate::small::{open_file, ANOTHER_SORT, NO_ROOM};
    pub use crate::special::{make_special, make_symlink, mend_place};
    pub use crate::time::Time;
}
