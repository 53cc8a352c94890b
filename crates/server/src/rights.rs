//! Who a client is, and which directories it may use.
//!
//! Arrives: users and roots as configured, a name and a key, a path. Leaves: a user, a root and the path below it; else
//! an error that says what to ask for. Must not know: connections, files.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use waystage_remote_copy::names_of;
use waystage_transport::error::Error;
use waystage_transport::identity::PublicKey;

use crate::options::{SharedRoot, User};

/// The user of this name that owns the key; any owner for an empty name. The error is the same for a wrong key and for
/// an unknown user.
pub(crate) fn find_user<'a>(
    users: &'a [User],
    name: &str,
    key: &PublicKey,
) -> Result<&'a User, Error> {
    let found =
        users.iter().find(|user| (name.is_empty() || user.name == name) && user.keys.contains(key));
    found.ok_or_else(|| {
        let whom = if name.is_empty() { "any user".to_owned() } else { format!("user {name:?}") };
        Error::Denied(format!(
            "the server does not know this key as {whom}'s: ask its administrator to add `{}` to the user's keys",
            key.line()
        ))
    })
}

/// The first root of the user that contains a path, to be written or read, and the path below it. One that is not
/// absolute is below the user's first root.
pub(crate) fn find_root<'a>(
    roots: &'a [SharedRoot],
    path: &[u8],
    user: &User,
    write: bool,
) -> Result<(&'a SharedRoot, Vec<u8>), Error> {
    let roots: Vec<&SharedRoot> = roots
        .iter()
        .filter(|root| root.users.is_empty() || root.users.contains(&user.name))
        .collect();
    let denied = |why: &str| {
        let given: Vec<String> = roots
            .iter()
            .map(|root| {
                let way = if root.write { "read and write" } else { "read" };
                format!("{} ({way})", root.path.display())
            })
            .collect();
        let given = if given.is_empty() { "nothing".to_owned() } else { given.join(", ") };
        let path = String::from_utf8_lossy(path);
        Error::Denied(format!("{path} {why}: the server gives {} {given}", user.name))
    };
    let wanted =
        names_of(path).ok_or_else(|| denied("is no path that can be taken (`..` is not)"))?;
    let below = |root: &Path| -> Option<Vec<u8>> {
        if !path.starts_with(b"/") {
            return Some(wanted.join(&b'/'));
        }
        let top = names_of(root.as_os_str().as_bytes())?;
        wanted.starts_with(&top).then(|| wanted[top.len()..].join(&b'/'))
    };
    let found = roots.iter().find_map(|root| below(&root.path).map(|rest| (*root, rest)));
    match found {
        None => Err(denied("is in no directory of yours")),
        Some((root, _)) if write && !root.write => Err(denied("may only be read")),
        Some(found) => Ok(found),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use waystage_transport::identity::Identity;

    fn root(path: &str, write: bool, users: &[&str]) -> SharedRoot {
        let users = users.iter().map(|user| (*user).to_owned()).collect();
        SharedRoot { path: path.into(), write, users, privileged: false }
    }

    #[test]
    fn a_user_is_found_by_name_and_key_and_a_refusal_tells_nothing_else() {
        let [ada, other] = [(); 2].map(|()| Identity::ephemeral().unwrap().public);
        let users = [User::named("ada", std::slice::from_ref(&ada)), User::named("bob", &[])];
        assert_eq!(find_user(&users, "ada", &ada).unwrap().name, "ada");
        assert_eq!(find_user(&users, "", &ada).unwrap().name, "ada");
        let refusal = |name: &str, key: &PublicKey| {
            find_user(&users, name, key).unwrap_err().to_string().replace(name, "NAME")
        };
        assert_eq!(
            refusal("bob", &other),
            refusal("nemo", &other),
            "a user that exists and one that does not"
        );
        assert!(find_user(&users, "bob", &ada).is_err());
    }

    #[test]
    fn a_path_is_in_the_first_root_of_the_user_that_contains_it() {
        let roots = [root("/data", false, &[]), root("/scratch", true, &["ada"])];
        let (ada, bob) = (User::named("ada", &[]), User::named("bob", &[]));
        let found = |path: &str, user, write| {
            find_root(&roots, path.as_bytes(), user, write)
                .map(|(root, rest)| (root.path.to_str().unwrap(), String::from_utf8(rest).unwrap()))
                .map_err(|error| error.to_string())
        };
        assert_eq!(found("/data//a/./b", &ada, false), Ok(("/data", "a/b".to_owned())));
        assert_eq!(found("/scratch/x", &ada, true), Ok(("/scratch", "x".to_owned())));
        assert_eq!(found("a", &ada, false), Ok(("/data", "a".to_owned())), "not absolute");
        assert!(found("/data/a", &ada, true).unwrap_err().contains("may only be read"));
        for path in ["/scratch/x", "/database", "/", "/data/../etc"] {
            let error = found(path, &bob, false).unwrap_err();
            assert!(
                error.contains("gives bob /data (read)") && !error.contains("/scratch ("),
                "{error}"
            );
        }
    }

    proptest! {
        #[test]
        fn no_path_leads_out_of_a_root(path in prop::collection::vec(prop::sample::select(b"/.ab\0".to_vec()), 0..24)) {
            let roots = [root("/a", true, &[])];
            if let Ok((_, rest)) = find_root(&roots, &path, &User::named("ada", &[]), true) {
                prop_assert!(!rest.starts_with(b"/"));
                prop_assert!(rest.split(|byte| *byte == b'/').all(|name| name != b".."));
            }
        }
    }
}
