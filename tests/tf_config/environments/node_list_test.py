import pytest
from hypothesis import given
from hypothesis import strategies as st

from tf_config import ClusterConfigError
from tf_config.environments.node_list import parse_node_list, parse_tasks_per_node

# What `scontrol show hostnames` of Slurm 22.05 prints, but for the last two: names that go on
# behind a bracket, which newer Slurm reads and 22.05 does not.
NODE_LISTS = {
    "login": "login",
    "n[9-10]": "n9 n10",
    "rack[1-2]node[01-03,7]": (
        "rack1node01 rack1node02 rack1node03 rack1node7 "
        "rack2node01 rack2node02 rack2node03 rack2node7"
    ),
    "a,b[3,5-6],c[09-11]x[1-2]": "a b3 b5 b6 c09x1 c09x2 c10x1 c10x2 c11x1 c11x2",
    "n[001-002],m": "n001 n002 m",
    "n[8-011]": "n8 n9 n10 n11",
    "tux[0-1][2-3]": "tux02 tux03 tux12 tux13",
    "a,,b": "a b",
    "a,a": "a a",
    "n[1,1]": "n1 n1",
    "n[1-2]-ib": "n1-ib n2-ib",
    "n[1-3,5]x": "n1x n2x n3x n5x",
}


@pytest.mark.parametrize(("text", "names"), NODE_LISTS.items())
def test_node_lists(text, names):
    assert parse_node_list(text) == names.split()


@pytest.mark.parametrize(
    "text", ["", ",", "n[3-1]", "n[a-b]", "a[]", "a[1-2", "a]1", "n[1-9999999]"]
)
def test_wrong_node_lists(text):
    with pytest.raises(ClusterConfigError, match="A node list must have Slurm's form"):
        parse_node_list(text)


_names = st.from_regex(r"[a-z]{1,4}", fullmatch=True)
_numbers = st.lists(st.integers(0, 12), min_size=1, max_size=4)


@given(st.lists(st.tuples(_names, _numbers, st.integers(1, 3)), min_size=1, max_size=4))
def test_what_is_written_is_read(groups):
    """Parsing undoes formatting."""
    text = ",".join(
        f"{name}[{','.join(f'{number:0{width}}' for number in numbers)}]"
        for name, numbers, width in groups
    )
    expected = [f"{name}{number:0{width}}" for name, numbers, width in groups for number in numbers]
    assert parse_node_list(text) == expected


@given(st.text("an019[]-, x"))
def test_any_text_is_a_node_list_or_an_error(text):
    try:
        names = parse_node_list(text)
    except ClusterConfigError:
        return
    assert all(names)


@pytest.mark.parametrize(
    ("text", "counts"),
    [("1", [1]), ("4(x2),3", [4, 4, 3]), ("2,1", [2, 1]), ("1(x3)", [1, 1, 1])],
)
def test_tasks_per_node(text, counts):
    assert parse_tasks_per_node(text) == counts


@pytest.mark.parametrize("text", ["", "x", "4(x)", "4x2", "-1", "1(x99999999)"])
def test_wrong_tasks_per_node(text):
    with pytest.raises(ClusterConfigError, match="Tasks per node must have Slurm's form"):
        parse_tasks_per_node(text)
