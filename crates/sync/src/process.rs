//! Values that have no use in a forked process.

use std::mem::ManuallyDrop;
use std::ops::Deref;

/// A value of the process that made it: it is dropped there only.
///
/// A forked process has a copy of the value without the threads that it started. Joining one of them reads the memory
/// of a stack that is gone, and what else ends with the value, as a mount or a socket, is the other process's.
#[derive(Debug)]
pub struct ProcessLocal<T> {
    value: ManuallyDrop<T>,
    process: u32,
}

impl<T> ProcessLocal<T> {
    /// A value of this process.
    pub fn new(value: T) -> Self {
        Self { value: ManuallyDrop::new(value), process: std::process::id() }
    }

    /// Whether this process made it.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        self.process == std::process::id()
    }
}

impl<T> Deref for ProcessLocal<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> Drop for ProcessLocal<T> {
    fn drop(&mut self) {
        if self.is_ours() {
            // SAFETY: nothing uses the value after this one call.
            #[allow(unsafe_code)]
            unsafe {
                ManuallyDrop::drop(&mut self.value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn it_is_dropped_by_the_process_that_made_it_and_by_no_other() {
        let value = Arc::new(());
        let ours = ProcessLocal::new(Arc::clone(&value));
        let mut other = ProcessLocal::new(Arc::clone(&value));
        other.process = 0;
        assert!(ours.is_ours() && !other.is_ours());
        drop((ours, other));
        assert_eq!(Arc::strong_count(&value), 2);
    }
}
