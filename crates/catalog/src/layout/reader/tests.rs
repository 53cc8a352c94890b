//! Layouts of files on this machine, and attributes that a local file system is made to answer with.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;

use rustix::fs::{fsetxattr, XattrFlags};

use super::super::{Mirrors, Target};
use super::*;

fn scratch() -> (std::path::PathBuf, File) {
    static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let number = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let path =
        std::env::temp_dir().join(format!("waystage-layout-{}-{number}", std::process::id()));
    let file = File::create(&path).unwrap();
    (path, file)
}

#[test]
fn a_local_file_is_one_object_on_its_device() {
    let (path, file) = scratch();
    let reader = Reader::new();
    for _ in 0..2 {
        let layout = reader.layout_of(&file).unwrap().unwrap();
        let device = file.metadata().unwrap().dev();
        let target = Target::Device { major: major(device), minor: minor(device) };
        let extents: Vec<_> = layout.extents(5000, Mirrors::All).collect();
        assert_eq!(extents.len(), 1);
        assert_eq!((extents[0].target, extents[0].length), (Some(&target), 5000));
    }
    assert_eq!(reader.known.read().unwrap().len(), 1);
    std::fs::remove_file(path).unwrap();
}

#[test]
fn directories_and_sockets_of_this_machine_have_no_layout() {
    let reader = Reader::new();
    assert_eq!(reader.layout_of(File::open("/").unwrap()), Ok(None));
    let (socket, _other) = UnixStream::pair().unwrap();
    assert_eq!(reader.layout_of(&socket), Ok(None));
}

#[test]
fn a_file_system_that_answers_no_question_is_asked_no_more() {
    let (path, file) = scratch();
    let device = file.metadata().unwrap().dev();
    let reader = Reader::new();
    reader.remember(device, How::Untold(0));
    for _ in 0..MISSES {
        assert_eq!(reader.layout_of(&file), Ok(None));
    }
    assert_eq!(reader.known.read().unwrap()[&device], How::Without);
    std::fs::remove_file(path).unwrap();
}

#[test]
fn an_attribute_is_read_whole_however_long_it_is() {
    let (path, file) = scratch();
    let value: Vec<u8> = (0..60_000_u32).map(|i| i.to_le_bytes()[0]).collect();
    let read = |length: usize| {
        // Not every file system keeps attributes, and few keep long ones.
        let set = fsetxattr(&file, "user.waystage", &value[..length], XattrFlags::empty());
        set.is_ok().then(|| attribute(file.as_fd(), "user.waystage", |bytes| Ok(bytes.to_vec())))
    };
    for length in [0, 100, USUAL, USUAL + 1, 60_000] {
        if let Some(answer) = read(length) {
            assert_eq!(answer, Ok(Some(value[..length].to_vec())), "{length}");
        }
    }
    assert_eq!(attribute(file.as_fd(), "user.absent", |_| Ok(())), Ok(None));
    std::fs::remove_file(path).unwrap();
}

#[test]
fn a_file_that_is_not_on_beegfs_has_no_layout_of_it() {
    let (path, file) = scratch();
    let reader = Reader::new();
    reader.remember(file.metadata().unwrap().dev(), How::BeeGfs);
    assert_eq!(reader.layout_of(&file), Ok(None));
    std::fs::remove_file(path).unwrap();
}

#[test]
fn file_systems_are_told_by_their_magic() {
    assert_eq!(How::of_magic(0x0BD0_0BD0), How::Lustre);
    assert_eq!(How::of_magic(0xEF53), How::Local);
    assert_eq!(How::of_magic(0x6573_5546), How::Untold(0));
    assert_eq!(How::of_magic(0x6969), How::Without);
}
