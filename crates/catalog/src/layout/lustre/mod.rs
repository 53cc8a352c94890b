//! Lustre: the binary of `lustre.lov`, of files and directories, plain and composite.
//!
//! [`Md`] is the structure as it is stored, read and written without loss; [`parse`] turns
//! it into a [`Layout`]. Layouts come without Lustre's own library, so they can be read on any node.

mod decode;
mod encode;
mod wire;

use super::reader::{Access, LayoutReader};
use super::{
    Component, Flags, Layout, LayoutError, Object, ObjectId, Planned, Striping, Target, EOF,
};
pub use wire::{entry_flag, pattern, Body, Entry, Md, Order, OstObject, Plain};

/// Lustre's client, and FUSE file systems that answer `lustre.lov` in its form.
#[derive(Clone, Copy, Debug)]
pub struct Reader;

impl LayoutReader for Reader {
    fn name(&self) -> &'static str {
        "lustre"
    }

    fn magic_numbers(&self) -> &'static [u64] {
        &[0x0BD0_0BD0]
    }

    fn tried_on_fuse(&self) -> bool {
        true
    }

    fn keeps_generation(&self) -> bool {
        true
    }

    fn access(&self) -> Access {
        Access::Attribute(c"lustre.lov")
    }

    // The client caches the attribute with those that stat(2) returns.
    fn is_cheap(&self) -> bool {
        true
    }

    fn parse(&self, bytes: &[u8]) -> Result<Layout, LayoutError> {
        parse(bytes)
    }
}

/// The target of this index.
#[must_use]
pub fn ost(index: u32) -> Target {
    Target::numbered("ost", index)
}

/// What no target has as its index: the slot of an object that was lost.
const NO_OST: u32 = u32::MAX;

/// More copies than Lustre makes (`LUSTRE_MIRROR_COUNT_MAX` is 16): it bounds the cost of
/// comparing the mirrors of a hostile layout.
const MAX_MIRRORS: usize = 64;

/// The layout of a file or directory.
///
/// # Errors
/// Where the bytes end too early, contradict themselves, or are of a form that is not known.
pub fn parse(bytes: &[u8]) -> Result<Layout, LayoutError> {
    layout(&Md::decode(bytes)?)
}

/// The layout that a structure describes.
///
/// # Errors
/// Where components overlap, or stripes are such that no byte could be found.
pub fn layout(md: &Md) -> Result<Layout, LayoutError> {
    match md {
        Md::Plain(plain) => {
            let made = Component { start: 0, end: EOF, ..component(plain, true)? };
            let layout = Layout::new(Reader.name(), u32::from(plain.generation), vec![made])?;
            Ok(if plain.is_template() { layout.into_template() } else { layout })
        }
        Md::Foreign { .. } => {
            let component = Component { flags: Flags::FOREIGN, ..Component::whole() };
            Layout::new(Reader.name(), 0, vec![component])
        }
        Md::Composite { generation, entries, .. } => {
            let components = entries.iter().map(entry_component).collect::<Result<Vec<_>, _>>()?;
            let layout = Layout::new(Reader.name(), *generation, components)?;
            if layout.mirrors().len() > MAX_MIRRORS {
                return Err(LayoutError::invalid(format!(
                    "lustre.lov: {} mirrors are more than the {MAX_MIRRORS} that are read",
                    layout.mirrors().len()
                )));
            }
            // A file has written, or been given, at least one of its components.
            let settled = entry_flag::INIT | entry_flag::STALE;
            let fresh = |entry: &Entry| {
                entry.flags & settled == 0
                    && matches!(&entry.body, Body::Plain(p) if p.pattern & pattern::RELEASED == 0)
            };
            let template = !entries.is_empty() && entries.iter().all(fresh);
            Ok(if template { layout.into_template() } else { layout })
        }
    }
}

fn entry_component(entry: &Entry) -> Result<Component, LayoutError> {
    let has = |flag: u32| entry.flags & flag != 0;
    let mut made = match &entry.body {
        Body::Foreign { .. } => Component { flags: Flags::FOREIGN, ..Component::whole() },
        Body::Plain(plain) => component(plain, has(entry_flag::INIT))?,
    };
    made.mirror = entry.mirror();
    made.start = entry.start;
    made.end = entry.end;
    made.flags |= Flags::when(has(entry_flag::STALE), Flags::STALE)
        | Flags::when(has(entry_flag::OFFLINE), Flags::OFFLINE)
        | Flags::when(has(entry_flag::PREF_RD), Flags::PREFERRED)
        | Flags::when(has(entry_flag::NOSYNC), Flags::NOSYNC)
        | Flags::when(has(entry_flag::EXTENSION), Flags::EXTENSION);
    Ok(made)
}

/// What one plain structure says; `settled` where its objects have been made.
fn component(plain: &Plain, settled: bool) -> Result<Component, LayoutError> {
    let has = |bit: u32| plain.pattern & bit != 0;
    let mut made = Component { pool: plain.pool_name(), ..Component::whole() };
    made.flags |= Flags::when(has(pattern::OVERSTRIPED), Flags::OVERSTRIPED);
    if has(pattern::RELEASED) {
        made.flags |= Flags::RELEASED;
    } else if has(pattern::FOREIGN) {
        made.flags |= Flags::FOREIGN;
    } else if !settled {
        made.flags |= Flags::UNWRITTEN;
        made.planned = Some(planned(plain));
    } else if has(pattern::MDT) {
        made.flags |= Flags::ON_MDT;
        made.objects = vec![Object::on(Target::named("mdt", ""))];
    } else if plain.objects.is_empty() {
        made.flags |= Flags::UNLOCATED;
        made.planned = Some(planned(plain));
    } else {
        made.striping = Striping::round(u64::from(plain.stripe_size), plain.objects.len() as u64);
        made.objects = plain.objects.iter().map(object).collect();
    }
    Ok(made)
}

fn planned(plain: &Plain) -> Planned {
    // From ALL_TARGETS on a count is a negative number: -1 is all targets, less of them several objects on each.
    let count = if plain.stripe_count >= wire::ALL_TARGETS {
        i64::from(plain.stripe_count.cast_signed())
    } else {
        i64::from(plain.stripe_count)
    };
    Planned { unit: u64::from(plain.stripe_size), count }
}

fn object(object: &OstObject) -> Object {
    let lost = object.ost == NO_OST;
    Object {
        target: (!lost).then_some(ost(object.ost)),
        id: ObjectId::Numbers(object.id.0, object.id.1),
        flags: Flags::when(lost, Flags::LOST),
    }
}

#[cfg(test)]
mod tests;
