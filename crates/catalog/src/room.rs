//! Room for columns that grow row by row.
//!
//! Arrives: columns with some rows, how many rows they will have. Leaves: the same, with memory for more rows.
//! Must not know: what the columns mean.
//!
//! A kernel hands memory out page by page, at the first write to each, and such a fault costs several times what is
//! written: of a walk of a cached tree it is a tenth of the time. So the pages of the next thousands of rows are asked
//! for by one call (Linux 5.14, `MADV_POPULATE_WRITE`), and only of these: a walk may end at any row.

use std::sync::atomic::{AtomicBool, Ordering};

use rustix::param::page_size;

/// Rows whose pages are asked for at once: 64 KiB of a column of numbers.
const AHEAD_ROWS: usize = 8192;

/// Rows from which this is worth its calls.
const FIRST_ROWS: usize = 1024;

static WITHOUT: AtomicBool = AtomicBool::new(false);

/// Room for further rows of all columns of a table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Room {
    rows: usize,
    ahead: usize,
    most: usize,
}

impl Room {
    /// Where a table of `rows` rows, which ends at `most`, needs some now.
    pub(crate) fn needed(rows: usize, most: usize) -> Option<Self> {
        let is_start = rows == FIRST_ROWS || rows.is_multiple_of(AHEAD_ROWS);
        let ahead = ((rows / AHEAD_ROWS + 1) * AHEAD_ROWS).min(most);
        (is_start && rows >= FIRST_ROWS && rows < ahead).then_some(Self { rows, ahead, most })
    }

    /// Give it to a column, which may have more or fewer elements than the table has rows.
    pub(crate) fn give<T>(self, column: &mut Vec<T>) {
        let length = column.len();
        column.reserve((length * self.most / self.rows).saturating_sub(length));
        let ahead = length * self.ahead / self.rows;
        let spare = column.spare_capacity_mut();
        let count = spare.len().min(ahead.saturating_sub(length));
        populate(&spare[..count]);
    }
}

/// Have the kernel map the pages of this memory, which may hold anything.
fn populate<T>(memory: &[T]) {
    if memory.is_empty() || WITHOUT.load(Ordering::Relaxed) {
        return;
    }
    let (start, end) = (memory.as_ptr() as usize, memory.as_ptr_range().end as usize);
    let first = start / page_size() * page_size();
    // SAFETY: the call changes no contents, and the pages that hold this memory are mapped.
    #[allow(unsafe_code)]
    let answer = unsafe { libc::madvise(first as *mut _, end - first, libc::MADV_POPULATE_WRITE) };
    if answer != 0 {
        // An older kernel, or memory is short: the pages come one by one.
        WITHOUT.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_that_gets_room_keeps_what_it_holds_and_moves_no_more() {
        let (mut numbers, mut bytes, mut none) = (Vec::new(), Vec::new(), Vec::<u64>::new());
        let most = 20_000;
        let mut moved = 0;
        for row in 0..most {
            if let Some(room) = Room::needed(row, most) {
                room.give(&mut numbers);
                room.give(&mut bytes);
                room.give(&mut none);
            }
            let before = numbers.as_ptr();
            numbers.push(row as u64);
            moved += usize::from(row > FIRST_ROWS && before != numbers.as_ptr());
            bytes.extend_from_slice(&(row as u32).to_le_bytes()[..3]);
        }
        assert_eq!(moved, 0);
        assert!(none.is_empty());
        assert!(numbers.iter().enumerate().all(|(row, number)| row as u64 == *number));
        let rows = bytes.chunks(3).enumerate();
        assert!({ rows }.all(|(row, three)| three == &(row as u32).to_le_bytes()[..3]));
    }

    #[test]
    fn room_is_given_once_for_each_run_of_rows() {
        let given =
            |most: usize| (0..most).filter(|row| Room::needed(*row, most).is_some()).count();
        assert_eq!([given(100), given(1024), given(1025), given(65_536)], [0, 0, 1, 8]);
    }
}
