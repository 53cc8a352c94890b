//! A version of a coupled name as a file: `ws_io_version_open` and what follows it.

use std::ffi::{c_int, c_void};

use parking_lot::Mutex;
use waystage_collective::Datatype;
use waystage_coupling::client::Coupling;

use super::coupling::{opened, version, Open};
use super::types::datatype;
use super::{guard, place};
use crate::error::{argument, Result};
use crate::memory::Data;
use crate::named::Named;

/// Runs `body` on an open name.
fn with(
    coupling: *mut Mutex<Open>,
    body: impl FnOnce(&mut Named, &mut Coupling) -> Result<()>,
) -> c_int {
    guard(|| {
        let open = opened(coupling)?;
        let mut open = open.lock();
        let Open { coupling, named, .. } = &mut *open;
        body(named, coupling)
    })
}

fn signed(found: u64) -> i64 {
    i64::try_from(found).unwrap_or(i64::MAX)
}

fn unsigned(given: i64, what: &str) -> Result<u64> {
    u64::try_from(given).map_err(|_| argument(format!("{what} is negative")))
}

/// See waystage_io.h.
#[no_mangle]
pub extern "C" fn ws_io_version_open(coupling: *mut Mutex<Open>, number: i64) -> c_int {
    with(coupling, |_, coupling| Ok(coupling.open_file(version(number)?)?))
}

/// See waystage_io.h.
#[no_mangle]
pub extern "C" fn ws_io_version_view(
    coupling: *mut Mutex<Open>,
    displacement: i64,
    etype: i64,
    filetype: *const Datatype,
) -> c_int {
    with(coupling, |named, _| named.set_view(displacement, etype, datatype(filetype)?.as_deref()))
}

/// See waystage_io.h.
#[no_mangle]
pub extern "C" fn ws_io_version_write(
    coupling: *mut Mutex<Open>,
    offset: i64,
    buffer: *const c_void,
    count: i64,
    memory: *const Datatype,
    moved: *mut i64,
) -> c_int {
    with(coupling, |named, coupling| {
        let moved = place(moved, "moved")?;
        *moved = 0;
        let memory = datatype(memory)?;
        // SAFETY: the header asks for memory that the datatype describes.
        let data = unsafe { Data::new(buffer.cast_mut().cast(), count, memory.as_deref()) }?;
        *moved = signed(named.write(coupling, offset, &data)?);
        Ok(())
    })
}

/// See waystage_io.h.
#[no_mangle]
pub extern "C" fn ws_io_version_read(
    coupling: *mut Mutex<Open>,
    offset: i64,
    buffer: *mut c_void,
    count: i64,
    memory: *const Datatype,
    moved: *mut i64,
) -> c_int {
    with(coupling, |named, coupling| {
        let moved = place(moved, "moved")?;
        *moved = 0;
        let memory = datatype(memory)?;
        // SAFETY: as in `ws_io_version_write`.
        let data = unsafe { Data::new(buffer.cast(), count, memory.as_deref()) }?;
        *moved = signed(named.read(coupling, offset, &data)?);
        Ok(())
    })
}

/// See waystage_io.h.
#[no_mangle]
pub extern "C" fn ws_io_version_size(coupling: *mut Mutex<Open>, bytes: *mut i64) -> c_int {
    with(coupling, |_, coupling| {
        *place(bytes, "bytes")? = signed(coupling.file_bytes()?);
        Ok(())
    })
}

/// See waystage_io.h.
#[no_mangle]
pub extern "C" fn ws_io_version_resize(coupling: *mut Mutex<Open>, bytes: i64) -> c_int {
    with(coupling, |_, coupling| Ok(coupling.resize_file(unsigned(bytes, "the size")?)?))
}

/// See waystage_io.h.
#[no_mangle]
pub extern "C" fn ws_io_version_position(
    coupling: *mut Mutex<Open>,
    offset: i64,
    position: *mut i64,
) -> c_int {
    with(coupling, |named, _| {
        *place(position, "position")? = signed(named.position(unsigned(offset, "the offset")?)?);
        Ok(())
    })
}

/// See waystage_io.h.
#[no_mangle]
pub extern "C" fn ws_io_version_end(coupling: *mut Mutex<Open>, offset: *mut i64) -> c_int {
    with(coupling, |named, coupling| {
        *place(offset, "offset")? = signed(named.end(coupling)?);
        Ok(())
    })
}

/// See waystage_io.h.
#[no_mangle]
pub extern "C" fn ws_io_version_commit(coupling: *mut Mutex<Open>, keep: c_int) -> c_int {
    with(coupling, |named, coupling| named.commit(coupling, keep != 0))
}
