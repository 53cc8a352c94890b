//! How files are cut into objects: templates, the targets that a file gets, and Lustre's binary form of both.
//!
//! Arrives: templates, pools, a file's turn.
//! Leaves: the parts of a read at each target; `lustre.lov`, written by the catalog's own encoder.
//! Must not know: files' contents, servers, FUSE.
//!
//! Each component takes targets in turn (Lustre's round-robin allocator) or by a seeded draw.

#[cfg(test)]
mod tests;

use std::sync::Arc;

use waystage_catalog::layout::lustre::{entry_flag, pattern, Body, Entry, Md, OstObject, Plain};
use waystage_catalog::layout::EOF;

use crate::error::PfsError;
use crate::model::Part;

/// A stripe count that means all targets.
pub const ALL: u16 = 0xFFFF;

/// Counts from here on are negative: all targets, or several objects on each (`LLAPI_OVERSTRIPE_COUNT_MIN`).
const NEGATIVE: u16 = 0xFFE0;

/// Lustre's smallest unit of a stripe (`LOV_MIN_STRIPE_SIZE`).
pub const UNIT_BYTES: u32 = 64 << 10;

/// The most components of a template; Lustre's own bound is of this order.
const MOST_COMPONENTS: usize = 64;

/// How a range of new files is striped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TemplateComponent {
    /// The byte after the last of it; [`EOF`] in the last component.
    pub end: u64,
    /// Bytes of a stripe.
    pub stripe_size: u32,
    /// How many targets, or [`ALL`].
    pub stripes: u16,
    /// The pool they come from; None: any target.
    pub pool: Option<Arc<str>>,
}

/// How new files are striped: components in order, the last one without an end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template(Vec<TemplateComponent>);

impl Template {
    /// A template.
    ///
    /// # Errors
    /// Where ends do not rise to the end of every file, or a stripe is none.
    pub fn new(components: Vec<TemplateComponent>) -> Result<Self, PfsError> {
        let shape = |what: &str| Err(PfsError::Shape(format!("a layout {what}")));
        let Some(last) = components.last() else { return shape("needs at least one component") };
        if last.end != EOF || components.len() > MOST_COMPONENTS {
            return shape("needs a last component without an end, and at most 64 of them");
        }
        if components.windows(2).any(|pair| pair[0].end >= pair[1].end) || components[0].end == 0 {
            return shape("needs components whose ends rise");
        }
        for component in &components {
            let size = component.stripe_size;
            if size == 0 || size % UNIT_BYTES != 0 || component.stripes == 0 {
                return shape("needs stripes of a multiple of 64 KiB over at least one target");
            }
            let end = component.end;
            if end != EOF && end % u64::from(size) != 0 {
                return shape("needs components that end with a whole stripe");
            }
            if component.pool.as_ref().is_some_and(|pool| pool.is_empty() || pool.len() > 15) {
                return shape("needs names of pools of 1 to 15 bytes");
            }
        }
        Ok(Self(components))
    }

    /// Its components.
    #[must_use]
    pub fn components(&self) -> &[TemplateComponent] {
        &self.0
    }

