"""Each environment as a table: variables in, TF_CONFIG out."""

import json

import pytest

from tf_config import Address, ClusterConfigError, Task
from tf_config.environments import ENVIRONMENTS, RankOnly, resolve
from tf_config.roles import Roles

# As `srun -n 3 -N 2 --distribution=cyclic` of Slurm 22.05 sets them.
STEP = {
    "SLURM_JOB_ID": "1",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_NODELIST": "n[9-10]",
    "SLURM_STEP_TASKS_PER_NODE": "2,1",
    "SLURM_JOB_NODELIST": "n[9-12]",
    "SLURM_TASKS_PER_NODE": "4(x4)",
    "SLURM_DISTRIBUTION": "cyclic",
}
PADDLE = {
    "PADDLE_TRAINER_ENDPOINTS": "10.0.0.1:6170,10.0.0.2:6170",
    "PADDLE_TRAINERS_NUM": "2",
    "PADDLE_TRAINER_ID": "1",
}
SERVERS = {
    "PADDLE_PSERVERS_IP_PORT_LIST": "10.0.0.3:6174,10.0.0.4:6174",
    "TRAINING_ROLE": "PSERVER",
    "POD_IP": "10.0.0.4",
    "PADDLE_PORT": "6174",
}


def hosts(environ):
    config = resolve(environ).config
    return [config.cluster.addresses[task].host for task in config.cluster.training_tasks]


def test_a_slurm_step_in_the_order_of_its_ranks():
    resolved = resolve(STEP)
    assert resolved.origin == "slurm"
    assert resolved.config.task == Task("worker", 1)
    assert hosts(STEP) == ["n9", "n10", "n9"]
    assert resolved.variables["SLURM_STEP_NODELIST"] == "n[9-10]"
    assert "SLURM_JOB_NODELIST" not in resolved.variables


@pytest.mark.parametrize(
    ("distribution", "placed"),
    [
        (None, "n9 n9 n9 n10 n10"),
        ("block", "n9 n9 n9 n10 n10"),
        ("block:cyclic", "n9 n9 n9 n10 n10"),
        ("cyclic", "n9 n10 n9 n10 n9"),
        ("plane", "n9 n9 n10 n10 n9"),
    ],
)
def test_slurms_ways_to_place_tasks(distribution, placed):
    environ = {
        **STEP,
        "SLURM_STEP_TASKS_PER_NODE": "3,2",
        "SLURM_PROCID": "0",
        "SLURM_NODEID": "0",
        "SLURM_DIST_PLANESIZE": "2",
    }
    environ["SLURM_DISTRIBUTION"] = distribution or ""
    assert hosts(environ) == placed.split()


def test_a_batch_script_sees_its_whole_job():
    environ = {name: value for name, value in STEP.items() if "STEP" not in name}
    environ |= {"SLURM_PROCID": "0", "SLURM_NODEID": "0", "SLURM_DISTRIBUTION": ""}
    assert hosts(environ) == [f"n{number}" for number in range(9, 13) for _ in range(4)]


def test_slurm_jobs_and_steps_at_once_have_ports_of_their_own():
    taken = set()
    for job in range(20, 60):
        for step in range(2):
            environ = {**STEP, "SLURM_JOB_ID": str(job), "SLURM_STEP_ID": str(step)}
            ports = {a.port for a in resolve(environ).config.cluster.addresses.values()}
            assert len(ports) == 3
            assert not ports & taken
            assert all(1024 < port < 32_768 for port in ports)
            taken |= ports


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"SLURM_STEP_NODELIST": "n[9"}, "A node list must have Slurm's form"),
        ({"SLURM_STEP_TASKS_PER_NODE": "2"}, "Received: 2 nodes"),
        ({"SLURM_PROCID": "x"}, "SLURM_PROCID must be an integer >= 0. Received: 'x'"),
        ({"SLURM_PROCID": ""}, "must set SLURM_PROCID. Received: it is not set"),
        ({"SLURM_PROCID": "3"}, "'task' must be one of the tasks in 'cluster'. Received: worker 3"),
        ({"SLURM_NODEID": "0"}, "rank 1 on node '0', where node 1 was expected"),
        ({"SLURM_DISTRIBUTION": "arbitrary"}, "SLURM_DISTRIBUTION='arbitrary'"),
    ],
)
def test_wrong_slurm_variables(changes, message):
    with pytest.raises(ClusterConfigError) as error:
        resolve({**STEP, **changes})
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_paddle_trainer_and_a_parameter_server():
    assert resolve(PADDLE).config.task == Task("worker", 1)
    assert hosts(PADDLE) == ["10.0.0.1", "10.0.0.2"]
    server = resolve({**PADDLE, **SERVERS}).config
    assert server.task == Task("ps", 1)
    assert str(server.address) == "10.0.0.4:6174"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"PADDLE_TRAINER_ID": "2"}, "'task' must be one of the tasks in 'cluster'"),
        ({"PADDLE_TRAINER_ENDPOINTS": "a"}, "has no port"),
        ({"TRAINING_ROLE": "BOSS"}, "TRAINING_ROLE must be TRAINER or PSERVER"),
        ({**SERVERS, "POD_IP": "10.0.0.9"}, "servers in PADDLE_PSERVERS_IP_PORT_LIST"),
    ],
)
def test_wrong_paddle_variables(changes, message):
    with pytest.raises(ClusterConfigError) as error:
        resolve({**PADDLE, **changes})
    assert message in str(error.value)


