//! Hints of MPI-IO, as ROMIO's users know them.
//!
//! Arrives: keys and values; what the storage says of its stripes. Leaves: numbers within bounds. Must not know: files.
//!
//! A value that makes no sense is as if it had not been given: MPI-4.1, section 14.2.8, lets an implementation ignore
//! any hint.

use waystage_collective::Placement;

/// `cb_buffer_size` where none is given, as in ROMIO.
const WINDOW_BYTES: u64 = 16 << 20;

/// Bounds of `cb_buffer_size`: the coverage of a window fits into a message.
pub const WINDOW_BOUNDS: (u64, u64) = (4 << 10, 32 << 20);

/// Bytes of a unit where neither a hint nor the storage says any.
const UNIT: u64 = 1 << 20;

/// Bytes of a unit at most.
const MOST_UNIT: u64 = 1 << 40;

/// The hints of a file.
#[derive(Clone, Debug, Default)]
pub struct Hints {
    /// Aggregators at most.
    pub cb_nodes: Option<usize>,
    window: Option<u64>,
    unit: Option<u64>,
    factor: Option<u32>,
    cyclic: bool,
    /// `romio_cb_write` and `romio_cb_read`: `enable`.
    exchanges: [bool; 2],
    /// Whether writes are acknowledged with a copy at another aggregator, before they are in the file.
    pub write_behind: bool,
    storage: Option<(u64, u32)>,
}

impl Hints {
    /// The hints that are known.
    pub fn read(given: &[(String, String)]) -> Self {
        let mut found = Self::default();
        for (key, value) in given {
            let number = value.trim().parse::<u64>().ok().filter(|number| *number > 0);
            match key.as_str() {
                "cb_nodes" => {
                    found.cb_nodes = number.and_then(|number| usize::try_from(number).ok())
                }
                "cb_buffer_size" => found.window = number,
                "striping_unit" => found.unit = number.filter(|unit| *unit <= MOST_UNIT),
                "striping_factor" => {
                    found.factor = number.and_then(|number| u32::try_from(number).ok())
                }
                "romio_cb_write" => found.exchanges[1] = value.trim() == "enable",
                "romio_cb_read" => found.exchanges[0] = value.trim() == "enable",
                "waystage_write_behind" => {
                    found.write_behind =
                        ["enable", "true", "1"].contains(&value.trim().to_lowercase().as_str());
                }
                "waystage_placement" => found.cyclic = value.trim() == "cyclic",
                _ => {}
            }
        }
        found
    }

    /// What the storage says: bytes of a stripe, number of targets.
    pub fn storage(&mut self, stripe: Option<(u64, u32)>) {
        self.storage = self.storage.or(stripe.filter(|(unit, _)| (1..=MOST_UNIT).contains(unit)));
    }

    /// Bytes of a window.
    pub fn window_bytes(&self) -> u64 {
        self.window.unwrap_or(WINDOW_BYTES).clamp(WINDOW_BOUNDS.0, WINDOW_BOUNDS.1)
    }

    /// Bytes of a unit, which has one writer: what the hint says, or the storage's stripe.
    pub fn unit(&self) -> u64 {
        self.unit.or(self.storage.map(|(unit, _)| unit)).unwrap_or(UNIT)
    }

    /// Who says so.
    fn unit_from(&self) -> &'static str {
        match (self.unit, self.storage) {
            (Some(_), _) => "hint",
            (None, Some(_)) => "storage",
            (None, None) => "default",
        }
    }

    /// Whether data is always brought to the aggregators of file domains, also where each node has long runs.
    pub fn exchanges(&self, write: bool) -> bool {
        self.exchanges[usize::from(write)]
    }

    /// How units are given to aggregators.
    pub fn placement(&self) -> Placement {
        if self.cyclic {
            Placement::Cyclic
        } else {
            Placement::Blocks
        }
    }

    /// What is in force on a file of `nodes` nodes, as (key, value).
    pub fn in_force(&self, nodes: usize) -> Vec<(String, String)> {
        let way = |write| if self.exchanges(write) { "enable" } else { "automatic" }.to_owned();
        let mut found = vec![
            ("cb_nodes", self.cb_nodes.map_or(nodes, |most| most.min(nodes)).to_string()),
            ("cb_buffer_size", self.window_bytes().to_string()),
            ("striping_unit", self.unit().to_string()),
            ("waystage_unit_from", self.unit_from().to_owned()),
            ("romio_cb_write", way(true)),
            ("romio_cb_read", way(false)),
        ];
        if let Some(factor) = self.factor.or(self.storage.map(|(_, targets)| targets)) {
            found.push(("striping_factor", factor.to_string()));
        }
        if self.write_behind {
            found.push(("waystage_write_behind", "enable".to_owned()));
        }
        if self.cyclic {
            found.push(("waystage_placement", "cyclic".to_owned()));
        }
        found.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_that_makes_no_sense_is_as_if_it_were_not_given() {
        let given = [
            ("cb_nodes", "-3"),
            ("cb_buffer_size", "many"),
            ("striping_unit", "0"),
            ("colour", "blue"),
        ];
        let given = given.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let (hints, none) = (Hints::read(&given), Hints::default());
        assert_eq!(hints.in_force(4), none.in_force(4));
        let huge = Hints::read(&[("cb_buffer_size".to_owned(), u64::MAX.to_string())]);
        assert_eq!(huge.window_bytes(), WINDOW_BOUNDS.1);
    }

    #[test]
    fn the_unit_is_the_hint_or_else_the_stripe_of_the_storage() {
        let hint = ("striping_unit".to_owned(), "65536".to_owned());
        for (given, stripe, unit, from) in [
            (vec![hint.clone()], Some((4 << 20, 8)), 65536, "hint"),
            (vec![], Some((4 << 20, 8)), 4 << 20, "storage"),
            (vec![], None, UNIT, "default"),
            (vec![], Some((0, 1)), UNIT, "default"),
        ] {
            let mut hints = Hints::read(&given);
            hints.storage(stripe);
            let said = hints.in_force(1);
            assert!(said.contains(&("striping_unit".to_owned(), unit.to_string())), "{said:?}");
            assert!(said.contains(&("waystage_unit_from".to_owned(), from.to_owned())));
        }
    }

    #[test]
    fn more_aggregators_than_nodes_are_as_many_as_there_are_nodes() {
        let hints = Hints::read(&[("cb_nodes".to_owned(), "99".to_owned())]);
        assert!(hints.in_force(3).contains(&("cb_nodes".to_owned(), "3".to_owned())));
    }
}
