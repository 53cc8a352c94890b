//! Load mode of the simulator: `Network`, `FlowRoutes`.

use numpy::{PyArray1, PyReadonlyArray1, PyReadwriteArray1, ToPyArray};
use pyo3::prelude::*;
use waystage_flowsim::generate::{self, Capacities};
use waystage_flowsim::load::{self, Demands, RouteOptions, Router};
use waystage_flowsim::mapping::{self, Traffic};
use waystage_flowsim::{FlowError, Network};

use crate::errors::{self, IntoPyErr, OrRaise};

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PyNetwork>()?;
    module.add_class::<FlowRoutes>()
}

/// What routing gave: loads, the demands that were routed, and their paths where they were kept.
#[pyclass(frozen, module = "waystage._native")]
struct FlowRoutes {
    demands: Demands,
    loads: Vec<f64>,
    paths: load::Paths,
}

#[pymethods]
impl FlowRoutes {
    #[getter]
    fn loads<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<f64>> {
        self.loads.to_pyarray(py)
    }

    #[getter]
    fn src<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<u32>> {
        self.demands.src().to_pyarray(py)
    }

    #[getter]
    fn dst<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<u32>> {
        self.demands.dst().to_pyarray(py)
    }

    #[getter]
    fn bytes<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<f64>> {
        self.demands.bytes().to_pyarray(py)
    }

    #[getter]
    fn offsets<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<u64>> {
        self.paths.offsets.to_pyarray(py)
    }

    #[getter]
    fn links<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<u32>> {
        self.paths.links.to_pyarray(py)
    }
}

/// `waystage.native_options.routes.RouteOptions`.
#[derive(FromPyObject)]
struct PyRouteOptions<'py> {
    seed: u64,
    initial: Option<PyReadonlyArray1<'py, f64>>,
    per_flow: bool,
    by_capacity: bool,
    keep_paths: bool,
    effort: f64,
    candidates: u32,
}

impl PyRouteOptions<'_> {
    fn open(self) -> RouteOptions {
        RouteOptions {
            seed: self.seed,
            initial: self.initial.map(|loads| list(&loads)).unwrap_or_default(),
            per_flow: self.per_flow,
            by_capacity: self.by_capacity,
            keep_paths: self.keep_paths,
            effort: self.effort,
            candidates: self.candidates,
        }
    }
}

/// Hosts, switches and directed links.
#[pyclass(frozen, name = "Network", module = "waystage._native")]
struct PyNetwork(Network);

#[pymethods]
impl PyNetwork {
    #[new]
    fn new(
        host_count: usize,
        switch_count: usize,
        links_from: PyReadonlyArray1<'_, u32>,
        links_to: PyReadonlyArray1<'_, u32>,
        capacity: PyReadonlyArray1<'_, f64>,
        names: Vec<String>,
    ) -> PyResult<Self> {
        let (from, to, capacity) = (list(&links_from), list(&links_to), list(&capacity));
        Network::new(host_count, switch_count, from, to, capacity, names).map(Self).or_raise()
    }

    /// An extended generalised fat tree.
    #[staticmethod]
    fn xgft(m: Vec<usize>, w: Vec<usize>, host_capacity: f64, capacity: f64) -> PyResult<Self> {
        let capacities = Capacities { host: host_capacity, switch: capacity };
        generate::xgft(&m, &w, capacities).map(Self).or_raise()
    }

    /// The three-tier fat tree of k-port switches.
    #[staticmethod]
    fn fat_tree(k: usize, host_capacity: f64, capacity: f64) -> PyResult<Self> {
        let capacities = Capacities { host: host_capacity, switch: capacity };
        generate::fat_tree(k, capacities).map(Self).or_raise()
    }

    /// The largest dragonfly of groups of `a` switches.
    #[staticmethod]
    fn dragonfly(
        a: usize,
        h: usize,
        p: usize,
        host_capacity: f64,
        capacity: f64,
    ) -> PyResult<Self> {
        let capacities = Capacities { host: host_capacity, switch: capacity };
        generate::dragonfly(a, h, p, capacities).map(Self).or_raise()
    }

    /// A torus with `hosts` at every switch.
    #[staticmethod]
    fn torus(dims: Vec<usize>, hosts: usize, host_capacity: f64, capacity: f64) -> PyResult<Self> {
        let capacities = Capacities { host: host_capacity, switch: capacity };
        generate::torus(&dims, hosts, capacities).map(Self).or_raise()
    }

    #[getter]
    fn host_count(&self) -> u32 {
        self.0.host_count()
    }

    #[getter]
    fn switch_count(&self) -> u32 {
        self.0.switch_count()
    }

    #[getter]
    fn names(&self) -> Vec<String> {
        self.0.names().to_vec()
    }

    #[getter]
    fn links_from<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<u32>> {
        self.0.links_from().to_pyarray(py)
    }

    #[getter]
    fn links_to<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<u32>> {
        self.0.links_to().to_pyarray(py)
    }

    #[getter]
    fn capacity<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<f64>> {
        self.0.capacity().to_pyarray(py)
    }

    /// For each link whether it joins two switches.
    #[getter]
    fn between_switches<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<bool>> {
        self.0.between_switches().to_pyarray(py)
    }

    /// The largest load on a link between switches.
    fn max_load(&self, loads: PyReadonlyArray1<'_, f64>) -> PyResult<f64> {
        let loads = list(&loads);
        if loads.len() == self.0.link_count() {
            Ok(self.0.max_load(&loads))
        } else {
            Err(FlowError::Lengths {
                what: "loads",
                expected: self.0.link_count(),
                got: loads.len(),
            }
            .into_py_err())
        }
    }

