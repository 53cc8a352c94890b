//! How an operation ended: `enum ws_io_error` of `shim/include/waystage_io.h`.
//!
//! Arrives: error numbers of system calls. Leaves: statuses. Must not know: what was attempted.

/// How an operation ended. The codes are those of the C interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[repr(i32)]
pub enum Status {
    /// Done.
    #[default]
    Ok = 0,
    /// The epoch ended: pass a control point, then repeat.
    Again = -1,
    /// There is no such file.
    NoSuchFile = -2,
    /// The file exists.
    FileExists = -3,
    /// No permission.
    Access = -4,
    /// A read-only file system.
    ReadOnly = -5,
    /// The storage is full.
    NoSpace = -6,
    /// The quota is used up.
    Quota = -7,
    /// The path is no file that can be opened so.
    BadFile = -8,
    /// An argument that makes no sense.
    Argument = -9,
    /// Not implemented.
    Unsupported = -10,
    /// No answer within the lease.
    Lost = -11,
    /// Any other error of the storage.
    Io = -12,
    /// Another version.
    Version = -13,
    /// Wrong user or token.
    Refused = -14,
    /// No memory.
    Memory = -15,
}

/// `errno` of Linux, asm-generic/errno-base.h and errno.h.
mod errno {
    pub(super) const PERM: i32 = 1;
    pub(super) const NOENT: i32 = 2;
    pub(super) const NXIO: i32 = 6;
    pub(super) const NOMEM: i32 = 12;
    pub(super) const ACCES: i32 = 13;
    pub(super) const EXIST: i32 = 17;
    pub(super) const NOTDIR: i32 = 20;
    pub(super) const ISDIR: i32 = 21;
    pub(super) const INVAL: i32 = 22;
    pub(super) const NFILE: i32 = 23;
    pub(super) const MFILE: i32 = 24;
    pub(super) const TXTBSY: i32 = 26;
    pub(super) const FBIG: i32 = 27;
    pub(super) const NOSPC: i32 = 28;
    pub(super) const ROFS: i32 = 30;
    pub(super) const NAMETOOLONG: i32 = 36;
    pub(super) const NOSYS: i32 = 38;
    pub(super) const LOOP: i32 = 40;
    pub(super) const OPNOTSUPP: i32 = 95;
    pub(super) const DQUOT: i32 = 122;
}

impl Status {
    const ALL: [Self; 16] = [
        Self::Ok,
        Self::Again,
        Self::NoSuchFile,
        Self::FileExists,
        Self::Access,
        Self::ReadOnly,
        Self::NoSpace,
        Self::Quota,
        Self::BadFile,
        Self::Argument,
        Self::Unsupported,
        Self::Lost,
        Self::Io,
        Self::Version,
        Self::Refused,
        Self::Memory,
    ];

    /// The code of the C interface.
    pub fn code(self) -> i32 {
        self as i32
    }

    /// The status of a code; None for an unknown one.
    pub fn from_code(code: i32) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.code() == code)
    }

    /// The status of an `errno` of open, read, write or fsync: the only such table.
    pub fn from_errno(number: i32) -> Self {
        match number {
            errno::NOENT => Self::NoSuchFile,
            errno::EXIST => Self::FileExists,
            errno::PERM | errno::ACCES => Self::Access,
            errno::ROFS => Self::ReadOnly,
            // The largest size of a file, of the file system or of the process: no space for the extent.
            errno::NOSPC | errno::FBIG => Self::NoSpace,
            errno::DQUOT => Self::Quota,
            errno::NOTDIR
            | errno::ISDIR
            | errno::TXTBSY
            | errno::NAMETOOLONG
            | errno::LOOP
            | errno::NXIO => Self::BadFile,
            errno::INVAL => Self::Argument,
            errno::NOSYS | errno::OPNOTSUPP => Self::Unsupported,
            errno::NOMEM | errno::MFILE | errno::NFILE => Self::Memory,
            _ => Self::Io,
        }
    }

    /// Of two outcomes of parts of one operation the one that the whole has: an error of the storage before `Again`,
    /// since a repetition would meet it too.
    #[must_use]
    pub fn worse(self, other: Self) -> Self {
        let rank = |status: Self| match status {
            Self::Ok => 0,
            Self::Again => 1,
            _ => 2,
        };
        if rank(other) > rank(self) {
            other
        } else {
            self
        }
    }
}
