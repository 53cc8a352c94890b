//! Files for tests.

use crate::files::{Columns, Files};

/// (path, size, [(target, offset, length)]).
pub(crate) type Described<'a> = (&'a str, u64, &'a [(u32, u64, u64)]);

/// Files below `/nowhere`, each in the directory of its column.
pub(crate) fn files_of(described: &[Described<'_>]) -> Files {
    files_below("/nowhere", described)
}

/// The same, below a root.
pub(crate) fn files_below(root: &str, described: &[Described<'_>]) -> Files {
    let mut files = Files::new(root.into());
    for (path, size, objects) in described {
        let (directory, name) = path.rsplit_once('/').unwrap_or(("", path));
        let length = |text: &str| i32::try_from(text.len()).unwrap();
        let signed = |number: u64| i64::try_from(number).unwrap();
        files
            .extend(&Columns {
                directories: (&[0, length(directory)], directory.as_bytes()),
                directory: &[0],
                kind: &[0],
                names: (&[0, length(name)], name.as_bytes()),
                size: &[signed(*size)],
                mtime: &[0],
                ctime: &[0],
                inode: &[0],
                layout: &[-1],
                generation: &[0],
                objects: &[0, i32::try_from(objects.len()).unwrap()],
                object_target: &objects.iter().map(|o| o.0).collect::<Vec<_>>(),
                object_offset: &objects.iter().map(|o| signed(o.1)).collect::<Vec<_>>(),
                object_length: &objects.iter().map(|o| signed(o.2)).collect::<Vec<_>>(),
            })
            .unwrap();
    }
    files
}
