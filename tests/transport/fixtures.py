import resource
from collections.abc import Iterator

import pytest

from dafka.transport.loops import VARIABLE, load_compiled


@pytest.fixture(scope="module", params=["on", "off"])
def either_loops(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run the tests of a module once with the accelerator, if it is built, and once without."""
    reason = load_compiled()
    if request.param == "on" and isinstance(reason, str):
        pytest.skip(reason)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, request.param)
        yield


@pytest.fixture
def descriptor_limits() -> Iterator[tuple[int, int]]:
    """Return the two limits of descriptors, which a test may change."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield limits
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
