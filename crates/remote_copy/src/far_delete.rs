//! A deletion after a copy, with one of its ends at a server.
//!
//! Arrives: a server, both directories. Leaves: the ends of a deletion ([`waystage_copy::after`]) that ask the server,
//! and believe it nothing that leads out of its directory or was not asked. Must not know: which entries are to go.

use std::collections::HashMap;
use std::sync::Arc;

use waystage_copy::after::{
    Asker, Delete, Deleted, Deleter, Deletion, Origin, OriginHere, Target, TargetHere, Victim,
};
use waystage_copy::backup::Backup;
use waystage_copy::error::Failure;
use waystage_copy::state::CopyState;
use waystage_copy::{CopyError, ProblemKind};
use waystage_transport::handshake::client::Peer;

use crate::client::Ends;
use crate::error::WanError;
use crate::far::{here, requests, Far, PATHS};
use crate::tree_client::TreeSession;
use crate::tree_messages::{Chosen, TreeEntry, TreeRequest, DELETED, FAILED, LACKED, STAYED};

/// Start to delete at the destination what the source lacks; one of them is at the server.
///
/// # Errors
/// Where the directory of this machine cannot be opened.
pub fn delete(
    peer: Peer,
    ends: Ends,
    chosen: Chosen,
    copy_links: bool,
    how: Deletion,
) -> Result<Delete, WanError> {
    let session = Arc::new(TreeSession::new(peer));
    let (origin, target): (Box<dyn Origin>, Box<dyn Target>) = match ends {
        Ends::Push { local, remote } => (
            Box::new(OriginHere::open(&local, copy_links)?),
            Box::new(FarTarget { far: Far { session, path: remote }, chosen }),
        ),
        Ends::Pull { remote, local } => (
            Box::new(FarOrigin(Far { session, path: remote })),
            Box::new(TargetHere::open(local, chosen.copied(), chosen.backup)?),
        ),
    };
    Ok(Delete::between(origin, target, how)?)
}

struct FarOrigin(Far);

impl Origin for FarOrigin {
    fn asker(&self) -> Box<dyn Asker + '_> {
        Box::new(FarAsker(&self.0))
    }

    fn at_once(&self) -> usize {
        PATHS
    }

    fn stop(&self) {
        self.0.session.abort();
    }

    fn close(&self) {
        self.0.session.close();
    }
}

struct FarAsker<'a>(&'a Far);

impl Asker for FarAsker<'_> {
    fn has(&mut self, paths: &[&[u8]]) -> Result<Vec<bool>, CopyError> {
        let mut has = Vec::with_capacity(paths.len());
        for group in requests(paths, |path| path) {
            let names = group.iter().map(|path| path.to_vec()).collect();
            let request = TreeRequest::Lacks(self.0.path.clone(), names);
            let answer = self.0.ask(&request, group.len(), &[STAYED, LACKED])?;
            has.extend(answer.data.iter().map(|byte| *byte == STAYED));
        }
        Ok(has)
    }
}

struct FarTarget {
    far: Far,
    chosen: Chosen,
}

impl Target for FarTarget {
    fn entries(
        &self,
        state: &CopyState<CopyError>,
        take: &mut dyn FnMut(Vec<Victim>) -> bool,
    ) -> Result<bool, CopyError> {
        let request = TreeRequest::Walk(self.far.path.clone(), self.chosen.clone());
        let walked = self.far.session.each(&request, &mut |page| {
            for (path, text) in page.problems {
                state.problem(&path, ProblemKind::Error, text);
            }
            let victim = |entry: TreeEntry| Victim {
                path: entry.name,
                letter: entry.letter,
                bytes: entry.size,
            };
            take(page.entries.into_iter().map(victim).collect())
        });
        walked.map_err(here)
    }

    fn deleter(&self) -> Box<dyn Deleter + '_> {
        Box::new(FarDeleter(&self.far, self.chosen.backup.as_ref()))
    }

    fn at_once(&self) -> usize {
        PATHS
    }

    fn stop(&self) {
        self.far.session.abort();
    }

    fn close(&self) {
        self.far.session.close();
    }
}

struct FarDeleter<'a>(&'a Far, Option<&'a Backup>);

impl Deleter for FarDeleter<'_> {
    fn delete(&mut self, victims: &[&Victim]) -> Result<Vec<Deleted>, CopyError> {
        let mut all = Vec::with_capacity(victims.len());
        for group in requests(victims, |victim| &victim.path) {
            let named = group.iter().map(|victim| (victim.letter, victim.path.clone())).collect();
            let request = TreeRequest::Delete(self.0.path.clone(), named, self.1.cloned());
            let answer = self.0.ask(&request, group.len(), &[STAYED, DELETED, FAILED])?;
            let mut why: HashMap<Vec<u8>, String> = answer.problems.into_iter().collect();
            all.extend(group.iter().zip(answer.data).map(|(victim, byte)| match byte {
                FAILED => {
                    let text = why.remove(&victim.path);
                    Err(Failure::Said(text.unwrap_or_else(|| "could not be deleted".to_owned())))
                }
                byte => Ok(byte == DELETED),
            }));
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests;
