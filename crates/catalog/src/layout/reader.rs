//! What a kind of file system implements so that its layouts are read: one file, from the template [`super::null`].

use std::ffi::CStr;
use std::os::fd::BorrowedFd;

use rustix::fs::fgetxattr;
use rustix::io::Errno;

use super::{Layout, LayoutError};
use crate::xattr::{LONGEST, USUAL};

/// How a walk gets the layout of a file that it has not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// No question: the file is one object on its device.
    Device,
    /// An extended attribute of this name, read without opening the file. Opening costs more: on Lustre a message.
    Attribute(&'static CStr),
    /// [`LayoutReader::read`] on the opened file.
    Open,
}

/// One kind of file system: how to recognise it, ask it for a layout, and parse the answer.
pub trait LayoutReader: Sync {
    /// The name in catalogs, in Python and on the command line: lower case, unique.
    fn name(&self) -> &'static str;

    /// The `f_type` numbers of statfs(2) that belong to this file system.
    fn magic_numbers(&self) -> &'static [u64] {
        &[]
    }

    /// Whether it is also mounted through FUSE. FUSE hides the magic number, so such readers are tried in turn.
    fn tried_on_fuse(&self) -> bool {
        false
    }

    /// Whether [`Layout::generation`] changes whenever a file is laid out anew.
    fn keeps_generation(&self) -> bool {
        false
    }

    /// How a walk asks for layouts.
    fn access(&self) -> Access {
        Access::Open
    }

    /// Whether a copy that was given no catalog asks for the layout of each file, to read target by target: the answer
    /// names targets, and costs little beside stat(2) of the file.
    fn is_cheap(&self) -> bool {
        false
    }

    /// The layout that an answer of the file system describes. The bytes are foreign: they may be damaged or hostile.
    ///
    /// # Errors
    /// Where the bytes are not a layout.
    fn parse(&self, bytes: &[u8]) -> Result<Layout, LayoutError>;

    /// The layout of a file of which [`Access::Attribute`] has this value; None where it has none. Only a reader whose
    /// attribute names the file, and does not describe it, asks further.
    ///
    /// # Errors
    /// Where the value is not a layout, or what is asked fails.
    fn answer(&self, value: &[u8]) -> Result<Option<Layout>, LayoutError> {
        self.parse(value).map(Some)
    }

    /// The layout of an open file or directory; None where it has none, as a file without objects.
    ///
    /// # Errors
    /// Where the file system fails, or its answer is not a layout.
    fn read(&self, file: &OpenFile<'_>) -> Result<Option<Layout>, LayoutError> {
        match self.access() {
            Access::Attribute(name) => file.attribute(name, |bytes| self.parse(bytes)),
            Access::Device | Access::Open => Ok(None),
        }
    }
}

/// An open file or directory whose layout is wanted.
#[derive(Clone, Copy, Debug)]
pub struct OpenFile<'a> {
    /// The descriptor.
    pub fd: BorrowedFd<'a>,
    /// `st_dev`.
    pub device: u64,
    /// A directory, whose layout is the template of its new files.
    pub directory: bool,
}

impl OpenFile<'_> {
    /// What an extended attribute says, parsed in place; None where the file or the file system has none of this
    /// name.
    ///
    /// # Errors
    /// Where the attribute cannot be read, and those of `parse`.
    pub fn attribute<T>(
        &self,
        name: &CStr,
        parse: impl Fn(&[u8]) -> Result<T, LayoutError>,
    ) -> Result<Option<T>, LayoutError> {
        let mut usual = [0; USUAL];
        let mut longest = Vec::new();
        let answer = match fgetxattr(self.fd, name, &mut usual[..]) {
            Err(Errno::RANGE) => {
                longest.resize(LONGEST, 0);
                fgetxattr(self.fd, name, &mut longest[..])
            }
            answer => answer,
        };
        match answer {
            Ok(length) if longest.is_empty() => parse(&usual[..length]).map(Some),
            Ok(length) => parse(&longest[..length]).map(Some),
            // For a user without privileges a trusted attribute does not exist, or is refused with EPERM.
            Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::NOSYS | Errno::PERM | Errno::INVAL) => {
                Ok(None)
            }
            Err(error) => {
                Err(LayoutError::io(&name.to_string_lossy(), std::io::Error::from(error)))
            }
        }
    }

    /// The value of an extended attribute; None where there is none.
    ///
    /// # Errors
    /// Where the attribute cannot be read.
    pub fn attribute_bytes(&self, name: &CStr) -> Result<Option<Vec<u8>>, LayoutError> {
        self.attribute(name, |bytes| Ok(bytes.to_vec()))
    }
}
