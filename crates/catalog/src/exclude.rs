//! Patterns of paths that a walk excludes.

/// Patterns over names and paths, as bytes: a name need not be UTF-8.
///
/// A pattern without `/` is held against the name at any depth, one with `/` against the path below the root. `*` and
/// `?` do not match `/`; `**` does; `[a-z]` and `[!a-z]` are sets; a backslash takes the meaning from what follows.
#[derive(Debug, Clone, Default)]
pub struct Exclude {
    names: Vec<Vec<u8>>,
    paths: Vec<Vec<u8>>,
}

impl Exclude {
    /// Take patterns; a leading `/` anchors at the root, as every pattern with `/` is anyhow.
    pub fn new(patterns: impl IntoIterator<Item = Vec<u8>>) -> Self {
        let mut exclude = Self::default();
        patterns.into_iter().for_each(|pattern| exclude.add(pattern));
        exclude
    }

    /// Take one more.
    pub fn add(&mut self, mut pattern: Vec<u8>) {
        while pattern.last() == Some(&b'/') {
            pattern.pop();
        }
        if pattern.contains(&b'/') {
            let anchored = pattern.strip_prefix(b"/").map_or(pattern.clone(), <[u8]>::to_vec);
            self.paths.push(anchored);
        } else if !pattern.is_empty() {
            self.names.push(pattern);
        }
    }

    /// Whether the entry `name` of `directory`, a path below the root, is left out.
    pub fn matches(&self, directory: &[u8], name: &[u8]) -> bool {
        if self.names.iter().any(|pattern| matches(pattern, name)) {
            return true;
        }
        if self.paths.is_empty() {
            return false;
        }
        let path = join(directory, name);
        self.paths.iter().any(|pattern| matches(pattern, &path))
    }

    /// Whether a walk with these patterns never comes to `path`, because it or a directory above it is left out.
    pub fn covers(&self, path: &[u8]) -> bool {
        let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
        ends.chain([path.len()]).any(|end| {
            let start = path[..end].iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1);
            self.matches(&path[..start.saturating_sub(1)], &path[start..end])
        })
    }
}

/// `directory/name`, or `name` alone in the root, whose path is empty.
#[must_use]
pub fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    let mut path = Vec::with_capacity(directory.len() + name.len() + 1);
    if !directory.is_empty() {
        path.extend_from_slice(directory);
        path.push(b'/');
    }
    path.extend_from_slice(name);
    path
}

/// Whether the whole of `text` matches, in time bounded by the product of both lengths.
///
/// Remembers only the last star of each sort: a later star makes every choice of an earlier one of its sort moot.
fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    let mut double: Option<(usize, usize)> = None;
    loop {
        if pattern[p..].starts_with(b"**") {
            p += 2;
            // `**/` also stands for no directory at all.
            if pattern.get(p) == Some(&b'/') && (t == 0 || text[t - 1] == b'/') {
                double = Some((p - 2, t));
                p += 1;
            } else {
                double = Some((p, t));
            }
            star = None;
            continue;
        }
        if pattern.get(p) == Some(&b'*') {
            p += 1;
            star = Some((p, t));
            continue;
        }
        if t == text.len() && p == pattern.len() {
            return true;
        }
        if t < text.len() {
            if let Some(next) = one(pattern, p, text[t]) {
                p = next;
                t += 1;
                continue;
            }
        }
        match (star, double) {
            (Some((after, from)), _) if from < text.len() && text[from] != b'/' => {
                (p, t) = (after, from + 1);
                star = Some((after, from + 1));
            }
            (_, Some((after, from))) if from < text.len() => {
                star = None;
                (p, t) = (after, from + 1);
                if pattern[after..].starts_with(b"**/") {
                    // Whole directories are skipped, so that `**/x` does not match `yx`.
                    while t < text.len() && text[t - 1] != b'/' {
                        t += 1;
                    }
                    if t == text.len() && text[t - 1] != b'/' {
                        return false;
                    }
                } else {
                    double = Some((after, from + 1));
                }
            }
            _ => return false,
        }
    }
}

