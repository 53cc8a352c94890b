//! Packets of the unix socket, and the descriptors that travel with them.
//!
//! Arrives: a path, connections. Leaves: whole messages and their sender's user. Must not know: what they ask.

#![allow(unsafe_code)]

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// How long the listener and its connections wait before they look whether the service ends.
const LOOK_MS: i32 = 200;

/// The first word of every message.
pub(crate) const MAGIC: u32 = 0x5754_4731;

/// A request or a reply; shim/tags/service.h has the same.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct Message {
    pub(crate) magic: u32,
    /// What is asked, or how it went.
    pub(crate) word: u32,
    pub(crate) number: u64,
    pub(crate) uid: u64,
    pub(crate) serial: u64,
    pub(crate) code: [u8; 32],
}

/// A listening socket for packets, which every user may connect to.
pub(crate) fn listen(path: &Path) -> io::Result<OwnedFd> {
    let mut address: libc::sockaddr_un = unsafe { mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let bytes = path.as_os_str().as_bytes();
    if bytes.len() >= address.sun_path.len() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "the path has more than 107 bytes",
        ));
    }
    for (to, &from) in address.sun_path.iter_mut().zip(bytes) {
        *to = libc::c_char::from_ne_bytes([from]);
    }
    // SAFETY: plain calls; the address lives as long as they do.
    unsafe {
        let descriptor = libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0);
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        let listening = OwnedFd::from_raw_fd(descriptor);
        let size = libc::socklen_t::try_from(mem::size_of_val(&address)).unwrap_or(0);
        let bound = |address: &libc::sockaddr_un| {
            libc::bind(listening.as_raw_fd(), std::ptr::from_ref(address).cast(), size) == 0
        };
        if !bound(&address) {
            // What a killed service left is replaced; a living one is not.
            let living = libc::connect(
                libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0),
                std::ptr::from_ref(&address).cast(),
                size,
            ) == 0;
            if living {
                return Err(io::Error::from_raw_os_error(libc::EADDRINUSE));
            }
            std::fs::remove_file(path)?;
            if !bound(&address) {
                return Err(io::Error::last_os_error());
            }
        }
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666))?;
        if libc::listen(listening.as_raw_fd(), 128) < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(listening)
    }
}

/// Whether there is something to read within a moment.
pub(crate) fn readable(descriptor: RawFd) -> bool {
    let mut polled = libc::pollfd { fd: descriptor, events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry.
    unsafe { libc::poll(&raw mut polled, 1, LOOK_MS) > 0 }
}

/// The user of the peer when it connected.
pub(crate) fn peer(descriptor: RawFd) -> Option<u32> {
    let mut found = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut size = libc::socklen_t::try_from(mem::size_of::<libc::ucred>()).unwrap_or(0);
    // SAFETY: `found` has `size` bytes.
    let result = unsafe {
        libc::getsockopt(
            descriptor,
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut found).cast(),
            &raw mut size,
        )
    };
    (result == 0).then_some(found.uid)
}

/// Room for one descriptor; more are closed by the kernel.
type Control = [u64; 3];

/// The next request and the descriptor that came with it; None when the peer is gone or sends anything else.
pub(crate) fn receive(connection: RawFd) -> Option<(Message, Option<OwnedFd>)> {
    let mut message = Message::default();
    let mut control: Control = [0; 3];
    let mut part =
        libc::iovec { iov_base: (&raw mut message).cast(), iov_len: mem::size_of::<Message>() };
    // SAFETY: the header's pointers are to what outlives the call; every bit pattern is a Message.
    unsafe {
        let mut header: libc::msghdr = mem::zeroed();
        header.msg_iov = &raw mut part;
        header.msg_iovlen = 1;
        header.msg_control = control.as_mut_ptr().cast();
        header.msg_controllen = mem::size_of::<Control>();
        let got = libc::recvmsg(connection, &raw mut header, libc::MSG_CMSG_CLOEXEC);
        let first = libc::CMSG_FIRSTHDR(&raw const header);
        let mut sent = None;
        if got >= 0 && !first.is_null() && (*first).cmsg_type == libc::SCM_RIGHTS {
            let descriptor = libc::CMSG_DATA(first).cast::<RawFd>().read_unaligned();
            sent = Some(OwnedFd::from_raw_fd(descriptor));
        }
        let whole = usize::try_from(got).ok()? == mem::size_of::<Message>()
            && header.msg_flags & libc::MSG_TRUNC == 0;
        whole.then_some((message, sent))
    }
}

/// Sends a message, with a descriptor if there is one; whether the peer could take it.
pub(crate) fn send(connection: RawFd, message: &Message, descriptor: Option<RawFd>) -> bool {
    let mut control: Control = [0; 3];
    let mut part = libc::iovec {
        iov_base: std::ptr::from_ref(message).cast_mut().cast(),
        iov_len: mem::size_of::<Message>(),
    };
    // SAFETY: as in `receive`; the message is only read.
    unsafe {
        let mut header: libc::msghdr = mem::zeroed();
        header.msg_iov = &raw mut part;
        header.msg_iovlen = 1;
        if let Some(descriptor) = descriptor {
            header.msg_control = control.as_mut_ptr().cast();
            header.msg_controllen = libc::CMSG_SPACE(4) as usize;
            let first = libc::CMSG_FIRSTHDR(&raw const header);
            (*first).cmsg_level = libc::SOL_SOCKET;
            (*first).cmsg_type = libc::SCM_RIGHTS;
            (*first).cmsg_len = libc::CMSG_LEN(4) as usize;
            libc::CMSG_DATA(first).cast::<RawFd>().write_unaligned(descriptor);
        }
        libc::sendmsg(connection, &raw const header, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) > 0
    }
}

/// The next connection.
pub(crate) fn accept(listening: &OwnedFd) -> Option<OwnedFd> {
    // SAFETY: a listening socket; no address is asked for, and the descriptor is new.
    unsafe {
        let descriptor = libc::accept4(
            listening.as_raw_fd(),
            std::ptr::null_mut(),
            std::ptr::null_mut(),
            libc::SOCK_CLOEXEC,
        );
        (descriptor >= 0).then(|| OwnedFd::from_raw_fd(descriptor))
    }
}
