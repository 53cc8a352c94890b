//! Marks by a rolling hash, on any machine: several runs of the data at once, each in a lane.
//!
//! Each step of a hash waits for the step before it; the steps of the other lanes fill that latency. A hash of a
//! window depends on no byte before it, so each lane begins with its own window.

/// A hash of the last `WINDOW` bytes.
pub(super) trait Rolling<const WINDOW: usize> {
    type State: Copy;

    /// Of a full window.
    fn first(window: &[u8]) -> Self::State;

    /// Of the window one byte further.
    fn step(state: Self::State, leaving: u8, entering: u8) -> Self::State;

    /// Whether a chunk may end behind the window.
    fn is_mark(state: Self::State) -> bool;
}

/// Runs scanned at once.
const LANES: usize = 4;

/// Bytes of a run. No multiple of 4096, where all runs would share the lines of one set of the cache.
const LONG: usize = 4160;
/// The same for what is left at the end, and for small files.
const SHORT: usize = 544;

/// Append to `marks` every place `p`, beyond the first window, where a chunk may end, in rising order; places count
/// from `base`.
pub(super) fn marks<const WINDOW: usize, R: Rolling<WINDOW>>(
    data: &[u8],
    base: usize,
    marks: &mut Vec<u32>,
) {
    let mut at = scan_all::<WINDOW, LONG, R>(data, 0, base, marks);
    at = scan_all::<WINDOW, SHORT, R>(data, at, base, marks);
    let rest = &data[at..];
    if rest.len() <= WINDOW {
        return;
    }
    let mut state = R::first(&rest[..WINDOW]);
    for (place, (leaving, entering)) in rest.iter().zip(&rest[WINDOW..]).enumerate() {
        state = R::step(state, *leaving, *entering);
        if R::is_mark(state) {
            marks.push(position(base + at + WINDOW + place + 1));
        }
    }
}

/// Scan as many blocks of four runs as there are from `at`; returns where the next would begin.
///
/// A block's marks end within `at + WINDOW + 1 ..= at + WINDOW + LANES * RUN`: the place after the first window
/// belongs to the block before.
fn scan_all<const WINDOW: usize, const RUN: usize, R: Rolling<WINDOW>>(
    data: &[u8],
    mut at: usize,
    base: usize,
    marks: &mut Vec<u32>,
) -> usize {
    let mut found: [Vec<u32>; LANES] = Default::default();
    while data.len() - at >= WINDOW + LANES * RUN {
        let block = &data[at..at + WINDOW + LANES * RUN];
        scan::<WINDOW, RUN, R>(block, &mut found);
        for (lane, places) in found.iter_mut().enumerate() {
            let before = position(base + at + lane * RUN + WINDOW);
            marks.extend(places.drain(..).map(|place| before + place));
        }
        at += LANES * RUN;
    }
    at
}

/// The places of four runs of a block, each from its own beginning.
fn scan<const WINDOW: usize, const RUN: usize, R: Rolling<WINDOW>>(
    block: &[u8],
    found: &mut [Vec<u32>; LANES],
) {
    let entering: [&[u8]; LANES] = std::array::from_fn(|lane| &block[lane * RUN + WINDOW..][..RUN]);
    let leaving: [&[u8]; LANES] = std::array::from_fn(|lane| &block[lane * RUN..][..RUN]);
    let mut states: [R::State; LANES] =
        std::array::from_fn(|lane| R::first(&block[lane * RUN..][..WINDOW]));
    let mut done = 0;
    while done < RUN {
        // What is done with a mark is kept out of the loop that finds it: it would take registers.
        while done < RUN {
            for lane in 0..LANES {
                states[lane] = R::step(states[lane], leaving[lane][done], entering[lane][done]);
            }
            done += 1;
            if states.iter().any(|state| R::is_mark(*state)) {
                break;
            }
        }
        for lane in 0..LANES {
            if R::is_mark(states[lane]) {
                found[lane].push(position(done));
            }
        }
    }
}

/// Buffers have a few MiB.
pub(super) fn position(place: usize) -> u32 {
    u32::try_from(place).unwrap_or(u32::MAX)
}
