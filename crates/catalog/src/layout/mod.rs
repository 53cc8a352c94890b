//! How a file is cut into objects, and on which storage targets they are.
//!
//! Arrives: what a file system says of a file, as bytes: an extended attribute, an answer to an ioctl,
//! the output of a command.
//! Leaves: one [`Layout`], whatever the file system; from it the extents that cover a file of a given
//! size, and what each object holds of it.
//! Must not know: paths, catalogs, who reads the objects.
//!
//! A kind of file system is one file here that implements [`LayoutReader`], and a line in [`READERS`]; [`null`] is the
//! template.
//!
//! A layout is a rule, not a list: a terabyte in stripes of 64 KiB has 16 million extents, so they are
//! computed one at a time, and a layout never takes more memory than its input did. What a file
//! system says is taken for foreign bytes: a parser answers with a [`LayoutError`] and the caller reads
//! the file by its path, as if there were no layout.

pub mod beegfs;
pub mod ceph;
mod error;
mod extents;
mod file_systems;
mod flags;
pub mod gfarm;
pub mod gluster;
pub mod local;
pub mod lustre;
pub mod null;
mod reader;
mod shares;
mod striping;
mod target;

pub use error::{ErrorKind, LayoutError};
pub use extents::{Extent, Extents, Mirrors};
pub(crate) use file_systems::Served;
pub use file_systems::{reader_at, reader_index, reader_named, FileSystems, READERS};
pub use flags::Flags;
pub use reader::{Access, LayoutReader, OpenFile};
pub use shares::{Share, Shares};
pub use striping::{Place, Striping};
pub use target::{Object, ObjectId, Target};

/// The end of a component that goes on to the end of the file, however far that is.
pub const EOF: u64 = u64::MAX;

/// The smallest stripe that Lustre (`LOV_MIN_STRIPE_SIZE`), CephFS (`CEPH_MIN_STRIPE_UNIT`) and BeeGFS
/// (`STRIPEPATTERN_MIN_CHUNKSIZE`) make; every stripe is a multiple of it. It bounds how many extents
/// a hostile layout can cut a file into.
pub const MIN_UNIT: u64 = 64 << 10;

/// How one file lies on its storage targets; of a directory, how its new files will.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    kind: &'static str,
    generation: u32,
    template: bool,
    components: Vec<Component>,
}

/// A range of the file, in one mirror, that is striped in one way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Component {
    /// Which copy of the file this belongs to.
    pub mirror: u32,
    /// The first byte of the file in it.
    pub start: u64,
    /// The byte after the last, or [`EOF`].
    pub end: u64,
    /// What is the matter with it.
    pub flags: Flags,
    /// How bytes go round its objects.
    pub striping: Striping,
    /// Its objects, by number. Where the list ends, `rest` says where the others are.
    pub objects: Vec<Object>,
    /// The target of objects that are not listed; None where nothing says.
    pub rest: Option<Target>,
    /// The pool its targets were chosen from.
    pub pool: Option<Box<str>>,
    /// Where it has no objects yet: what they are to be.
    pub planned: Option<Planned>,
}

/// How a component without objects is to be striped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Planned {
    /// Bytes of a stripe; 0 for the file system's usual size.
    pub unit: u64,
    /// Objects; -1 for one on every target, 0 for the file system's usual number.
    pub count: i64,
}

impl Component {
    /// A component of the whole file in mirror 0, of which nothing is said yet.
    #[must_use]
    pub fn whole() -> Self {
        Self {
            mirror: 0,
            start: 0,
            end: EOF,
            flags: Flags::NONE,
            striping: Striping::WHOLE,
            objects: Vec::new(),
            rest: None,
            pool: None,
            planned: None,
        }
    }

    /// Whether anything in it lies on a known target.
    #[must_use]
    pub fn has_objects(&self) -> bool {
        !self.objects.is_empty() || self.rest.is_some()
    }
}

impl Layout {
    /// A layout of these components, in any order, that the [`LayoutReader`] of this name read.
    ///
    /// # Errors
    /// Where a component ends before it starts, overlaps another of its mirror, or has a striping by
    /// which no byte can be found.
    pub fn new(
        kind: &'static str,
        generation: u32,
        mut components: Vec<Component>,
    ) -> Result<Self, LayoutError> {
        components.sort_by_key(|c| (c.mirror, c.start, c.end));
        for component in &components {
            if component.end < component.start {
                return Err(LayoutError::invalid(format!(
                    "a component ends at {}, before its start at {}",
                    component.end, component.start
                )));
            }
            component.striping.check()?;
        }
        for pair in components.windows(2) {
            if pair[0].mirror == pair[1].mirror && pair[0].end > pair[1].start {
                return Err(LayoutError::invalid(format!(
                    "components [{}, {}) and [{}, {}) of mirror {} overlap",
                    pair[0].start, pair[0].end, pair[1].start, pair[1].end, pair[0].mirror
                )));
            }
        }
        Ok(Self { kind, generation, template: false, components })
    }

    /// The same, as the template of a directory: it has no objects, its new files will.
    #[must_use]
    pub fn into_template(mut self) -> Self {
        self.template = true;
        self
    }

    /// The kind of file system, by the name of its [`LayoutReader`].
    #[must_use]
    pub fn kind(&self) -> &'static str {
        self.kind
    }

    /// A number that changes with the layout, where the file system keeps one; else 0.
    #[must_use]
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// Whether this says how new files will lie, and not how a file does.
    #[must_use]
    pub fn is_template(&self) -> bool {
        self.template
    }

    /// The components, by mirror and offset; those of one mirror do not overlap.
    #[must_use]
    pub fn components(&self) -> &[Component] {
        &self.components
    }

    /// The numbers of the mirrors, ascending; one for a file without copies.
    #[must_use]
    pub fn mirrors(&self) -> Vec<u32> {
        let mut mirrors: Vec<u32> = self.components.iter().map(|c| c.mirror).collect();
        mirrors.dedup();
        mirrors
    }

    /// Each target once, sorted.
    #[must_use]
    pub fn targets(&self) -> Vec<&Target> {
        let listed = self.components.iter().flat_map(|c| &c.objects);
        let listed = listed.filter_map(|object| object.target.as_ref());
        let rest = self.components.iter().filter_map(|c| c.rest.as_ref());
        let mut targets: Vec<&Target> = listed.chain(rest).collect();
        targets.sort_unstable();
        targets.dedup();
        targets
    }

    /// The extents of a file of `size` bytes: they cover each byte once in every mirror asked for,
    /// in the order of the file. Computed as they are taken.
    #[must_use]
    pub fn extents(&self, size: u64, mirrors: Mirrors) -> Extents<'_> {
        Extents::new(self, size, mirrors)
    }

    /// What each object holds of a file of `size` bytes; objects that hold nothing of it are left out.
    #[must_use]
    pub fn shares(&self, size: u64, mirrors: Mirrors) -> Shares<'_> {
        Shares::new(self, size, mirrors)
    }
}

#[cfg(test)]
mod tests;
