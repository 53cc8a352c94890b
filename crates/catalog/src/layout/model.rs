//! A layout: the components of a file, and the objects of each.

use super::striping::{Striping, EOF};
use super::{Flags, LayoutError, Object, Target};

/// How one file is placed on its storage targets; of a directory, how its new files will be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    pub(super) kind: &'static str,
    pub(super) generation: u32,
    pub(super) template: bool,
    pub(super) components: Vec<Component>,
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
    /// Its state.
    pub flags: Flags,
    /// How bytes go round its objects.
    pub striping: Striping,
    /// Its objects, by number. Where the list ends, `rest` says where the others are.
    pub objects: Vec<Object>,
    /// The target of objects that are not listed; None where it is unknown.
    pub rest: Option<Target>,
    /// The pool its targets were chosen from.
    pub pool: Option<Box<str>>,
    /// The objects that it will get, where it has none yet.
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
    /// A component of the complete file in mirror 0, without objects.
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

    /// Whether any of it is on a known target.
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

    /// Whether this is a directory's template for new files, and not a file's layout.
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

    /// Bytes of a stripe, and the objects that stripes go round; None where it is not striped. Of components that are
    /// striped differently, the largest stripe and the largest number of the first mirror. A file without objects has
    /// the stripes that it is to get, where those are known.
    #[must_use]
    pub fn stripe(&self) -> Option<(u64, u64)> {
        let first = self.components.first()?.mirror;
        let of = |component: &Component| match component.planned {
            Some(planned) if !component.has_objects() => {
                (planned.unit, u64::try_from(planned.count).unwrap_or(0))
            }
            _ => (component.striping.unit, component.striping.count),
        };
        let all = self.components.iter().filter(|component| component.mirror == first).map(of);
        let (unit, count) = all
            .filter(|(unit, _)| *unit != EOF)
            .fold((0, 0), |(unit, count), (u, c)| (unit.max(u), count.max(c)));
        (unit > 0).then_some((unit, count.max(1)))
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
}
