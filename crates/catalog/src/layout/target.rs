//! Storage targets, and the objects on them.

use std::fmt;

use super::Flags;

/// Something that serves objects at its own pace: what a loader binds to.
///
/// `ost:7`, `mdt`, `pool:NAME`, `brick:HOST:FOLDER`, `disperse:NAME`, `host:NAME`, `beegfs:101@NODE`, `device:259:1`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    class: &'static str,
    number: Option<u32>,
    name: Box<[u8]>,
}

impl Target {
    /// The target that its file system knows by a number, which catalogs keep.
    #[must_use]
    pub fn numbered(class: &'static str, number: u32) -> Self {
        Self { class, number: Some(number), name: Box::default() }
    }

    /// The target that its file system knows by a name; names are bytes. Catalogs make up a number from it.
    #[must_use]
    pub fn named(class: &'static str, name: impl Into<Vec<u8>>) -> Self {
        Self { class, number: None, name: name.into().into() }
    }

    /// The target with a number, on the node of this name.
    #[must_use]
    pub fn on_node(class: &'static str, number: u32, node: &str) -> Self {
        Self { class, number: Some(number), name: node.as_bytes().into() }
    }

    /// The number by which its file system knows it.
    #[must_use]
    pub fn number(&self) -> Option<u32> {
        self.number
    }
}

impl Ord for Target {
    /// By number, then targets without one, by name.
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        let key = |target: &Self| (target.number.is_none(), target.number, target.class);
        key(self).cmp(&key(other)).then_with(|| self.name.cmp(&other.name))
    }
}

impl PartialOrd for Target {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = String::from_utf8_lossy(&self.name);
        match (self.number, name.as_ref()) {
            (Some(number), "") => write!(f, "{}:{number}", self.class),
            (Some(number), node) => write!(f, "{}:{number}@{node}", self.class),
            (None, "") => f.write_str(self.class),
            (None, name) => write!(f, "{}:{name}", self.class),
        }
    }
}

/// How the target names an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ObjectId {
    /// It follows from the file, or is not disclosed.
    #[default]
    Implied,
    /// Two numbers, as a Lustre `ost_id`.
    Numbers(u64, u64),
    /// A path on the target.
    Path(Box<[u8]>),
}

/// A piece of a file as its target stores it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// The target; None where `flags` say why there is none.
    pub target: Option<Target>,
    /// Its name there.
    pub id: ObjectId,
    /// The state of this object alone.
    pub flags: Flags,
}

impl Object {
    /// An object on `target` whose name is implied.
    #[must_use]
    pub fn on(target: Target) -> Self {
        Self { target: Some(target), id: ObjectId::Implied, flags: Flags::NONE }
    }

    /// No object, and why.
    #[must_use]
    pub fn absent(flags: Flags) -> Self {
        Self { target: None, id: ObjectId::Implied, flags }
    }
}
