//! Coupling by name: `ws_io_couple` and what follows it.

use std::ffi::{c_char, c_int, c_void, OsString};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use waystage_collective::Datatype;
use waystage_coupling::address;
use waystage_coupling::client::{Coupling, Options};
use waystage_coupling::failure::Failure;
use waystage_coupling::region::Region;
use waystage_coupling::request::{Role, Variable};

use super::types::datatype;
use super::{give, guard, list, number, optional, place, text};
use crate::error::{argument, Error, Result};
use crate::memory::Data;
use crate::named::Named;
use crate::registry::Registry;
use crate::store::Store;

/// An open name, and where its versions are stored.
pub struct Open {
    pub(super) coupling: Coupling,
    store: Option<Store>,
    /// Versions that are files.
    pub(super) named: Named,
}

static OPEN: Registry<Mutex<Open>> = Registry::new("coupled name");

/// The open name of a handle.
pub(super) fn opened(coupling: *mut Mutex<Open>) -> Result<Arc<Mutex<Open>>> {
    OPEN.get(coupling)
}

/// The lease where the caller gives none.
const LEASE_MS: c_int = 30_000;

/// `struct ws_io_couple`.
#[repr(C)]
pub struct How {
    name: *const c_char,
    role: c_int,
    rank: c_int,
    size: c_int,
    depth: c_int,
    timeout_ms: c_int,
    lease_ms: c_int,
    directory: *const c_char,
    store: *const c_char,
    socket: *const c_char,
    token: *const c_char,
}

/// `struct ws_io_box`.
#[repr(C)]
pub struct Box {
    variable: *const c_char,
    element: *const c_char,
    element_bytes: i64,
    dimensions: c_int,
    shape: *const i64,
    starts: *const i64,
    counts: *const i64,
}

fn milliseconds(given: c_int, what: &str) -> Result<Duration> {
    let given = u64::try_from(given).map_err(|_| argument(format!("{what} is negative")))?;
    Ok(Duration::from_millis(given))
}

fn options(how: &How) -> Result<(Options, Option<PathBuf>)> {
    let unsigned = |value: c_int, what: &str| {
        u32::try_from(value).map_err(|_| argument(format!("{what} is negative")))
    };
    let path = |given: *const c_char, what: &str| -> Result<Option<PathBuf>> {
        let given = optional(given, what)?.filter(|given| !given.is_empty());
        Ok(given.map(|given| PathBuf::from(OsString::from_vec(given.as_bytes().to_vec()))))
    };
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let socket = match path(how.socket, "socket")? {
        Some(socket) => Some(socket),
        None => variable("WAYSTAGE_IO_SOCKET").map(|socket| format!("{socket}.coupling").into()),
    };
    let token = match optional(how.token, "token")? {
        Some(token) => Some(token.to_owned()),
        None => variable("WAYSTAGE_IO_TOKEN"),
    };
    let token = token.map(|secret| address::launch_token(&secret));
    let lease = if how.lease_ms == 0 { LEASE_MS } else { how.lease_ms };
    let options = Options {
        name: text(how.name, "name")?.to_owned(),
        role: match how.role {
            0 => Role::Writer,
            1 => Role::Reader,
            other => return Err(argument(format!("{other} is no role"))),
        },
        rank: unsigned(how.rank, "rank")?,
        size: unsigned(how.size, "size")?,
        depth: if how.depth == 0 { 2 } else { unsigned(how.depth, "depth")? },
        directory: path(how.directory, "directory")?,
        socket,
        token,
        timeout: milliseconds(how.timeout_ms, "timeout_ms")?,
        lease: milliseconds(lease, "lease_ms")?,
    };
    Ok((options, path(how.store, "store")?))
}

/// See waystage_io.h.
#[no_mangle]
pub extern "C" fn ws_io_couple(how: *const How, coupling: *mut *mut Mutex<Open>) -> c_int {
    guard(|| {
        let result = place(coupling, "coupling")?;
        *result = std::ptr::null_mut();
        let (options, store) = options(place(how.cast_mut(), "how")?)?;
        let named = Named::new(store.as_deref().map(|folder| (folder, options.name.as_str())))?;
        let store = store.map(|folder| Store::new(&folder, &options.name)).transpose()?;
        let coupling = Coupling::open(options).map_err(Error::from)?;
        *result = OPEN.add(Mutex::new(Open { coupling, store, named }));
        Ok(())
    })
}

/// A box of the caller.
fn given(array: *const Box) -> Result<(Variable, Region)> {
    let array = place(array.cast_mut(), "box")?;
    let dimensions = number(array.dimensions, "dimensions")?;
    let sides = |given: *const i64, what: &str| -> Result<Vec<u64>> {
        list(given, dimensions, what)?
            .iter()
            .map(|side| {
                u64::try_from(*side).map_err(|_| argument(format!("{what} has {side} in it")))
            })
            .collect()
    };
    let region = Region::new(&sides(array.starts, "starts")?, &sides(array.counts, "counts")?);
    let shape =
        if array.shape.is_null() { vec![0; dimensions] } else { sides(array.shape, "shape")? };
    let element_bytes = u32::try_from(array.element_bytes)
        .map_err(|_| argument(format!("an element has {} bytes", array.element_bytes)))?;
    let variable = Variable {
        name: text(array.variable, "variable")?.to_owned(),
        element: optional(array.element, "element")?.unwrap_or_default().to_owned(),
        element_bytes,
        shape,
    };
    let region =
        region.ok_or_else(|| argument("the box overflows, or has more than 16 dimensions"))?;
    Ok((variable, region))
}

pub(super) fn version(given: i64) -> Result<u64> {
    u64::try_from(given).map_err(|_| argument(format!("version {given} is negative")))
}

