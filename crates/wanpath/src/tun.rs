//! A TUN device: IP packets of a network namespace.
//!
//! Arrives: the names of a namespace and a device. Leaves: frames of packets; drops of the kernel. Must not know: the
//! path.

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::Arc;

use waystage_netns::within;

use crate::endpoint::{Change, PacketSink, PacketSource};
use crate::error::PathError;
use crate::frame::{Cuts, Frame};
use crate::packet::{self, Shape, MAX_HEAD, VNET_BYTES};

/// The largest packet, or frame of packets, from the kernel.
const MAX_BYTES: usize = 65_536;

/// An end of the path. The device is removed when this is dropped or the process ends.
#[derive(Clone, Debug)]
pub struct Tun {
    device: Arc<File>,
    /// `/proc/net/dev` of the device's namespace.
    counters: Arc<File>,
    name: String,
    dropped_before: u64,
}

impl Tun {
    /// Creates the device `name` in a namespace of `/run/netns`; `None` for the caller's own.
    ///
    /// # Errors
    /// The namespace or `/dev/net/tun` is not accessible.
    pub fn open(namespace: Option<&str>, name: &str) -> Result<Self, PathError> {
        within(namespace, || {
            let failed = |source: io::Error| PathError::Device {
                namespace: namespace.unwrap_or("this namespace").to_owned(),
                source,
            };
            let device = make(name).map_err(failed)?;
            let counters = File::open("/proc/thread-self/net/dev").map_err(failed)?;
            let (device, counters) = (Arc::new(device), Arc::new(counters));
            Ok(Self { device, counters, name: name.to_owned(), dropped_before: 0 })
        })
    }

    /// Packets that found the device's queue full.
    fn dropped(&self) -> io::Result<u64> {
        let mut text = vec![0; 16 << 10];
        let len = self.counters.read_at(&mut text, 0)?;
        let text = String::from_utf8_lossy(&text[..len]);
        let line =
            text.lines().find_map(|line| line.trim().strip_prefix(&self.name)?.strip_prefix(':'));
        // net/core/net-procfs.c: eight columns of received, then bytes, packets, errs, drop of sent packets.
        let drops = line.and_then(|line| line.split_whitespace().nth(11)?.parse().ok());
        drops.ok_or_else(|| io::Error::other(format!("{} has gone", self.name)))
    }
}

impl PacketSource for Tun {
    type Shape = Shape;
    const MAX_FRAME: usize = MAX_BYTES;

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }

    fn read(&mut self, room: &mut [u8]) -> io::Result<Option<(Cuts, Shape)>> {
        let mut vnet = [0; VNET_BYTES];
        loop {
            let mut parts = [IoSliceMut::new(&mut vnet), IoSliceMut::new(room)];
            let len = match (&*self.device).read_vectored(&mut parts) {
                Ok(len) => len.saturating_sub(VNET_BYTES),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            if let Some(found) = packet::read(&vnet, &room[..len]) {
                return Ok(Some(found));
            }
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a frame that cannot be split"));
        }
    }

    fn ecn_capable(bytes: &[u8]) -> bool {
        packet::ecn_capable(bytes)
    }

    fn overflowed(&mut self) -> u64 {
        // A removed device drops nothing more.
        self.dropped_before = self.dropped().unwrap_or(self.dropped_before);
        self.dropped_before
    }
}

impl PacketSink for Tun {
    type Shape = Shape;

    fn write(
        &mut self,
        frame: &Frame<Shape>,
        bytes: &[u8],
        (first, count): (usize, usize),
        change: Change,
    ) -> io::Result<()> {
        let mut head = [0; MAX_HEAD];
        let (vnet, used) = packet::cut(&frame.cuts, frame.shape, bytes, (first, count), &mut head);
        let payload = &bytes[frame.cuts.payload(first, count)];
        let written = if change == Change::default() {
            let parts = [IoSlice::new(&vnet), IoSlice::new(&head[..used]), IoSlice::new(payload)];
            (&*self.device).write_vectored(&parts)
        } else {
            let mut copy = [&head[..used], payload].concat();
            if change.marked {
                packet::mark(&mut copy);
            }
            let vnet = match change.flip {
                Some(flip) => {
                    packet::damage(&mut copy, frame.shape.checksum, flip);
                    [0; VNET_BYTES]
                }
                None => vnet,
            };
            (&*self.device).write_vectored(&[IoSlice::new(&vnet), IoSlice::new(&copy)])
        };
        written.map(drop)
    }
}

/// linux/if_tun.h.
const TUNSETIFF: libc::c_ulong = 0x4004_54CA;
const TUNSETOFFLOAD: libc::c_ulong = 0x4004_54D0;
const IFF_TUN: libc::c_short = 0x0001;
const IFF_NO_PI: libc::c_short = 0x1000;
const IFF_VNET_HDR: libc::c_short = 0x4000;
const TUN_F_CSUM: libc::c_uint = 0x01;
const TUN_F_TSO4: libc::c_uint = 0x02;
const TUN_F_TSO6: libc::c_uint = 0x04;
const TUN_F_TSO_ECN: libc::c_uint = 0x08;
const TUN_F_USO4: libc::c_uint = 0x20;
const TUN_F_USO6: libc::c_uint = 0x40;

#[allow(unsafe_code)]
fn make(name: &str) -> io::Result<File> {
    let device = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
        .open("/dev/net/tun")?;
    // SAFETY: all fields of an ifreq are plain data, for which zero is a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.is_empty() || name.len() >= request.ifr_name.len() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a device's name"));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = libc::c_char::from_ne_bytes([from]);
    }
    request.ifr_ifru.ifru_flags = IFF_TUN | IFF_NO_PI | IFF_VNET_HDR;
    // SAFETY: TUNSETIFF reads and writes one ifreq, which lives through the call.
    let made = unsafe { libc::ioctl(device.as_raw_fd(), TUNSETIFF, &raw mut request) };
    if made < 0 {
        return Err(io::Error::last_os_error());
    }
    let tcp = TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6 | TUN_F_TSO_ECN;
    // Kernels before 6.2 do not segment UDP; without segmentation, packets arrive one by one.
    for offload in [tcp | TUN_F_USO4 | TUN_F_USO6, tcp, 0] {
        // SAFETY: TUNSETOFFLOAD takes a number and touches no memory.
        let set =
            unsafe { libc::ioctl(device.as_raw_fd(), TUNSETOFFLOAD, libc::c_ulong::from(offload)) };
        if set == 0 {
            break;
        }
    }
    Ok(device)
}
