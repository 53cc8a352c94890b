//! The time that the calling thread waited for a processor while it could have run.
//!
//! Arrives: the kernel's counters. Leaves: nanoseconds. Must not know: the purpose of the thread.

use std::fs::File;
use std::os::unix::fs::FileExt;

/// The wait of the calling thread: the second number of `/proc/thread-self/schedstat`.
pub(crate) struct RunQueue {
    file: Option<File>,
    before_ns: u64,
}

impl RunQueue {
    /// Always zero where the kernel does not count it.
    pub(crate) fn open() -> Self {
        let mut queue = Self { file: File::open("/proc/thread-self/schedstat").ok(), before_ns: 0 };
        queue.since_last();
        queue
    }

    /// The wait in ns since the previous call.
    pub(crate) fn since_last(&mut self) -> u64 {
        let Some(file) = &self.file else { return 0 };
        let mut text = [0; 64];
        let len = file.read_at(&mut text, 0).unwrap_or(0);
        let text = std::str::from_utf8(&text[..len]).unwrap_or("");
        let total = text.split_whitespace().nth(1).and_then(|word| word.parse().ok());
        let total: u64 = total.unwrap_or(self.before_ns);
        let since = total.saturating_sub(self.before_ns);
        self.before_ns = total;
        since
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_wait_is_reported_once() {
        let path = std::env::temp_dir().join(format!("waystage-runqueue-{}", std::process::id()));
        std::fs::write(&path, "7 5000 3\n").unwrap();
        let mut queue = RunQueue { file: File::open(&path).ok(), before_ns: 0 };
        assert_eq!((queue.since_last(), queue.since_last()), (5000, 0));
        std::fs::write(&path, "9 9500 4\n").unwrap();
        assert_eq!(queue.since_last(), 4500);
        std::fs::write(&path, "").unwrap();
        assert_eq!(queue.since_last(), 0, "an unreadable number is no wait");
        std::fs::remove_file(&path).unwrap();
        assert_eq!(RunQueue { file: None, before_ns: 0 }.since_last(), 0);
    }
}
