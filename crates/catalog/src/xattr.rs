//! An attribute of a file that is not open, by its name in a directory.
//!
//! Arrives: a directory, a name in it, an attribute's name.
//! Leaves: the attribute's value.
//! Must not know: what attributes mean.
//!
//! Linux 6.13 has getxattrat(2). Before, the way is through the directory's entry in /proc, which takes the kernel
//! twice as long.

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::lgetxattr;
use rustix::io::Errno;

/// `__NR_getxattrat`, the same on every architecture that counts as x86-64 and arm64 do (asm-generic/unistd.h).
const GETXATTRAT: libc::c_long = 464;

/// `struct xattr_args` of linux/xattr.h.
#[repr(C, align(8))]
struct Arguments {
    value: u64,
    size: u32,
    flags: u32,
}

/// The longest value of an attribute that Linux hands out (`XATTR_SIZE_MAX`).
pub(crate) const LONGEST: usize = 64 << 10;

/// Enough for a Lustre layout of 160 objects, so that most files need no second call.
pub(crate) const USUAL: usize = 4 << 10;

static WITHOUT: AtomicBool = AtomicBool::new(false);

/// The attribute's value, in `room`; RANGE where it is longer. Symbolic links are not followed.
pub(crate) fn get<'a>(
    dir: BorrowedFd<'_>,
    name: &CStr,
    attribute: &CStr,
    room: &'a mut [MaybeUninit<u8>],
) -> Result<&'a [u8], Errno> {
    if !WITHOUT.load(Ordering::Relaxed) {
        match get_at(dir, name, attribute, room) {
            // A sandbox that does not know the call answers EPERM; so may a file system, which then says it again.
            Err(Errno::NOSYS | Errno::PERM) => {}
            answer => {
                let length = answer?;
                return Ok(filled(room, length));
            }
        }
    }
    let length = get_by_path(dir, name, attribute, room)?;
    Ok(filled(room, length))
}

/// What the kernel wrote.
fn filled(room: &[MaybeUninit<u8>], length: usize) -> &[u8] {
    let length = length.min(room.len());
    // SAFETY: the kernel has written the first `length` bytes, and MaybeUninit<u8> has the layout of u8.
    #[allow(unsafe_code)]
    unsafe {
        std::slice::from_raw_parts(room.as_ptr().cast::<u8>(), length)
    }
}

fn get_at(
    dir: BorrowedFd<'_>,
    name: &CStr,
    attribute: &CStr,
    room: &mut [MaybeUninit<u8>],
) -> Result<usize, Errno> {
    let size = u32::try_from(room.len()).unwrap_or(u32::MAX);
    // A pointer is of 64 bits at most; the kernel takes it as such on every machine.
    let arguments = Arguments { value: room.as_mut_ptr() as u64, size, flags: 0 };
    // SAFETY: the pointers are of two strings that end with NUL and of arguments of the size given, whose value
    // points to `size` bytes that are ours to write; all outlive the call.
    #[allow(unsafe_code)]
    let answer = unsafe {
        libc::syscall(
            GETXATTRAT,
            dir.as_raw_fd(),
            name.as_ptr(),
            libc::AT_SYMLINK_NOFOLLOW,
            attribute.as_ptr(),
            &raw const arguments,
            size_of::<Arguments>(),
        )
    };
    usize::try_from(answer).map_err(|_| {
        let number = std::io::Error::last_os_error().raw_os_error();
        let error = Errno::from_raw_os_error(number.unwrap_or(libc::EIO));
        if error == Errno::NOSYS {
            WITHOUT.store(true, Ordering::Relaxed);
        }
        error
    })
}

fn get_by_path(
    dir: BorrowedFd<'_>,
    name: &CStr,
    attribute: &CStr,
    room: &mut [MaybeUninit<u8>],
) -> Result<usize, Errno> {
    let mut path = format!("/proc/self/fd/{}/", dir.as_raw_fd()).into_bytes();
    path.extend_from_slice(name.to_bytes());
    let (value, _) = lgetxattr(&path[..], attribute, room)?;
    Ok(value.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn both_ways_give_the_same_value_and_the_same_errors() {
        let folder = std::env::temp_dir().join(format!("waystage-xattr-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        std::fs::write(folder.join("f"), b"").expect("a file");
        std::os::unix::fs::symlink("f", folder.join("link")).expect("a link");
        let set = rustix::fs::setxattr(
            folder.join("f"),
            "user.waystage",
            b"some value",
            rustix::fs::XattrFlags::empty(),
        );
        let dir = std::fs::File::open(&folder).expect("it opens");
        for (name, attribute) in [
            (c"f", c"user.waystage"),
            (c"f", c"user.absent"),
            (c"f", c"lustre.lov"),
            (c"link", c"user.waystage"),
            (c"absent", c"user.waystage"),
        ] {
            for size in [64, 10, 3] {
                let mut room = vec![MaybeUninit::uninit(); size];
                let by_path = get_by_path(dir.as_fd(), name, attribute, &mut room)
                    .map(|length| filled(&room, length).to_vec());
                let mut room = vec![MaybeUninit::uninit(); size];
                let at = get(dir.as_fd(), name, attribute, &mut room).map(<[u8]>::to_vec);
                assert_eq!(at, by_path, "{name:?} {attribute:?} {size}");
                let told = set.is_ok() && name == c"f" && attribute == c"user.waystage";
                assert_eq!(at.is_ok(), told && size >= 10, "{name:?} {attribute:?} {size}");
            }
        }
        std::fs::remove_dir_all(&folder).expect("it goes");
    }
}
