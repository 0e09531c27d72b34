"""Drawings of clusters: each task stands once, and nothing stands outside of its frame."""

import itertools
from xml.etree import ElementTree

import pytest

from tf_config.cli import main
from tf_config.cluster import ClusterSpec, Task
from tf_config.drawing import Box, draw, draw_cluster

SVG = "{http://www.w3.org/2000/svg}"
CLUSTERS = [
    {"worker": ["node1:2222"]},
    {"chief": ["a:1"], "worker": ["a:2", "b.example.com:2", "[::1]:2"], "ps": ["b.example.com:3"]},
    {
        "worker": [f"10.0.0.{n % 9}:{n + 1}" for n in range(70)],
        "ps": ["a-very-long-name-of-a-host:1"],
    },
]


def rectangles(svg):
    found = ElementTree.fromstring(svg).iter(f"{SVG}rect")
    places = [[float(each.get(n)) for n in ("x", "y", "width", "height")] for each in found]
    return [(x, y, x + width, y + height) for x, y, width, height in places]


def texts(svg):
    return [each.text for each in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def is_inside(inner, outer):
    return all(i >= o for i, o in zip(inner[:2], outer[:2], strict=True)) and all(
        i <= o for i, o in zip(inner[2:], outer[2:], strict=True)
    )


def are_apart(one, other):
    return any(one[n] >= other[n + 2] or other[n] >= one[n + 2] for n in (0, 1))


@pytest.mark.parametrize("jobs", CLUSTERS)
def test_every_task_stands_once_on_its_host(jobs):
    spec = ClusterSpec.from_dict(jobs)
    held = {Task("ps", 0): [f"variable {n}: 4 bytes" for n in range(40)]} if "ps" in jobs else {}
    svg = draw_cluster(spec, None, held)
    shown = texts(svg)
    hosts = {address.host for address in spec.addresses.values()}
    for text in (*hosts, *map(str, spec.addresses)):
        assert shown.count(text) == 1, text
    assert ("and 18 more" in shown) == bool(held)  # 24 lines: the port, 22 of 40, and this
    whole, *boxes = rectangles(svg)
    assert len(boxes) == len(hosts) + len(spec.addresses)
    assert all(is_inside(box, whole) for box in boxes)
    for one, other in itertools.combinations(boxes, 2):
        assert are_apart(one, other) or is_inside(one, other) or is_inside(other, one)


def test_names_need_not_be_xml_and_long_ones_are_cut():
    shown = texts(draw("<&>", {'"host"': [Box("other", "a<b", ["&" * 200])]}))
    assert shown[:3] == ["<&>", '"host"', "a<b"]
    assert "..." in shown[3] and len(shown[3]) < 80


def test_show_draws_the_cluster_and_marks_this_task(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv(
        "TF_CONFIG",
        '{"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": 1}}',
    )
    path = tmp_path / "topology.svg"
    assert main(["show", "--graph", str(path)]) == 0
    assert f"drawn: {path}" in capsys.readouterr().out
    assert texts(path.read_text())[0] == "2 workers on 2 hosts; this is worker 1"
    bold = [e for e in ElementTree.parse(path).iter(f"{SVG}rect") if e.get("stroke-width") == "3"]
    assert len(bold) == 1
    assert main(["show", "--graph", str(tmp_path / "missing" / "topology.svg")]) == 2
    assert "--graph must name a file that can be written. Received:" in capsys.readouterr().err
