"""What Spark says, in the words of a pipeline."""

from __future__ import annotations

import pickle

import pytest
from pyspark.errors import PySparkException

from penstock.errors import DataLost, PipelineFailed
from penstock.spark.pipelines.failures import told_as_ours

JAVA = """An error occurred while calling o1.collect.
: org.apache.spark.SparkException: Job aborted: Traceback (most recent call last):
  File "rows.py", line 1, in _read
penstock.errors.{name}: {told}
\tat org.apache.spark.api.python.BasePythonRunner
"""


def test_a_loss_in_a_task_says_what_the_user_of_the_pipeline_can_do() -> None:
    """And not which option the data source has, which the pipeline does not."""
    lost = DataLost("orders", 3, "the messages from offset 1 to 9 were removed by retention")
    assert "failOnDataLoss" in str(lost)
    with pytest.raises(PipelineFailed) as caught, told_as_ours(lost="give another folder"):
        raise PySparkException(JAVA.format(name="DataLost", told=lost))
    assert str(caught.value) == (
        "Spark ended the pipeline: orders/3: the messages from offset 1 to 9 were removed by retention; give another folder (DATA_LOST)"
    )


def test_an_error_that_is_not_ours_is_told_by_its_first_line() -> None:
    """With the code of pipelines that failed."""
    with pytest.raises(PipelineFailed, match=r"o1\.collect\. \(PIPELINE_FAILED\)"), told_as_ours():
        raise PySparkException(JAVA.format(name="Unheard", told="of"))


def test_advice_survives_pickling() -> None:
    """As the rest of an error does."""
    lost = pickle.loads(pickle.dumps(DataLost("orders", None, "the topic is gone", "look elsewhere")))
    assert str(lost) == "orders: the topic is gone; look elsewhere"
