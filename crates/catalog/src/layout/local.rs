//! A file system of this machine: the device is the target, the file its only object.

use rustix::fs::{major, minor};

use super::reader::{Access, LayoutReader, OpenFile};
use super::{Component, Layout, LayoutError, Object, Target};

/// Serves every device whose file system no other reader recognises.
#[derive(Clone, Copy, Debug)]
pub struct Reader;

impl Reader {
    pub(super) const NAME: &'static str = "local";
}

impl LayoutReader for Reader {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn access(&self) -> Access {
        Access::Device
    }

    fn parse(&self, bytes: &[u8]) -> Result<Layout, LayoutError> {
        parse(bytes)
    }

    fn read(&self, file: &OpenFile<'_>) -> Result<Option<Layout>, LayoutError> {
        Ok((!file.directory).then(|| layout(major(file.device), minor(file.device))))
    }
}

/// The device as a target.
#[must_use]
pub fn target(major: u32, minor: u32) -> Target {
    Target::named("device", format!("{major}:{minor}"))
}

/// The layout of a file on the device of these numbers.
#[must_use]
pub fn layout(major: u32, minor: u32) -> Layout {
    let objects = vec![Object::on(target(major, minor))];
    Layout {
        kind: Reader.name(),
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
