# The recipe of Waystage for Spack 1.0 or later: docs/how-to/install.md.

import os

from spack.package import *
from spack_repo.builtin.build_systems.python import PythonPackage


class Waystage(PythonPackage):
    """Coordinates how data moves in high-performance computing: copies, staging, collective I/O, paths of traffic."""

    homepage = "https://doi.org/10.1109/ACCESS.2020.3035158"
    # `make dist` writes the sources, and beside them this recipe with their checksum.
    url = f"file://{os.getcwd()}/waystage-0.1.0.tar.gz"
    manual_download = True

    license("Apache-2.0", checked_by="waystage")

    version("0.1.0")

    variant("nodes", default=False, description="Commands on many nodes, by Dask")
    variant("frames", default=False, description="Data frames and SQL of catalogs")
    variant("fsspec", default=False, description="File systems for fsspec")
    variant("torch", default=False, description="A data set for PyTorch")
    variant("openmpi", default=True, description="An Open MPI to compile the interposed libraries with")

    depends_on("c", type="build")
    depends_on("cxx", type="build")

    with default_args(type="build"):
        depends_on("py-maturin@1.7:1")
        depends_on("rust@1.89:")

    with default_args(type=("build", "run")):
        depends_on("python@3.11:")

    with default_args(type="run"):
        depends_on("py-aiohttp@3.10:3")
        depends_on("py-click@8.1:8")
        depends_on("py-eclipse-zenoh@1.10:1")
        depends_on("py-matplotlib@3.8:3")
        depends_on("py-msgspec@0.19:0")
        depends_on("py-numpy@1.26:2")
        depends_on("py-os-ken@4.2:4")
        depends_on("py-pyarrow@18:")
        depends_on("py-pymetis@2025.2:")
        depends_on("py-rich@13:")
        depends_on("py-ruamel-yaml@0.18:0")
        depends_on("openmpi", when="+openmpi")

    with when("+nodes"), default_args(type="run"):
        depends_on("py-cryptography@42:")
        depends_on("py-dask@2025.1:")
        depends_on("py-dask-jobqueue@0.9:0")
        depends_on("py-distributed@2025.1:")

    with when("+frames"), default_args(type="run"):
        depends_on("py-duckdb@1.3:")
        depends_on("py-pandas@2.2:")
        depends_on("py-polars@1.12:")

    with when("+fsspec"), default_args(type="run"):
        depends_on("py-fsspec@2024.2:")

    with when("+torch"), default_args(type="run"):
        depends_on("py-torch@2:")

    import_modules = ["waystage", "waystage.catalog", "waystage.cli", "waystage.copying", "waystage.loader"]

    @run_after("install")
    def install_services(self):
        """The units and the user that they run as, for a site to link into /etc."""
        install_tree("deploy/systemd", self.prefix.lib.systemd.system)
        install_tree("deploy/sysusers.d", join_path(self.prefix.lib, "sysusers.d"))
