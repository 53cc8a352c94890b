//! The text of `trusted.glusterfs.pathinfo`.
//!
//! ```text
//! (<DISTRIBUTE:v-dht> (<REPLICATE:v-replicate-0> <POSIX(/bricks/b0):host:/bricks/b0/file> <POSIX...>))
//! (<DISTRIBUTE:v-dht> (<EC:v-disperse-0> <POSIX...> <POSIX...> <POSIX...>))
//! (<DISTRIBUTE:v-dht> <POSIX...>)
//! ((<DISTRIBUTE:v-dht> <POSIX...> ...) (v-dht-layout (v-client-0 0 4294967295)))        a directory
//! ```
//! Each brick of a replica set has a complete copy, except arbiters, which the text does not mark.
//! Under an erasure code no brick stores a plain byte of the file, so the set is the target. On a
//! sharded volume the text is of the first block; block n is the file `.shard/GFID.n`, on the bricks
//! that its own text names.

use super::super::{
    Component, Flags, Layout, LayoutError, Object, ObjectId, Striping, Target, EOF,
};

/// The name of the reader.
pub(super) const KIND: &str = "gluster";

/// The layout of a file, or of a directory, whose bricks are those its new files may get.
///
/// # Errors
/// Where the text is not of the forms above.
pub fn parse(pathinfo: &[u8]) -> Result<Layout, LayoutError> {
    match PathInfo::read(pathinfo)? {
        PathInfo { directory: true, bricks, .. } => {
            let component = Component {
                flags: Flags::UNLOCATED,
                objects: bricks.into_iter().map(Object::from).collect(),
                ..Component::whole()
            };
            Ok(Layout::new(KIND, 0, vec![component])?.into_template())
        }
        info => Layout::new(KIND, 0, components(vec![Some(info)], Striping::WHOLE)?),
    }
}

/// The layout of a file of a sharded volume: the text of its blocks, from the first on, as far as
/// known, None for a block that was never written, and the volume's `features.shard-block-size`.
///
/// # Errors
/// Where there is no text of the first block, one is not of a file, or they name different numbers
/// of copies.
pub fn parse_sharded(blocks: &[Option<&[u8]>], block_size: u64) -> Result<Layout, LayoutError> {
    let infos = blocks.iter().map(|block| block.map(PathInfo::read).transpose());
    let infos = infos.collect::<Result<Vec<_>, _>>()?;
    if infos.iter().flatten().any(|info| info.directory) {
        return Err(LayoutError::invalid("pathinfo: a directory is not sharded"));
    }
    if block_size == EOF {
        return Err(LayoutError::invalid("pathinfo: a block of this size holds any file"));
    }
    let striping = Striping { unit: block_size, count: 1, object_size: block_size };
    Layout::new(KIND, 0, components(infos, striping)?)
}

/// One mirror for each copy that every block has.
fn components(
    blocks: Vec<Option<PathInfo>>,
    striping: Striping,
) -> Result<Vec<Component>, LayoutError> {
    let Some(Some(first)) = blocks.first() else {
        return Err(LayoutError::invalid("pathinfo: the first block has no text"));
    };
    let flags = Flags::when(first.coded.is_some(), Flags::CODED);
    let copies = if first.coded.is_some() { 1 } else { first.bricks.len() };
    let mirror = |mirror| Component { mirror, flags, striping, ..Component::whole() };
    let mut mirrors: Vec<Component> = (0..).map(mirror).take(copies).collect();
    for (number, block) in blocks.into_iter().enumerate() {
        let objects = match block {
            None => vec![Object::absent(Flags::UNWRITTEN); copies],
            Some(PathInfo { coded: Some(set), .. }) => {
                vec![Object::on(Target::named("disperse", set))]
            }
            Some(mut info) => {
                // They come in the order in which they answered; copies keep their numbers.
                info.bricks.sort_unstable();
                info.bricks.into_iter().map(Object::from).collect()
            }
        };
        if objects.len() != copies {
            return Err(LayoutError::invalid(format!(
                "pathinfo: block {number} is on {} bricks, and block 0 on {copies}",
                objects.len()
            )));
        }
        for (mirror, object) in mirrors.iter_mut().zip(objects) {
            mirror.objects.push(object);
        }
    }
    Ok(mirrors)
}

/// A brick, and the path of the file on it.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Brick {
    host: String,
    root: Vec<u8>,
    path: Box<[u8]>,
}

impl From<Brick> for Object {
    fn from(brick: Brick) -> Self {
        let name = [brick.host.as_bytes(), b":", &brick.root].concat();
        let target = Some(Target::named("brick", name));
        Self { target, id: ObjectId::Path(brick.path), flags: Flags::NONE }
    }
}

