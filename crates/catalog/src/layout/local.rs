//! A file system of this machine: the device is the target, the file its only object.

use super::{Component, Kind, Layout, LayoutError, Object, Target};

/// The layout of a file on the device of these numbers.
#[must_use]
pub fn layout(major: u32, minor: u32) -> Layout {
    let objects = vec![Object::on(Target::Device { major, minor })];
    Layout {
        kind: Kind::Local,
        generation: 0,
        template: false,
        components: vec![Component { objects, ..Component::whole() }],
    }
}

/// The layout of a file on the device that is named `MAJOR:MINOR`, as /proc/self/mountinfo names it.
///
/// # Errors
/// Where the bytes are not of that form.
pub fn parse(bytes: &[u8]) -> Result<Layout, LayoutError> {
    let numbers = std::str::from_utf8(bytes).ok().and_then(|text| {
        let (major, minor) = text.trim().split_once(':')?;
        Some((major.parse().ok()?, minor.parse().ok()?))
    });
    numbers.map_or_else(
        || Err(LayoutError::invalid("a device is named MAJOR:MINOR")),
        |(major, minor)| Ok(layout(major, minor)),
    )
}
