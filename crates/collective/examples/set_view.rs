//! What a file view costs: `set_view RUNS REPETITIONS` prints one line of JSON.
//!
//! A vector of RUNS blocks of 8 bytes, 64 bytes apart, becomes a view and the message that aggregators get. `view_us`
//! is the median time, `view_bytes` the memory, `run_ns` the time for each run where one million of them are made.

#![allow(clippy::print_stdout)]

use std::hint::black_box;
use std::time::Instant;

use waystage_collective::{Datatype, View};

fn main() {
    let mut words = std::env::args().skip(1).map(|word| word.parse::<i64>().ok());
    let (Some(Some(runs)), Some(Some(repetitions))) = (words.next(), words.next()) else {
        println!("usage: set_view RUNS REPETITIONS");
        return;
    };
    let mut times: Vec<f64> = (0..repetitions.max(1))
        .filter_map(|_| {
            let began = Instant::now();
            let view = view_of(runs)?;
            let message = view.encode(1 << 16);
            let took = began.elapsed();
            black_box((view, message));
            Some(took.as_secs_f64() * 1e6)
        })
        .collect();
    times.sort_by(f64::total_cmp);
    let Some(view) = view_of(runs) else {
        println!("the view is larger than any file");
        return;
    };
    let began = Instant::now();
    let mut count = 0u32;
    for extent in view.extents(0..8_000_000) {
        count += u32::from(black_box(extent).length > 0);
    }
    let run_ns = began.elapsed().as_secs_f64() * 1e9 / f64::from(count.max(1));
    let message = view.encode(1 << 16).map_or(0, |message| message.len());
    println!(
        "{{\"view_us\": {}, \"view_bytes\": {}, \"message_bytes\": {message}, \"run_ns\": {run_ns:.3}}}",
        times[times.len() / 2],
        view.footprint() + message,
    );
}

fn view_of(runs: i64) -> Option<View> {
    let filetype = Datatype::hvector(runs, 1, 64, &Datatype::bytes(8).ok()?).ok()?;
    View::new(0, 8, filetype).ok()
}
