//! Errors of the C interface: a code that a caller acts on, and one sentence for the user.

use std::cell::RefCell;
use std::ffi::{CStr, CString};
use std::fmt;
use std::io;

use waystage_collective_wire::Status;
use waystage_coupling::failure::Failure;
use waystage_coupling::request::Why;

/// The codes of `enum ws_io_error`, except `WS_IO_OK`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Code {
    /// The epoch ended in the operation: pass a control point together, then repeat.
    Again = -1,
    /// No such file.
    NoSuchFile = -2,
    /// The file exists.
    FileExists = -3,
    /// Permission denied.
    Access = -4,
    /// A file system, or a file opened for reading, that cannot be written.
    ReadOnly = -5,
    /// The storage is full.
    NoSpace = -6,
    /// The user's quota is used up.
    Quota = -7,
    /// The path is no file that can be opened so.
    BadFile = -8,
    /// An argument that makes no sense.
    Argument = -9,
    /// Not provided by this library.
    Unsupported = -10,
    /// No answer within the lease.
    Lost = -11,
    /// Any other error of the storage.
    Io = -12,
    /// The aggregator process has another version.
    Version = -13,
    /// Wrong user or token.
    Refused = -14,
    /// Memory is used up.
    Memory = -15,
    /// The time that the caller gave is over.
    Timeout = -16,
    /// The writers have closed: no further version comes.
    Ended = -17,
}

impl Code {
    /// The code of an error of the kernel: of a socket, or as [`Status::from_errno`] has it.
    #[must_use]
    pub fn of_errno(errno: i32) -> Self {
        match errno {
            libc::ECONNRESET | libc::EPIPE | libc::ETIMEDOUT | libc::EHOSTUNREACH => Self::Lost,
            _ => Self::of_status(Status::from_errno(errno)),
        }
    }

    /// The code of a status that is not Ok.
    #[must_use]
    pub fn of_status(status: Status) -> Self {
        match status {
            Status::Again => Self::Again,
            Status::NoSuchFile => Self::NoSuchFile,
            Status::FileExists => Self::FileExists,
            Status::Access => Self::Access,
            Status::ReadOnly => Self::ReadOnly,
            Status::NoSpace => Self::NoSpace,
            Status::Quota => Self::Quota,
            Status::BadFile => Self::BadFile,
            Status::Argument => Self::Argument,
            Status::Unsupported => Self::Unsupported,
            Status::Lost => Self::Lost,
            Status::Version => Self::Version,
            Status::Refused => Self::Refused,
            Status::Memory => Self::Memory,
            Status::Ok | Status::Io => Self::Io,
        }
    }
}

/// An error: what a caller does about it, and its sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// What a caller acts on.
    pub code: Code,
    /// One sentence: what, where, how to repair it.
    pub text: String,
}

impl Error {
    /// An error with its sentence.
    pub fn new(code: Code, text: impl Into<String>) -> Self {
        Self { code, text: text.into() }
    }

    /// The kernel's error of `what`, for instance "write /scratch/a".
    pub fn system(what: impl fmt::Display, error: &io::Error) -> Self {
        let code = error.raw_os_error().map_or_else(
            || match error.kind() {
                io::ErrorKind::UnexpectedEof => Code::Lost,
                io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => Code::Lost,
                _ => Code::Io,
            },
            Code::of_errno,
        );
        Self { code, text: format!("{what}: {error}") }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Error {}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        let code = match &failure {
            Failure::Timeout(_) => Code::Timeout,
            Failure::Answer(why, _) => match why {
                Why::Argument => Code::Argument,
                Why::Lost => Code::Lost,
                Why::NoSuchVariable => Code::NoSuchFile,
                Why::Ended => Code::Ended,
                Why::Memory => Code::Memory,
            },
            Failure::System(_, error) if error.kind() == io::ErrorKind::PermissionDenied => {
                Code::Refused
            }
            Failure::System(what, error) => return Self::system(what, error),
        };
        Self::new(code, failure.to_string())
    }
}

/// The result of this crate's functions.
pub type Result<T> = std::result::Result<T, Error>;

/// An argument that makes no sense.
pub(crate) fn argument(text: impl Into<String>) -> Error {
    Error::new(Code::Argument, text)
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::new(CString::default());
}

/// Keeps the sentence for `ws_io_message`.
pub(crate) fn remember(error: &Error) {
    let text: Vec<u8> = error.text.bytes().filter(|byte| *byte != 0).collect();
    // A thread that is ending has no such variable.
    let _ = LAST.try_with(|last| *last.borrow_mut() = CString::new(text).unwrap_or_default());
}

/// The sentence of this thread's last error, until its next.
pub(crate) fn last() -> *const libc::c_char {
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or_else(|_| c"".as_ptr())
}

/// A text of the caller.
///
/// # Errors
/// [`Code::Argument`] where it is no UTF-8.
pub(crate) fn text<'a>(given: &'a CStr, what: &str) -> Result<&'a str> {
    given.to_str().map_err(|_| argument(format!("{what} is no UTF-8 text")))
}
