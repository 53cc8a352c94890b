//! Layouts as they are asked for, and as `lustre.lov` says them.
//!
//! The bytes are those of `lov_user_md` (`lustre_user.h`), which `lfs setstripe` hands to the file system too.

use waystage_catalog::layout::lustre::{entry_flag, pattern, Body, Entry, Md, Plain};
use waystage_catalog::layout::EOF;

/// A stripe count that means all targets (`LLAPI_LAYOUT_WIDE`).
pub const ALL: u16 = 0xFFFF;

/// Lustre's smallest unit of a stripe (`LOV_MIN_STRIPE_SIZE`).
const UNIT_BYTES: u32 = 64 << 10;

/// The most parts of a layout.
const MOST_PARTS: usize = 64;

/// How a range of a file is striped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StripePart {
    /// The byte after its last; [`EOF`] in the last part.
    pub end: u64,
    /// Bytes of a stripe.
    pub stripe_size: u32,
    /// Targets, or [`ALL`].
    pub stripes: u16,
    /// The pool they are taken from; None: any target.
    pub pool: Option<String>,
}

/// How a file is striped: parts in order, the last one without an end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StripeLayout(Vec<StripePart>);

impl StripeLayout {
    /// A layout of these parts.
    ///
    /// # Errors
    /// One sentence where Lustre has no such layout.
    pub fn new(parts: Vec<StripePart>) -> Result<Self, String> {
        let refused = |what: &str| Err(format!("a layout {what}"));
        let Some(last) = parts.last() else { return refused("needs at least one part") };
        if last.end != EOF || parts.len() > MOST_PARTS {
            return refused("needs a last part without an end, and has at most 64 parts");
        }
        if parts.windows(2).any(|pair| pair[0].end >= pair[1].end) || parts[0].end == 0 {
            return refused("needs parts whose ends rise");
        }
        for part in &parts {
            if part.stripe_size == 0 || part.stripe_size % UNIT_BYTES != 0 {
                return refused("needs a stripe_size that is a multiple of 64Ki");
            }
            if part.stripes == 0 || (0xFFE0..ALL).contains(&part.stripes) {
                return refused("needs 1 to 65503 stripes, or all");
            }
            if part.end != EOF && part.end % u64::from(part.stripe_size) != 0 {
                return refused("needs parts that end with a whole stripe");
            }
            let fits = |pool: &String| (1..=15).contains(&pool.len()) && !pool.contains('\0');
            if !part.pool.as_ref().is_none_or(fits) {
                return refused("needs pools with names of 1 to 15 bytes");
            }
        }
        Ok(Self(parts))
    }

    /// Where its parts begin.
    pub(super) fn starts(&self) -> Vec<u64> {
        let ends = self.0.iter().map(|part| part.end);
        std::iter::once(0).chain(ends.filter(|end| *end != EOF)).collect()
    }

    /// The value of `lustre.lov` that asks for it.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        if let [only] = &self.0[..] {
            return Md::Plain(plain(only)).encode();
        }
        let entry = |(id, start, part): (u32, u64, &StripePart)| Entry {
            id,
            flags: 0,
            start,
            end: part.end,
            generation: 0,
            timestamp: 0,
            body: Body::Plain(plain(part)),
        };
        let parts = (1..).zip(self.starts()).zip(&self.0);
        let entries = parts.map(|((id, start), part)| entry((id, start, part))).collect();
        let (extendable, generation, state, extra_mirrors) = (false, 0, 0, 0);
        Md::Composite { extendable, generation, state, extra_mirrors, entries }.encode()
    }
}

fn plain(part: &StripePart) -> Plain {
    let striped = Plain {
        stripe_count: part.stripes,
        // In a request the index of the first target: any.
        generation: u16::MAX,
        ..Plain::striped(part.stripe_size, &[], 0)
    };
    match &part.pool {
        // `StripeLayout::new` has refused names that are too long.
        Some(pool) => striped.clone().in_pool(pool).unwrap_or(striped),
        None => striped,
    }
}

/// How a file is laid out, as far as two files with the same layout agree: not its objects and their targets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Shape(Vec<Part>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Part {
    start: u64,
    end: u64,
    pattern: u32,
    stripe_size: u32,
    stripes: usize,
    pool: Option<Box<str>>,
}

impl Shape {
    /// Whether a file of this other shape is laid out in this way: parts that it does not reach need no objects, and
    /// may say "all" for a number.
    pub(super) fn agrees(&self, other: &Self) -> bool {
        self.0.len() == other.0.len()
            && self.0.iter().zip(&other.0).all(|(one, other)| {
                let planned = other.stripes == usize::from(ALL);
                Part { stripes: 0, ..one.clone() } == Part { stripes: 0, ..other.clone() }
                    && (one.stripes == other.stripes || planned)
            })
    }
}

/// What `lustre.lov` of a file says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Current {
    /// Data on storage targets.
    Striped(Shape),
    /// Data in an archive: reading it would bring all of it back.
    Archived,
    /// Mirrors, data elsewhere, or a form that this does not know.
    Other,
}