@pytest.mark.parametrize(
    "environ",
    [
        {"PADDLE_PSERVERS_IP_PORT_LIST": "10.0.0.3:6174,10.0.0.4:6174", "PADDLE_PORT": "6174"},
        {"PADDLE_PSERVERS": "10.0.0.3,10.0.0.4", "PADDLE_PORT": "6174"},
        {"PADDLE_PSERVERS": "10.0.0.3,10.0.0.4", "PADDLE_PORT": "6174,6174"},
        {"PADDLE_INIT_PSERVERS": "10.0.0.3,10.0.0.4", "PADDLE_INIT_PORT": "6174"},
    ],
    ids=["list", "1.x", "1.x, a port each", "v2"],
)
def test_paddles_trainers_without_endpoints_meet_where_the_first_server_will_be(environ):
    names = ("PADDLE_TRAINERS_NUM", "PADDLE_TRAINER_ID")
    if "PADDLE_INIT_PSERVERS" in environ:
        names = ("PADDLE_INIT_NUM_GRADIENT_SERVERS", "PADDLE_INIT_TRAINER_ID")
    environ = {**environ, names[0]: "3"}
    resolved = resolve({**environ, names[1]: "2", "TRAINING_ROLE": "TRAINER"})
    assert resolved.origin == "paddle"
    roles = Roles(workers=3, ps=2)
    assert resolved.config == RankOnly(2, 5, "tcp://10.0.0.3:6174", roles, leader=3)
    server = resolve({**environ, "TRAINING_ROLE": "PSERVER", "POD_IP": "10.0.0.4"}).config
    address = Address("10.0.0.4", 6174)
    assert server == RankOnly(4, 5, "tcp://10.0.0.3:6174", roles, leader=3, address=address)


def test_two_parameter_servers_with_one_address_are_refused():
    environ = {"PADDLE_INIT_PSERVERS": "a,a", "PADDLE_INIT_NUM_GRADIENT_SERVERS": "1"}
    with pytest.raises(ClusterConfigError, match="in PADDLE_INIT_PSERVERS must have its own"):
        resolve({**environ, "PADDLE_INIT_TRAINER_ID": "0"})


def test_v2_has_a_port_of_its_own():
    environ = {"PADDLE_INIT_PSERVERS": "a", "PADDLE_INIT_NUM_GRADIENT_SERVERS": "1"}
    config = resolve({**environ, "PADDLE_INIT_TRAINER_ID": "0"}).config
    assert config.rendezvous == "tcp://a:7164"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"PADDLE_TRAINER_ID": "2"}, "number must be from 0 to 1. Received: 2"),
        ({"PADDLE_TRAINERS_NUM": ""}, "must set PADDLE_TRAINERS_NUM or PADDLE_INIT_NUM_GRADIENT"),
        ({"PADDLE_PORT": ""}, "must set PADDLE_PORT. Received: it is not set"),
        ({"PADDLE_PORT": "1,2,3"}, "one port for each server. Received: '1,2,3' for 2 servers"),
        ({"TRAINING_ROLE": "PSERVER", "POD_IP": "c"}, "Received: 'c' and '6174', of 'a:6174,b:"),
        ({"PADDLE_TRAINER_ENDPOINTS": "c:1"}, "must be the number of PADDLE_TRAINER_ENDPOINTS"),
    ],
)
def test_wrong_variables_of_fluids(changes, message):
    environ = {"PADDLE_PSERVERS": "a,b", "PADDLE_PORT": "6174", "PADDLE_TRAINERS_NUM": "2"}
    with pytest.raises(ClusterConfigError) as error:
        resolve({**environ, "PADDLE_TRAINER_ID": "0", **changes})
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_what_paddle_sets_and_nobody_reads_is_said():
    environment = ENVIRONMENTS["paddle"]
    (warning,) = environment.warnings({"CPU_NUM": "4", "PADDLE_INIT_PORTS_NUM": "1"})
    assert "CPU_NUM=4 is not read" in warning
    assert "num_replicas=N" in warning
    assert environment.warnings({"CPU_NUM": "1"}) == []


