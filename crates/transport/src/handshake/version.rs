//! Negotiates the version of the messages after the TLS handshake.
//!
//! Arrives: the versions of each end. Leaves: the highest that both speak, or a sentence on what to bring up to date.
//! Must not know: what the versions say.

use crate::error::Error;

/// What this end speaks, the highest first.
pub const SPOKEN: [u32; 6] = [7, 6, 5, 4, 3, 2];

/// What this software is called.
pub const SOFTWARE: &str = env!("CARGO_PKG_VERSION");

/// No hello names more.
pub const MOST_VERSIONS: usize = 64;

/// The highest version that is in both lists.
pub fn highest_common(ours: &[u32], theirs: &[u32]) -> Option<u32> {
    ours.iter().copied().filter(|version| theirs.contains(version)).max()
}

/// The client and the server have no version in common.
pub fn apart(
    (client, its_versions): (&str, &[u32]),
    (server, our_versions): (&str, &[u32]),
) -> Error {
    let highest = |versions: &[u32]| versions.iter().copied().max().unwrap_or(0);
    let older = if highest(its_versions) < highest(our_versions) { "client" } else { "server" };
    Error::Denied(format!(
            "the client (Waystage {client}) speaks {} of the protocol and the server (Waystage {server}) {}: bring the \
             Waystage of the {older} up to date",
            describe(its_versions),
            describe(our_versions),
        ),
    )
}

fn describe(versions: &[u32]) -> String {
    let mut sorted = versions.to_vec();
    sorted.sort_unstable();
    let names: Vec<String> = sorted.iter().map(u32::to_string).collect();
    match names.split_last() {
        None => "no version".to_owned(),
        Some((only, [])) => format!("version {only}"),
        Some((last, others)) => format!("versions {} and {last}", others.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_error_names_the_older_end() {
        let old = apart(("0.1", &[1]), ("0.9", &[3, 2])).to_string();
        assert_eq!(
            old,
            "the client (Waystage 0.1) speaks version 1 of the protocol and the server (Waystage 0.9) versions 2 and 3: \
             bring the Waystage of the client up to date"
        );
        let new = apart(("2.0", &[9, 8, 7]), ("0.9", &[2])).to_string();
        assert!(new.contains("versions 7, 8 and 9") && new.ends_with("of the server up to date"));
    }

    proptest! {
        #[test]
        fn the_version_taken_is_the_highest_that_both_speak(
            ours in prop::collection::vec(0_u32..12, 0..8),
            theirs in prop::collection::vec(0_u32..12, 0..8),
        ) {
            let naive = (0..12).rev().find(|v| ours.contains(v) && theirs.contains(v));
            prop_assert_eq!(highest_common(&ours, &theirs), naive);
            prop_assert_eq!(highest_common(&theirs, &ours), naive);
        }
    }
}
