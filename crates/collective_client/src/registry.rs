//! Handles that C code keeps: numbers that name an object, so that a freed or invented one is an error.
//!
//! Arrives: objects, handles. Leaves: the object of a handle. Must not know: what the objects do.
//!
//! A handle is never dereferenced. Pointers to boxes with a magic number were rejected: a handle that was freed would
//! be read to see that it was.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use crate::error::{argument, Code, Error, Result};

/// Handles of all kinds come from one counter, so that one of another kind is unknown too. Its step is that of a
/// pointer, which debuggers and bindings expect.
static NEXT: AtomicUsize = AtomicUsize::new(0x1000);

/// The objects of one kind.
pub(crate) struct Registry<T> {
    what: &'static str,
    objects: OnceLock<Mutex<HashMap<usize, Entry<T>>>>,
}

struct Entry<T> {
    object: Arc<T>,
    /// Process that made it: its sockets and shared memory are that process's.
    process: u32,
}

impl<T> Registry<T> {
    /// No object; `what` names the kind in messages.
    pub(crate) const fn new(what: &'static str) -> Self {
        Self { what, objects: OnceLock::new() }
    }

    fn objects(&self) -> &Mutex<HashMap<usize, Entry<T>>> {
        self.objects.get_or_init(Mutex::default)
    }

    /// A handle of `object`.
    pub(crate) fn add(&self, object: T) -> *mut T {
        let handle = NEXT.fetch_add(16, Ordering::Relaxed);
        let entry = Entry { object: Arc::new(object), process: std::process::id() };
        self.objects().lock().insert(handle, entry);
        handle as *mut T
    }

    /// The object of a handle.
    ///
    /// # Errors
    /// [`Code::Argument`] where there is none, [`Code::Unsupported`] in a child of the process that made it.
    pub(crate) fn get(&self, handle: *const T) -> Result<Arc<T>> {
        let objects = self.objects().lock();
        let entry = objects.get(&(handle as usize)).ok_or_else(|| self.unknown(handle))?;
        self.check(entry)?;
        Ok(Arc::clone(&entry.object))
    }

    /// The object of a handle, which is one no longer.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub(crate) fn remove(&self, handle: *const T) -> Result<Arc<T>> {
        let mut objects = self.objects().lock();
        let entry = objects.get(&(handle as usize)).ok_or_else(|| self.unknown(handle))?;
        self.check(entry)?;
        let entry = objects.remove(&(handle as usize)).ok_or_else(|| self.unknown(handle))?;
        Ok(entry.object)
    }

    fn unknown(&self, handle: *const T) -> Error {
        let what = self.what;
        if handle.is_null() {
            return argument(format!("the {what} is NULL"));
        }
        argument(format!("this is no {what}, or it has been freed"))
    }

    fn check(&self, entry: &Entry<T>) -> Result<()> {
        if entry.process == std::process::id() {
            return Ok(());
        }
        let text = format!(
            "the {} belongs to the process that this one was forked from: connect anew",
            self.what
        );
        Err(Error::new(Code::Unsupported, text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_freed_handle_and_an_invented_one_are_errors() {
        static NUMBERS: Registry<u32> = Registry::new("number");
        let handle = NUMBERS.add(7);
        assert_eq!(*NUMBERS.get(handle).unwrap(), 7);
        assert_eq!(*NUMBERS.remove(handle).unwrap(), 7);
        assert_eq!(NUMBERS.get(handle).unwrap_err().code, Code::Argument);
        assert!(NUMBERS.get(std::ptr::null()).unwrap_err().text.contains("NULL"));
        assert_eq!(NUMBERS.get(8 as *const u32).unwrap_err().code, Code::Argument);
    }
}
