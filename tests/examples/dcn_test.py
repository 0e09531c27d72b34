"""The Deep & Cross Network: what it reads, and the cross layer in closed form."""

import numpy as np
import pytest

pytestmark = pytest.mark.training


@pytest.fixture
def dcn(example):
    return example("dcn", "--train=unused", "--test=unused", "--rows=unused")


def test_each_value_is_an_id_and_each_integer_a_logarithm(dcn):
    fields = ["1", "", "-3", *["8"] * 11, "", *["68fd1e64"] * 25]
    examples, labels = dcn.parse(["\t".join(fields)] * 2)
    assert labels.numpy().tolist() == [[1], [1]]
    expected = [0, -np.log(4), *[np.log(9)] * 11]
    np.testing.assert_allclose(examples["integers"], [expected] * 2, rtol=1e-6)
    ids = [examples[f"value_{number}"].numpy()[0] for number in range(26)]
    assert len(set(ids)) == 2 and ids[0] != ids[1] and min(ids) >= 0


def test_a_cross_layer_multiplies_its_inputs(dcn):
    x0, x = np.array([[1.0, 2.0]], "float32"), np.array([[3.0, -1.0]], "float32")
    layer = dcn.Cross()
    layer.build([(1, 2), (1, 2)])
    weights, bias = np.array([[1.0, 2.0], [0.5, -1.0]]), np.array([0.25, 0.5])
    layer.set_weights([weights, bias])
    np.testing.assert_allclose(layer([x0, x]), x0 * (x @ weights + bias) + x)