    /// What `lustre.lov` of a directory says, or of a file that has no object yet.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let plain = |c: &TemplateComponent| Plain {
            stripe_count: c.stripes,
            generation: u16::MAX, // the first target: any
            ..pooled(Plain::striped(c.stripe_size, &[], 0), c.pool.as_deref())
        };
        if let [only] = &self.0[..] {
            return Md::Plain(plain(only)).encode();
        }
        let mut start = 0;
        let entries = (1..).zip(&self.0).map(|(id, c)| {
            let entry = entry(id, 0, start, c.end, plain(c));
            start = c.end;
            entry
        });
        composite(entries.collect())
    }

    /// What a program asks for by writing `lustre.lov`.
    ///
    /// # Errors
    /// Where the bytes are no layout, or none that can be had here.
    pub fn decode(bytes: &[u8]) -> Result<Self, PfsError> {
        let refused = |what: &str| PfsError::Shape(format!("lustre.lov: {what}"));
        let md = Md::decode(bytes).map_err(|error| refused(&error.to_string()))?;
        let component = |plain: &Plain, end| {
            let has = |bits: u32| plain.pattern & bits != 0;
            if has(pattern::MDT) {
                return Err(refused("data on the metadata target cannot be had here"));
            }
            // -1 is all targets, less than that several objects on each.
            let several = (NEGATIVE..ALL).contains(&plain.stripe_count);
            if has(pattern::OVERSTRIPED) || several {
                return Err(refused("several objects on one target cannot be had here"));
            }
            if has(!pattern::RAID0) {
                return Err(refused("archived and foreign components cannot be had here"));
            }
            if plain.specific {
                return Err(refused("targets named one by one cannot be had here"));
            }
            Ok(TemplateComponent {
                end,
                stripe_size: plain.stripe_size,
                stripes: plain.stripe_count.max(1),
                pool: plain.pool_name().map(Arc::from),
            })
        };
        match md {
            Md::Plain(plain) => Self::new(vec![component(&plain, EOF)?]),
            Md::Composite { entries, extra_mirrors: 0, extendable: false, .. } => {
                let mut components = Vec::new();
                let mut start = 0;
                for entry in &entries {
                    let Body::Plain(plain) = &entry.body else {
                        return Err(refused("foreign components cannot be had here"));
                    };
                    if entry.mirror() != 0 {
                        return Err(refused("mirrors cannot be had here"));
                    }
                    if entry.flags & !entry_flag::INIT != 0 {
                        return Err(refused("components with flags cannot be had here"));
                    }
                    if entry.start != start {
                        return Err(refused("components leave a gap"));
                    }
                    start = entry.end;
                    components.push(component(plain, entry.end)?);
                }
                Self::new(components)
            }
            _ => Err(refused("mirrors and foreign layouts cannot be had here")),
        }
    }
}

/// How targets are given out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dealing {
    /// In turn.
    RoundRobin,
    /// By a draw from this seed.
    Random,
}

/// Gives files their targets.
#[derive(Clone, Debug)]
pub struct Striper {
    all: Vec<u32>,
    pools: Vec<(Arc<str>, Vec<u32>)>,
    dealing: Dealing,
    seed: u64,
}

impl Striper {
    /// A striper over `targets` targets.
    ///
    /// # Errors
    /// Where a pool is empty or has a target that is not there.
    pub fn new(
        targets: u32,
        pools: Vec<(Arc<str>, Vec<u32>)>,
        dealing: Dealing,
        seed: u64,
    ) -> Result<Self, PfsError> {
        for (name, members) in &pools {
            if members.is_empty() || members.iter().any(|member| *member >= targets) {
                return Err(PfsError::Shape(format!(
                    "pool {name} needs targets from 0 to {}",
                    targets.saturating_sub(1)
                )));
            }
        }
        Ok(Self { all: (0..targets).collect(), pools, dealing, seed })
    }

    /// Whether every pool that the template names is there.
    #[must_use]
    pub fn has_pools_of(&self, template: &Template) -> bool {
        template.0.iter().all(|c| {
            c.pool.as_ref().is_none_or(|pool| self.pools.iter().any(|(name, _)| name == pool))
        })
    }

