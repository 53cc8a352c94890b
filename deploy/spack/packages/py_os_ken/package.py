from spack.package import *
from spack_repo.builtin.build_systems.python import PythonPackage


class PyOsKen(PythonPackage):
    """A framework for OpenFlow controllers, which Waystage speaks to switches with."""

    homepage = "https://docs.openstack.org/os-ken/latest/"
    pypi = "os-ken/os_ken-4.2.2.tar.gz"

    license("Apache-2.0")

    version("4.2.2", sha256="bf6a640c0e67c377d4e6c0014f1de36bbf53d16eb7ecb080e5f9b5ede9bbf836")

    depends_on("python@3.10:", type=("build", "run"))
    depends_on("py-pbr@6.1.1:", type="build")

    # Only os_ken.lib.of_config imports ncclient, and os_ken.lib.ovs imports ovs: Waystage uses neither.
    with default_args(type="run"):
        depends_on("py-eventlet@0.27:")
        depends_on("py-msgpack@1:")
        depends_on("py-netaddr@0.7.18:")
        depends_on("py-oslo-config@5.1:")
        depends_on("py-packaging@20.4:")
        depends_on("py-pbr@2:")
        depends_on("py-routes@2.3.1:")
        depends_on("py-webob@1.8.2:")
