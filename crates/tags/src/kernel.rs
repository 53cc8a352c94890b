//! bpf(2): maps, programs and where they are attached.
//!
//! Arrives: sizes, instructions, an interface. Leaves: descriptors, closed when dropped. Must not know: tags.

#![allow(unsafe_code)]

use std::ffi::CString;
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::assembler::Instruction;

/// `union bpf_attr`, as words; every command uses a part of it.
type Attributes = [u32; 32];

// enum bpf_cmd
const MAP_CREATE: i32 = 0;
const MAP_UPDATE: i32 = 2;
const MAP_DELETE: i32 = 3;
const PROG_LOAD: i32 = 5;
#[cfg(test)]
const PROG_TEST_RUN: i32 = 10;
const LINK_CREATE: i32 = 28;

// enum bpf_map_type
const ARRAY: u32 = 2;
const ARRAY_OF_MAPS: u32 = 12;

const MMAPABLE: u32 = 1 << 10;
const SCHED_CLS: u32 = 3;
const TCX_EGRESS: u32 = 47;

fn bpf(command: i32, attributes: &mut Attributes) -> io::Result<i32> {
    let size = mem::size_of::<Attributes>();
    // SAFETY: the attributes are as large as said, and what they point to outlives the call in every caller.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, attributes.as_mut_ptr(), size) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(i32::try_from(result).unwrap_or(0))
}

fn owned(descriptor: i32) -> OwnedFd {
    // SAFETY: the kernel has just made it, and no other owner has it.
    unsafe { OwnedFd::from_raw_fd(descriptor) }
}

fn set_address<T>(attributes: &mut Attributes, word: usize, value: *const T) {
    let address = value as u64;
    #[allow(clippy::cast_possible_truncation)]
    {
        attributes[word] = address as u32;
    }
    attributes[word + 1] = (address >> 32) as u32;
}

fn raw(descriptor: &OwnedFd) -> u32 {
    descriptor.as_raw_fd().unsigned_abs()
}

fn map(
    kind: u32,
    key: u32,
    value: u32,
    entries: u32,
    flags: u32,
    inner: u32,
) -> io::Result<OwnedFd> {
    let mut attributes = Attributes::default();
    attributes[..6].copy_from_slice(&[kind, key, value, entries, flags, inner]);
    bpf(MAP_CREATE, &mut attributes).map(owned)
}

/// An array that programs can map into their memory.
pub(crate) fn shared_array(value_bytes: u32, entries: u32) -> io::Result<OwnedFd> {
    map(ARRAY, 4, value_bytes, entries, MMAPABLE, 0)
}

/// An array that only this process and its programs have.
pub(crate) fn array(value_bytes: u32, entries: u32) -> io::Result<OwnedFd> {
    map(ARRAY, 4, value_bytes, entries, 0, 0)
}

/// An array of maps like `inner`.
pub(crate) fn array_of_maps(inner: &OwnedFd, entries: u32) -> io::Result<OwnedFd> {
    map(ARRAY_OF_MAPS, 4, 4, entries, 0, raw(inner))
}

/// Sets an entry; key and value are as long as the map says.
pub(crate) fn update<K, V>(map: &OwnedFd, key: &K, value: &V) -> io::Result<()> {
    let mut attributes = Attributes::default();
    attributes[0] = raw(map);
    set_address(&mut attributes, 2, key);
    set_address(&mut attributes, 4, value);
    bpf(MAP_UPDATE, &mut attributes).map(drop)
}

/// Removes an entry; none is no error.
pub(crate) fn delete<K>(map: &OwnedFd, key: &K) {
    let mut attributes = Attributes::default();
    attributes[0] = raw(map);
    set_address(&mut attributes, 2, key);
    let _ = bpf(MAP_DELETE, &mut attributes);
}

/// Loads a program for packets. An error has the verifier's last words.
pub(crate) fn load(program: &[Instruction]) -> io::Result<OwnedFd> {
    let mut log = vec![0_u8; 1 << 16];
    for level in [0, 1] {
        let mut attributes = Attributes::default();
        attributes[0] = SCHED_CLS;
        attributes[1] = u32::try_from(program.len()).unwrap_or(0);
        set_address(&mut attributes, 2, program.as_ptr());
        set_address(&mut attributes, 4, c"GPL".as_ptr());
        if level > 0 {
            attributes[6] = level;
            attributes[7] = u32::try_from(log.len()).unwrap_or(0);
            set_address(&mut attributes, 8, log.as_mut_ptr());
        }
        match bpf(PROG_LOAD, &mut attributes) {
            Ok(descriptor) => return Ok(owned(descriptor)),
            Err(error) if level == 1 || error.raw_os_error() == Some(libc::EPERM) => {
                let said = String::from_utf8_lossy(&log);
                let said = said.trim_end_matches('\0').trim_end();
                let tail = &said[said.len().saturating_sub(600)..];
                return Err(io::Error::new(error.kind(), format!("{error}: {tail}")));
            }
            Err(_) => {}
        }
    }
    unreachable!("the second round returns")
}

/// Attaches a program to what leaves an interface of this thread's namespace, until the result is dropped.
pub(crate) fn attach(program: &OwnedFd, interface: u32) -> io::Result<OwnedFd> {
    let mut attributes = Attributes::default();
    attributes[..3].copy_from_slice(&[raw(program), interface, TCX_EGRESS]);
    bpf(LINK_CREATE, &mut attributes).map(owned)
}

/// The number of an interface.
pub(crate) fn interface(name: &str) -> io::Result<u32> {
    let name = CString::new(name)?;
    // SAFETY: the name ends with a zero byte.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => Err(io::Error::last_os_error()),
        number => Ok(number),
    }
}

/// The kernel's number of a TCP socket, which no other socket has before the next boot. InvalidInput for other files.
pub(crate) fn tcp_cookie(socket: &OwnedFd) -> io::Result<u64> {
    let protocol: i32 = option(socket, libc::SO_PROTOCOL)?;
    if protocol != libc::IPPROTO_TCP {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    option(socket, libc::SO_COOKIE)
}

fn option<T: Default>(socket: &OwnedFd, name: i32) -> io::Result<T> {
    let mut value = T::default();
    let mut size = libc::socklen_t::try_from(mem::size_of::<T>()).unwrap_or(0);
    // SAFETY: value has `size` bytes and any bits are a value of the integers that this is used for.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            name,
            (&raw mut value).cast(),
            &raw mut size,
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(value)
}

/// Runs a program on a packet `repeat` times: what became of the packet, and nanoseconds a run.
#[cfg(test)]
pub(crate) fn test_run(
    program: &OwnedFd,
    packet: &[u8],
    repeat: u32,
) -> io::Result<(Vec<u8>, u32)> {
    let mut out = vec![0_u8; packet.len() + 64];
    let mut attributes = Attributes::default();
    attributes[0] = raw(program);
    attributes[2] = u32::try_from(packet.len()).unwrap_or(0);
    attributes[3] = u32::try_from(out.len()).unwrap_or(0);
    set_address(&mut attributes, 4, packet.as_ptr());
    set_address(&mut attributes, 6, out.as_mut_ptr());
    attributes[8] = repeat;
    bpf(PROG_TEST_RUN, &mut attributes)?;
    out.truncate(packet.len());
    Ok((out, attributes[9]))
}