def test_a_step_of_one_task_of_a_job_on_several_nodes_is_remarked():
    environment = ENVIRONMENTS["slurm"]
    (warning,) = environment.warnings({"SLURM_STEP_NUM_TASKS": "1", "SLURM_JOB_NUM_NODES": "2"})
    assert "this one has 1 task, and the allocation has 2 nodes" in warning
    for tasks, nodes in (("2", "2"), ("1", "1")):
        alike = {"SLURM_STEP_NUM_TASKS": tasks, "SLURM_JOB_NUM_NODES": nodes}
        assert environment.warnings(alike) == []


def test_an_address_that_a_batch_script_exports_for_pytorch_is_no_torchrun():
    assert resolve({**STEP, "MASTER_ADDR": "node1", "MASTER_PORT": "1"}).origin == "slurm"


def test_tf_config_comes_before_the_scheduler_it_may_run_under():
    text = '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}}'
    environ = {**STEP, "TF_CONFIG": text}
    assert resolve(environ).origin == "tf_config"
    assert resolve(environ, "slurm").origin == "slurm"
    assert list(ENVIRONMENTS) == [
        "tf_config",
        "vertex",
        "paddle",
        "kubernetes",
        "pytorch",
        "kubeflow",
        "sagemaker",
        "lsf",
        "openmpi",
        "pmi",
        "slurm",
    ]


def test_an_unknown_environment_is_refused():
    with pytest.raises(ClusterConfigError, match="--from must be one of tf_config, vertex,"):
        resolve({}, "flux")
    with pytest.raises(ClusterConfigError, match="must set SLURM_STEP_NODELIST or"):
        resolve({}, "slurm")


# As Open MPI 4.1, MPICH 4.0 and torchrun of PyTorch 2 set them.
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_SIZE": "3",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "3",
    "PMIX_NAMESPACE": "prterun-a@1",
    "PMIX_SERVER_TMPDIR": "/tmp/ompi.a.0/pid.7",
}
MPICH = {"PMI_RANK": "1", "PMI_SIZE": "2", "PMI_FD": "6", "MPI_LOCALNRANKS": "2"}
TORCH = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "node1", "MASTER_PORT": "29500"}
# As IBM's jsrun sets them, beside those of Open MPI that Spectrum MPI needs.
JSRUN = {
    "JSM_NAMESPACE_RANK": "1",
    "JSM_NAMESPACE_SIZE": "2",
    "JSM_NAMESPACE_LOCAL_RANK": "0",
    "LSB_JOBID": "77",
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
}
# As Kubeflow Trainer's runtime for PyTorch sets them on each node.
TRAIN_JOB = {
    "PET_MASTER_ADDR": "train-node-0-0.train",
    "PET_MASTER_PORT": "29400",
    "PET_NNODES": "2",
    "PET_NODE_RANK": "1",
    "PET_NPROC_PER_NODE": "auto",
}


@pytest.mark.parametrize(
    ("environ", "origin", "expected"),
    [
        (OPEN_MPI, "openmpi", (2, 3, "file:///tmp/ompi.a.0/pid.7/.tf-config-meeting")),
        (
            {**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "1"},
            "openmpi",
            (2, 3, "file:.tf-config-prterun-a-1"),
        ),
        (MPICH, "pmi", (1, 2, "file:.tf-config-pmi")),
        (TORCH, "pytorch", (1, 2, "tcp://node1:29500")),
        ({**TRAIN_JOB, **TORCH}, "pytorch", (1, 2, "tcp://node1:29500")),  # torchrun there
        (TRAIN_JOB, "kubeflow", (1, 2, "tcp://train-node-0-0.train:29400")),
        (JSRUN, "lsf", (1, 2, "file:.tf-config-lsf-77-1")),
        ({**JSRUN, "PMIX_NAMESPACE": "3"}, "lsf", (1, 2, "file:.tf-config-lsf-77-3")),
        ({**TORCH, "MASTER_ADDR": "fd00::7"}, "pytorch", (1, 2, "tcp://[fd00::7]:29500")),
        (
            {**TORCH, "TORCHELASTIC_USE_AGENT_STORE": "True"},
            "pytorch",
            (1, 2, "tcp://node1:29501"),
        ),
    ],
)
def test_launchers_that_tell_a_process_its_number_alone(environ, origin, expected):
    resolved = resolve(environ)
    assert resolved.origin == origin
    assert resolved.config == RankOnly(*expected)


