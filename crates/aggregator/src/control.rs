//! Control points: which server map an application's next operation has, and when it may go on.
//!
//! Arrives: questions of rank 0, settings of the control plane, aggregators that were lost or answer again, the time.
//! Leaves: server maps with their epochs. Must not know: data, connections.
//!
//! Without any setting an application has one aggregator for each of its first `cb_nodes` nodes, without those that do
//! not answer, and goes on at once. A schedule is a lease, as is a grant: a controller that dies stops nothing for
//! longer than [`SCHEDULE_NS`].

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use waystage_collective::{Placement, ServerMap};
use waystage_collective_wire::FileId;

use crate::effect::{RankId, Times};

/// How long an application waits for grants after the control plane was last heard of.
pub const SCHEDULE_NS: u64 = 30_000_000_000;

/// How long an aggregator is left out that another node has lost.
const SUSPECT_NS: u64 = 10_000_000_000;

/// A question at a control point.
#[derive(Clone, Debug)]
pub struct Question {
    /// Who asks.
    pub rank: RankId,
    /// For which file.
    pub file: FileId,
    /// The epoch that its ranks have adopted; 0: none.
    pub epoch: u64,
    /// Whether the operation writes.
    pub write: bool,
    /// Estimated bytes; 0: unknown.
    pub bytes: u64,
    /// When.
    pub asked_ns: u64,
}

/// A permission to do one operation.
#[derive(Clone, Copy, Debug)]
struct Grant {
    until_ns: u64,
}

/// Phase of an application.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Phase {
    /// Between operations.
    #[default]
    Idle,
    /// At a control point.
    Waiting,
    /// In an operation.
    Running,
}

/// An application, as its control points show it.
#[derive(Clone, Debug, Default)]
pub struct App {
    /// Ranks on this node.
    pub ranks: usize,
    /// Phase.
    pub phase: Phase,
    /// Operations asked for.
    pub ops_asked: u64,
    /// Operations ended.
    pub ops_done: u64,
    /// Bytes of the last operation asked for.
    pub op_bytes: u64,
    /// Whether it writes.
    pub op_write: bool,
    /// How long the last operation waited for its grant.
    pub waited_ns: u64,
    /// How long the last operation took, after its control point.
    pub took_ns: u64,
    /// When the operation in progress was let go.
    began_ns: u64,
    /// The map in force.
    pub epoch: u64,
    /// Its aggregators.
    pub aggregators: Vec<String>,
    /// The path of the file of the last operation.
    pub path: Vec<u8>,
    /// Set by the control plane: the aggregators.
    wanted: Option<Vec<String>>,
    /// Until when it waits for grants.
    scheduled_until_ns: u64,
    grant: Option<Grant>,
    /// Its share at aggregators where several have work.
    pub weight: u32,
}

/// Maps of one file.
struct FileMap {
    map: ServerMap,
    /// An operation was let go and has not been reported as finished: the next question repeats it, in a new epoch.
    open: bool,
}

/// What a file allows.
pub struct FileShape<'a> {
    /// Addresses of its nodes.
    pub addresses: &'a [Arc<str>],
    /// The hint `cb_nodes`.
    pub cb_nodes: Option<usize>,
    /// Bytes of a stripe or lock unit.
    pub unit: u64,
    /// How units are given to aggregators.
    pub placement: Placement,
}

/// Control points of the files whose rank 0 is on this node.
#[derive(Default)]
pub struct Control {
    /// By name.
    pub apps: BTreeMap<Arc<str>, App>,
    maps: HashMap<FileId, FileMap>,
    dead: BTreeSet<Arc<str>>,
    /// Aggregators that another node does not reach, until when they are left out.
    suspects: BTreeMap<Arc<str>, u64>,
    waiting: Vec<(Arc<str>, Question)>,
}

impl Control {
    /// The application of this name.
    pub fn app(&mut self, name: &Arc<str>) -> &mut App {
        self.apps.entry(Arc::clone(name)).or_insert_with(|| App { weight: 1, ..App::default() })
    }

    /// Aggregators of the application's operations, by address or by the name before `@`. Empty: the default.
    pub fn set_server_map(&mut self, app: &str, aggregators: Vec<String>) {
        self.app(&app.into()).wanted = (!aggregators.is_empty()).then_some(aggregators);
    }

    /// One operation may begin before `until_ns`; its data have this weight where applications share an aggregator.
    pub fn grant(&mut self, app: &str, weight: u32, until_ns: u64, now_ns: u64) {
        let app = self.app(&app.into());
        app.weight = weight.max(1);
        app.grant = Some(Grant { until_ns });
        if app.scheduled_until_ns > 0 {
            app.scheduled_until_ns = now_ns.saturating_add(SCHEDULE_NS).max(until_ns);
        }
    }

    /// Whether the application's operations wait for grants.
    pub fn set_scheduled(&mut self, app: &str, scheduled: bool, now_ns: u64) {
        let until = if scheduled { now_ns.saturating_add(SCHEDULE_NS) } else { 0 };
        self.app(&app.into()).scheduled_until_ns = until;
    }

