//! Time mode of the simulator: `FlowClock`, `FlowProgram`.

use std::sync::Arc;

use numpy::{PyArray1, PyReadonlyArray1, ToPyArray};
use parking_lot::{Mutex, MutexGuard};
use pyo3::prelude::*;
use waystage_flowsim::programs::{FlowClock, Flows, Pause, Program};
use waystage_flowsim::sharing::Curve;

use crate::errors::{contiguous, OrRaise};

/// Events between two checks for signals: some tens of milliseconds.
const EVENTS_A_TURN: u64 = 5_000;

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PyProgram>()?;
    module.add_class::<PyClock>()
}

/// Steps of pauses and flows, done some number of times.
#[pyclass(frozen, name = "FlowProgram", module = "waystage._native")]
struct PyProgram(Mutex<Arc<Program>>);

impl PyProgram {
    fn lock(&self) -> MutexGuard<'_, Arc<Program>> {
        self.0.lock()
    }
}

#[pymethods]
impl PyProgram {
    #[new]
    #[pyo3(signature = (repeat=1))]
    fn new(repeat: u64) -> PyResult<Self> {
        Program::new(repeat).map(|program| Self(Mutex::new(Arc::new(program)))).or_raise()
    }

    #[pyo3(signature = (pause_s=0.0))]
    fn step(&self, pause_s: f64) -> PyResult<()> {
        Arc::make_mut(&mut self.lock()).step(pause_s).or_raise()
    }

    #[pyo3(signature = (routes, bytes, *, flow_class=0, weight=1.0, limit_bps=f64::INFINITY))]
    fn flows(
        &self,
        py: Python<'_>,
        routes: PyReadonlyArray1<'_, u32>,
        bytes: PyReadonlyArray1<'_, f64>,
        flow_class: u16,
        weight: f64,
        limit_bps: f64,
    ) -> PyResult<()> {
        let flows = Flows {
            routes: contiguous(&routes)?,
            bytes: contiguous(&bytes)?,
            class: flow_class,
            weight,
            limit: limit_bps,
        };
        py.detach(|| Arc::make_mut(&mut self.lock()).flows(&flows)).or_raise()
    }

    #[getter]
    fn bytes(&self) -> f64 {
        self.lock().bytes()
    }
}

/// Flows over resources in simulated time.
#[pyclass(frozen, name = "FlowClock", module = "waystage._native")]
struct PyClock(Mutex<FlowClock>);

impl PyClock {
    fn lock(&self) -> MutexGuard<'_, FlowClock> {
        self.0.lock()
    }
}

#[pymethods]
impl PyClock {
    #[new]
    #[pyo3(signature = (capacities, *, precision=1e-9))]
    fn new(capacities: PyReadonlyArray1<'_, f64>, precision: f64) -> PyResult<Self> {
        FlowClock::new(contiguous(&capacities)?, precision)
            .map(|clock| Self(Mutex::new(clock)))
            .or_raise()
    }

    fn add_routes(
        &self,
        offsets: PyReadonlyArray1<'_, u64>,
        resources: PyReadonlyArray1<'_, u32>,
    ) -> PyResult<u32> {
        self.lock().add_routes(contiguous(&offsets)?, contiguous(&resources)?).or_raise()
    }

    fn set_routes(
        &self,
        keys: PyReadonlyArray1<'_, u32>,
        offsets: PyReadonlyArray1<'_, u64>,
        resources: PyReadonlyArray1<'_, u32>,
    ) -> PyResult<()> {
        self.lock()
            .set_routes(contiguous(&keys)?, contiguous(&offsets)?, contiguous(&resources)?)
            .or_raise()
    }

    fn route<'py>(&self, py: Python<'py>, key: u32) -> PyResult<Bound<'py, PyArray1<u32>>> {
        self.lock().route(key).map(|route| route.to_pyarray(py)).or_raise()
    }

    fn set_capacity(&self, resource: u32, capacity: f64) -> PyResult<()> {
        self.lock().set_capacity(resource, capacity).or_raise()
    }

    fn set_curve(&self, resource: u32, points: Vec<(f64, f64)>) -> PyResult<()> {
        Curve::new(points).and_then(|curve| self.lock().set_curve(resource, curve)).or_raise()
    }

    #[pyo3(signature = (program, at_s=None))]
    fn start(&self, program: &PyProgram, at_s: Option<f64>) -> PyResult<u32> {
        let program = Arc::clone(&program.lock());
        let mut clock = self.lock();
        let at_s = at_s.unwrap_or_else(|| clock.now());
        clock.start(program, at_s).or_raise()
    }

    fn cancel(&self, py: Python<'_>, run: u32) -> PyResult<()> {
        py.detach(|| self.lock().cancel(run)).or_raise()
    }

    #[pyo3(signature = (limit_s=f64::INFINITY))]
    fn run_until(&self, py: Python<'_>, limit_s: f64) -> PyResult<Vec<(f64, u32)>> {
        loop {
            let pause = py.detach(|| self.lock().advance(limit_s, EVENTS_A_TURN)).or_raise()?;
            if pause != Pause::Budget {
                return Ok(self.lock().take_ended());
            }
            py.check_signals()?;
        }
    }

    #[getter]
    fn now(&self) -> f64 {
        self.lock().now()
    }

    #[getter]
    fn solutions(&self) -> u64 {
        self.lock().solutions()
    }

    fn times(&self, run: u32) -> PyResult<(f64, Option<f64>)> {
        self.lock().times(run).or_raise()
    }

    fn bytes_left(&self, py: Python<'_>, run: u32) -> PyResult<f64> {
        py.detach(|| self.lock().bytes_left(run)).or_raise()
    }

    fn left<'py>(
        &self,
        py: Python<'py>,
        runs: PyReadonlyArray1<'_, u32>,
    ) -> PyResult<Bound<'py, PyArray1<f64>>> {
        let runs = contiguous(&runs)?;
        py.detach(|| self.lock().left(runs)).map(|left| left.to_pyarray(py)).or_raise()
    }

    #[pyo3(signature = (flow_class=0))]
    fn totals<'py>(&self, py: Python<'py>, flow_class: u16) -> Bound<'py, PyArray1<f64>> {
        py.detach(|| self.lock().totals(flow_class)).to_pyarray(py)
    }

    #[pyo3(signature = (flow_class=None))]
    fn rates<'py>(&self, py: Python<'py>, flow_class: Option<u16>) -> Bound<'py, PyArray1<f64>> {
        let rates = py.detach(|| match flow_class {
            Some(class) => self.lock().class_rates(class),
            None => self.lock().rates(),
        });
        rates.to_pyarray(py)
    }

    fn any_carries(
        &self,
        py: Python<'_>,
        resources: PyReadonlyArray1<'_, u32>,
        rates: PyReadonlyArray1<'_, f64>,
    ) -> PyResult<bool> {
        let (resources, rates) = (contiguous(&resources)?, contiguous(&rates)?);
        py.detach(|| self.lock().any_carries(resources, rates)).or_raise()
    }
}
