//! The C interface of `shim/include/waystage_io.h`.
//!
//! Arrives: pointers and numbers of a C program. Leaves: codes, and objects behind handles.
//! Must not know: how anything is done.
//!
//! A panic never crosses into C: it is an error. Handles and NULL are checked; other pointers cannot be.
#![allow(unsafe_code)]

mod coupling;
mod file;
mod node;
mod types;
mod version;

use std::ffi::{c_char, c_int, CStr};
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

use crate::error::{self, argument, Code, Error, Result};

/// `WS_IO_ABI`.
const ABI: c_int = 1;

/// Runs a function's body; its code.
pub(crate) fn guard(body: impl FnOnce() -> Result<()>) -> c_int {
    static QUIET: Once = Once::new();
    // The standard library, of which this library has a copy, writes a panic's text to stderr.
    QUIET.call_once(|| {
        if cfg!(not(test)) {
            panic::set_hook(Box::new(|_| {}));
        }
    });
    let error = match panic::catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return 0,
        Ok(Err(error)) => error,
        Err(_) => Error::new(Code::Io, "a defect of the Waystage library: please report it"),
    };
    error::remember(&error);
    error.code as c_int
}

/// The handle that a function makes; NULL on an error.
pub(crate) fn made<T>(body: impl FnOnce() -> Result<*mut T>) -> *mut T {
    let mut made = std::ptr::null_mut();
    guard(|| {
        made = body()?;
        Ok(())
    });
    made
}

/// A text of the caller.
pub(crate) fn text<'a>(given: *const c_char, what: &str) -> Result<&'a str> {
    optional(given, what)?.ok_or_else(|| argument(format!("{what} is NULL")))
}

/// A text of the caller; None for NULL.
pub(crate) fn optional<'a>(given: *const c_char, what: &str) -> Result<Option<&'a str>> {
    if given.is_null() {
        return Ok(None);
    }
    // SAFETY: the header asks for texts that end with 0.
    error::text(unsafe { CStr::from_ptr(given) }, what).map(Some)
}

/// `count` values of the caller.
pub(crate) fn list<'a, T>(given: *const T, count: usize, what: &str) -> Result<&'a [T]> {
    if count == 0 {
        return Ok(&[]);
    }
    if given.is_null() {
        return Err(argument(format!("{what} is NULL")));
    }
    // SAFETY: the header asks for `count` values.
    Ok(unsafe { std::slice::from_raw_parts(given, count) })
}

/// Where a result goes.
pub(crate) fn place<'a, T>(given: *mut T, what: &str) -> Result<&'a mut T> {
    // SAFETY: the header asks for a variable of the type.
    unsafe { given.as_mut() }.ok_or_else(|| argument(format!("{what} is NULL")))
}

/// A number of things.
pub(crate) fn number(given: impl TryInto<usize>, what: &str) -> Result<usize> {
    given.try_into().map_err(|_| argument(format!("{what} is negative")))
}

/// Copies a text and its 0 to the caller.
pub(crate) fn give(found: &str, to: *mut c_char, capacity: usize) -> Result<()> {
    if to.is_null() || capacity <= found.len() {
        let text = format!("{} bytes are needed, {capacity} are given", found.len() + 1);
        return Err(argument(text));
    }
    // SAFETY: the header asks for `capacity` bytes; they are enough.
    unsafe {
        std::ptr::copy_nonoverlapping(found.as_ptr(), to.cast(), found.len());
        *to.add(found.len()) = 0;
    }
    Ok(())
}

/// The version of the library.
#[no_mangle]
pub extern "C" fn ws_io_abi() -> c_int {
    ABI
}

/// The sentence of the last error of this thread.
#[no_mangle]
pub extern "C" fn ws_io_message() -> *const c_char {
    error::last()
}
