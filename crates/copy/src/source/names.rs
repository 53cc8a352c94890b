//! A list of names: which entries of a tree are copied.
//!
//! Arrives: the bytes of a list. Leaves: paths below the root, in order, each once; or the sentence that says which
//! is none. Must not know: whether they are there.

use std::fmt;

use waystage_catalog::ObjectRange;

/// Lists are not longer: their places are numbers of 32 bits, and they are held in memory.
pub const MOST_LIST_BYTES: usize = 1 << 30;

/// Names are not longer on any file system of Linux, paths not in any call; trees may be deeper than calls reach.
const LONGEST_NAME: usize = 255;
const LONGEST_PATH: usize = 64 << 10;

/// A list that cannot be used: which name, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamesError(String);

impl fmt::Display for NamesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NamesError {}

/// Paths below a root, sorted so that a directory comes right before all entries below it.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Names {
    bytes: Vec<u8>,
    /// Where each begins and ends, and which of the list it was.
    places: Vec<(u32, u32, u32)>,
    /// Storage targets, where they are known: of number n of the list from `first[n - 1]` to before `first[n]`.
    objects: Vec<ObjectRange>,
    first: Vec<u32>,
}

impl fmt::Debug for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Names({})", self.places.len())
    }
}

impl Names {
    /// Read a list: a name a line, or with `nul` each ended by a NUL, so that names may hold line feeds. They may begin
    /// with `./`, as find(1) writes them, and end with a slash; empty lines are none. `..`, a leading slash, and a name
    /// that comes twice are errors.
    pub fn parse(list: &[u8], nul: bool) -> Result<Self, NamesError> {
        if list.len() > MOST_LIST_BYTES {
            return Err(NamesError(format!(
                "it is longer than {} MiB: copy it in parts",
                MOST_LIST_BYTES >> 20
            )));
        }
        let (end, what) = if nul { (0, "name") } else { (b'\n', "line") };
        let mut names = Self::default();
        for (index, given) in list.split(|byte| *byte == end).enumerate() {
            let number = index + 1;
            if given.is_empty() {
                continue;
            }
            let wrong =
                |why: &str| Err(NamesError(format!("{what} {number}: {} {why}", shown(given))));
            if given[0] == b'/' {
                return wrong("begins with a slash: names are paths below the source");
            }
            let start = names.bytes.len();
            for part in given.split(|byte| *byte == b'/') {
                match part {
                    b"" | b"." => continue,
                    b".." => return wrong("leads out with `..`: names are paths below the source"),
                    part if part.contains(&0) => {
                        return wrong("holds a NUL: give --null where names end with one")
                    }
                    part if part.len() > LONGEST_NAME => {
                        return wrong("has a part of more than 255 bytes, which no file system has")
                    }
                    _ => {}
                }
                if names.bytes.len() > start {
                    names.bytes.push(b'/');
                }
                names.bytes.extend_from_slice(part);
            }
            let place = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
            if names.bytes.len() - start > LONGEST_PATH {
                return wrong("is longer than 64 KiB");
            }
            names.places.push((place(start), place(names.bytes.len()), place(number)));
        }
        let Self { bytes, places, .. } = &mut names;
        let parts = |place: &(u32, u32, u32)| {
            bytes[place.0 as usize..place.1 as usize].split(|byte| *byte == b'/')
        };
        places
            .sort_unstable_by(|one, other| parts(one).cmp(parts(other)).then(one.2.cmp(&other.2)));
        let twice = places.windows(2).find(|pair| parts(&pair[0]).eq(parts(&pair[1])));
        if let Some([one, other]) = twice {
            let name = &bytes[one.0 as usize..one.1 as usize];
            return Err(NamesError(format!(
                "{what} {}: {} is there a second time, after {what} {}: name it once",
                other.2,
                shown(if name.is_empty() { b"." } else { name }),
                one.2
            )));
        }
        Ok(names)
    }

