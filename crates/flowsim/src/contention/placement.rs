//! The targets of files' objects: a progressive layout, and targets in round robin.

use crate::error::FlowError;

/// A part of a layout: up to `end` bytes of a file (`u64::MAX`: the rest of it) over `stripes` targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Component {
    /// Where it ends, in bytes from the file's start.
    pub end: u64,
    /// Over how many targets; more than there are means all.
    pub stripes: u32,
}

/// A progressive file layout, as Lustre has it: the first bytes of a file over few targets, later ones over more.
#[derive(Clone, Debug)]
pub struct Layout {
    /// Objects up to which a component reaches, and its stripes.
    components: Vec<(u64, u32)>,
    stripe_size: u64,
    targets: usize,
}

impl Layout {
    /// A layout over `targets` in objects of `stripe_size` bytes. Components end with whole objects.
    ///
    /// # Errors
    /// If the components do not rise to infinity, or a number is 0 or too large.
    pub fn new(
        components: &[Component],
        stripe_size: u64,
        targets: usize,
    ) -> Result<Self, FlowError> {
        if targets == 0 || targets > usize::from(u16::MAX) {
            return Err(FlowError::Targets(targets));
        }
        if stripe_size == 0 {
            return Err(FlowError::StripeSize);
        }
        let rising = components.windows(2).all(|pair| pair[0].end < pair[1].end);
        let endless = components.last().is_some_and(|last| last.end == u64::MAX);
        if !rising || !endless || components.iter().any(|c| c.stripes == 0 || c.end == 0) {
            return Err(FlowError::Layout);
        }
        let whole = |c: &Component| match c.end {
            u64::MAX => (u64::MAX, c.stripes.min(targets as u32)),
            end => (end.div_ceil(stripe_size), c.stripes.min(targets as u32)),
        };
        Ok(Self { components: components.iter().map(whole).collect(), stripe_size, targets })
    }
}

/// Files with their objects on targets.
#[derive(Clone, Debug)]
pub struct Placement {
    layout: Layout,
    files: Vec<Placed>,
}

#[derive(Clone, Copy, Debug)]
struct Placed {
    objects: u32,
    first_target: u16,
}

impl Placement {
    /// Place files in this order: each component takes the targets that come next, all around and again, as Lustre's
    /// round-robin allocator does. The first file's first object goes to `first_target`.
    ///
    /// # Errors
    /// If there is no file, or a file's size is out of range.
    pub fn new(layout: Layout, sizes: &[u64], first_target: usize) -> Result<Self, FlowError> {
        if sizes.is_empty() || u32::try_from(sizes.len()).is_err() {
            return Err(FlowError::Files(sizes.len()));
        }
        let mut next = first_target % layout.targets;
        let mut files = Vec::with_capacity(sizes.len());
        for &size in sizes {
            let objects = size.div_ceil(layout.stripe_size);
            let objects = u32::try_from(objects).map_err(|_| FlowError::Size(size))?;
            if objects == 0 {
                return Err(FlowError::Size(size));
            }
            files.push(Placed { objects, first_target: next as u16 });
            let mut begin = 0;
            for &(end, stripes) in &layout.components {
                if u64::from(objects) > begin {
                    next += stripes as usize;
                }
                begin = end;
            }
            next %= layout.targets;
        }
        Ok(Self { layout, files })
    }

    /// How many files there are.
    #[must_use]
    pub fn files(&self) -> usize {
        self.files.len()
    }

    /// How many targets there are.
    #[must_use]
    pub fn targets(&self) -> usize {
        self.layout.targets
    }

    /// How many objects a file has.
    #[must_use]
    pub fn objects(&self, file: usize) -> u32 {
        self.files[file].objects
    }

    /// The target of a file's object.
    #[must_use]
    pub fn target(&self, file: usize, object: u32) -> usize {
        let mut first = usize::from(self.files[file].first_target);
        let mut begin = 0;
        for &(end, stripes) in &self.layout.components {
            if u64::from(object) < end {
                let within = (u64::from(object) - begin) % u64::from(stripes);
                return (first + within as usize) % self.layout.targets;
            }
            first += stripes as usize;
            begin = end;
        }
        first % self.layout.targets
    }

    /// How many objects lie on each target.
    #[must_use]
    pub fn objects_of_targets(&self) -> Vec<u64> {
        let mut count = vec![0; self.layout.targets];
        for file in 0..self.files.len() {
            let mut begin = 0;
            let mut first = usize::from(self.files[file].first_target);
            let objects = u64::from(self.files[file].objects);
            for &(end, stripes) in &self.layout.components {
                let here = objects.min(end).saturating_sub(begin);
                let (all, some) = (here / u64::from(stripes), here % u64::from(stripes));
                for i in 0..u64::from(stripes) {
                    count[(first + i as usize) % self.layout.targets] += all + u64::from(i < some);
                }
                first += stripes as usize;
                begin = end;
            }
        }
        count
    }
}
