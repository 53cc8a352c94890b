//! Storage contention: `ContentionModel`.

use numpy::{PyArray1, PyReadonlyArray1, ToPyArray};
use pyo3::prelude::*;
use waystage_flowsim::contention::{
    best_loaders, imbalance, object_level, Component, Dealing, FileLevel, Layout, Placement,
    Slowdown,
};
use waystage_flowsim::FlowError;

use crate::errors::{contiguous, IntoPyErr, OrRaise};

/// Objects between two checks for signals: some tens of milliseconds.
const OBJECTS_A_TURN: u64 = 500_000;

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(contention_imbalance, module)?)?;
    module.add_class::<PyModel>()
}

/// CI = 1 - H / Hmax of loaders over targets.
#[pyfunction]
fn contention_imbalance(loaders: PyReadonlyArray1<'_, u32>) -> PyResult<f64> {
    Ok(imbalance(contiguous(&loaders)?))
}

/// Files placed on targets, and loaders that read them.
#[pyclass(frozen, name = "ContentionModel", module = "waystage._native")]
struct PyModel {
    placement: Placement,
    slowdown: Slowdown,
}

#[pymethods]
impl PyModel {
    #[new]
    #[pyo3(signature = (sizes, *, targets, stripe_size, components, slowdown, most_loaders, first_target=0))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn new(
        py: Python<'_>,
        sizes: PyReadonlyArray1<'_, u64>,
        targets: usize,
        stripe_size: u64,
        components: Vec<(Option<u64>, u32)>,
        slowdown: Vec<(f64, f64)>,
        most_loaders: usize,
        first_target: usize,
    ) -> PyResult<Self> {
        let components: Vec<Component> = components
            .into_iter()
            .map(|(end, stripes)| Component { end: end.unwrap_or(u64::MAX), stripes })
            .collect();
        if most_loaders > 1 << 24 {
            return Err(FlowError::Loaders(most_loaders).into_py_err());
        }
        let sizes = contiguous(&sizes)?;
        let made = py.detach(|| {
            let layout = Layout::new(&components, stripe_size, targets)?;
            let placement = Placement::new(layout, sizes, first_target)?;
            Ok::<_, FlowError>(Self {
                placement,
                slowdown: Slowdown::new(&slowdown, most_loaders)?,
            })
        });
        made.or_raise()
    }

    fn objects<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<u64>> {
        py.detach(|| self.placement.objects_of_targets()).to_pyarray(py)
    }

    #[pyo3(signature = (loaders, *, from_queue=true))]
    fn file_level<'py>(
        &self,
        py: Python<'py>,
        loaders: usize,
        from_queue: bool,
    ) -> PyResult<(Bound<'py, PyArray1<f64>>, f64)> {
        let dealing = if from_queue { Dealing::Queue } else { Dealing::Cyclic };
        let mut run =
            FileLevel::new(&self.placement, &self.slowdown, loaders, dealing).or_raise()?;
        while py.detach(|| run.advance(OBJECTS_A_TURN)) {
            py.check_signals()?;
        }
        let outcome = run.outcome();
        Ok((outcome.ended.to_pyarray(py), outcome.imbalance))
    }

    fn object_level<'py>(
        &self,
        py: Python<'py>,
        objects: PyReadonlyArray1<'py, u64>,
        loaders: usize,
    ) -> PyResult<Bound<'py, PyArray1<f64>>> {
        if loaders == 0 {
            return Err(FlowError::Loaders(loaders).into_py_err());
        }
        Ok(object_level(contiguous(&objects)?, loaders, &self.slowdown).to_pyarray(py))
    }

    fn best_loaders(&self, most: usize) -> usize {
        best_loaders(&self.slowdown, most)
    }
}
