"""Random operations against a simple model."""

import pytest

# It is no test module, and its assertions should say as much as theirs.
pytest.register_assert_rewrite("tests.model.queue_machine")
