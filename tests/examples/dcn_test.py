"""The Deep & Cross Network: what it reads, the cross layer in closed form, and rows by day."""

import re

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


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_rows_on_servers_are_saved_and_loaded(run, click_logs, tmp_path, mode):
    flags = [*click_logs, f"--rows={tmp_path}/rows", f"--mode={mode}"]
    output = run("dcn", *flags, under=("--workers", "2", "--ps", "1"))
    days = re.findall(r"day (\d): (\d+) rows evicted, (\d+) kept, ([\d.]+) MB saved", output)
    assert [day for day, *_ in days] == ["0", "1", "2"]
    assert all(int(evicted) > 0 and int(kept) > 0 for _, evicted, kept, _ in days)
    assert "loaded 3 saves: all rows are equal" in output
    assert 0.66 < float(re.search(r"test AUC: ([\d.]+)", output)[1]) < 0.806
