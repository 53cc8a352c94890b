//! Attaching to what leaves an interface: by TCX, or by the older clsact (tc-bpf(8)) where the kernel has no TCX.
//!
//! Arrives: a loaded program, an interface of the thread's namespace. Leaves: what detaches it when dropped.
//! Must not know: what the program does.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::kernel;

/// A program at an interface, until this is dropped.
#[derive(Debug)]
pub(crate) enum Attached {
    /// By TCX; the kernel detaches it when the descriptor is closed, also of a killed process.
    Link {
        /// The link.
        _descriptor: OwnedFd,
    },
    /// By clsact.
    Filter {
        /// What detaches it.
        _filter: Filter,
    },
}

/// Attaches by TCX (Linux 6.6), else by clsact.
pub(crate) fn attach(program: &OwnedFd, interface: u32) -> io::Result<Attached> {
    match kernel::attach(program, interface) {
        Ok(_descriptor) => Ok(Attached::Link { _descriptor }),
        // A kernel without TCX does not know the type of attachment.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            Filter::new(program, interface).map(|_filter| Attached::Filter { _filter })
        }
        Err(error) => Err(error),
    }
}

/// A filter of the qdisc clsact. It outlives a killed process; the next service replaces it.
#[derive(Debug)]
pub(crate) struct Filter {
    /// Of the interface's namespace.
    route: OwnedFd,
    interface: u32,
}

// linux/rtnetlink.h, linux/pkt_sched.h, linux/pkt_cls.h
const NEW_QDISC: u16 = 36;
const NEW_FILTER: u16 = 44;
const DELETE_FILTER: u16 = 45;
const CLSACT: u32 = 0xffff_fff1;
const CLSACT_HANDLE: u32 = 0xffff_0000;
const EGRESS: u32 = 0xffff_fff3;
/// Priority of ours, and all protocols (ETH_P_ALL in network order).
const PRIORITY_AND_PROTOCOL: u32 = 0x5757 << 16 | 0x0300;
const KIND: u16 = 1;
const OPTIONS: u16 = 2;
const BPF_FD: u16 = 6;
const BPF_NAME: u16 = 7;
const BPF_FLAGS: u16 = 8;
const DIRECT_ACTION: u32 = 1;

const REQUEST: u16 = 0x1;
const ACKNOWLEDGE: u16 = 0x4;
const REPLACE: u16 = 0x100;
const CREATE: u16 = 0x400;

impl Filter {
    pub(crate) fn new(program: &OwnedFd, interface: u32) -> io::Result<Self> {
        // SAFETY: a plain call; the descriptor is new.
        let route = unsafe {
            let descriptor = libc::socket(
                libc::AF_NETLINK,
                libc::SOCK_RAW | libc::SOCK_CLOEXEC,
                libc::NETLINK_ROUTE,
            );
            if descriptor < 0 {
                return Err(io::Error::last_os_error());
            }
            OwnedFd::from_raw_fd(descriptor)
        };
        let filter = Self { route, interface };
        let mut kind = Vec::new();
        attribute(&mut kind, KIND, b"clsact\0");
        match filter.ask(NEW_QDISC, CREATE, CLSACT_HANDLE, CLSACT, 0, &kind) {
            Err(error) if error.raw_os_error() != Some(libc::EEXIST) => return Err(error),
            _ => {}
        }
        let mut options = Vec::new();
        attribute(&mut options, BPF_FD, &program.as_raw_fd().to_ne_bytes());
        attribute(&mut options, BPF_NAME, b"waystage-tags\0");
        attribute(&mut options, BPF_FLAGS, &DIRECT_ACTION.to_ne_bytes());
        let mut attributes = Vec::new();
        attribute(&mut attributes, KIND, b"bpf\0");
        attribute(&mut attributes, OPTIONS, &options);
        filter.ask(NEW_FILTER, CREATE | REPLACE, 1, EGRESS, PRIORITY_AND_PROTOCOL, &attributes)?;
        Ok(filter)
    }

    fn ask(
        &self,
        kind: u16,
        flags: u16,
        handle: u32,
        parent: u32,
        info: u32,
        attributes: &[u8],
    ) -> io::Result<()> {
        let mut message = Vec::new();
        let size = u32::try_from(16 + 20 + attributes.len()).unwrap_or(0);
        message.extend(size.to_ne_bytes());
        message.extend(kind.to_ne_bytes());
        message.extend((flags | REQUEST | ACKNOWLEDGE).to_ne_bytes());
        message.extend([0; 8]);
        // struct tcmsg
        for word in [0, self.interface, handle, parent, info] {
            message.extend(word.to_ne_bytes());
        }
        message.extend(attributes);
        let mut reply = [0_u8; 1024];
        // SAFETY: both buffers are as long as said.
        let got = unsafe {
            let descriptor = self.route.as_raw_fd();
            if libc::send(descriptor, message.as_ptr().cast(), message.len(), 0) < 0 {
                return Err(io::Error::last_os_error());
            }
            libc::recv(descriptor, reply.as_mut_ptr().cast(), reply.len(), 0)
        };
        if got < 20 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
        }
        // NLMSG_ERROR: the negative error follows the header; 0 is an acknowledgement.
        let error = i32::from_ne_bytes([reply[16], reply[17], reply[18], reply[19]]);
        if error != 0 {
            return Err(io::Error::from_raw_os_error(-error));
        }
        Ok(())
    }
}

impl Drop for Filter {
    fn drop(&mut self) {
        let mut kind = Vec::new();
        attribute(&mut kind, KIND, b"bpf\0");
        let _ = self.ask(DELETE_FILTER, 0, 1, EGRESS, PRIORITY_AND_PROTOCOL, &kind);
    }
}

fn attribute(to: &mut Vec<u8>, kind: u16, value: &[u8]) {
    to.extend(u16::try_from(4 + value.len()).unwrap_or(0).to_ne_bytes());
    to.extend(kind.to_ne_bytes());
    to.extend(value);
    to.resize(to.len().next_multiple_of(4), 0);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::tests::loaded;

    #[test]
    fn either_way_attaches_and_detaches_and_replaces_what_was_left() {
        std::thread::spawn(|| {
            // SAFETY: a plain call; this thread alone gets a new namespace.
            if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
                eprintln!("skipped: no network namespace here");
                return;
            }
            let Some(program) = loaded() else { return };
            let interface = kernel::interface("lo").expect("every namespace has it");
            for _ in 0..2 {
                std::mem::forget(Filter::new(&program, interface).expect("replaced"));
            }
            drop(Filter::new(&program, interface).expect("replaced"));
            let gone = Filter::new(&program, interface).expect("anew");
            let mut kind = Vec::new();
            attribute(&mut kind, KIND, b"bpf\0");
            gone.ask(DELETE_FILTER, 0, 1, EGRESS, PRIORITY_AND_PROTOCOL, &kind).expect("there");
            assert!(gone.ask(DELETE_FILTER, 0, 1, EGRESS, PRIORITY_AND_PROTOCOL, &kind).is_err());
            drop(attach(&program, interface).expect("by TCX or clsact"));
        })
        .join()
        .expect("no panic");
    }
}
