//! CephFS: the text of `ceph.file.layout` and `ceph.dir.layout`.
//!
//! `stripe_unit=4194304 stripe_count=1 object_size=4194304 pool=cephfs_data`, and `pool_namespace=...`
//! where one is set (Ceph, "File layouts"). Objects are placed by the hash of their name, so the pool
//! stands for the target; [`object_name`] gives the name by which `ceph osd map` finds the daemon.

use super::reader::{Access, LayoutReader, OpenFile};
use super::{Component, Layout, LayoutError, Striping, Target};

/// CephFS through its kernel client.
#[derive(Clone, Copy, Debug)]
pub struct Reader;

impl LayoutReader for Reader {
    fn name(&self) -> &'static str {
        "ceph"
    }

    fn magic_numbers(&self) -> &'static [u64] {
        &[0x00C3_6400]
    }

    fn access(&self) -> Access {
        Access::Attribute(c"ceph.file.layout")
    }

    fn parse(&self, bytes: &[u8]) -> Result<Layout, LayoutError> {
        parse(bytes)
    }

    fn read(&self, file: &OpenFile<'_>) -> Result<Option<Layout>, LayoutError> {
        if file.directory {
            return file.attribute(c"ceph.dir.layout", |bytes| Ok(parse(bytes)?.into_template()));
        }
        file.attribute(c"ceph.file.layout", parse)
    }
}

/// The layout of a file.
///
/// # Errors
/// Where a field is missing, is no number, or contradicts another.
pub fn parse(bytes: &[u8]) -> Result<Layout, LayoutError> {
    let text = std::str::from_utf8(bytes)
        .map_err(|_| LayoutError::invalid("ceph.file.layout: not UTF-8"))?
        .trim_matches(|c: char| c.is_whitespace() || c == '\0');
    let unit = number(text, "stripe_unit")?;
    let count = number(text, "stripe_count")?;
    let object_size = number(text, "object_size")?;
    let pool = field(text, "pool")
        .filter(|pool| !pool.is_empty())
        .ok_or_else(|| LayoutError::invalid("ceph.file.layout: pool is missing"))?;
    let name = match field(text, "pool_namespace") {
        Some(namespace) => format!("{pool}/{namespace}"),
        None => pool.to_owned(),
    };
    Layout::new(
        Reader.name(),
        0,
        vec![Component {
            striping: Striping { unit, count, object_size },
            rest: Some(Target::named("pool", name)),
            pool: Some(pool.into()),
            ..Component::whole()
        }],
    )
}

/// The name of an object in its pool: the file's inode and the object's number, in hexadecimal.
#[must_use]
pub fn object_name(inode: u64, object: u64) -> String {
    format!("{inode:x}.{object:08x}")
}

/// The text in which CephFS would tell this striping.
#[must_use]
pub fn encode(striping: Striping, pool: &str) -> String {
    let Striping { unit, count, object_size } = striping;
    format!("stripe_unit={unit} stripe_count={count} object_size={object_size} pool={pool}")
}

fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.split_ascii_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
}

fn number(text: &str, name: &str) -> Result<u64, LayoutError> {
    let value = field(text, name)
        .ok_or_else(|| LayoutError::invalid(format!("ceph.file.layout: {name} is missing")))?;
    // The kernel and the daemons keep each of them in 32 bits.
    value.parse::<u32>().map(u64::from).map_err(|_| {
        LayoutError::invalid(format!(
            "ceph.file.layout: {name} is {value:?}, not a number of 32 bits"
        ))
    })
}
