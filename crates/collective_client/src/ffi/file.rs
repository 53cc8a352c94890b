//! Files and operations: `ws_io_file_id` to `ws_io_sync`.

use std::ffi::{c_char, c_int, c_uchar, c_void, CStr};

use waystage_collective::Datatype;

use super::node::node;
use super::types::datatype;
use super::{give, guard, list, number, place, text};
use crate::error::{argument, Code, Error, Result};
use crate::file::File;
use crate::memory::Data;
use crate::node::Node;
use crate::open::Open;
use crate::registry::Registry;

static FILES: Registry<File> = Registry::new("open file");

/// `struct ws_io_open`.
#[repr(C)]
pub struct How {
    path: *const c_char,
    flags: c_int,
    id: [c_uchar; 16],
    rank: c_int,
    size: c_int,
    nodes: c_int,
    addresses: *const *const c_char,
    node_of: *const c_int,
    hints: c_int,
    hint: *const *const c_char,
}

/// See waystage_io.h.
#[no_mangle]
pub extern "C" fn ws_io_file_id(id: *mut c_uchar) -> c_int {
    guard(|| {
        let id = place(id.cast::<[u8; 16]>(), "id")?;
        let random = waystage_coupling::link::random()
            .map_err(|error| Error::system("random bytes of the kernel", &error))?;
        id.copy_from_slice(&random[..16]);
        Ok(())
    })
}

fn opened(how: &How) -> Result<Open> {
    let unsigned = |value: c_int, what: &str| {
        u32::try_from(value).map_err(|_| argument(format!("{what} is negative")))
    };
    if how.path.is_null() {
        return Err(argument("path is NULL"));
    }
    // SAFETY: the header asks for a text that ends with 0.
    let path = unsafe { CStr::from_ptr(how.path) }.to_bytes().to_vec();
    let addresses = list(how.addresses, number(how.nodes, "nodes")?, "addresses")?;
    let addresses: Vec<String> = addresses
        .iter()
        .map(|address| text(*address, "an address").map(str::to_owned))
        .collect::<Result<_>>()?;
    let node_of = list(how.node_of, number(how.size, "size")?, "node_of")?;
    let node_of: Vec<u32> =
        node_of.iter().map(|node| unsigned(*node, "a node")).collect::<Result<_>>()?;
    let texts = list(how.hint, 2 * number(how.hints, "hints")?, "hint")?;
    let texts: Vec<&str> =
        texts.iter().map(|given| text(*given, "a hint")).collect::<Result<_>>()?;
    let hints = texts.chunks(2).map(|pair| (pair[0].to_owned(), pair[1].to_owned())).collect();
    Ok(Open {
        path,
        flags: unsigned(how.flags, "flags")?,
        id: how.id,
        rank: unsigned(how.rank, "rank")?,
        size: unsigned(how.size, "size")?,
        addresses,
        node_of,
        hints,
    })
}

/// See waystage_io.h.
#[no_mangle]
pub extern "C" fn ws_io_open(handle: *mut Node, how: *const How, file: *mut *mut File) -> c_int {
    guard(|| {
        let result = place(file, "file")?;
        *result = std::ptr::null_mut();
        let node = node(handle)?;
        let how = place(how.cast_mut(), "how")?;
        *result = FILES.add(File::open(node, opened(how)?)?);
        Ok(())
    })
}

/// See waystage_io.h.
#[no_mangle]
pub extern "C" fn ws_io_close(file: *mut File) -> c_int {
    guard(|| FILES.remove(file)?.close())
}

/// See waystage_io.h.
#[no_mangle]
pub extern "C" fn ws_io_hint(
    file: *mut File,
    key: *const c_char,
    value: *mut c_char,
    capacity: usize,
) -> c_int {
    guard(|| {
        let key = text(key, "key")?;
        let found = FILES.get(file)?.hint(key);
        let found = found.ok_or_else(|| argument(format!("there is no hint {key}")))?;
        give(&found, value, capacity)
    })
}

/// See waystage_io.h.
#[no_mangle]
pub extern "C" fn ws_io_set_view(
    file: *mut File,
    displacement: i64,
    etype: i64,
    filetype: *const Datatype,
) -> c_int {
    guard(|| {
        let filetype = datatype(filetype)?;
        FILES.get(file)?.set_view(displacement, etype, filetype.as_deref())
    })
}

fn estimate(bytes: i64) -> u64 {
    u64::try_from(bytes).unwrap_or(0)
}

/// See waystage_io.h.
#[no_mangle]
pub extern "C" fn ws_io_control_point(
    file: *mut File,
    write: c_int,
    bytes: i64,
    blob: *mut c_uchar,
    capacity: usize,
    length: *mut usize,
) -> c_int {
    guard(|| {
        let length = place(length, "length")?;
        let map = FILES.get(file)?.control_point(write != 0, estimate(bytes))?;
        *length = map.len();
        if blob.is_null() || map.len() > capacity {
            let text = format!("the server map has {} bytes, {capacity} are given", map.len());
            return Err(Error::new(Code::Memory, text));
        }
        // SAFETY: the header asks for `capacity` bytes.
        unsafe { std::ptr::copy_nonoverlapping(map.as_ptr(), blob, map.len()) };
        Ok(())
    })
}

/// See waystage_io.h.
#[no_mangle]
pub extern "C" fn ws_io_adopt(file: *mut File, blob: *const c_uchar, length: usize) -> c_int {
    guard(|| FILES.get(file)?.adopt(list(blob, length, "blob")?))
}