    /// The targets of the file whose turn it is; `id` numbers its objects.
    #[must_use]
    pub fn place(&self, template: &Template, turn: u64, id: u64) -> Striping {
        let mut start = 0;
        let mut components = Vec::with_capacity(template.0.len());
        for (number, c) in (0_u64..).zip(&template.0) {
            let members = c
                .pool
                .as_ref()
                .and_then(|pool| self.pools.iter().find(|(name, _)| name == pool))
                .map_or(&self.all, |(_, members)| members);
            let count = members.len().min(usize::from(c.stripes));
            let draw = match self.dealing {
                Dealing::RoundRobin => {
                    mix(self.seed ^ number).wrapping_add(turn.wrapping_mul(count as u64))
                }
                Dealing::Random => mix(mix(self.seed ^ number).wrapping_add(turn)),
            };
            let first = usize::try_from(draw % members.len() as u64).unwrap_or(0);
            let osts = (0..count).map(|i| members[(first + i) % members.len()]).collect();
            components.push(Striped {
                start,
                end: c.end,
                stripe_size: c.stripe_size,
                osts,
                pool: c.pool.clone(),
            });
            start = c.end;
        }
        Striping { components, id }
    }
}

/// A component of a file that has its targets.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Striped {
    start: u64,
    end: u64,
    stripe_size: u32,
    osts: Vec<u32>,
    pool: Option<Arc<str>>,
}

/// The striping of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Striping {
    components: Vec<Striped>,
    id: u64,
}

impl Striping {
    /// What `lustre.lov` says of a file of `size` bytes: a component that nothing reached has no objects yet.
    #[must_use]
    pub fn encode(&self, size: u64) -> Vec<u8> {
        let plain = |number: u64, c: &Striped, made: bool| {
            let first_id = self.id.wrapping_mul(64).wrapping_add(number * 4096) & !(1 << 63);
            let mut plain =
                Plain::striped(c.stripe_size, if made { &c.osts } else { &[] }, first_id);
            plain.stripe_count = u16::try_from(c.osts.len()).unwrap_or(u16::MAX);
            plain.file_id = (self.id, 0x2_0000_0401);
            plain.objects.iter_mut().for_each(|object: &mut OstObject| object.generation = 0);
            pooled(plain, c.pool.as_deref())
        };
        if let [only] = &self.components[..] {
            return Md::Plain(plain(0, only, true)).encode();
        }
        let entries = (0..).zip(&self.components).map(|(number, c)| {
            let made = number == 0 || size > c.start;
            let flags = if made { entry_flag::INIT } else { 0 };
            let id = u32::try_from(number + 1).unwrap_or(u32::MAX);
            entry(id, flags, c.start, c.end, plain(number, c, made))
        });
        composite(entries.collect())
    }

    /// The bytes from `offset` on, by target. Stripes of one object that follow one another come together.
    #[must_use]
    pub fn parts(&self, offset: u64, length: u64, write: bool) -> Vec<Part> {
        let mut parts: Vec<Part> = Vec::new();
        let end = offset.saturating_add(length);
        let mut at = offset;
        while at < end {
            let index = self.components.partition_point(|c| c.end <= at);
            let Some(c) = self.components.get(index) else { break };
            let size = u64::from(c.stripe_size);
            let number = usize::try_from(at / size % c.osts.len() as u64).unwrap_or(0);
            let until = (at - at % size).saturating_add(size).min(c.end).min(end);
            let target = c.osts[number] as usize;
            match parts.iter_mut().find(|part| part.target == target) {
                Some(part) => part.bytes += until - at,
                None => parts.push(Part { target, bytes: until - at, write }),
            }
            at = until;
        }
        parts
    }
}

fn pooled(plain: Plain, pool: Option<&str>) -> Plain {
    match pool {
        // A template has no name that is too long: it was refused.
        Some(name) => plain.clone().in_pool(name).unwrap_or(plain),
        None => plain,
    }
}

fn entry(id: u32, flags: u32, start: u64, end: u64, plain: Plain) -> Entry {
    Entry { id, flags, start, end, generation: 0, timestamp: 0, body: Body::Plain(plain) }
}

fn composite(entries: Vec<Entry>) -> Vec<u8> {
    Md::Composite { extendable: false, generation: 1, state: 0, extra_mirrors: 0, entries }.encode()
}

/// SplitMix64's finaliser (Steele, Lea, Flood 2014): a number for a number, well mixed and always the same.
#[must_use]
pub fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
