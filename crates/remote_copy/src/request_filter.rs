//! What a client asked a server for: nothing else is taken from it.
//!
//! Arrives: the client's list, its patterns, the file it named. Leaves: whether an entry may come. Must not know:
//! messages.
//!
//! A server that was taken over could otherwise put files beside those that were asked for, a `.bashrc` in a home
//! directory (as rsync's servers could: CVE-2022-29154).

use waystage_catalog::Exclude;
use waystage_copy::stat::split;
use waystage_copy::Names;

use crate::session::CopyOptions;

/// What may come.
#[derive(Default)]
pub(crate) struct RequestFilter<'a> {
    single: Option<Vec<u8>>,
    names: Option<&'a Names>,
    exclude: Exclude,
    include: Option<Exclude>,
}

impl<'a> RequestFilter<'a> {
    /// All that a sender gives: it chooses what is copied.
    pub(crate) fn anything() -> Self {
        Self::default()
    }

    /// What these options ask for, or the one file of this name.
    pub(crate) fn of(
        options: &CopyOptions,
        names: Option<&'a Names>,
        single: Option<&[u8]>,
    ) -> Self {
        Self::of_patterns(&options.exclude, options.include.as_deref(), names, single)
    }

    /// The same, of what these patterns and names ask for.
    pub(crate) fn of_patterns(
        exclude: &[Vec<u8>],
        include: Option<&[Vec<u8>]>,
        names: Option<&'a Names>,
        single: Option<&[u8]>,
    ) -> Self {
        Self {
            single: single.map(<[u8]>::to_vec),
            names,
            exclude: Exclude::new(exclude.iter().cloned()),
            include: include.map(|patterns| Exclude::new(patterns.iter().cloned())),
        }
    }

    /// Whether an entry of this type is among it.
    pub(crate) fn allows(&self, letter: u8, path: &[u8]) -> bool {
        // A file that was named by itself no pattern leaves out.
        if let Some(name) = &self.single {
            return name == path;
        }
        let is_directory = letter == b'd';
        let (directory, name) = split(path);
        self.names.is_none_or(|names| names.ask_for(path, is_directory))
            && (is_directory
                || self.include.as_ref().is_none_or(|include| include.matches(directory, name)))
            && !self.exclude.covers(path)
    }
}

/// Whether a server may give the file at this path by itself under this name: by no other than that it was asked for.
pub(crate) fn names_it(path: &[u8], name: &[u8]) -> bool {
    let mut parts = path.split(|byte| *byte == b'/').filter(|part| !matches!(*part, b"" | b"."));
    parts.next_back() == Some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(exclude: &[&str], include: Option<&[&str]>) -> CopyOptions {
        let patterns =
            |all: &[&str]| all.iter().map(|one| one.as_bytes().to_vec()).collect::<Vec<_>>();
        CopyOptions {
            exclude: patterns(exclude),
            include: include.map(patterns),
            ..crate::session::tests::options()
        }
    }

    #[test]
    fn only_what_patterns_want_may_come() {
        let asked = RequestFilter::of(&options(&["*.tmp", "/cache"], Some(&["*.h5"])), None, None);
        assert!(
            asked.allows(b'f', b"a/b.h5")
                && asked.allows(b'd', b"a")
                && asked.allows(b'l', b"c.h5")
        );
        for bad in
            [&b".bashrc"[..], b"a/.ssh/authorized_keys", b"x.tmp/b.h5", b"cache/b.h5", b"b.h5.tmp"]
        {
            assert!(!asked.allows(b'f', bad) && !asked.allows(b'l', bad), "{bad:?}");
        }
        assert!(!asked.allows(b'd', b"cache") && !asked.allows(b'd', b"a/x.tmp"));
    }

    #[test]
    fn a_file_that_is_named_comes_alone_and_under_its_name() {
        let asked = RequestFilter::of(&options(&["*"], Some(&[])), None, Some(b"data"));
        assert!(asked.allows(b'f', b"data"));
        assert!(!asked.allows(b'f', b"other") && !asked.allows(b'f', b"data/other"));
        for (path, name, good) in [
            ("/a/data", "data", true),
            ("/a/data/.", "data", true),
            ("data/", "data", true),
            ("/a/data", ".bashrc", false),
            ("/", ".bashrc", false),
            ("", ".bashrc", false),
        ] {
            assert_eq!(names_it(path.as_bytes(), name.as_bytes()), good, "{path} {name}");
        }
    }
}