def test_mpirun_inside_slurm_is_mpirun_and_srun_with_pmi_is_slurm():
    assert resolve({**STEP, **OPEN_MPI}).origin == "openmpi"
    assert resolve({**STEP, **MPICH, "SLURM_STEP_NUM_TASKS": "1"}).origin == "pmi"
    assert resolve({**STEP, **MPICH, "SLURM_STEP_NUM_TASKS": "2"}).origin == "slurm"


@pytest.mark.parametrize("environ", [OPEN_MPI, MPICH, TORCH, JSRUN, TRAIN_JOB])
def test_each_variable_that_is_needed_and_missing_is_named(environ):
    (origin,) = {resolve(environ).origin}
    needed = set(resolve(environ).variables) - {"PMIX_SERVER_TMPDIR", "PMIX_NAMESPACE"}
    for name in needed - set(ENVIRONMENTS[origin].markers):
        with pytest.raises(ClusterConfigError, match=name):
            resolve({other: environ[other] for other in environ if other != name})


SAGEMAKER = {"SM_HOSTS": '["algo-1", "algo-2"]', "SM_CURRENT_HOST": "algo-2"}


def test_sagemaker_has_a_worker_on_each_host():
    assert resolve(SAGEMAKER).config.task == Task("worker", 1)
    assert hosts(SAGEMAKER) == ["algo-1", "algo-2"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"SM_HOSTS": "algo-1"}, "SM_HOSTS must be a JSON list of different host names"),
        ({"SM_HOSTS": '{"a": 1}'}, "SM_HOSTS must be a JSON list"),
        ({"SM_HOSTS": "[]"}, "SM_HOSTS must be a JSON list"),
        ({"SM_HOSTS": "[1]"}, "SM_HOSTS must be a JSON list"),
        ({"SM_HOSTS": '["algo-2", "algo-2"]'}, "of different host names"),
        ({"SM_CURRENT_HOST": "algo-3"}, "Received: 'algo-3', of 'algo-1, algo-2'"),
        ({"SM_CURRENT_HOST": ""}, "must set SM_CURRENT_HOST"),
        ({"SM_HOSTS": ""}, "must set SM_HOSTS"),
    ],
)
def test_wrong_sagemaker_variables(changes, message):
    with pytest.raises(ClusterConfigError) as error:
        resolve({**SAGEMAKER, **changes})
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_host_of_sagemaker_without_the_others_is_refused():
    with pytest.raises(ClusterConfigError, match="SM_CURRENT_HOST and SM_HOSTS must be set toge"):
        resolve({"SM_CURRENT_HOST": "algo-1"})


def vertex(pool="workerpool1", index=1, pools=4):
    addresses = {
        "workerpool0": ["a-0:2222"],
        "workerpool1": ["b-0:2222", "b-1:2222"],
        "workerpool2": ["c-0:2222"],
        "workerpool3": ["d-0:2222"],
    }
    cluster = dict(list(addresses.items())[:pools])
    task = {"type": pool, "index": index, "trial": ""}
    text = json.dumps({"cluster": cluster, "environment": "cloud", "task": task, "job": "{}"})
    return {"CLUSTER_SPEC": text}


@pytest.mark.parametrize(
    ("environ", "task"),
    [
        (vertex(), Task("worker", 1)),
        (vertex("workerpool0", 0), Task("chief", 0)),
        (vertex("workerpool2", 0), Task("ps", 0)),
        (vertex("workerpool3", 0), Task("evaluator", 0)),
        (vertex("workerpool0", 0, pools=1), Task("worker", 0)),
    ],
)
def test_the_pools_of_vertex_are_types_of_tasks(environ, task):
    # Vertex AI sets TF_CONFIG, too, in which the evaluator is a part of the cluster.
    resolved = resolve({**environ, "TF_CONFIG": '{"cluster": {"evaluator": ["d-0:2222"]}}'})
    assert resolved.origin == "vertex"
    assert resolved.config.task == task
    if task.type != "worker" or task.index:
        assert resolved.config.cluster.to_dict() == {
            "chief": ["a-0:2222"],
            "worker": ["b-0:2222", "b-1:2222"],
            "ps": ["c-0:2222"],
        }


@pytest.mark.parametrize(
    "environ",
    [
        vertex("workerpool9"),
        vertex("worker"),
        {"CLUSTER_SPEC": '{"cluster": {"workerpool0": ["a:1"]}}'},
        {"CLUSTER_SPEC": '["workerpool0"]'},
        {"CLUSTER_SPEC": '{"workerpool0": '},
    ],
)
def test_wrong_variables_of_vertex(environ):
    with pytest.raises(ClusterConfigError, match="CLUSTER_SPEC must have the worker pools"):
        resolve(environ)
    assert resolve({"CLUSTER_SPEC": "/etc/cluster.yaml"}) is None
