//! What the processes of a job send to each other.

/// What the processes of a job send: `bytes[i]` from `src[i]` to `dst[i]`.
#[derive(Clone, Copy, Debug)]
pub struct Traffic<'a> {
    /// Sending processes.
    pub src: &'a [u32],
    /// Receiving processes.
    pub dst: &'a [u32],
    /// Bytes of each entry.
    pub bytes: &'a [f64],
}
