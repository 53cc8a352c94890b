//! Keys: who an end is. An Ed25519 key in a file of its owner alone, and a line that names its public half.
//!
//! Arrives: paths, lines of text. Leaves: keys, fingerprints. Must not know: sockets, what a key is allowed.

use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write as _};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use ring::digest::{digest, SHA256};
use ring::rand::SystemRandom;
use ring::signature::Ed25519KeyPair;
use rustls::crypto::ring::sign::any_eddsa_type;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use rustls::sign::CertifiedKey;

use crate::error::Error;

/// What a public key's line begins with.
const WORD: &str = "waystage-ed25519";

/// A SubjectPublicKeyInfo of an Ed25519 key is these bytes (RFC 8410, section 4) and the key.
const PREFIX: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];

/// No file with a key is longer.
const LONGEST_FILE: u64 = 16 << 10;

/// A public key.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PublicKey([u8; 32]);

impl PublicKey {
    /// From a SubjectPublicKeyInfo; None for a key of another sort.
    pub fn of_spki(spki: &[u8]) -> Option<Self> {
        spki.strip_prefix(&PREFIX[..])?.try_into().ok().map(Self)
    }

    /// From a line `waystage-ed25519 HEX [comment]`.
    pub fn parse(line: &str) -> Result<Self, Error> {
        let mut words = line.split_ascii_whitespace();
        let wrong = || {
            Error::input(format!(
                "{line:?} is no public key: it looks like `{WORD} 64-hexadecimal-digits name`; `waystage serve --show-key` and \
                 `waystage copy --show-key` print it"
            ))
        };
        let (Some(word), Some(hex)) = (words.next(), words.next()) else { return Err(wrong()) };
        let bytes: Option<Vec<u8>> = (0..hex.len() / 2)
            .map(|at| hex.get(2 * at..2 * at + 2).and_then(|two| u8::from_str_radix(two, 16).ok()))
            .collect();
        let key = bytes.and_then(|bytes| <[u8; 32]>::try_from(bytes).ok());
        match key {
            Some(key) if word == WORD && hex.len() == 64 => Ok(Self(key)),
            _ => Err(wrong()),
        }
    }

    /// The line that names it.
    #[must_use]
    pub fn line(&self) -> String {
        self.0.iter().fold(format!("{WORD} "), |mut line, byte| {
            // Writing into a string cannot fail.
            let _ = write!(line, "{byte:02x}");
            line
        })
    }

    /// What a person compares: the first 16 bytes of its SHA-256.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        let sum = digest(&SHA256, &self.0);
        let pairs: Vec<String> = sum.as_ref()[..16]
            .chunks(2)
            .map(|two| format!("{:02x}{:02x}", two[0], two[1]))
            .collect();
        pairs.join(":")
    }
}

/// A key of this end.
#[derive(Clone)]
pub struct Identity {
    pub(crate) certified: Arc<CertifiedKey>,
    /// Its public half.
    pub public: PublicKey,
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Identity({})", self.public.fingerprint())
    }
}

