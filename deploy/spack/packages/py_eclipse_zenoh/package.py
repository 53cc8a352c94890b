from spack.package import *
from spack_repo.builtin.build_systems.python import PythonPackage


class PyEclipseZenoh(PythonPackage):
    """Zenoh for Python, the transport of Waystage's backplane."""

    homepage = "https://zenoh.io"
    pypi = "eclipse-zenoh/eclipse_zenoh-1.10.2.tar.gz"

    license("EPL-2.0 OR Apache-2.0")

    version("1.10.2", sha256="a338f4d1a0a736cbae4e1f5becdd2e81a6a2e5934ffa8a4b1436cf0fbac7fb2e")

    import_modules = ["zenoh"]

    depends_on("c", type="build")
    depends_on("python@3.9:", type=("build", "run"))
    depends_on("py-maturin@1:1", type="build")
    depends_on("rust@1.75:", type="build")
