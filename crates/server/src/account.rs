//! The account of this host as which a server acts for one of its users.
//!
//! Arrives: a user's account. Leaves: a thread that has that account's rights and no others. Must not know: users,
//! connections.
//!
//! On Linux user ids, groups and capabilities belong to a thread, and threads that it starts inherit them: the thread
//! that serves a user takes the account on before it touches a file or a destination, for good. See
//! decision 0038.

use std::io;

use rustix::process::{getegid, geteuid, getgid, getgroups, getuid, Gid, Uid};
use rustix::thread::{
    capabilities, set_capabilities, set_no_new_privs, set_thread_groups, set_thread_res_gid,
    set_thread_res_uid, CapabilitySet, CapabilitySets,
};

/// An account of this host: its number, its group, all the groups it is in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    /// Its user id; 0 for root, which keeps all rights.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// The groups that it is in beside that.
    pub groups: Vec<u32>,
}

impl Account {
    /// Take it on, in this thread and in those that it starts from now on: there is no way back.
    ///
    /// Rights on files, quotas and the owners of what is made follow the effective numbers. The real and the saved ones
    /// stay the server's: the kernel judges by them who may signal a thread, and a signal that ends one thread ends the
    /// whole server.
    ///
    /// An account that this thread has is left as it is. An error leaves the thread with rights that it should not
    /// have: it is to do nothing more for the user.
    pub(crate) fn take_on(&self) -> io::Result<()> {
        let (uid, gid) = (Uid::from_raw(self.uid), Gid::from_raw(self.gid));
        let (real, saved) = (getuid(), geteuid());
        if saved == uid && (uid.is_root() || real == uid || has_no_capabilities()?) {
            return Ok(());
        }
        let groups: Vec<Gid> = self.groups.iter().copied().map(Gid::from_raw).collect();
        set_no_new_privs(true)?;
        // In this order: a thread without capabilities may change none of them.
        set_thread_groups(&groups)?;
        set_thread_res_gid(gid, gid, gid)?;
        set_thread_res_uid(real, uid, saved)?;
        // The effective ones went with the number; without the permitted ones no number brings any back.
        let none = CapabilitySet::empty();
        let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
        set_capabilities(None, sets)?;
        self.check(&groups, real)
    }

    /// Whether the thread has this account's rights and no others.
    fn check(&self, groups: &[Gid], real: Uid) -> io::Result<()> {
        let (uid, gid) = (Uid::from_raw(self.uid), Gid::from_raw(self.gid));
        let numbers = |groups: &[Gid]| {
            let mut numbers: Vec<u32> = groups.iter().map(|group| group.as_raw()).collect();
            numbers.sort_unstable();
            numbers.dedup();
            numbers
        };
        let kill = CapabilitySets {
            effective: CapabilitySet::KILL,
            permitted: CapabilitySet::KILL,
            inheritable: CapabilitySet::empty(),
        };
        let is_so = [getuid(), geteuid()] == [real, uid]
            && [getgid(), getegid()] == [gid; 2]
            && numbers(&getgroups()?) == numbers(groups)
            && has_no_capabilities()?
            && set_capabilities(None, kill).is_err()
            && (gid.is_root() || set_thread_res_gid(Gid::ROOT, Gid::ROOT, Gid::ROOT).is_err())
            && set_thread_groups(&[Gid::ROOT]).is_err();
        if is_so {
            Ok(())
        } else {
            Err(io::Error::other("the kernel did not take away all rights"))
        }
    }
}

/// Whether this thread has none, and can get none.
fn has_no_capabilities() -> io::Result<bool> {
    let held = capabilities(None)?;
    Ok((held.effective | held.permitted | held.inheritable).is_empty())
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    use super::*;

    fn unprivileged() -> Account {
        Account { uid: 65_534, gid: 65_533, groups: vec![65_532, 65_533] }
    }

    #[test]
    fn a_thread_that_took_on_an_account_has_its_rights_and_so_have_its_threads() {
        if !geteuid().is_root() {
            return;
        }
        let folder = std::env::temp_dir().join(format!("waystage-account-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
        fs::write(folder.join("closed"), b"root's").unwrap();
        fs::set_permissions(folder.join("closed"), fs::Permissions::from_mode(0o600)).unwrap();
        let (closed, made) = (folder.join("closed"), folder.join("made"));
        std::thread::spawn(move || {
            unprivileged().take_on().unwrap();
            unprivileged().take_on().unwrap();
            let status = fs::read_to_string("/proc/thread-self/status").unwrap();
            let line = |key| status.lines().find_map(|line| line.strip_prefix(key)).unwrap();
            let numbers = |key| line(key).split_whitespace().map(str::to_owned).collect::<Vec<_>>();
            // Real, effective, saved, and for files.
            assert_eq!(numbers("Uid:"), ["0", "65534", "0", "65534"]);
            assert_eq!(numbers("Gid:"), ["65533"; 4]);
            for set in ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"] {
                assert_eq!(line(set).trim(), "0000000000000000", "{set}");
            }
            std::thread::spawn(move || {
                assert!(File::open(closed).is_err());
                fs::write(&made, b"").unwrap();
                let made = fs::metadata(made).unwrap();
                assert_eq!((made.uid(), made.gid()), (65_534, 65_533));
                assert!(Account { uid: 0, gid: 0, groups: Vec::new() }.take_on().is_err());
            })
            .join()
            .unwrap();
        })
        .join()
        .unwrap();
        // The other threads of the process are what they were.
        assert!(geteuid().is_root() && File::open(folder.join("closed")).is_ok());
        fs::remove_dir_all(folder).unwrap();
    }
}