    /// Choose a path for each pair of hosts and add up what each link carries.
    #[pyo3(signature = (router, src, dst, bytes, options=None))]
    fn route_loads(
        &self,
        py: Python<'_>,
        router: &str,
        src: PyReadonlyArray1<'_, u32>,
        dst: PyReadonlyArray1<'_, u32>,
        bytes: PyReadonlyArray1<'_, f64>,
        options: Option<PyRouteOptions<'_>>,
    ) -> PyResult<FlowRoutes> {
        let router = router_by_name(router)?;
        let (src, dst, bytes) = (list(&src), list(&dst), list(&bytes));
        let options = options.map(PyRouteOptions::open).unwrap_or_default();
        let RouteOptions { per_flow, keep_paths, .. } = options;
        py.detach(|| {
            let apart = per_flow || !(keep_paths || router.weighs_pairs());
            let demands = demands(&self.0, &src, &dst, &bytes, apart)?;
            let routes = load::route(&self.0, &demands, router, &options)?;
            let (demands, paths) = routes.paths.map_or_else(Default::default, |p| (demands, p));
            Ok::<_, FlowError>(FlowRoutes { demands, loads: routes.loads, paths })
        })
        .or_raise()
    }

    /// A load that the busiest link between switches has at least, whatever the routing, with the
    /// weights of links that prove it, and the busiest link of the best split found.
    #[pyo3(signature = (src, dst, bytes, *, effort=1.0))]
    fn splittable_bound<'py>(
        &self,
        py: Python<'py>,
        src: PyReadonlyArray1<'_, u32>,
        dst: PyReadonlyArray1<'_, u32>,
        bytes: PyReadonlyArray1<'_, f64>,
        effort: f64,
    ) -> PyResult<(f64, f64, Bound<'py, PyArray1<f64>>)> {
        let (src, dst, bytes) = (list(&src), list(&dst), list(&bytes));
        let options = RouteOptions { effort, ..RouteOptions::default() };
        let bound = py
            .detach(|| {
                let demands = Demands::between_hosts(&self.0, &src, &dst, &bytes)?;
                load::splittable::bound(&self.0, &demands, &options)
            })
            .or_raise()?;
        Ok((bound.least_max, bound.split_max, bound.weights.to_pyarray(py)))
    }

    /// A load that the busiest link between switches has at least, whatever paths are taken.
    #[pyo3(signature = (src, dst, bytes, *, effort=1.0))]
    fn any_path_bound(
        &self,
        py: Python<'_>,
        src: PyReadonlyArray1<'_, u32>,
        dst: PyReadonlyArray1<'_, u32>,
        bytes: PyReadonlyArray1<'_, f64>,
        effort: f64,
    ) -> PyResult<f64> {
        let (src, dst, bytes) = (list(&src), list(&dst), list(&bytes));
        let options = RouteOptions { effort, ..RouteOptions::default() };
        py.detach(|| {
            let demands = Demands::between_hosts(&self.0, &src, &dst, &bytes)?;
            load::any_path::bound(&self.0, &demands, &options)
        })
        .or_raise()
    }

    /// Let the processes of a job change places; their hosts, and the busiest link under an even split.
    #[pyo3(signature = (src, dst, bytes, host_of, slots, *, seed=0, effort=1.0))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn refine_mapping<'py>(
        &self,
        py: Python<'py>,
        src: PyReadonlyArray1<'_, u32>,
        dst: PyReadonlyArray1<'_, u32>,
        bytes: PyReadonlyArray1<'_, f64>,
        host_of: PyReadonlyArray1<'_, u32>,
        slots: PyReadonlyArray1<'_, u32>,
        seed: u64,
        effort: f64,
    ) -> PyResult<(Bound<'py, PyArray1<u32>>, f64)> {
        let (src, dst, bytes) = (list(&src), list(&dst), list(&bytes));
        let (host_of, slots) = (list(&host_of), list(&slots));
        let found = py
            .detach(|| {
                let traffic = Traffic { src: &src, dst: &dst, bytes: &bytes };
                mapping::refine(&self.0, traffic, &host_of, &slots, seed, effort)
            })
            .or_raise()?;
        Ok((found.host_of.to_pyarray(py), found.busiest))
    }

    /// Add what paths chosen elsewhere carry to `loads`, in place.
    fn add_paths(
        &self,
        mut loads: PyReadwriteArray1<'_, f64>,
        offsets: PyReadonlyArray1<'_, u64>,
        links: PyReadonlyArray1<'_, u32>,
        bytes: PyReadonlyArray1<'_, f64>,
    ) -> PyResult<()> {
        let loads = loads.as_slice_mut()?;
        load::paths::add_paths(&self.0, loads, &list(&offsets), &list(&links), &list(&bytes))
            .or_raise()
    }
}

fn demands(
    network: &Network,
    src: &[u32],
    dst: &[u32],
    bytes: &[f64],
    apart: bool,
) -> Result<Demands, FlowError> {
    if apart {
        Demands::between_processes(network, src, dst, bytes)
    } else {
        Demands::between_hosts(network, src, dst, bytes)
    }
}

fn router_by_name(name: &str) -> PyResult<Router> {
    Router::by_name(name).ok_or_else(|| {
        let known: Vec<&str> = Router::ALL.iter().map(|(known, _)| *known).collect();
        errors::FlowError::new_err(format!(
            "there is no router '{name}': use one of {}",
            known.join(", ")
        ))
    })
}

/// The numbers of an array of any memory layout.
fn list<T: numpy::Element + Copy>(array: &PyReadonlyArray1<'_, T>) -> Vec<T> {
    match array.as_slice() {
        Ok(contiguous) => contiguous.to_vec(),
        Err(_) => array.as_array().iter().copied().collect(),
    }
}