/// Where the pattern goes on after its element at `p` has matched `byte`; None where it does not match.
fn one(pattern: &[u8], p: usize, byte: u8) -> Option<usize> {
    match *pattern.get(p)? {
        b'?' => (byte != b'/').then_some(p + 1),
        b'\\' if p + 1 < pattern.len() => (pattern[p + 1] == byte).then_some(p + 2),
        b'[' => match set(pattern, p + 1, byte) {
            Some((held, next)) => (held && byte != b'/').then_some(next),
            None => (byte == b'[').then_some(p + 1),
        },
        literal => (literal == byte).then_some(p + 1),
    }
}

/// Whether `byte` is in the set that begins at `p`, and where the set ends; None where it never ends.
fn set(pattern: &[u8], mut p: usize, byte: u8) -> Option<(bool, usize)> {
    let negated = matches!(pattern.get(p), Some(b'!' | b'^'));
    if negated {
        p += 1;
    }
    let mut held = false;
    let mut first = true;
    loop {
        let low = *pattern.get(p)?;
        if low == b']' && !first {
            return Some((held != negated, p + 1));
        }
        first = false;
        if pattern.get(p + 1) == Some(&b'-') && pattern.get(p + 2).is_some_and(|high| *high != b']')
        {
            held |= (low..=pattern[p + 2]).contains(&byte);
            p += 3;
        } else {
            held |= low == byte;
            p += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn excluded(pattern: &str, path: &str) -> bool {
        let exclude = Exclude::new([pattern.as_bytes().to_vec()]);
        let (directory, name) = path.rsplit_once('/').unwrap_or(("", path));
        exclude.matches(directory.as_bytes(), name.as_bytes())
    }

    #[test]
    fn a_pattern_without_a_slash_is_held_against_names_at_any_depth() {
        assert!(excluded("*.tmp", "a/b/x.tmp"));
        assert!(excluded(".git", ".git"));
        assert!(!excluded("*.tmp", "a.tmp/x"));
        assert!(excluded("x?z", "xyz"));
        assert!(!excluded("x?z", "xz"));
    }

    #[test]
    fn a_pattern_with_a_slash_is_held_against_the_path_below_the_root() {
        assert!(excluded("/scratch", "scratch"));
        assert!(!excluded("/scratch", "a/scratch"));
        assert!(excluded("a/*", "a/b"));
        assert!(!excluded("a/*", "a/b/c"));
        assert!(excluded("a/**", "a/b/c"));
    }

    #[test]
    fn two_stars_cross_directories_and_stand_for_none() {
        for path in ["x", "a/x", "a/b/x"] {
            assert!(excluded("**/x", path), "{path}");
        }
        assert!(!excluded("**/x", "yx"));
        assert!(!excluded("**/x", "a/yx"));
        for path in ["a/x", "a/b/x", "a/b/c/x"] {
            assert!(excluded("a/**/x", path), "{path}");
        }
        assert!(!excluded("a/**/x", "b/x"));
        assert!(excluded("a/**/b/*.c", "a/q/b/r/b/z.c"));
    }

    #[test]
    fn sets_hold_ranges_and_their_opposites() {
        assert!(excluded("[a-c]1", "b1"));
        assert!(!excluded("[!a-c]1", "b1"));
        assert!(excluded("[]]", "]"));
        assert!(excluded("[", "["));
        assert!(excluded("\\*", "*"));
        assert!(!excluded("\\*", "x"));
    }

    #[test]
    fn names_that_are_no_text_are_matched_byte_by_byte() {
        let exclude = Exclude::new([b"\xff*".to_vec()]);
        assert!(exclude.matches(b"", b"\xff\n"));
        assert!(!exclude.matches(b"", b"\xfe"));
    }

    #[test]
    fn many_stars_take_no_exponential_time() {
        let pattern = "*a".repeat(40) + "b";
        assert!(!excluded(&pattern, &"a".repeat(200)));
    }

    #[test]
    fn a_path_below_an_excluded_one_is_excluded() {
        let exclude = Exclude::new([b"/a/logs".to_vec(), b"*.tmp".to_vec()]);
        for path in ["a/logs", "a/logs/x", "a/logs/b/x", "x.tmp/y", "c/x.tmp"] {
            assert!(exclude.covers(path.as_bytes()), "{path}");
        }
        for path in ["a", "a/x", "b/a/logs/x", "logs/x", "tmp"] {
            assert!(!exclude.covers(path.as_bytes()), "{path}");
        }
    }

    #[test]
    fn patterns_that_say_nothing_exclude_nothing() {
        assert!(!excluded("", "a"));
        assert!(!excluded("/", "a"));
    }
}
