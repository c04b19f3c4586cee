"""Models this small are slower on two threads than on one."""

from tests.training.conftest import _one_thread  # noqa: F401
