//! What carries the messages of a copy: a wide-area channel, or a TCP stream.
//!
//! Arrives: messages. Leaves: messages, each complete and at most once, in any order. Must not know: what messages say.

use crate::copy_state::CopyState;
use crate::error::WanError;
use waystage_transport::message::Message;

/// Messages to and from the peer.
pub trait Channel: Sync {
    /// Send a message; waits while too much is in flight.
    ///
    /// # Errors
    /// Where the channel has ended.
    fn send(&self, message: Vec<u8>) -> Result<(), WanError>;

    /// Send a message for which the peer waits, ahead of others where that is possible.
    ///
    /// # Errors
    /// Where the channel has ended.
    fn send_urgent(&self, message: Vec<u8>) -> Result<(), WanError>;

    /// The next message; None once the copy is stopped, after which [`Self::interrupt`] has to be called.
    ///
    /// # Errors
    /// Where the channel has ended.
    fn receive(&self, copy_state: &CopyState) -> Result<Option<Message>, WanError>;

    /// Let all threads that wait for a message or for [`Self::delivered`] check whether the copy is stopped.
    fn interrupt(&self);

    /// A received message is no longer needed: its memory may be filled again.
    fn done(&self, message: Message);

    /// Wait until the peer has all messages or the channel has ended; false after [`Self::interrupt`].
    fn delivered(&self) -> bool;

    /// Memory that received messages may fill, in bytes.
    fn memory_bytes(&self) -> u64;

    /// A buffer to be filled and sent, with its old contents.
    fn buffer(&self) -> Vec<u8>;
}

impl Channel for waystage_transport::channel::Channel {
    fn send(&self, message: Vec<u8>) -> Result<(), WanError> {
        Ok(self.send(message)?)
    }

    fn send_urgent(&self, message: Vec<u8>) -> Result<(), WanError> {
        Ok(self.say(message)?)
    }

    fn receive(&self, copy_state: &CopyState) -> Result<Option<Message>, WanError> {
        Ok(self.receive_unless(|| copy_state.is_stopped())?)
    }

    fn interrupt(&self) {
        self.interrupt();
    }

    fn done(&self, message: Message) {
        self.done(message);
    }

    fn delivered(&self) -> bool {
        self.delivered()
    }

    fn memory_bytes(&self) -> u64 {
        self.incoming().most_bytes()
    }

    fn buffer(&self) -> Vec<u8> {
        self.backpressure().buffer()
    }
}

#[cfg(test)]
pub(crate) mod testing {
    //! A channel in memory, and one side of it without the other.

    use std::collections::VecDeque;
    use std::sync::Arc;

    use parking_lot::{Condvar, Mutex};

    use super::*;

    #[derive(Default)]
    struct Direction {
        waiting: Mutex<(VecDeque<Vec<u8>>, bool)>,
        changed: Condvar,
    }

    /// One side of a channel whose messages stay in memory.
    pub(crate) struct MemoryChannel {
        incoming: Arc<Direction>,
        outgoing: Arc<Direction>,
    }

    /// Both sides of a channel.
    pub(crate) fn pair() -> (MemoryChannel, MemoryChannel) {
        let (one, other) = (Arc::new(Direction::default()), Arc::new(Direction::default()));
        let first = MemoryChannel { incoming: Arc::clone(&one), outgoing: Arc::clone(&other) };
        (first, MemoryChannel { incoming: other, outgoing: one })
    }

    impl MemoryChannel {
        /// Nothing is sent or received from now on.
        pub(crate) fn end(&self) {
            for direction in [&self.incoming, &self.outgoing] {
                direction.waiting.lock().1 = true;
                direction.changed.notify_all();
            }
        }
    }

    impl Channel for MemoryChannel {
        fn send(&self, message: Vec<u8>) -> Result<(), WanError> {
            let mut waiting = self.outgoing.waiting.lock();
            if waiting.1 {
                return Err(WanError::lost("the channel has ended"));
            }
            waiting.0.push_back(message);
            self.outgoing.changed.notify_one();
            Ok(())
        }

        fn send_urgent(&self, message: Vec<u8>) -> Result<(), WanError> {
            self.send(message)
        }

        fn receive(&self, copy_state: &CopyState) -> Result<Option<Message>, WanError> {
            let mut waiting = self.incoming.waiting.lock();
            self.incoming.changed.wait_while(&mut waiting, |waiting| {
                waiting.0.is_empty() && !waiting.1 && !copy_state.is_stopped()
            });
            match waiting.0.pop_front() {
                Some(buffer) => Ok(Some(Message { length: buffer.len(), buffer, by: None })),
                None if waiting.1 => Err(WanError::lost("the channel has ended")),
                None => Ok(None),
            }
        }

        fn interrupt(&self) {
            let _waiting = self.incoming.waiting.lock();
            self.incoming.changed.notify_all();
        }

        fn done(&self, _message: Message) {}

        fn delivered(&self) -> bool {
            true
        }

        fn memory_bytes(&self) -> u64 {
            64 << 20
        }

        fn buffer(&self) -> Vec<u8> {
            Vec::new()
        }
    }
}
