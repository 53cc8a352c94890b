//! Layouts of files on this machine, and attributes that a local file system is made to answer with.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;

use rustix::fs::{fsetxattr, major, minor, XattrFlags};

use super::super::Mirrors;
use super::*;
use crate::xattr;

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
    let systems = FileSystems::new();
    for _ in 0..2 {
        let layout = systems.layout_of(&file).unwrap().unwrap();
        let device = file.metadata().unwrap().dev();
        let target = local::target(major(device), minor(device));
        let extents: Vec<_> = layout.extents(5000, Mirrors::All).collect();
        assert_eq!(extents.len(), 1);
        assert_eq!((extents[0].target, extents[0].length), (Some(&target), 5000));
    }
    assert_eq!(systems.devices.read().len(), 1);
    std::fs::remove_file(path).unwrap();
}

#[test]
fn directories_and_sockets_of_this_machine_have_no_layout() {
    let systems = FileSystems::new();
    assert_eq!(systems.layout_of(File::open("/").unwrap()), Ok(None));
    let (socket, _other) = UnixStream::pair().unwrap();
    assert_eq!(systems.layout_of(&socket), Ok(None));
}

#[test]
fn a_file_system_that_answers_no_question_is_asked_no_more() {
    let (path, file) = scratch();
    let device = file.metadata().unwrap().dev();
    let systems = FileSystems::new();
    systems.remember(device, Served::Unknown(0));
    for _ in 0..MISSES {
        assert_eq!(systems.layout_of(&file), Ok(None));
    }
    assert!(matches!(systems.known(device), Some(Served::Without)));
    std::fs::remove_file(path).unwrap();
}

#[test]
fn an_attribute_is_read_whole_however_long_it_is() {
    let (path, file) = scratch();
    let value: Vec<u8> = (0..60_000_u32).map(|i| i.to_le_bytes()[0]).collect();
    let open = OpenFile { fd: file.as_fd(), device: 0, directory: false };
    let read = |length: usize| {
        // Not every file system keeps attributes, and few keep long ones.
        let set = fsetxattr(&file, "user.waystage", &value[..length], XattrFlags::empty());
        set.is_ok().then(|| open.attribute_bytes(c"user.waystage"))
    };
    for length in [0, 100, xattr::USUAL, xattr::USUAL + 1, 60_000] {
        if let Some(answer) = read(length) {
            assert_eq!(answer, Ok(Some(value[..length].to_vec())), "{length}");
        }
    }
    assert_eq!(open.attribute_bytes(c"user.absent"), Ok(None));
    std::fs::remove_file(path).unwrap();
}

#[test]
fn a_file_that_is_not_on_beegfs_has_no_layout_of_it() {
    let (path, file) = scratch();
    let systems = FileSystems::new();
    systems.remember(file.metadata().unwrap().dev(), Served::By(&beegfs::Reader));
    assert_eq!(systems.layout_of(&file), Ok(None));
    std::fs::remove_file(path).unwrap();
}

#[test]
fn the_magic_number_selects_the_reader() {
    let served = |magic| format!("{:?}", Served::of_magic(magic));
    assert_eq!(served(0x0BD0_0BD0), "By(lustre)");
    assert_eq!(served(0x00C3_6400), "By(ceph)");
    assert_eq!(served(0x1983_0326), "By(beegfs)");
    assert_eq!(served(0xEF53), "By(local)");
    assert_eq!(served(0x6573_5546), "Unknown(0)");
    assert_eq!(served(0x6969), "Without");
}
