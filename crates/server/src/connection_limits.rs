//! Whether a user gets one more of the server's connections.
//!
//! Arrives: who has connections, who wants one. Leaves: a place, or why there is none. Must not know: sockets.
//!
//! One user must not shut others out, with idle connections or busy ones: unless the configuration says otherwise a
//! user has at most half of them, and of that half that is left one is kept for each user that has none.

use std::collections::HashSet;

use crate::options::User;

/// Why the user gets no connection beside those that are `held`, each by its user; None where it gets one.
pub(crate) fn refuses<'a>(
    (connections, users): (usize, &[User]),
    held: impl Iterator<Item = &'a str>,
    user: &User,
) -> Option<String> {
    let (mut all, mut own, mut present) = (0, 0, HashSet::new());
    for name in held {
        all += 1;
        own += usize::from(name == user.name);
        present.insert(name);
    }
    let alone = users.iter().all(|other| other.name == user.name);
    let half = (connections / 2).max(1);
    let most = user.connections.unwrap_or(if alone { connections } else { half });
    if all >= connections {
        return Some(format!("the server's cap of {connections} connections is reached"));
    }
    if own >= most {
        return Some(format!("this user's cap of {most} connections is reached"));
    }
    let absent = |other: &&User| other.name != user.name && !present.contains(&*other.name);
    // With more users than places, half of the places go to the first to come.
    let kept = users.iter().filter(absent).count().min(connections / 2);
    if own > 0 && all + kept >= connections {
        return Some(format!(
            "{all} of the server's {connections} connections are taken, and the others are kept for users that have none"
        ));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(name: &str, connections: Option<usize>) -> User {
        User { connections, ..User::named(name, &[]) }
    }

    /// As many as a user gets beside `others`.
    fn gets(options: &(usize, Vec<User>), others: &[&str], name: usize) -> usize {
        let user = &options.1[name];
        (0..)
            .take_while(|own| {
                let mine = std::iter::repeat_n(&*user.name, *own);
                refuses((options.0, &options.1), others.iter().copied().chain(mine), user).is_none()
            })
            .count()
    }

    #[test]
    fn a_greedy_user_leaves_a_place_for_each_other_user() {
        let users = |count: usize| -> Vec<User> {
            (0..count).map(|n| user(&format!("u{n}"), None)).collect()
        };
        assert_eq!(gets(&(32, users(1)), &[], 0), 32, "alone, all of them");
        assert_eq!(gets(&(32, users(2)), &[], 0), 16);
        assert_eq!(gets(&(1, users(2)), &[], 0), 1);
        for count in 2..=8 {
            let options = (8, users(count));
            let mut held: Vec<&str> = Vec::new();
            for name in 0..count {
                let got = gets(&options, &held, name);
                // Half of the places are kept for users without one, as long as there are such users.
                assert!(got >= 1 || name >= 4, "{name} of {count} with {}", held.len());
                held.extend(std::iter::repeat_n(&*options.1[name].name, got));
            }
            assert!(held.len() <= 8);
        }
    }

    #[test]
    fn what_the_configuration_says_of_a_user_holds_but_for_places_of_others() {
        let all = (6, vec![user("a", Some(6)), user("b", None), user("c", Some(1))]);
        assert_eq!(gets(&all, &[], 0), 4, "one is kept for each of the other two");
        assert_eq!(gets(&all, &["b", "c"], 0), 4);
        assert_eq!((gets(&all, &["a"; 4], 1), gets(&all, &["a", "a", "a", "a", "b"], 2)), (1, 1));
    }
}
