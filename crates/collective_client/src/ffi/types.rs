//! Datatypes: `ws_io_type_*`.

use std::ffi::{c_char, c_int};
use std::sync::Arc;

use waystage_collective::{Datatype, DatatypeError, Distribution, Order};

use super::{guard, list, made, number};
use crate::error::{argument, Result};
use crate::registry::Registry;

static TYPES: Registry<Datatype> = Registry::new("datatype");

/// The datatype of a handle; None for NULL.
pub(crate) fn datatype(handle: *const Datatype) -> Result<Option<Arc<Datatype>>> {
    if handle.is_null() {
        return Ok(None);
    }
    TYPES.get(handle).map(Some)
}

fn add(built: std::result::Result<Datatype, DatatypeError>) -> Result<*mut Datatype> {
    built.map(|built| TYPES.add(built)).map_err(|error| argument(error.to_string()))
}

fn order(order: c_char) -> Result<Order> {
    match u8::try_from(order) {
        Ok(b'C') => Ok(Order::C),
        Ok(b'F') => Ok(Order::Fortran),
        _ => Err(argument("the order is 'C' or 'F'")),
    }
}

/// See waystage_io.h.
#[no_mangle]
pub extern "C" fn ws_io_type_bytes(bytes: i64) -> *mut Datatype {
    made(|| add(Datatype::bytes(bytes)))
}

/// See waystage_io.h.
#[no_mangle]
pub extern "C" fn ws_io_type_contiguous(count: i64, of: *const Datatype) -> *mut Datatype {
    made(|| add(Datatype::contiguous(count, &*TYPES.get(of)?)))
}

/// See waystage_io.h.
#[no_mangle]
pub extern "C" fn ws_io_type_hvector(
    count: i64,
    block: i64,
    stride: i64,
    of: *const Datatype,
) -> *mut Datatype {
    made(|| add(Datatype::hvector(count, block, stride, &*TYPES.get(of)?)))
}

/// See waystage_io.h.
#[no_mangle]
pub extern "C" fn ws_io_type_hindexed(
    count: i64,
    blocks: *const i64,
    displacements: *const i64,
    of: *const Datatype,
) -> *mut Datatype {
    made(|| {
        let count = number(count, "count")?;
        let blocks = list(blocks, count, "blocks")?;
        let displacements = list(displacements, count, "displacements")?;
        add(Datatype::hindexed(blocks, displacements, &*TYPES.get(of)?))
    })
}

/// See waystage_io.h.
#[no_mangle]
pub extern "C" fn ws_io_type_hindexed_block(
    count: i64,
    block: i64,
    displacements: *const i64,
    of: *const Datatype,
) -> *mut Datatype {
    made(|| {
        let displacements = list(displacements, number(count, "count")?, "displacements")?;
        add(Datatype::hindexed_block(block, displacements, &*TYPES.get(of)?))
    })
}

/// See waystage_io.h.
#[no_mangle]
pub extern "C" fn ws_io_type_struct(
    count: i64,
    blocks: *const i64,
    displacements: *const i64,
    of: *const *const Datatype,
) -> *mut Datatype {
    made(|| {
        let count = number(count, "count")?;
        let blocks = list(blocks, count, "blocks")?;
        let displacements = list(displacements, count, "displacements")?;
        let handles = list(of, count, "of")?;
        let types: Vec<_> =
            handles.iter().map(|handle| TYPES.get(*handle)).collect::<Result<_>>()?;
        let types: Vec<&Datatype> = types.iter().map(|found| &**found).collect();
        add(Datatype::structure(blocks, displacements, &types))
    })
}

/// See waystage_io.h.
#[no_mangle]
pub extern "C" fn ws_io_type_resized(
    lower: i64,
    extent: i64,
    of: *const Datatype,
) -> *mut Datatype {
    made(|| add(Datatype::resized(lower, extent, &*TYPES.get(of)?)))
}

/// See waystage_io.h.
#[no_mangle]
pub extern "C" fn ws_io_type_subarray(
    dimensions: c_int,
    sizes: *const i64,
    subsizes: *const i64,
    starts: *const i64,
    c_or_fortran: c_char,
    of: *const Datatype,
) -> *mut Datatype {
    made(|| {
        let count = number(dimensions, "dimensions")?;
        let sizes = list(sizes, count, "sizes")?;
        let subsizes = list(subsizes, count, "subsizes")?;
        let starts = list(starts, count, "starts")?;
        let order = order(c_or_fortran)?;
        add(Datatype::subarray(sizes, subsizes, starts, order, &*TYPES.get(of)?))
    })
}

/// See waystage_io.h.
#[no_mangle]
#[allow(clippy::too_many_arguments)] // MPI's.
pub extern "C" fn ws_io_type_darray(
    size: c_int,
    rank: c_int,
    dimensions: c_int,
    sizes: *const i64,
    distributions: *const c_char,
    arguments: *const i64,
    processes: *const i64,
    c_or_fortran: c_char,
    of: *const Datatype,
) -> *mut Datatype {
    made(|| {
        let count = number(dimensions, "dimensions")?;
        let sizes = list(sizes, count, "sizes")?;
        let processes = list(processes, count, "processes")?;
        let arguments = list(arguments, count, "arguments")?;
        let distributions = list(distributions, count, "distributions")?;
        let distributions: Vec<_> = distributions
            .iter()
            .zip(arguments)
            .map(|(kind, argument)| distribution(*kind, *argument))
            .collect::<Result<_>>()?;
        let total = processes.iter().try_fold(1_i64, |all, some| all.checked_mul(*some));
        if total != Some(size.into()) {
            return Err(argument(format!("{size} processes are not those of the grid")));
        }
        let order = order(c_or_fortran)?;
        let of = TYPES.get(of)?;
        add(Datatype::darray(rank.into(), sizes, &distributions, processes, order, &of))
    })
}

fn distribution(kind: c_char, argument: i64) -> Result<Distribution> {
    let given = (argument != -1).then_some(argument);
    match u8::try_from(kind) {
        Ok(b'b') => Ok(Distribution::Block(given)),
        Ok(b'c') => Ok(Distribution::Cyclic(given)),
        Ok(b'n') => Ok(Distribution::None),
        _ => Err(crate::error::argument("a distribution is 'b', 'c' or 'n'")),
    }
}

/// See waystage_io.h.
#[no_mangle]
pub extern "C" fn ws_io_type_free(of: *mut Datatype) {
    if !of.is_null() {
        guard(|| TYPES.remove(of).map(drop));
    }
}