    /// With the storage targets of each: name n of the list, from 0, has the objects from `first[n]` to before
    /// `first[n + 1]`. What does not fit is an error.
    pub fn with_objects(
        mut self,
        first: Vec<u32>,
        objects: Vec<ObjectRange>,
    ) -> Result<Self, NamesError> {
        let rises = first.windows(2).all(|pair| pair[0] <= pair[1]);
        let ends = first.last().is_none_or(|last| *last as usize <= objects.len());
        let listed = self.places.iter().map(|place| place.2 as usize).max().unwrap_or(0);
        if !rises || !ends || first.len() <= listed {
            let text = "storage targets of names: their places are not those of the list";
            return Err(NamesError(text.to_owned()));
        }
        (self.first, self.objects) = (first, objects);
        Ok(self)
    }

    /// Whether storage targets are known.
    #[must_use]
    pub fn have_objects(&self) -> bool {
        !self.objects.is_empty()
    }

    /// The storage targets of the name at this position in order; none where they are not known.
    #[must_use]
    pub fn objects(&self, position: usize) -> &[ObjectRange] {
        let found = self.places.get(position).and_then(|(_, _, number)| {
            let number = *number as usize;
            let (from, to) = (self.first.get(number.checked_sub(1)?)?, self.first.get(number)?);
            self.objects.get(*from as usize..*to as usize)
        });
        found.unwrap_or(&[])
    }

    /// The names in order; the root's own is empty.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.places.iter().map(|(start, end, _)| &self.bytes[*start as usize..*end as usize])
    }

    /// The one at this position in order.
    #[must_use]
    pub fn get(&self, position: usize) -> Option<&[u8]> {
        let (start, end, _) = self.places.get(position)?;
        Some(&self.bytes[*start as usize..*end as usize])
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Whether the list asks for an entry: it names the entry, a directory above it or, for a directory, an entry
    /// below it.
    #[must_use]
    pub fn ask_for(&self, path: &[u8], is_directory: bool) -> bool {
        fn parts(path: &[u8]) -> impl Iterator<Item = &[u8]> {
            path.split(|byte| *byte == b'/')
        }
        let named = |(start, end, _): &(u32, u32, u32)| &self.bytes[*start as usize..*end as usize];
        // Where it is, or would be.
        let search = |path: &[u8]| {
            self.places.binary_search_by(|place| parts(named(place)).cmp(parts(path)))
        };
        let slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
        let covered = [0].into_iter().chain(slashes).any(|end| search(&path[..end]).is_ok());
        match search(path) {
            Ok(_) => true,
            Err(_) if covered => true,
            Err(next) => {
                let next = self.places.get(next).map_or(&b""[..], named);
                is_directory && next.strip_prefix(path).is_some_and(|rest| rest.starts_with(b"/"))
            }
        }
    }

    /// The list in pieces of about this size, in bytes: together what [`Names::parse`] reads with `nul`.
    pub fn pieces(&self, bytes: usize) -> impl Iterator<Item = Vec<u8>> + '_ {
        let mut names = self.iter().peekable();
        std::iter::from_fn(move || {
            names.peek()?;
            let mut piece = Vec::new();
            while let Some(name) = names.next_if(|_| piece.len() < bytes) {
                piece.extend_from_slice(if name.is_empty() { b"." } else { name });
                piece.push(0);
            }
            Some(piece)
        })
    }
}

