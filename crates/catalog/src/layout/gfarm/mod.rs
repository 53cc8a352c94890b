//! Gfarm: files are whole, and a layout is the hosts that each have a complete copy of one.
//!
//! Below a gfarm2fs mount the attribute `gfarm2fs.url` gives a file's name in Gfarm, and Gfarm's client library the
//! hosts of that name. [`parse`] takes the hosts as `gfwhere FILE` prints them: separated by blanks; a line that ends
//! in a colon is the heading that it prints above each of several files, and is left out. Pass the output for one file.

mod library;

use super::reader::{Access, LayoutReader, OpenFile};
use super::{Component, Layout, LayoutError, Object, Target};

/// Gfarm through gfarm2fs.
#[derive(Clone, Copy, Debug)]
pub struct Reader;

impl LayoutReader for Reader {
    fn name(&self) -> &'static str {
        "gfarm"
    }

    fn tried_on_fuse(&self) -> bool {
        true
    }

    fn access(&self) -> Access {
        Access::Attribute(c"gfarm2fs.url")
    }

    fn parse(&self, bytes: &[u8]) -> Result<Layout, LayoutError> {
        parse(bytes)
    }

    fn answer(&self, url: &[u8]) -> Result<Option<Layout>, LayoutError> {
        let url = url.strip_suffix(b"\0").unwrap_or(url);
        let hosts =
            library::replica_hosts(url).map_err(|reason| LayoutError::io("Gfarm", reason))?;
        match hosts {
            Some(hosts) if !hosts.is_empty() => parse(&hosts.join(&b' ')).map(Some),
            // No library, or a file without data, which no host needs to have.
            _ => Ok(None),
        }
    }

    fn read(&self, file: &OpenFile<'_>) -> Result<Option<Layout>, LayoutError> {
        if file.directory {
            return Ok(None);
        }
        let url = file.attribute_bytes(c"gfarm2fs.url")?;
        url.map_or(Ok(None), |url| self.answer(&url))
    }
}

/// The layout of a file.
///
/// # Errors
/// Where no host is named, or a word cannot be the name of one.
pub fn parse(output: &[u8]) -> Result<Layout, LayoutError> {
    let text = std::str::from_utf8(output)
        .map_err(|_| LayoutError::invalid("gfwhere: a host's name is not UTF-8"))?;
    let hosts = text
        .lines()
        .map(str::trim)
        .filter(|line| !line.ends_with(':'))
        .flat_map(str::split_ascii_whitespace);
    let mut components = Vec::new();
    for (host, mirror) in hosts.zip(0..) {
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':');
        if !host.chars().all(fits) {
            return Err(LayoutError::invalid(format!(
                "gfwhere: {host:?} is not the name of a host"
            )));
        }
        let objects = vec![Object::on(Target::named("host", host))];
        components.push(Component { mirror, objects, ..Component::whole() });
    }
    if components.is_empty() {
        return Err(LayoutError::invalid("gfwhere: no host has the file"));
    }
    Layout::new(Reader.name(), 0, components)
}