impl Current {
    /// From the value of `lustre.lov`.
    pub(super) fn of(bytes: &[u8]) -> Self {
        let part = |start, end, plain: &Plain| Part {
            start,
            end,
            pattern: plain.pattern,
            stripe_size: plain.stripe_size,
            stripes: match plain.objects.len() {
                0 => usize::from(plain.stripe_count),
                objects => objects,
            },
            pool: plain.pool_name(),
        };
        let archived = |plain: &Plain| plain.pattern & pattern::RELEASED != 0;
        match Md::decode(bytes) {
            Ok(Md::Plain(plain)) if archived(&plain) => Self::Archived,
            Ok(Md::Plain(plain)) => Self::Striped(Shape(vec![part(0, EOF, &plain)])),
            Ok(Md::Composite { extra_mirrors: 0, entries, .. }) => {
                let mut parts = Vec::with_capacity(entries.len());
                for entry in &entries {
                    let Body::Plain(plain) = &entry.body else { return Self::Other };
                    if archived(plain) {
                        return Self::Archived;
                    }
                    if entry.flags & !entry_flag::INIT != 0 {
                        return Self::Other;
                    }
                    parts.push(part(entry.start, entry.end, plain));
                }
                Self::Striped(Shape(parts))
            }
            _ => Self::Other,
        }
    }

    /// Whether every part has its objects, as of a file that reaches into each.
    pub(super) fn has_objects(bytes: &[u8]) -> bool {
        match Md::decode(bytes) {
            Ok(Md::Plain(plain)) => !plain.objects.is_empty(),
            Ok(Md::Composite { entries, .. }) => entries.iter().all(
                |entry| matches!(&entry.body, Body::Plain(plain) if !plain.objects.is_empty()),
            ),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn part(end: u64, stripes: u16, stripe_size: u32, pool: Option<&str>) -> StripePart {
        StripePart { end, stripe_size, stripes, pool: pool.map(str::to_owned) }
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn requests_are_the_bytes_that_lfs_setstripe_sends() {
        // lov_user_md_v1 of `lfs setstripe -c 4 -S 1M`: magic, RAID0, object 0, stripe size, count, any first target.
        let plain = StripeLayout::new(vec![part(EOF, 4, 1 << 20, None)]).expect("a layout");
        let first = "d00bd10b01000000";
        let id = "0".repeat(32);
        assert_eq!(hex(&plain.encode()), format!("{first}{id}000010000400ffff"));
        // lov_user_md_v3 with a pool, on all targets (-1).
        let pooled = StripeLayout::new(vec![part(EOF, ALL, 4 << 20, Some("flash"))]);
        let pool = "666c6173680000000000000000000000";
        assert_eq!(
            hex(&pooled.expect("a layout").encode()),
            format!("d00bd30b01000000{id}00004000ffffffff{pool}")
        );
    }

    #[test]
    fn a_progressive_layout_is_a_composite_whose_parts_follow_one_another() {
        let parts = vec![part(4 << 20, 1, 1 << 20, None), part(EOF, ALL, 4 << 20, None)];
        let bytes = StripeLayout::new(parts).expect("a layout").encode();
        let Ok(Md::Composite { entries, .. }) = Md::decode(&bytes) else { panic!("composite") };
        let ranges: Vec<_> = entries.iter().map(|e| (e.id, e.start, e.end, e.flags)).collect();
        assert_eq!(ranges, [(1, 0, 4 << 20, 0), (2, 4 << 20, EOF, 0)]);
        assert!(!Current::has_objects(&bytes));
    }

    #[test]
    fn files_with_the_same_layout_on_other_targets_agree() {
        let on = |osts: &[u32]| Current::of(&Md::Plain(Plain::striped(1 << 20, osts, 7)).encode());
        assert_eq!(on(&[1, 2]), on(&[5, 0]));
        assert_ne!(on(&[1, 2]), on(&[1]));
        let released = Plain {
            pattern: pattern::RAID0 | pattern::RELEASED,
            ..Plain::striped(1 << 20, &[], 0)
        };
        assert_eq!(Current::of(&Md::Plain(released).encode()), Current::Archived);
    }

    #[test]
    fn layouts_that_lustre_does_not_have_are_refused() {
        for parts in [
            vec![],
            vec![part(1 << 20, 1, 1 << 20, None)],
            vec![part(2 << 20, 1, 1 << 20, None), part(1 << 20, 1, 1 << 20, None)],
            vec![part(1 << 16, 1, 1 << 20, None), part(EOF, 1, 1 << 20, None)],
            vec![part(EOF, 0, 1 << 20, None)],
            vec![part(EOF, 1, 1000, None)],
            vec![part(EOF, 1, 1 << 20, Some("a name that is too long"))],
        ] {
            assert!(StripeLayout::new(parts.clone()).is_err(), "{parts:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_some_layout_or_another(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = (Current::of(&bytes), Current::has_objects(&bytes));
        }
    }
}
