//! The choice of loaders: measured targets, algorithm 1, the scheduler in simulated time.

use numpy::PyReadonlyArray1;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use waystage_load::configure::Curve;
use waystage_load::plan::{units, Delivery, Share, Uneven};
use waystage_load::progress::Progress;
use waystage_load::read::measure::{measure, Measurement};
use waystage_load::schedule::{Binding, Rules, Scheduler};
use waystage_load::simulate::{lower_bound_s, run, Service};

use crate::errors::{LoadRefused, OrRaise};
use crate::load_files::LoadFiles;

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(choose_loaders, module)?)?;
    module.add_function(wrap_pyfunction!(measure_target, module)?)?;
    module.add_function(wrap_pyfunction!(simulate_load, module)?)?;
    module.add_function(wrap_pyfunction!(load_bound, module)?)
}

/// The best number of loaders by algorithm 1, and the curve it was read from, smoothed.
#[pyfunction]
fn choose_loaders(points: Vec<(u32, f64)>) -> PyResult<(u32, Vec<(u32, f64)>)> {
    let curve = Curve::new(&points).map_err(|error| LoadRefused::new_err(error.to_string()))?;
    Ok((curve.best_loaders(), curve.points().to_vec()))
}

/// `waystage.native_options.loads.MeasureOptions`.
#[derive(FromPyObject)]
struct MeasureOptions {
    target: u32,
    skip: usize,
    pieces: usize,
    readers: usize,
    piece_bytes: u64,
    most_bytes: u64,
}

/// (bytes, seconds of all readers together, pieces) of reading pieces of one target.
#[pyfunction]
fn measure_target(
    py: Python<'_>,
    files: &LoadFiles,
    options: MeasureOptions,
) -> PyResult<(u64, f64, usize)> {
    let files = files.get();
    let MeasureOptions { target, skip, pieces, readers, piece_bytes, most_bytes } = options;
    let index = files.targets().iter().position(|number| *number == target);
    let Some(target) = index.and_then(|index| u16::try_from(index).ok()) else {
        return Err(LoadRefused::new_err(format!("no file is on target {target}")));
    };
    let of = Measurement { target, skip, pieces, readers, piece_bytes, most_bytes };
    let measured = py.detach(|| measure(&files, &of)).or_raise()?;
    Ok((measured.bytes, measured.reading.as_secs_f64(), measured.pieces))
}

/// (bytes a second for 1, 2, ... readers, seconds of latency).
type PyService<'py> = (PyReadonlyArray1<'py, f64>, f64);

fn services(given: &[PyService<'_>]) -> PyResult<Vec<Service>> {
    given
        .iter()
        .map(|(rates, latency_s)| {
            let rates = rates.as_slice()?.to_vec();
            let sound = rates.iter().all(|rate| rate.is_finite() && *rate > 0.0);
            if rates.is_empty() || !sound || !latency_s.is_finite() || *latency_s < 0.0 {
                return Err(LoadRefused::new_err("rates are above 0, latencies at least 0"));
            }
            Ok(Service { rates, latency_s: *latency_s })
        })
        .collect()
}

/// `waystage.native_options.loads.SimulatedLoadOptions`.
#[derive(FromPyObject)]
struct SimulatedLoadOptions {
    whole_files: bool,
    loaders: u32,
    most_readers: Option<u32>,
    in_order: bool,
    steal: bool,
    memory_bytes: u64,
    piece_bytes: u64,
    seed: u64,
    shuffle: bool,
}

/// An epoch in simulated time: makespan, busy seconds of targets, bytes, stolen pieces, most bytes held.
#[pyfunction]
fn simulate_load<'py>(
    py: Python<'py>,
    files: &LoadFiles,
    targets: Vec<PyService<'py>>,
    options: SimulatedLoadOptions,
) -> PyResult<Bound<'py, PyDict>> {
    let SimulatedLoadOptions { whole_files, loaders, most_readers, in_order, steal, .. } = options;
    let SimulatedLoadOptions { memory_bytes, piece_bytes, seed, shuffle, .. } = options;
    let (files, services) = (files.get(), services(&targets)?);
    if services.len() < files.targets().len() {
        return Err(LoadRefused::new_err("fewer services than targets"));
    }
    let delivery = if whole_files { Delivery::Files } else { Delivery::Objects };
    let share = Share { seed, epoch: 0, shuffle, rank: 0, world: 1, uneven: Uneven::Keep };
    let rules = Rules {
        delivery,
        ordered: in_order,
        memory_bytes,
        piece_bytes,
        loaders,
        binding: if steal { Binding::Steal } else { Binding::Strict },
        most_readers,
        resized: true,
    };
    let outcome = py.detach(|| {
        let units = units(&files, delivery, &share, loaders, most_readers).or_raise()?;
        let scheduler = Scheduler::new(&files, units, Progress::default(), rules);
        let outcome = run(scheduler, &files, &services, loaders, delivery, in_order);
        outcome.ok_or_else(|| LoadRefused::new_err("loaders wait though there is work left"))
    })?;
    let by_name = PyDict::new(py);
    by_name.set_item("makespan_s", outcome.makespan_s)?;
    by_name.set_item("busy_s", outcome.busy_s)?;
    by_name.set_item("bytes", outcome.bytes)?;
    by_name.set_item("stolen", outcome.stolen)?;
    by_name.set_item("most_held", outcome.most_held)?;
    Ok(by_name)
}

/// A lower bound, in seconds, for any scheduler with `loaders` loaders.
#[pyfunction]
fn load_bound(bytes: Vec<u64>, targets: Vec<PyService<'_>>, loaders: u32) -> PyResult<f64> {
    Ok(lower_bound_s(&bytes, &services(&targets)?, loaders))
}