impl Identity {
    /// Make a key and write it to `path`, which must not exist, readable by its owner alone.
    pub fn create(path: &Path) -> Result<Self, Error> {
        let key = generate()?;
        let pem = pem(key.as_ref());
        let refused = |error: std::io::Error| {
            Error::input(format!("{} cannot be made: {error}", path.display()))
        };
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)
            .map_err(refused)?;
        file.write_all(pem.as_bytes()).and_then(|()| file.sync_all()).map_err(refused)?;
        Self::of_der(key.as_ref().to_vec(), path)
    }

    /// A key that is written nowhere.
    pub fn ephemeral() -> Result<Self, Error> {
        Self::of_der(generate()?.as_ref().to_vec(), Path::new("a key made just now"))
    }

    /// Read the key at `path`. Refused where others can read or write it.
    pub fn load(path: &Path) -> Result<Self, Error> {
        let refused = |error: std::io::Error| {
            Error::input(format!("the key {} cannot be read: {error}", path.display()))
        };
        let file = File::open(path).map_err(refused)?;
        let about = file.metadata().map_err(refused)?;
        if about.mode() & 0o077 != 0 {
            let text =
                format!("{0} is open to others than its owner: chmod 600 {0}", path.display());
            return Err(Error::input(text));
        }
        let mut pem = Vec::new();
        file.take(LONGEST_FILE).read_to_end(&mut pem).map_err(refused)?;
        let der = PrivatePkcs8KeyDer::from_pem_slice(&pem).map_err(|_| no_key(path))?;
        Self::of_der(der.secret_pkcs8_der().to_vec(), path)
    }

    fn of_der(der: Vec<u8>, path: &Path) -> Result<Self, Error> {
        let key = any_eddsa_type(&PrivatePkcs8KeyDer::from(der)).map_err(|_| no_key(path))?;
        let spki = key.public_key().ok_or_else(|| no_key(path))?;
        let public = PublicKey::of_spki(spki.as_ref()).ok_or_else(|| no_key(path))?;
        let certified = CertifiedKey::new(vec![CertificateDer::from(spki.as_ref().to_vec())], key);
        Ok(Self { certified: Arc::new(certified), public })
    }
}

fn generate() -> Result<ring::pkcs8::Document, Error> {
    Ed25519KeyPair::generate_pkcs8(&SystemRandom::new())
        .map_err(|_| Error::input("the system gives no random numbers to make a key of"))
}

fn no_key(path: &Path) -> Error {
    let path = path.display();
    Error::input(format!(
        "{path} holds no Ed25519 key in PKCS#8: name another file, or move it away to have one made"
    ))
}

/// Base64 between the two lines (RFC 7468).
fn pem(der: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::from("-----BEGIN PRIVATE KEY-----\n");
    for (group, bytes) in der.chunks(3).enumerate() {
        if group > 0 && group % 16 == 0 {
            text.push('\n');
        }
        let word = bytes.iter().fold(0_u32, |word, byte| (word << 8) | u32::from(*byte))
            << (8 * (3 - bytes.len()));
        for digit in 0..4 {
            let value = (word >> (18 - 6 * digit)) & 63;
            text.push(if digit <= bytes.len() { DIGITS[value as usize] as char } else { '=' });
        }
    }
    text.push_str("\n-----END PRIVATE KEY-----\n");
    text
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn a_key_that_was_made_is_read_again_and_is_its_owners_alone() {
        let folder = folder();
        let path = folder.path().join("key");
        let made = Identity::create(&path).unwrap();
        let read = Identity::load(&path).unwrap();
        assert_eq!(made.public, read.public);
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert!(Identity::create(&path).is_err(), "no key is written over");
        assert_eq!(
            PublicKey::parse(&format!("{} ada@host", made.public.line())).unwrap(),
            made.public
        );
    }

    #[test]
    fn a_key_that_others_can_read_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let folder = folder();
        let path = folder.path().join("key");
        Identity::create(&path).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert!(Identity::load(&path).unwrap_err().to_string().contains("chmod 600"));
    }

    #[test]
    fn what_is_no_key_is_an_error_that_says_so() {
        for line in [
            "",
            "waystage-ed25519",
            "waystage-ed25519 00",
            "ssh-ed25519 AAAA",
            "waystage-ed25519 €€",
        ] {
            assert!(PublicKey::parse(line).is_err(), "{line:?}");
        }
        let long = format!("{WORD} {}", "zz".repeat(32));
        assert!(PublicKey::parse(&long).is_err());
    }

    /// A directory that is removed when dropped.
    struct Folder(PathBuf);

    impl Folder {
        fn path(&self) -> &Path {
            &self.0
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn folder() -> Folder {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("waystage-wan-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Folder(path)
    }
}