    /// An aggregator does not answer. True where that is new.
    pub fn lost(&mut self, address: &Arc<str>) -> bool {
        self.dead.insert(Arc::clone(address))
    }

    /// An aggregator answers.
    pub fn reached(&mut self, address: &str) {
        self.dead.remove(address);
    }

    /// Another node lost the aggregator: it is left out for [`SUSPECT_NS`], also where this process reaches it.
    pub fn suspected(&mut self, address: &Arc<str>, now_ns: u64) {
        self.suspects.insert(Arc::clone(address), now_ns.saturating_add(SUSPECT_NS));
    }

    /// Those that did not answer.
    pub fn dead(&self) -> &BTreeSet<Arc<str>> {
        &self.dead
    }

    /// A control point. Answered by [`Control::ready`].
    pub fn ask(&mut self, name: &Arc<str>, question: Question, path: &[u8]) {
        let app = self.app(name);
        app.phase = Phase::Waiting;
        app.ops_asked += 1;
        app.op_bytes = question.bytes;
        app.op_write = question.write;
        app.path = path.to_vec();
        self.waiting.push((Arc::clone(name), question));
    }

    /// The operation has ended on all ranks: its times.
    pub fn finished(&mut self, name: &Arc<str>, file: FileId, now_ns: u64) -> Times {
        if let Some(known) = self.maps.get_mut(&file) {
            known.open = false;
        }
        let app = self.app(name);
        app.phase = Phase::Idle;
        app.ops_done += 1;
        app.took_ns = now_ns.saturating_sub(app.began_ns);
        Times { waited_ns: app.waited_ns, took_ns: app.took_ns }
    }

    /// Questions that may be answered now. Each uses up its grant.
    pub fn ready(&mut self, now_ns: u64) -> Vec<(Arc<str>, Question)> {
        self.suspects.retain(|_, until| *until > now_ns);
        let apps = &mut self.apps;
        let goes = |(name, question): &mut (Arc<str>, Question)| {
            let Some(app) = apps.get_mut(name) else {
                return true;
            };
            let free = app.scheduled_until_ns <= now_ns;
            let granted = app.grant.is_some_and(|grant| grant.until_ns > now_ns);
            if free || granted {
                app.grant = None;
                app.phase = Phase::Running;
                app.waited_ns = now_ns.saturating_sub(question.asked_ns);
                app.began_ns = now_ns;
            }
            free || granted
        };
        self.waiting.extract_if(.., goes).collect()
    }

    /// When a question may be answered although no grant comes.
    pub fn deadline_ns(&self) -> Option<u64> {
        let ends = self.waiting.iter().filter_map(|(name, _)| self.apps.get(name));
        ends.map(|app| app.scheduled_until_ns).min()
    }

    /// Ranks whose question is open.
    pub fn asking(&self) -> impl Iterator<Item = RankId> + '_ {
        self.waiting.iter().map(|(_, question)| question.rank)
    }

    /// A rank asks no more.
    pub fn forget(&mut self, rank: RankId) {
        self.waiting.retain(|(_, question)| question.rank != rank);
    }

    /// A file was closed.
    pub fn forget_file(&mut self, file: FileId) {
        self.maps.remove(&file);
    }

    /// The server map that was given out last.
    pub fn last_map(&self, file: FileId) -> Option<&ServerMap> {
        self.maps.get(&file).map(|known| &known.map)
    }

    /// The server map of the next operation: the last one, or a new epoch's. True where it is new.
    pub fn map(
        &mut self,
        name: &Arc<str>,
        file: FileId,
        epoch: u64,
        shape: &FileShape<'_>,
    ) -> (ServerMap, bool) {
        let wanted = self.apps.get(name).and_then(|app| app.wanted.clone());
        let aggregators = self.choose(wanted, shape);
        let repeated = self.maps.get(&file).is_some_and(|known| known.open);
        let last = self.maps.get_mut(&file).map(|known| {
            known.open = true;
            &known.map
        });
        let same = last.is_some_and(|map| {
            map.aggregators == aggregators
                && map.unit == shape.unit
                && map.placement == shape.placement
        });
        // A process that was restarted knows no map: the ranks' epoch has ended with it.
        let kept = last.filter(|map| same && !repeated && (epoch == 0 || map.epoch == epoch));
        if let Some(map) = kept {
            return (map.clone(), false);
        }
        let epoch = last.map_or(0, |map| map.epoch).max(epoch) + 1;
        let (unit, placement) = (shape.unit, shape.placement);
        let map = ServerMap { epoch, unit, placement, aggregators: aggregators.clone() };
        self.maps.insert(file, FileMap { map: map.clone(), open: true });
        let app = self.app(name);
        (app.epoch, app.aggregators) = (epoch, aggregators);
        (map, true)
    }

    fn choose(&self, wanted: Option<Vec<String>>, shape: &FileShape<'_>) -> Vec<String> {
        let alive =
            |address: &&str| !self.dead.contains(*address) && !self.suspects.contains_key(*address);
        let by_name = |wanted: &String| {
            let all = shape.addresses.iter().map(|address| &**address);
            all.clone()
                .find(|address| *address == wanted || name_of(address) == wanted)
                .or(
                    // An aggregator that is not of the file's nodes is given with its address.
                    wanted.contains('@').then_some(wanted.as_str()),
                )
                .map(str::to_owned)
        };
        let mut found: Vec<String> = match &wanted {
            Some(names) => names
                .iter()
                .filter_map(by_name)
                .filter(|address| alive(&address.as_str()))
                .collect(),
            None => Vec::new(),
        };
        if found.is_empty() {
            let all =
                shape.addresses.iter().map(|address| &**address).filter(alive).map(str::to_owned);
            found = all.take(shape.cb_nodes.unwrap_or(usize::MAX).max(1)).collect();
        }
        let mut seen = BTreeSet::new();
        found.retain(|address| seen.insert(address.clone()));
        if found.is_empty() {
            // None answers: the attempt says so.
            found.extend(shape.addresses.first().map(|address| address.to_string()));
        }
        found
    }
}

