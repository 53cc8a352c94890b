//! `null`: a file system that discloses no layout, and the template for your own reader.
//!
//! Copy this file to `layout/NAME.rs`, rename [`Reader`]'s `name`, declare `pub mod NAME;` in `layout/mod.rs` and
//! append `&NAME::Reader` to `READERS` in `layout/file_systems.rs`. Catalogs, loaders, Python and `waystage catalog
//! layout` then know the file system; nothing else changes. This reader itself is not registered.
//!
//! Arrives: an open file, or the bytes with which a file system answered.
//! Leaves: a [`Layout`]. Here: none, ever.
//! Must not know: paths, catalogs, which program reads the file.

use super::reader::{Access, LayoutReader, OpenFile};
use super::{Component, Layout, LayoutError, Object, Target};

/// Say which file system this is, and which document or header declares what it answers.
#[derive(Clone, Copy, Debug)]
pub struct Reader;

impl LayoutReader for Reader {
    // In catalogs, in Python and in `--kind`. Never change it afterwards: catalogs on disk contain it.
    fn name(&self) -> &'static str {
        "null"
    }

    // `stat -f -c %t MOUNTPOINT` prints it. Leave the list empty for a file system that cannot be recognised.
    fn magic_numbers(&self) -> &'static [u64] {
        &[]
    }

    // True where clients mount it through FUSE. `read` is then called on files of any FUSE file system: it must
    // answer None, not an error, for one that is not its own.
    fn tried_on_fuse(&self) -> bool {
        false
    }

    // True where the file system numbers the layouts of a file. `catalog verify` then notices a migrated file by it.
    fn keeps_generation(&self) -> bool {
        false
    }

    // The cheapest way that works: a walk asks for millions of files. An attribute needs no open; `parse` gets its
    // value.
    fn access(&self) -> Access {
        Access::Open
    }

    // True where an answer names storage targets and costs little beside stat(2): copies then ask for each file.
    fn is_cheap(&self) -> bool {
        false
    }

    // Pure, and total: the bytes come from a file system that may be damaged or hostile. Check every length before
    // use, allocate no more than the input justifies, and never panic; `fuzz/parser_list.py` wants a property test.
    //
    //   - `LayoutError::truncated`   the bytes end early
    //   - `LayoutError::unsupported` a form that this reader does not know, perhaps of a later release
    //   - `LayoutError::invalid`     the bytes contradict themselves
    //
    // After any error the caller reads the file by its path. An answer of `7` could mean target 7:
    //
    //     let number = std::str::from_utf8(bytes).ok().and_then(|text| text.trim().parse().ok());
    //     let number = number.ok_or_else(|| LayoutError::invalid("null: the target is not a number"))?;
    //     on_target(number)
    //
    fn parse(&self, _bytes: &[u8]) -> Result<Layout, LayoutError> {
        Err(LayoutError::unsupported("null: this file system discloses no layout"))
    }

    // Leave it out where `access` names an attribute. Otherwise ask here: `file.attribute_bytes(c"user.name")`, or an
    // ioctl on `file.fd` (see beegfs.rs). None where there is no layout; directories give a template, or None.
    fn read(&self, _file: &OpenFile<'_>) -> Result<Option<Layout>, LayoutError> {
        Ok(None)
    }
}

/// A layout of one object on one target. Stripes: set `striping` and list an object for each; copies: one component
/// each, with its own `mirror`; parts of a file: one component each, with `start` and `end`.
///
/// # Errors
/// Where [`Layout::new`] finds a contradiction.
pub fn on_target(number: u32) -> Result<Layout, LayoutError> {
    let objects = vec![Object::on(Target::numbered("null", number))];
    Layout::new(Reader.name(), 0, vec![Component { objects, ..Component::whole() }])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{file_systems::READERS, Mirrors};
    use std::os::fd::AsFd;

    #[test]
    fn null_discloses_nothing_and_is_not_registered() {
        let file = std::fs::File::open("/").unwrap();
        let file = OpenFile { fd: file.as_fd(), device: 0, directory: true };
        assert_eq!(Reader.read(&file), Ok(None));
        assert!(Reader.parse(b"7").is_err());
        assert_eq!(Reader.access(), Access::Open);
        assert!(READERS.iter().all(|reader| reader.name() != Reader.name()));
    }

    #[test]
    fn the_example_layout_is_one_object_on_its_target() {
        let layout = on_target(7).unwrap();
        let extents: Vec<_> = layout.extents(10, Mirrors::All).collect();
        assert_eq!((extents.len(), extents[0].length), (1, 10));
        assert_eq!(extents[0].target.unwrap().to_string(), "null:7");
    }
}
