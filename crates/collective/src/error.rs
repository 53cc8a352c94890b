//! What can be wrong with datatypes, views and messages.

/// Why a datatype cannot be built.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DatatypeError {
    /// A position or a size does not fit 63 bits.
    #[error("the datatype covers more than 2^63 - 1 bytes; use smaller counts, strides or displacements")]
    Overflow,
    /// More nested loops than [`crate::datatype::MAX_DEPTH`].
    #[error("the datatype nests more than {0} loops; flatten its inner types")]
    TooDeep(u8),
    /// A count, block length or size is negative.
    #[error("{what} is {value}; it must not be negative")]
    Negative {
        /// The argument.
        what: &'static str,
        /// Its value.
        value: i64,
    },
    /// Arrays of arguments differ in length.
    #[error("{what}: {found} values, {expected} expected")]
    Lengths {
        /// The argument.
        what: &'static str,
        /// Its number of values.
        found: usize,
        /// The number of values that the first argument has.
        expected: usize,
    },
    /// A subarray or a distributed array that is not inside its array.
    #[error("dimension {dimension}: {what}")]
    Dimension {
        /// Counted from 0.
        dimension: usize,
        /// What is wrong.
        what: String,
    },
    /// A number of dimensions, processes or a rank that cannot be.
    #[error("{0}")]
    Argument(String),
}

/// Why a file view is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ViewError {
    /// The displacement is negative.
    #[error("the displacement of the view is {0}; it must not be negative")]
    Displacement(i64),
    /// The etype has no bytes, or more than the filetype.
    #[error("the filetype has {filetype} bytes, no multiple of the etype's {etype}; build the filetype from the etype")]
    Etype {
        /// Bytes of an etype.
        etype: i64,
        /// Bytes of a filetype.
        filetype: u64,
    },
    /// A displacement of the filetype is negative.
    #[error("the filetype begins {0} bytes before its origin; displacements in a filetype must not be negative")]
    BeforeOrigin(i64),
    /// The filetype's displacements decrease, or its bytes overlap.
    #[error("the filetype's displacements decrease or overlap; order them, each byte once (MPI 4.0, section 14.3)")]
    NotMonotone,
    /// Repetitions of the filetype interleave.
    #[error("repetitions of the filetype interleave: it spans {span} bytes, its extent is {extent}; resize it")]
    Interleaves {
        /// Bytes from the first to past the last byte.
        span: u64,
        /// The extent.
        extent: i64,
    },
    /// A range of data is beyond the largest file offset.
    #[error("bytes {begin} to {end} of the view lie beyond the largest file offset")]
    TooFar {
        /// First byte of the view.
        begin: u64,
        /// Past the last byte.
        end: u64,
    },
}

/// Why a message is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The message ends early.
    #[error("the message ends after {0} bytes, in the middle of a value")]
    Truncated(usize),
    /// Bytes follow the end.
    #[error("the message has {0} bytes after its end")]
    Trailing(usize),
    /// A number is not in its shortest form, or does not fit 64 bits.
    #[error("a number at byte {0} of the message is malformed")]
    Number(usize),
    /// Another version of the format.
    #[error("the message has format {0}; this process knows {1}")]
    Version(u8, u8),
    /// A value that cannot be.
    #[error("the message's {0}")]
    Value(&'static str),
    /// A datatype that cannot be.
    #[error(transparent)]
    Datatype(#[from] DatatypeError),
    /// A view that cannot be.
    #[error(transparent)]
    View(#[from] ViewError),
}
