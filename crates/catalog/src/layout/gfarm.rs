//! Gfarm: the hosts that `gfwhere FILE` prints, each with a complete copy of the file.
//!
//! Hosts are separated by blanks; a line that ends in a colon is the heading that `gfwhere` prints
//! above each of several files, and is left out. Pass the output for one file.

use super::reader::LayoutReader;
use super::{Component, Layout, LayoutError, Object, Target};

/// Gfarm, whose client answers no attribute: only the output of its command is parsed.
#[derive(Clone, Copy, Debug)]
pub struct Reader;

impl LayoutReader for Reader {
    fn name(&self) -> &'static str {
        "gfarm"
    }

    fn parse(&self, bytes: &[u8]) -> Result<Layout, LayoutError> {
        parse(bytes)
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
