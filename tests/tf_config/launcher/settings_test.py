import pytest

from tf_config import ClusterConfigError, Task
from tf_config.launcher.settings import (
    INTERFACE_VARIABLES,
    LaunchOptions,
    LocalTasks,
    resolve_settings,
    server_saves_seconds,
)

WORKERS = tuple(Task("worker", index) for index in range(3))
ALONE = LocalTasks(WORKERS[0], WORKERS[:1], 4)


def settled(request, environ, place=ALONE, restart=None):
    return {name: rest for name, *rest in resolve_settings(request, environ, place, restart)}


def test_arguments_win_over_the_environment_and_that_over_the_default():
    environ = {"OMP_NUM_THREADS": "7", "KERAS_STRATEGIES_START_TIMEOUT": "20"}
    told = settled(LaunchOptions(start_timeout=9.5), environ)
    assert told["KERAS_STRATEGIES_START_TIMEOUT"] == ["9.5", "argument"]
    assert told["OMP_NUM_THREADS"] == ["7", "environment"]
    assert told["TF_NUM_INTRAOP_THREADS"] == ["4", "default"]
    told = settled(LaunchOptions(threads=2), environ, restart=3)
    assert told["OMP_NUM_THREADS"] == ["2", "argument"]
    assert told["KERAS_STRATEGIES_START_TIMEOUT"] == ["20", "environment"]
    assert told["KERAS_STRATEGIES_RESTARTS"] == ["3", "argument"]
    assert settled(LaunchOptions(), {})["KERAS_STRATEGIES_START_TIMEOUT"] == ["300", "default"]


def test_servers_save_their_state_only_if_they_may_be_restarted():
    name = "KERAS_STRATEGIES_SERVER_SAVES"
    assert name not in settled(LaunchOptions(), {})
    assert settled(LaunchOptions(restarts_servers=True), {})[name] == ["30", "default"]
    assert settled(LaunchOptions(restarts_servers=True), {name: "5"})[name] == ["5", "environment"]
    told = settled(LaunchOptions(restarts_servers=True, server_saves=0.0), {name: "5"})
    assert told[name] == ["0", "argument"]


@pytest.mark.parametrize("text", ["often", "-1", "inf", "nan", ""])
def test_seconds_between_saves_are_a_number(text):
    with pytest.raises(ClusterConfigError, match="must be a number of seconds, or 0"):
        server_saves_seconds({"KERAS_STRATEGIES_SERVER_SAVES": text})


def test_tensorflow_is_told_to_note_little_unless_asked_for_more():
    name = "TF_CPP_MIN_LOG_LEVEL"
    assert settled(LaunchOptions(), {})[name] == ["1", "default"]
    assert settled(LaunchOptions(is_verbose=True), {})[name] == ["0", "default"]
    assert settled(LaunchOptions(is_verbose=True), {name: "3"})[name] == ["3", "environment"]


def test_arrays_stand_on_huge_pages_unless_the_c_library_is_told_something_else():
    told = settled(LaunchOptions(), {})
    assert told["GLIBC_TUNABLES"] == ["glibc.malloc.hugetlb=1", "default"]
    told = settled(LaunchOptions(), {"GLIBC_TUNABLES": "glibc.malloc.check=3"})
    assert told["GLIBC_TUNABLES"] == ["glibc.malloc.check=3", "environment"]


def test_gpus_are_dealt_out_of_those_that_the_user_names_in_an_argument():
    place = LocalTasks(WORKERS[1], WORKERS, 4)
    variables = {"CUDA_VISIBLE_DEVICES": "6,4,2"}
    told = settled(LaunchOptions(gpus=1, variables=variables), {"CUDA_VISIBLE_DEVICES": "0"}, place)
    assert told["CUDA_VISIBLE_DEVICES"] == ["4", "argument"]


