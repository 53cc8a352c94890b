//! The copies in progress, by name, for connections that join one.
//!
//! Arrives: names and keys of clients. Leaves: a copy to join, or why there is none. Must not know: sockets; how the
//! connections of a copy carry it (`C`).

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use waystage_protocol::congestion::coupled::Group;
use waystage_transport::error::Error;
use waystage_transport::identity::PublicKey;

/// A client's name for its copy.
pub(crate) type Name = [u8; 16];

/// A copy that others may join.
#[derive(Clone)]
pub(crate) struct Joint<C> {
    key: PublicKey,
    /// Carries the copy's messages.
    pub(crate) channel: C,
    pub(crate) group: Option<Group>,
    most: u32,
    /// Connections that it was given so far.
    given: u32,
    end: Arc<End>,
}

impl<C> Joint<C> {
    /// Call `wake` when the copy ends; at once if it has ended.
    pub(crate) fn at_end(&self, wake: impl Fn() + Send + 'static) {
        let mut end = self.end.0.lock();
        if end.0 {
            wake();
        } else {
            end.1.push(Box::new(wake));
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.end.0.lock().0
    }
}

/// Whether a copy has ended, and calls to make when it does.
#[derive(Default)]
struct End(Mutex<(bool, Vec<Wake>)>);

type Wake = Box<dyn Fn() + Send>;

/// The copies in progress.
pub(crate) struct Copies<C>(Mutex<HashMap<Name, Joint<C>>>);

impl<C> Default for Copies<C> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<C: Clone> Copies<C> {
    fn lock(&self) -> MutexGuard<'_, HashMap<Name, Joint<C>>> {
        self.0.lock()
    }

    /// Let others join the copy until the result is dropped. None where the name is taken.
    pub(crate) fn open(
        &self,
        name: Name,
        key: &PublicKey,
        channel: &C,
        (group, most): (Option<Group>, u32),
    ) -> Option<Open<'_, C>> {
        let end = Arc::<End>::default();
        let mut copies = self.lock();
        if copies.contains_key(&name) {
            return None;
        }
        let joint = Joint {
            key: key.clone(),
            channel: channel.clone(),
            group,
            most,
            given: 1,
            end: Arc::clone(&end),
        };
        copies.insert(name, joint);
        Some(Open { copies: self, name, end })
    }

    /// The copy of this name, if it is this key's and may have one more connection.
    pub(crate) fn join(&self, name: Name, key: &PublicKey) -> Result<Joint<C>, Error> {
        let mut copies = self.lock();
        // The answer is the same for another key's copy and for none.
        let joint = copies.get_mut(&name).filter(|joint| joint.key == *key).ok_or_else(|| {
            Error::Denied("the copy that this connection is for is not there".into())
        })?;
        if joint.given >= joint.most {
            let text = format!("the copy has its {} connections already", joint.most);
            return Err(Error::Busy(text));
        }
        joint.given += 1;
        Ok(joint.clone())
    }
}

/// A copy that others may join until this is dropped.
pub(crate) struct Open<'a, C> {
    copies: &'a Copies<C>,
    name: Name,
    end: Arc<End>,
}

impl<C> Drop for Open<'_, C> {
    fn drop(&mut self) {
        self.copies.0.lock().remove(&self.name);
        let mut end = self.end.0.lock();
        end.0 = true;
        end.1.drain(..).for_each(|wake| wake());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use proptest::prelude::*;
    use waystage_transport::identity::Identity;

    use super::*;

    #[test]
    fn connections_that_joined_learn_once_that_their_copy_has_ended() {
        let key = Identity::ephemeral().unwrap().public;
        let copies = Copies::default();
        let open = copies.open([1; 16], &key, &(), (None, 3)).unwrap();
        let joint = copies.join([1; 16], &key).unwrap();
        let woken = Arc::new(AtomicU32::new(0));
        let count = |woken: &Arc<AtomicU32>| {
            let woken = Arc::clone(woken);
            move || {
                woken.fetch_add(1, Ordering::SeqCst);
            }
        };
        joint.at_end(count(&woken));
        assert!(!joint.is_over() && woken.load(Ordering::SeqCst) == 0);
        drop(open);
        assert!(joint.is_over() && woken.load(Ordering::SeqCst) == 1);
        joint.at_end(count(&woken));
        assert_eq!(woken.load(Ordering::SeqCst), 2, "too late to wait, so at once");
        assert_eq!(copies.join([1; 16], &key).err().unwrap().kind(), "denied");
    }

    /// A copy of the model: owner, connections at most, connections so far.
    type Model = HashMap<u8, (usize, u32, u32)>;

    proptest! {
        #[test]
        fn only_its_key_joins_a_copy_and_never_beyond_its_connections(
            steps in prop::collection::vec((0_u8..4, 0_u8..3, 0_usize..2, 0_u32..4), 0..60),
        ) {
            let keys = [(); 2].map(|()| Identity::ephemeral().unwrap().public);
            let copies = Copies::default();
            let mut model = Model::new();
            let mut open = HashMap::new();
            for (what, name, key, most) in steps {
                match what {
                    0 => {
                        let opened = copies.open([name; 16], &keys[key], &name, (None, most));
                        prop_assert_eq!(opened.is_some(), !model.contains_key(&name));
                        if let Some(opened) = opened {
                            open.insert(name, opened);
                            model.insert(name, (key, most, 1));
                        }
                    }
                    1 => {
                        open.remove(&name);
                        model.remove(&name);
                    }
                    _ => {
                        let joined = copies.join([name; 16], &keys[key]);
                        let expected = match model.get_mut(&name).filter(|copy| copy.0 == key) {
                            None => "denied",
                            Some((_, most, given)) if *given >= *most => "busy",
                            Some((_, _, given)) => {
                                *given += 1;
                                "joined"
                            }
                        };
                        let got = match &joined {
                            Ok(joint) if joint.channel == name && !joint.is_over() => "joined",
                            Ok(_) => "another copy",
                            Err(Error::Busy(_)) => "busy",
                            Err(Error::Denied(_)) => "denied",
                            Err(_) => "another error",
                        };
                        prop_assert_eq!(got, expected);
                    }
                }
                prop_assert_eq!(copies.lock().len(), model.len());
            }
        }
    }
}