/// A name in a sentence, for any bytes.
fn shown(name: &[u8]) -> String {
    const MOST: usize = 200;
    let cut = &name[..name.len().min(MOST)];
    let dots = if name.len() > MOST { "..." } else { "" };
    format!("\"{}{dots}\"", String::from_utf8_lossy(cut).escape_debug())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn names(list: &[u8], nul: bool) -> Vec<Vec<u8>> {
        Names::parse(list, nul).unwrap().iter().map(<[u8]>::to_vec).collect()
    }

    fn wrong(list: &[u8], nul: bool) -> String {
        Names::parse(list, nul).unwrap_err().to_string()
    }

    #[test]
    fn a_directory_comes_right_before_its_entries() {
        let list = b"b\na-b/c\n./a/z//y/\n\na\n.\na/b\n";
        let ordered: Vec<&[u8]> = vec![b"", b"a", b"a/b", b"a/z/y", b"a-b/c", b"b"];
        assert_eq!(names(list, false), ordered);
    }

    #[test]
    fn a_list_asks_for_names_for_what_is_in_them_and_for_the_way_there() {
        let list = Names::parse(b"a/b\nd\na-b/c/e\n", false).unwrap();
        for (path, file, directory) in [
            ("a", false, true),
            ("a/b", true, true),
            ("a/b/deep/er", true, true),
            ("a/bc", false, false),
            ("a/a", false, false),
            ("a-b", false, true),
            ("a-b/c", false, true),
            ("a-b/c/e", true, true),
            ("a-b/c/f", false, false),
            ("d", true, true),
            ("d/e", true, true),
            ("de", false, false),
            (".profile", false, false),
            ("z", false, false),
        ] {
            let asked =
                [false, true].map(|is_directory| list.ask_for(path.as_bytes(), is_directory));
            assert_eq!(asked, [file, directory], "{path}");
        }
        let all = Names::parse(b".\n", false).unwrap();
        assert!(all.ask_for(b"any/thing", false) && all.ask_for(b"x", true));
        assert!(!Names::default().ask_for(b"x", true));
    }

    #[test]
    fn any_byte_but_nul_is_part_of_a_name() {
        assert_eq!(
            names(b"a\nb\0\xff/\xfe\0", true),
            vec![b"a\nb".to_vec(), b"\xff/\xfe".to_vec()]
        );
        assert_eq!(names(b" a \r\n", false), vec![b" a \r".to_vec()]);
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        assert_eq!(
            wrong(b"ok\n\na/../b\n", false),
            "line 3: \"a/../b\" leads out with `..`: names are paths below the source"
        );
        assert!(wrong(b"/etc", false).starts_with("line 1: \"/etc\" begins with a slash"));
        assert_eq!(
            wrong(b"a/b\0c\0./a//b", true),
            "name 3: \"a/b\" is there a second time, after name 1: name it once"
        );
        assert!(wrong(b"a\0b\n", false).contains("give --null"));
        assert!(wrong(b"x\ny\0../y", true).contains("name 2: \"../y\""));
        assert!(wrong(&[b'n'; 256], false).contains("255 bytes"));
        assert!(wrong(&b"d/".repeat(40_000), false).contains("64 KiB"));
        assert!(!wrong(b"a\n\x1b[2J/..", false).contains('\x1b'));
    }

    proptest! {
        #[test]
        fn pieces_put_together_are_the_list(
            list in prop::collection::btree_set("[a-c./]{1,6}", 0..20), bytes in 1_usize..40,
        ) {
            let list = list.into_iter().collect::<Vec<_>>().join("\n");
            let Ok(names) = Names::parse(list.as_bytes(), false) else { return Ok(()) };
            let again = Names::parse(&names.pieces(bytes).collect::<Vec<_>>().concat(), true).unwrap();
            prop_assert!(names.iter().eq(again.iter()));
        }

        #[test]
        fn no_list_gives_a_path_out_of_the_root(list in prop::collection::vec(prop::sample::select(b"ab./\n\0\xff".to_vec()), 0..60), nul: bool) {
            let Ok(names) = Names::parse(&list, nul) else { return Ok(()) };
            let all: Vec<&[u8]> = names.iter().collect();
            for name in &all {
                prop_assert!(name.is_empty() || name.split(|b| *b == b'/').all(|part| !matches!(part, b"" | b"." | b"..") && !part.contains(&0)));
            }
            let mut once = all.clone();
            once.sort_unstable();
            once.dedup();
            prop_assert_eq!(once.len(), all.len());
        }
    }
}
