"""Without this line pytest shows no values where an assertion of the kit fails."""

import pytest

pytest.register_assert_rewrite("gpuops.testing")