/// The caller's cells of a box: one element of `memory`, or bytes without gaps.
fn cells(buffer: *mut u8, memory: *const Datatype, bytes: u64) -> Result<Data> {
    let memory = datatype(memory)?;
    let count = if memory.is_some() { 1 } else { i64::try_from(bytes).unwrap_or(i64::MAX) };
    // SAFETY: the header asks for memory of the box's cells.
    let data = unsafe { Data::new(buffer, count, memory.as_deref()) }?;
    if data.bytes() != bytes {
        let text = format!("the box has {bytes} bytes, the datatype {}", data.bytes());
        return Err(argument(text));
    }
    Ok(data)
}

fn bytes_of(region: &Region, element_bytes: u32) -> Result<u64> {
    let bytes = region.cells().checked_mul(element_bytes.into());
    bytes.ok_or_else(|| argument("the box overflows"))
}

/// See waystage_io.h.
#[no_mangle]
pub extern "C" fn ws_io_put(
    coupling: *mut Mutex<Open>,
    number: i64,
    array: *const Box,
    buffer: *const c_void,
    memory: *const Datatype,
) -> c_int {
    guard(|| {
        let open = OPEN.get(coupling)?;
        let (variable, region) = given(array)?;
        let bytes = bytes_of(&region, variable.element_bytes)?;
        let data = cells(buffer.cast_mut().cast(), memory, bytes)?;
        let mut open = open.lock();
        let number = version(number)?;
        let Open { coupling, store, .. } = &mut *open;
        let mut stored = Ok(());
        let put = coupling.put(number, variable.clone(), region.clone(), |to| {
            data.gather(to);
            if let Some(store) = store {
                stored = store.put(number, &variable, &region, to);
            }
        });
        put.map_err(Error::from)?;
        stored
    })
}

/// See waystage_io.h.
#[no_mangle]
pub extern "C" fn ws_io_get(
    coupling: *mut Mutex<Open>,
    number: i64,
    array: *const Box,
    buffer: *mut c_void,
    memory: *const Datatype,
) -> c_int {
    guard(|| {
        let open = OPEN.get(coupling)?;
        let (variable, region) = given(array)?;
        let bytes = bytes_of(&region, variable.element_bytes)?;
        let data = cells(buffer.cast(), memory, bytes)?;
        let mut open = open.lock();
        let number = version(number)?;
        let failed = |failure: Failure| Error::from(failure);
        let found = data.scattered(|to| {
            open.coupling.get(number, &variable.name, &region, to).map_err(failed)
        })?;
        if !variable.element.is_empty() && variable.element != found.element {
            let text = format!(
                "{} has elements {}, not {}",
                variable.name, found.element, variable.element
            );
            return Err(argument(text));
        }
        Ok(())
    })
}

/// See waystage_io.h.
#[no_mangle]
pub extern "C" fn ws_io_commit(coupling: *mut Mutex<Open>, number: i64) -> c_int {
    guard(|| {
        let open = OPEN.get(coupling)?;
        let mut open = open.lock();
        let number = version(number)?;
        if let Some(store) = &open.store {
            store.flush(number)?;
        }
        let last = open.coupling.commit(number).map_err(Error::from)?;
        match &mut open.store {
            Some(store) if last => store.finish(number, true),
            Some(store) => store.finish(number, false),
            None => Ok(()),
        }
    })
}

/// See waystage_io.h.
#[no_mangle]
pub extern "C" fn ws_io_next(coupling: *mut Mutex<Open>, after: i64, number: *mut i64) -> c_int {
    guard(|| {
        let number = place(number, "version")?;
        let open = OPEN.get(coupling)?;
        let found = open.lock().coupling.next(u64::try_from(after).ok());
        *number = i64::try_from(found.map_err(Error::from)?).unwrap_or(i64::MAX);
        Ok(())
    })
}

/// See waystage_io.h.
#[no_mangle]
pub extern "C" fn ws_io_inquire(
    coupling: *mut Mutex<Open>,
    number: i64,
    variable: *const c_char,
    element: *mut c_char,
    capacity: usize,
    element_bytes: *mut i64,
    dimensions: *mut c_int,
    shape: *mut i64,
) -> c_int {
    guard(|| {
        let open = OPEN.get(coupling)?;
        let name = text(variable, "variable")?;
        let dimensions = place(dimensions, "dimensions")?;
        let found = open.lock().coupling.inquire(version(number)?, name);
        let found = found.map_err(Error::from)?;
        give(&found.element, element, capacity)?;
        *place(element_bytes, "element_bytes")? = found.element_bytes.into();
        let room = std::mem::replace(dimensions, found.shape.len().try_into().unwrap_or(0));
        let room = super::number(room, "dimensions")?;
        if room < found.shape.len() {
            let text =
                format!("{name} has {} dimensions, there is room for {room}", found.shape.len());
            return Err(argument(text));
        }
        for (i, side) in found.shape.iter().enumerate() {
            // SAFETY: the header asks for room for these numbers.
            let to = place(unsafe { shape.add(i) }, "shape")?;
            *to = i64::try_from(*side).unwrap_or(i64::MAX);
        }
        Ok(())
    })
}

/// See waystage_io.h.
#[no_mangle]
pub extern "C" fn ws_io_uncouple(coupling: *mut Mutex<Open>, timeout_ms: c_int) -> c_int {
    guard(|| {
        let open = OPEN.remove(coupling)?;
        if timeout_ms < 0 {
            return Ok(());
        }
        let mut open = open.lock();
        open.coupling.set_timeout(milliseconds(timeout_ms, "timeout_ms")?);
        open.coupling.close().map_err(Error::from)
    })
}
