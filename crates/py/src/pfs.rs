//! The emulated striped file system: `EmulatedFileSystem`.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use numpy::PyReadonlyArray1;
use parking_lot::Mutex;
use pyo3::prelude::*;
use waystage_catalog::layout::EOF;
use waystage_flowsim::contention::Slowdown;
use waystage_pfs::fs::{Client, Pfs};
use waystage_pfs::layout::{Dealing, Striper, Template, TemplateComponent, ALL};
use waystage_pfs::model::{MetadataServer, Model, Service, StorageTarget};
use waystage_pfs::mount::Mount;
use waystage_pfs::tree::{Folder, Generated, Made, Tree};
use waystage_pfs::PfsError;
use waystage_sync::ProcessLocal;

use crate::errors::OrRaise;

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<EmulatedFileSystem>()
}

/// End (none: of the file), stripe size, stripes (none: all targets), pool.
type Component = (Option<u64>, u32, Option<u16>, Option<String>);

/// Everything of a shape, as keys of a dictionary.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct Shape {
    dilation: f64,
    seed: u64,
    targets: u32,
    read_rate_bps: f64,
    write_rate_bps: f64,
    latency_ns: f64,
    slots: usize,
    slowdown: Vec<(f64, f64)>,
    slower: Vec<(usize, f64)>,
    servers: usize,
    rate_ops: f64,
    message_ns: [u64; 6],
    glimpse_ns: u64,
    entries_per_message: usize,
    components: Vec<Component>,
    pools: Vec<(String, Vec<u32>)>,
    random: bool,
    names_s: f64,
    attributes_s: f64,
    direct: bool,
    folder: Option<PathBuf>,
    shared: bool,
    files_per_directory: u64,
}

impl Shape {
    fn model(&self) -> Result<Model, PfsError> {
        // As many as may be in service: past that they queue.
        let slowdown = Slowdown::new(&self.slowdown, self.slots)
            .map_err(|error| PfsError::Shape(error.to_string()))?;
        let slowdown = Arc::new(slowdown);
        let target = |number: usize| {
            let factor = self.slower.iter().find(|(target, _)| *target == number);
            StorageTarget::new(Service {
                read_rate_bps: self.read_rate_bps,
                write_rate_bps: self.write_rate_bps,
                latency_ns: self.latency_ns,
                slots: self.slots,
                slowdown: Arc::clone(&slowdown),
                slower: factor.map_or(1.0, |(_, factor)| *factor),
            })
        };
        let targets = (0..self.targets as usize).map(target).collect::<Result<_, _>>()?;
        let server = |_| MetadataServer::new(self.rate_ops, self.message_ns);
        Model::new(targets, (0..self.servers).map(server).collect::<Result<_, _>>()?)
    }

    fn template(&self) -> Result<Template, PfsError> {
        let component = |(end, stripe_size, stripes, pool): &Component| TemplateComponent {
            end: end.unwrap_or(EOF),
            stripe_size: *stripe_size,
            stripes: stripes.unwrap_or(ALL),
            pool: pool.as_deref().map(Arc::from),
        };
        Template::new(self.components.iter().map(component).collect())
    }

    fn striper(&self) -> Result<Striper, PfsError> {
        let pools =
            self.pools.iter().map(|(name, members)| (name.as_str().into(), members.clone()));
        let dealing = if self.random { Dealing::Random } else { Dealing::RoundRobin };
        Striper::new(self.targets, pools.collect(), dealing, self.seed)
    }

    fn client(&self) -> Client {
        // Locks age in emulated time; what would never end ends with the century.
        let real =
            |seconds: f64| Duration::from_secs_f64((seconds * self.dilation).clamp(0.0, 1e9));
        Client {
            names: real(self.names_s),
            attributes: real(self.attributes_s),
            direct: self.direct,
            entries_per_message: self.entries_per_message,
            glimpse_ns: self.glimpse_ns,
            dilation: self.dilation,
            shared: self.shared,
        }
    }

    fn mount(&self, point: &Path, name: &str, sizes: Option<Vec<u64>>) -> Result<Mount, PfsError> {
        let (template, striper) = (self.template()?, self.striper()?);
        let tree: Arc<dyn Tree> = match (sizes, &self.folder) {
            (Some(sizes), _) => {
                let made = Made {
                    sizes,
                    files_per_directory: self.files_per_directory,
                    seed: self.seed,
                    changed_s: 1_700_000_000, // some day: the same in each mount
                };
                Arc::new(Generated::new(made, template, striper)?)
            }
            (None, Some(folder)) => Arc::new(Folder::new(folder, template, striper)?),
            (None, None) => {
                return Err(PfsError::Shape("give a folder, or sizes of files to make up".into()));
            }
        };
        let pfs = Pfs::new(tree, self.model()?, self.client()).map_err(PfsError::Mount)?;
        Mount::new(pfs, point, name)
    }
}

/// A striped file system that is emulated.
#[pyclass(frozen, module = "waystage._native")]
struct EmulatedFileSystem(ProcessLocal<Mutex<Option<Mount>>>);

#[pymethods]
impl EmulatedFileSystem {
    #[new]
    #[pyo3(signature = (point, name, shape, sizes=None))]
    fn new(
        py: Python<'_>,
        point: PathBuf,
        name: &str,
        shape: Shape,
        sizes: Option<PyReadonlyArray1<'_, u64>>,
    ) -> PyResult<Self> {
        let sizes = sizes.map(|sizes| sizes.as_array().to_vec());
        let mount = py.detach(|| shape.mount(&point, name, sizes)).or_raise()?;
        Ok(Self(ProcessLocal::new(Mutex::new(Some(mount)))))
    }

    fn ended(&self) -> bool {
        let mount = self.0.lock();
        mount.as_ref().is_none_or(Mount::ended)
    }

    fn end(&self, py: Python<'_>) -> PyResult<()> {
        let mount = self.0.lock().take();
        match mount {
            Some(mount) => py.detach(|| mount.end()).or_raise(),
            None => Ok(()),
        }
    }
}