def test_variables_of_the_users_own():
    told = settled(
        LaunchOptions(threads=2, variables={"OMP_NUM_THREADS": "8", "A": ""}), {"A": "1"}
    )
    assert told["OMP_NUM_THREADS"] == ["8", "argument"]
    assert told["A"] == ["", "argument"]


@pytest.mark.parametrize(
    ("task", "gpus", "visible", "expected"),
    [
        (WORKERS[0], 1, None, "0"),
        (WORKERS[2], 1, None, "2"),
        (WORKERS[1], 2, None, "2,3"),
        (WORKERS[1], 2, "7,6,5,4,3,2", "5,4"),
        (WORKERS[1], 1, "GPU-a, GPU-b,GPU-c", "GPU-b"),
        (WORKERS[1], 0, None, "-1"),
        (Task("ps", 0), 1, None, "-1"),
        (Task("evaluator", 0), 1, None, "3"),
    ],
)
def test_gpus_are_dealt_out_in_the_order_of_the_tasks_of_a_host(task, gpus, visible, expected):
    together = (*WORKERS, Task("ps", 0), Task("evaluator", 0))
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    if visible is not None and len(visible.split(",")) < 4:
        together = WORKERS
    place = LocalTasks(task, together, 1)
    told = settled(LaunchOptions(gpus=gpus), environ, place)
    assert told["CUDA_VISIBLE_DEVICES"] == [expected, "argument"]


def test_a_task_with_gpus_of_its_own_is_told_so():
    place = LocalTasks(WORKERS[0], WORKERS, 1)
    assert settled(LaunchOptions(gpus=1), {}, place)["KERAS_STRATEGIES_OWN_GPUS"] == [
        "1",
        "argument",
    ]
    assert "KERAS_STRATEGIES_OWN_GPUS" not in settled(LaunchOptions(), {}, place)


def test_too_few_gpus_are_an_error():
    place = LocalTasks(WORKERS[2], WORKERS, 1)
    message = "3 workers with 1 each on this host, and CUDA_VISIBLE_DEVICES='0,1'"
    with pytest.raises(ClusterConfigError, match=message):
        resolve_settings(LaunchOptions(gpus=1), {"CUDA_VISIBLE_DEVICES": "0,1"}, place)


@pytest.mark.parametrize(("gpus", "have", "fits"), [(1, 3, True), (1, 2, False), (2, None, True)])
def test_gpus_that_a_host_has_not_are_an_error(gpus, have, fits):
    place = LocalTasks(WORKERS[2], WORKERS, 1, have)
    if fits:
        resolve_settings(LaunchOptions(gpus=gpus), {}, place)
        return
    message = f"Received: 3 workers with {gpus} each on a host with {have} NVIDIA"
    with pytest.raises(ClusterConfigError, match=message):
        resolve_settings(LaunchOptions(gpus=gpus), {}, place)
    resolve_settings(LaunchOptions(gpus=gpus), {"CUDA_VISIBLE_DEVICES": "0,1,2"}, place)


@pytest.mark.parametrize("name", ["1BAD", "A B", "A-B", "", "é", "TF_CONFIG", "HOROVOD_RANK"])
def test_a_variable_that_no_task_could_be_given_is_refused(name):
    with pytest.raises(ClusterConfigError, match="Received: "):
        LaunchOptions(variables={name: "3"})


def test_no_word_about_gpus_leaves_the_variable_alone():
    assert "CUDA_VISIBLE_DEVICES" not in settled(LaunchOptions(), {"CUDA_VISIBLE_DEVICES": "0"})


def test_the_interface_reaches_every_back_end():
    told = settled(LaunchOptions(interface="eth2"), {"NCCL_SOCKET_IFNAME": "eth0"})
    assert {"HOROVOD_GLOO_IFACE", "NCCL_SOCKET_IFNAME"} <= set(INTERFACE_VARIABLES)
    assert all(told[name] == ["eth2", "argument"] for name in INTERFACE_VARIABLES)