/// See waystage_io.h.
#[no_mangle]
pub extern "C" fn ws_io_finished(file: *mut File, write: c_int, bytes: i64) -> c_int {
    guard(|| FILES.get(file)?.finished(write != 0, estimate(bytes)))
}

/// Memory of an operation.
struct Given {
    buffer: *mut u8,
    count: i64,
    memory: *const Datatype,
}

/// Runs an operation and says how many bytes it moved.
fn moves(
    file: *mut File,
    given: &Given,
    moved: *mut i64,
    run: impl FnOnce(&File, &Data) -> Result<u64>,
) -> c_int {
    guard(|| {
        let moved = place(moved, "moved")?;
        *moved = 0;
        let file = FILES.get(file)?;
        let memory = datatype(given.memory)?;
        // SAFETY: the header asks for memory that the datatype describes.
        let data = unsafe { Data::new(given.buffer, given.count, memory.as_deref()) }?;
        *moved = i64::try_from(run(&file, &data)?).unwrap_or(i64::MAX);
        Ok(())
    })
}

/// Runs a collective operation. Wrong memory is an error of this rank alone, which takes part without a byte.
fn collective(write: bool, file: *mut File, offset: i64, given: &Given, moved: *mut i64) -> c_int {
    guard(|| {
        let moved = place(moved, "moved")?;
        *moved = 0;
        let file = FILES.get(file)?;
        let data = datatype(given.memory).and_then(|memory| {
            // SAFETY: the header asks for memory that the datatype describes.
            unsafe { Data::new(given.buffer, given.count, memory.as_deref()) }
        });
        match data {
            Ok(data) => {
                *moved = i64::try_from(file.operate(write, offset, &data)?).unwrap_or(i64::MAX);
                Ok(())
            }
            Err(error) => {
                file.operate(write, 0, &Data::none())?;
                Err(error)
            }
        }
    })
}

/// See waystage_io.h.
#[no_mangle]
pub extern "C" fn ws_io_write_all(
    file: *mut File,
    offset: i64,
    buffer: *const c_void,
    count: i64,
    memory: *const Datatype,
    moved: *mut i64,
) -> c_int {
    let given = Given { buffer: buffer.cast_mut().cast(), count, memory };
    collective(true, file, offset, &given, moved)
}

/// See waystage_io.h.
#[no_mangle]
pub extern "C" fn ws_io_read_all(
    file: *mut File,
    offset: i64,
    buffer: *mut c_void,
    count: i64,
    memory: *const Datatype,
    moved: *mut i64,
) -> c_int {
    collective(false, file, offset, &Given { buffer: buffer.cast(), count, memory }, moved)
}

/// See waystage_io.h.
#[no_mangle]
pub extern "C" fn ws_io_write(
    file: *mut File,
    offset: i64,
    buffer: *const c_void,
    count: i64,
    memory: *const Datatype,
    moved: *mut i64,
) -> c_int {
    let given = Given { buffer: buffer.cast_mut().cast(), count, memory };
    moves(file, &given, moved, |file, data| file.access(true, offset, data))
}

/// See waystage_io.h.
#[no_mangle]
pub extern "C" fn ws_io_read(
    file: *mut File,
    offset: i64,
    buffer: *mut c_void,
    count: i64,
    memory: *const Datatype,
    moved: *mut i64,
) -> c_int {
    let given = Given { buffer: buffer.cast(), count, memory };
    moves(file, &given, moved, |file, data| file.access(false, offset, data))
}

/// Extents of the caller.
fn extents(count: i64, offsets: *const i64, lengths: *const i64) -> Result<Vec<(u64, u64)>> {
    let count = number(count, "extents")?;
    let offsets = list(offsets, count, "offsets")?;
    let lengths = list(lengths, count, "lengths")?;
    offsets
        .iter()
        .zip(lengths)
        .map(|(offset, length)| match (u64::try_from(*offset), u64::try_from(*length)) {
            (Ok(offset), Ok(length)) => Ok((offset, length)),
            _ => Err(argument(format!("an extent of {length} bytes at {offset}"))),
        })
        .collect()
}

/// See waystage_io.h.
#[no_mangle]
pub extern "C" fn ws_io_write_list(
    file: *mut File,
    count: i64,
    offsets: *const i64,
    lengths: *const i64,
    buffer: *const c_void,
    elements: i64,
    memory: *const Datatype,
    moved: *mut i64,
) -> c_int {
    let given = Given { buffer: buffer.cast_mut().cast(), count: elements, memory };
    moves(file, &given, moved, |file, data| {
        file.access_list(true, &extents(count, offsets, lengths)?, data)
    })
}

/// See waystage_io.h.
#[no_mangle]
pub extern "C" fn ws_io_read_list(
    file: *mut File,
    count: i64,
    offsets: *const i64,
    lengths: *const i64,
    buffer: *mut c_void,
    elements: i64,
    memory: *const Datatype,
    moved: *mut i64,
) -> c_int {
    let given = Given { buffer: buffer.cast(), count: elements, memory };
    moves(file, &given, moved, |file, data| {
        file.access_list(false, &extents(count, offsets, lengths)?, data)
    })
}

/// See waystage_io.h.
#[no_mangle]
pub extern "C" fn ws_io_settle(file: *mut File) -> c_int {
    guard(|| FILES.get(file)?.settle())
}

/// See waystage_io.h.
#[no_mangle]
pub extern "C" fn ws_io_sync(file: *mut File) -> c_int {
    guard(|| FILES.get(file)?.sync())
}