/// The name in an address `NAME@HOST:PORT`.
pub fn name_of(address: &str) -> &str {
    address.split_once('@').map_or(address, |(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(asked_ns: u64) -> Question {
        Question { rank: 1, file: FileId::default(), epoch: 0, write: true, bytes: 9, asked_ns }
    }

    fn addresses() -> Vec<Arc<str>> {
        ["a@h:1", "b@h:2", "c@h:3"].map(Arc::from).to_vec()
    }

    fn shape(addresses: &[Arc<str>]) -> FileShape<'_> {
        FileShape { addresses, cb_nodes: None, unit: 4096, placement: Placement::Cyclic }
    }

    #[test]
    fn a_lost_aggregator_leaves_the_next_map_and_its_return_begins_another_epoch() {
        let (mut control, addresses, app) = (Control::default(), addresses(), Arc::from("app"));
        let (first, new) = control.map(&app, FileId::default(), 0, &shape(&addresses));
        assert!(new && first.aggregators.len() == 3);
        control.finished(&app, FileId::default(), 0);
        let (_, new) = control.map(&app, FileId::default(), 1, &shape(&addresses));
        assert!(!new, "nothing has changed");
        control.finished(&app, FileId::default(), 0);
        assert!(control.lost(&addresses[1]));
        let (second, new) = control.map(&app, FileId::default(), first.epoch, &shape(&addresses));
        assert!(new && second.epoch > first.epoch);
        assert_eq!(second.aggregators, ["a@h:1", "c@h:3"]);
        control.reached(&addresses[1]);
        let (third, _) = control.map(&app, FileId::default(), second.epoch, &shape(&addresses));
        assert_eq!((third.aggregators.len(), third.epoch), (3, second.epoch + 1));
    }

    #[test]
    fn an_operation_that_did_not_finish_is_repeated_in_another_epoch() {
        let (mut control, addresses, app) = (Control::default(), addresses(), Arc::from("app"));
        let (first, _) = control.map(&app, FileId::default(), 0, &shape(&addresses));
        let (second, new) = control.map(&app, FileId::default(), 1, &shape(&addresses));
        assert!(new && second.epoch == first.epoch + 1);
    }

    #[test]
    fn a_restarted_process_never_repeats_an_epoch() {
        let (mut control, addresses) = (Control::default(), addresses());
        let (map, _) = control.map(&Arc::from("app"), FileId::default(), 41, &shape(&addresses));
        assert_eq!(map.epoch, 42);
    }

    #[test]
    fn a_policy_names_aggregators_and_those_that_do_not_exist_are_left_out() {
        let (mut control, addresses, app) = (Control::default(), addresses(), Arc::from("app"));
        control.set_server_map("app", vec!["c".into(), "nowhere".into(), "a@h:1".into()]);
        let (map, _) = control.map(&app, FileId::default(), 0, &shape(&addresses));
        assert_eq!(map.aggregators, ["c@h:3", "a@h:1"]);
        control.set_server_map("app", vec!["nowhere".into()]);
        assert_eq!(
            control.map(&app, FileId::default(), 0, &shape(&addresses)).0.aggregators.len(),
            3
        );
    }

    #[test]
    fn a_grant_is_for_one_operation_and_a_silent_controller_stops_nothing_for_ever() {
        let (mut control, app) = (Control::default(), Arc::from("app"));
        control.ask(&app, question(0), b"/x");
        assert_eq!(control.ready(0).len(), 1, "without a schedule it goes on at once");
        control.set_scheduled("app", true, 0);
        control.ask(&app, question(1), b"/x");
        assert!(control.ready(1).is_empty());
        control.grant("app", 3, 100, 2);
        assert_eq!(control.ready(2).len(), 1);
        assert_eq!(control.apps["app"].waited_ns, 1);
        control.ask(&app, question(3), b"/x");
        assert!(control.ready(4).is_empty(), "the grant was used");
        let at = control.deadline_ns().unwrap_or(0);
        assert!(at > 4 && control.ready(at - 1).is_empty());
        assert_eq!(control.ready(at).len(), 1);
    }
}
