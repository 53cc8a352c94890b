//! Where a process is reached, and the file by which two applications find each other.
//!
//! Arrives: a directory and a name. Leaves: an address and the name's token. Must not know: connections.

use std::fmt::Write as _;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::wire::{Token, TEXT_MOST, TOKEN_BYTES};

const FIRST_LINE: &str = "waystage-coupling 1";

/// Where a process is reached: its text is `HOST|PATH|ADDRESS`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// Boot and network namespace: processes with the same share memory through the unix socket.
    pub host: String,
    /// Its unix socket.
    pub path: PathBuf,
    /// Its TCP address; None where it has no listener.
    pub tcp: Option<SocketAddr>,
}

impl Address {
    /// The address that a text names.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (host, rest) = text.split_once('|')?;
        let (path, tcp) = rest.rsplit_once('|')?;
        let tcp = if tcp.is_empty() { None } else { Some(tcp.parse().ok()?) };
        Some(Self { host: host.to_owned(), path: path.into(), tcp })
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}|{}|", self.host, self.path.display())?;
        match self.tcp {
            Some(tcp) => write!(f, "{tcp}"),
            None => Ok(()),
        }
    }
}

/// The identity of this host for [`Address`].
#[must_use]
pub fn host() -> String {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let net = fs::metadata("/proc/self/ns/net").map_or(0, |entry| entry.ino());
    format!("{}:{net}", boot.trim())
}

/// The directory of names: `given`, else WAYSTAGE_COUPLING, else `~/.waystage/coupling`.
///
/// # Errors
/// `NotFound` where there is no home directory either.
pub fn directory(given: Option<&Path>) -> io::Result<PathBuf> {
    if let Some(given) = given {
        return Ok(given.to_owned());
    }
    if let Some(named) = std::env::var_os("WAYSTAGE_COUPLING").filter(|named| !named.is_empty()) {
        return Ok(named.into());
    }
    let home = std::env::var_os("HOME").filter(|home| !home.is_empty());
    let home = home.ok_or_else(|| {
        let text = "no directory for coupling: set WAYSTAGE_COUPLING to one that both see";
        io::Error::new(io::ErrorKind::NotFound, text)
    })?;
    Ok(PathBuf::from(home).join(".waystage/coupling"))
}

/// Whether `name` may be one: letters, digits, `.`, `_`, `-`, at most 200, no leading dot.
#[must_use]
pub fn is_name(name: &str) -> bool {
    (1..=200).contains(&name.len())
        && !name.starts_with('.')
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
}

/// Makes the directory, of rights 0700, and refuses one that others could write or read.
///
/// # Errors
/// `PermissionDenied` where it is another user's or open to others; the kernel's.
pub fn secure(directory: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    let found = fs::metadata(directory)?;
    let own = found.uid() == rustix::process::geteuid().as_raw();
    if !own || found.mode() & 0o077 != 0 {
        let text = format!(
            "{} is open to other users: it holds secrets; chmod 700 it, or name another in WAYSTAGE_COUPLING",
            directory.display()
        );
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
    }
    Ok(())
}

/// Publishes a name's address and token, at once and for this user only.
///
/// # Errors
/// The kernel's.
pub fn publish(directory: &Path, name: &str, address: &str, token: &Token) -> io::Result<()> {
    let temporary = directory.join(format!(".{name}.{}", std::process::id()));
    let written = (|| {
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed())
            .open(&temporary)?;
        file.write_all(format!("{FIRST_LINE}\n{address}\n{}\n", hex(token)).as_bytes())?;
        fs::rename(&temporary, directory.join(name))
    })();
    if written.is_err() {
        // It may not have been made.
        let _ = fs::remove_file(&temporary);
    }
    written
}

/// The address and token of a name; None where it is not published.
///
/// # Errors
/// `InvalidData` where the file is another; `PermissionDenied` where it is another user's; the kernel's.
pub fn find(directory: &Path, name: &str) -> io::Result<Option<(Address, Token)>> {
    let path = directory.join(name);
    let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
    let opened = OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(&path);
    let file: File = match opened {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let found = file.metadata()?;
    if !found.is_file() || found.uid() != rustix::process::geteuid().as_raw() {
        let text = format!("{} is not a file of this user", path.display());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
    }
    let mut text = String::new();
    file.take(2 * TEXT_MOST as u64).read_to_string(&mut text)?;
    parse(&text).map(Some).ok_or_else(|| {
        let text = format!("{} is no address of a coupled name", path.display());
        io::Error::new(io::ErrorKind::InvalidData, text)
    })
}

fn parse(text: &str) -> Option<(Address, Token)> {
    let mut lines = text.lines();
    if lines.next()? != FIRST_LINE {
        return None;
    }
    let address = Address::parse(lines.next()?)?;
    Some((address, token(lines.next()?)?))
}

/// A token as text.
#[must_use]
pub fn hex(token: &Token) -> String {
    token.iter().fold(String::new(), |mut text, byte| {
        // A String takes all.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The token by which ranks of a launch introduce themselves, of the launch's secret (WAYSTAGE_IO_TOKEN).
#[must_use]
pub fn launch_token(secret: &str) -> Token {
    blake3::derive_key("waystage coupling, ranks of a launch", secret.as_bytes())
}

/// The token of a text of hexadecimal digits.
#[must_use]
pub fn token(text: &str) -> Option<Token> {
    let digits = text.trim().as_bytes();
    if digits.len() != 2 * TOKEN_BYTES {
        return None;
    }
    let mut token = [0; TOKEN_BYTES];
    for (byte, pair) in token.iter_mut().zip(digits.chunks(2)) {
        let digit = |digit: u8| char::from(digit).to_digit(16);
        *byte = u8::try_from(digit(pair[0])? << 4 | digit(pair[1])?).ok()?;
    }
    Some(token)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_address_is_read_as_it_was_written() {
        for tcp in [None, Some("127.0.0.1:80".parse().unwrap())] {
            let address = Address { host: "b:1".into(), path: "/tmp/a|b".into(), tcp };
            assert_eq!(Address::parse(&address.to_string()), Some(address));
        }
    }

    #[test]
    fn a_name_is_one_of_a_file() {
        assert!(is_name("climate.atmosphere-1"));
        for bad in ["", ".", "..", "a/b", ".hidden", "a b", "ä"] {
            assert!(!is_name(bad), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_an_address_file_or_none(text in any::<String>(), rest in "[0-9a-f|:\n]{0,200}") {
            let _ = parse(&text);
            let _ = parse(&format!("{FIRST_LINE}\n{rest}"));
        }
    }
}
