//! The server's end of a copy: reads what the client asks for, and sends or receives it.
//!
//! Arrives: a channel to a client, the directories that it may use. Leaves: a copy, one line for the log. Must not
//! know: keys, users' rights beyond the directory granted.

use std::path::PathBuf;

use crate::error::{protocol_violation, WanError};
use waystage_transport::control_messages::{expect_one_of, kinds, ANSWER_TIME};
use waystage_transport::flow_limits::{mode_message, read_mode};
use waystage_transport::wire::Writer;

use crate::privileges::PeerPrivileges;
use crate::receive::receive;
use crate::receiver_state::Target;
use crate::request_filter::RequestFilter;
use crate::send::send;
use crate::serving::{Granted, Serving};
use crate::session::{exchange, Ask};
use crate::{endpoints, list, tree};

/// The names of a path, without `.`; None where it has a `..` or a name that no file system has.
#[must_use]
pub fn names_of(path: &[u8]) -> Option<Vec<Vec<u8>>> {
    let names = path.split(|byte| *byte == b'/').filter(|name| !matches!(*name, b"" | b"."));
    let names: Vec<Vec<u8>> = names.map(<[u8]>::to_vec).collect();
    let good = names.is_empty() || crate::entry::path(&names.join(&b'/')).is_ok();
    good.then_some(names)
}

/// Serve the copy to its end; a line for the log.
pub fn serve(serving: &Serving<'_>) -> Result<String, WanError> {
    let Serving { control, channel, copy_state, .. } = *serving;
    let wanted = expect_one_of(control, &[kinds::ASK, kinds::TREE], ANSWER_TIME)?;
    let ask = match wanted {
        (kinds::TREE, body) => {
            let answered = tree::serve(serving, body);
            match &answered {
                Ok(_) => channel.close(),
                Err(error) => channel.end(&error.to_string()),
            }
            return answered;
        }
        (_, body) => Ask::read(&body)?,
    };
    let shown = PathBuf::from(String::from_utf8_lossy(&ask.path).into_owned());
    let Granted { root, path, privileged } = (serving.grant)(&ask.path, ask.push)?;
    let open = |path: &[u8]| root.directory(path);
    // Which way the client has found to be open, and how fast to send on it.
    let mode_grant = serving.mode;
    let hear = |kind: u8, body: &[u8]| match (kind, body) {
        (kinds::MODE, body) => {
            let (mode, note) = mode_grant(read_mode(body)?.0);
            channel.set_mode(mode);
            control.send(kinds::MODE, &mode_message(mode, &note));
            Ok(())
        }
        (kinds::COMPRESS, []) if !ask.push => {
            copy_state.compression.turn_on();
            Ok(())
        }
        (kinds::WAY, [way @ (0 | 1)]) if channel.first().choose(*way == 1) => Ok(()),
        _ => Err(protocol_violation()),
    };
    let result = if ask.push {
        let held = endpoints::target(&open, &path, ask.single.as_deref(), &shown, ask.options.dry)?;
        let mut from = format!("wan:{}@", serving.user).into_bytes();
        from.extend_from_slice(&ask.from);
        let target = Target {
            root: held.root,
            _held: held.held,
            rename: held.rename,
            shown: shown.clone(),
            from,
            privileges: PeerPrivileges::in_client(privileged),
            filter: RequestFilter::anything(),
        };
        control.send(kinds::ACCEPTED, &[]);
        exchange(control, channel, copy_state, hear, || {
            receive(&target, &ask.options, channel, copy_state, serving.workers)
        })
    } else {
        let origin = endpoints::origin(&open, &path, &shown, false)?;
        let names = if ask.options.listed {
            Some(list::hear(control, serving.memory_bytes)?)
        } else {
            None
        };
        list::suits(&origin, names.as_ref(), &shown)?;
        let mut out = Writer::default();
        out.bytes(origin.source.single.as_ref().map_or(&b""[..], |item| &item.name));
        control.send(kinds::ACCEPTED, &out.0);
        exchange(control, channel, copy_state, hear, || {
            send(&origin, names.as_ref(), &ask.options, channel, copy_state, serving.workers)
        })
    };
    let (result, verdict) = result;
    let what = match (ask.options.dry.is_dry(), ask.push) {
        (false, true) => "wrote",
        (false, false) => "read",
        (true, true) => "tried to write",
        (true, false) => "tried to read",
    };
    match result {
        Ok(()) => {
            control.begin_close();
            channel.close();
            let counts = copy_state.report.tally.read();
            let theirs = verdict.map(|verdict| verdict.joined(counts)).unwrap_or_default();
            let count = |name: &str| {
                theirs.iter().find(|(other, _)| *other == name).map_or(0, |(_, count)| *count)
            };
            Ok(format!(
                "{what} {}: {} files, {} bytes over {}, {} problems",
                shown.display(),
                count("files"),
                count("bytes"),
                channel.way_name(),
                count("errors") + count("changed") + count("vanished") + count("lost"),
            ))
        }
        Err(error) => {
            channel.end(&error.to_string());
            Err(error)
        }
    }
}