/// The content of one text.
#[derive(Default)]
struct PathInfo {
    bricks: Vec<Brick>,
    /// Sets of bricks named: replicas, or an erasure code's.
    sets: u32,
    /// The name of the set of bricks under an erasure code.
    coded: Option<String>,
    directory: bool,
}

impl PathInfo {
    /// Read the text from left to right. No stack is needed: a file is in one set of bricks.
    fn read(text: &[u8]) -> Result<Self, LayoutError> {
        let text = text.trim_ascii();
        let mut info = Self::default();
        let mut rest = text.strip_suffix(b"\0").unwrap_or(text);
        let mut depth = 0_u32;
        while let Some((first, after)) = rest.split_first() {
            match first {
                b'(' => depth += 1,
                b')' if depth == 0 => return Err(LayoutError::invalid("pathinfo: ) without (")),
                b')' => depth -= 1,
                b' ' => {}
                b'<' => {
                    let (inside, after) = element(after)?;
                    info.take(inside)?;
                    rest = after;
                    continue;
                }
                // The ranges of hashes of a directory, which the text puts last.
                _ if rest.windows(8).any(|window| window == b"-layout ") => {
                    info.directory = true;
                    depth = 0;
                    break;
                }
                _ => return Err(LayoutError::invalid("pathinfo: text outside of < and >")),
            }
            rest = after;
        }
        if depth != 0 {
            return Err(LayoutError::truncated("pathinfo: ( without )"));
        }
        if info.bricks.is_empty() {
            return Err(LayoutError::invalid("pathinfo: no brick is named"));
        }
        if !info.directory && (info.sets > 1 || info.sets == 0 && info.bricks.len() > 1) {
            return Err(LayoutError::invalid("pathinfo: a file in more than one set of bricks"));
        }
        Ok(info)
    }

    /// Take one element, without its brackets.
    fn take(&mut self, element: &[u8]) -> Result<(), LayoutError> {
        if let Some(brick) = element.strip_prefix(b"POSIX(") {
            self.bricks.push(self::brick(brick)?);
        } else if element.contains(&b'<') {
            let element = String::from_utf8_lossy(element);
            return Err(LayoutError::unsupported(format!("pathinfo: unknown <{element}>")));
        } else if let Some(name) = element.strip_prefix(b"EC:") {
            self.sets += 1;
            self.coded = Some(String::from_utf8_lossy(name).into_owned());
        } else if element.starts_with(b"REPLICATE:") {
            self.sets += 1;
        } else if !element.starts_with(b"DISTRIBUTE:") {
            let element = String::from_utf8_lossy(element);
            return Err(LayoutError::unsupported(format!("pathinfo: unknown <{element}>")));
        }
        Ok(())
    }
}

/// What is before the `>` that ends an element, and what is after.
fn element(text: &[u8]) -> Result<(&[u8], &[u8]), LayoutError> {
    let ends = |at: &usize| text[*at] == b'>' && goes_on(&text[at + 1..]);
    match (0..text.len()).find(ends) {
        Some(at) => Ok((&text[..at], &text[at + 1..])),
        None => Err(LayoutError::truncated("pathinfo: < without >")),
    }
}

/// Whether `text` can follow an element: file names may hold `>`, blanks and parentheses too.
fn goes_on(text: &[u8]) -> bool {
    let closed = text.iter().position(|byte| *byte != b')').unwrap_or(text.len());
    let Some(after) = text[closed..].strip_prefix(b" ") else { return text.len() == closed };
    let opened = after.iter().position(|byte| *byte != b'(').unwrap_or(after.len());
    let after = &after[opened..];
    let kinds: [&[u8]; 4] = [b"<POSIX(", b"<REPLICATE:", b"<EC:", b"<DISTRIBUTE:"];
    let word = after.split(|byte| *byte == b' ').next().unwrap_or_default();
    kinds.iter().any(|kind| after.starts_with(kind)) || opened > 0 && word.ends_with(b"-layout")
}

/// `ROOT):HOST:PATH`, PATH being absolute; the host may be an IPv6 address.
fn brick(text: &[u8]) -> Result<Brick, LayoutError> {
    let parts = find(text, b"):").and_then(|root_end| {
        let after = &text[root_end + 2..];
        let host_end = find(after, b":/")?;
        Some((&text[..root_end], &after[..host_end], &after[host_end + 1..]))
    });
    let Some((root, host, path)) = parts else {
        return Err(LayoutError::invalid("pathinfo: a brick is not of the form (ROOT):HOST:PATH"));
    };
    let host = std::str::from_utf8(host)
        .map_err(|_| LayoutError::invalid("pathinfo: the name of a host is not UTF-8"))?;
    Ok(Brick { host: host.to_owned(), root: root.to_owned(), path: path.into() })
}

fn find(text: &[u8], what: &[u8]) -> Option<usize> {
    text.windows(what.len()).position(|window| window == what)
}
