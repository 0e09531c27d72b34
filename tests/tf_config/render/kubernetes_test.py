"""Manifests: as the official client reads them, and as their pods would run."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from kubernetes.client import ApiClient

from tf_config import ClusterConfigError
from tf_config.render import KubernetesJob
from tf_config.roles import Roles

ROOT = Path(__file__).resolve().parents[3]
MODELS = {"Service": "V1Service", "NetworkPolicy": "V1NetworkPolicy", "Job": "V1Job"}
JOBS = [
    KubernetesJob(Roles(1), ("train.py",), "train", "image"),
    KubernetesJob(
        Roles(2, 1, True, True), ("python", "-m", "train", "--x", "on"), "t2", "host:5/i@sha256:0",
        namespace="team-a", cpus=4, gpus=2, memory="1.5Gi", port=3333,
        options=("--start-timeout", "600"),
    ),
]  # fmt: skip


def documents(job):
    return list(yaml.safe_load_all(job.manifest()))


def through_the_client(document):
    """Returns what is left of a document that the official client has read and written."""
    client = ApiClient()
    model = MODELS[document["kind"]]
    read = client.deserialize(json.dumps(document), model, "application/json")
    return client.sanitize_for_serialization(read)


@pytest.mark.parametrize("job", JOBS)
def test_the_official_client_reads_every_field(job):
    kinds = [document["kind"] for document in documents(job)]
    assert kinds[:3] == ["Service", "NetworkPolicy", "Job"]
    for document in documents(job):
        assert through_the_client(document) == document


@pytest.mark.parametrize("text", ["1e-3", "y", "N", "0o17", "1.", "+.5", "1_000", "on", "0x1F"])
def test_texts_that_kubectl_reads_as_something_else_are_quoted(text):
    command = ("python", "-m", "train", "--rate", text)
    manifest = KubernetesJob(Roles(1), command, "train", "image").manifest()
    assert f"- '{text}'\n" in manifest


def test_a_misspelt_field_would_be_seen():
    service, policy, job = documents(JOBS[0])
    job["spec"]["completionsMode"] = job["spec"].pop("completionMode")
    service["spec"]["ports"][0]["targetport"] = 1
    assert through_the_client(job) != job
    assert through_the_client(service) != service
    policy["spec"]["policytypes"] = policy["spec"].pop("policyTypes")
    assert through_the_client(policy) != policy


def pods(job):
    """Yields each pod's container, with the host name and variables that Kubernetes gives it."""
    for document in documents(job)[2:]:
        template = document["spec"]["template"]
        (container,) = template["spec"]["containers"]
        for index in range(document["spec"]["completions"]):
            hostname = f"{document['metadata']['name']}-{index}"
            variables = {
                entry["name"]: entry["value"] for entry in container["env"] if "value" in entry
            }
            variables |= {"HOSTNAME": hostname, "JOB_COMPLETION_INDEX": str(index)}
            yield container, f"{hostname}.{template['spec']['subdomain']}", variables


def expanded(word, variables):
    """Returns a word of a command as Kubernetes passes it on."""
    return re.sub(
        r"\$\$|\$\(([^)]*)\)",
        lambda found: "$" if found[0] == "$$" else variables.get(found[1], found[0]),
        word,
    )


def test_every_pod_finds_its_place_in_the_one_cluster(tmp_path):
    # A ps task serves in place of the program; here what serves says the same as the program.
    served = tmp_path / "strategies"
    served.mkdir()
    (served / "__init__.py").touch()
    code = "import os, sys; print(os.environ['TF_CONFIG']); print(sys.argv[1:])"
    words = ["$(HOSTNAME)", "$$", "a $x", "no", "line\nline", "é"]
    job = KubernetesJob(
        Roles(2, 1, True, True), (sys.executable, "-c", code, *words), "train", "image",
        cpus=3, port=3333,
    )  # fmt: skip
    said = f"import os; print(os.environ['TF_CONFIG']); print({words!r})"
    (served / "serve.py").write_text(said, encoding="utf-8")
    clusters, tasks = [], set()
    for container, name, variables in pods(job):
        command = [expanded(word, variables) for word in container["command"]]
        assert command[0] == "tf-config"
        result = subprocess.run(
            [sys.executable, "-m", "tf_config", *command[1:]],
            env={**variables, "PYTHONPATH": f"{tmp_path}:{ROOT}", "PYTHONUTF8": "1"},
            cwd=tmp_path,
            timeout=60,
            capture_output=True,
            text=True,
            encoding="utf-8",
        )
        assert result.returncode == 0, result.stderr
        config, arguments = result.stdout.splitlines()
        assert arguments == str(words)
        cluster, task = json.loads(config)["cluster"], json.loads(config)["task"]
        clusters.append(cluster)
        tasks.add((task["type"], task["index"]))
        if task["type"] != "evaluator":
            assert cluster[task["type"]][task["index"]] == f"{name}:3333"
    assert tasks == {
        ("chief", 0), ("worker", 0), ("worker", 1), ("ps", 0), ("evaluator", 0),
    }  # fmt: skip
    assert all(cluster == clusters[0] for cluster in clusters)
    assert {name: len(members) for name, members in clusters[0].items()} == {
        "chief": 1,
        "worker": 2,
        "ps": 1,
    }


def test_the_service_finds_the_pods_and_they_their_names():
    service, policy, *jobs = documents(JOBS[1])
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert [port["port"] for port in service["spec"]["ports"]] == [3333]
    assert [job["metadata"]["name"] for job in jobs] == [
        "t2-chief", "t2-worker", "t2-ps", "t2-evaluator",
    ]  # fmt: skip
    for job in jobs:
        spec = job["spec"]
        assert spec["completionMode"] == "Indexed"
        assert spec["completions"] == spec["parallelism"]
        assert spec["backoffLimit"] == 0
        assert spec["template"]["spec"]["restartPolicy"] == "Never"
        assert spec["template"]["spec"]["subdomain"] == service["metadata"]["name"]
        labels = spec["template"]["metadata"]["labels"]
        assert service["spec"]["selector"].items() <= labels.items()
    assert {document["metadata"]["namespace"] for document in [service, policy, *jobs]} == {
        "team-a"
    }


def test_only_pods_of_the_job_reach_its_pods():
    policy, *jobs = documents(JOBS[1])[1:]
    own = policy["spec"]["podSelector"]["matchLabels"]
    assert policy["spec"]["policyTypes"] == ["Ingress"]
    assert policy["spec"]["ingress"] == [{"from": [{"podSelector": {"matchLabels": own}}]}]
    for job in jobs:
        assert own.items() <= job["spec"]["template"]["metadata"]["labels"].items()
    assert own["app.kubernetes.io/instance"] == "t2"  # or all jobs would reach each other


def test_the_secret_is_no_part_of_the_manifest(monkeypatch):
    monkeypatch.setenv("KERAS_STRATEGIES_SECRET", "a secret of this machine")
    assert "a secret of this machine" not in JOBS[1].manifest()
    for container, _, _ in pods(JOBS[1]):
        (entry,) = [each for each in container["env"] if "value" not in each]
        assert entry["name"] == "KERAS_STRATEGIES_SECRET"
        assert entry["valueFrom"]["secretKeyRef"] == {
            "name": "t2", "key": "secret", "optional": True,
        }  # fmt: skip


def test_parameter_servers_get_no_gpus():
    limits = {
        container["name"]: container["resources"]["limits"] for container, _, _ in pods(JOBS[1])
    }
    computing = {"cpu": "4", "memory": "1.5Gi", "nvidia.com/gpu": "2"}
    assert limits == {
        "chief": computing,
        "worker": computing,
        "evaluator": computing,
        "ps": {"cpu": "4", "memory": "1.5Gi"},
    }
    assert "resources" not in documents(JOBS[0])[2]["spec"]["template"]["spec"]["containers"][0]


def test_the_first_line_says_how_to_end_what_does_not_end_by_itself():
    def first(roles):
        return KubernetesJob(roles, ("x",), "train", "image").manifest().splitlines()[0]

    assert first(Roles(2)).startswith("# Before you start the job again")
    assert "The ps tasks may keep running" in first(Roles(2, 1))
    assert "The ps and evaluator tasks may keep running" in first(Roles(2, 1, evaluator=True))
    for roles in (Roles(2), Roles(2, 1)):
        assert first(roles).endswith("kubectl delete -f FILE")


def test_a_manifest_has_no_references():
    assert not re.search(r"[&*]id\d", JOBS[1].manifest())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "Train"}, "A name must consist of lowercase letters"),
        ({"name": "-train"}, "A name must consist of lowercase letters"),
        ({"name": "train-"}, "A name must consist of lowercase letters"),
        ({"name": "1train"}, "or begin with a digit. Received: '1train'"),
        ({"name": "a.b"}, "A name must consist of lowercase letters"),
        ({"name": "train\n"}, "A name must consist of lowercase letters"),
        ({"name": ""}, "A name must consist of lowercase letters"),
        ({"name": "t" * 55}, "The name of a pod cannot exceed 63 characters"),
        ({"image": ""}, "An image must be a name without spaces"),
        ({"image": "a b"}, "An image must be a name without spaces"),
        ({"namespace": "A"}, "A namespace must consist of lowercase letters"),
        ({"namespace": "n" * 64}, "or exceed 63 characters"),
        ({"memory": "4GB"}, "Memory must be a number with a unit of Kubernetes. Received: '4GB'"),
        ({"memory": "0Gi"}, "Memory must be a number with a unit"),
        ({"port": 0}, "A port must be from 1 to 65535. Received: 0"),
        ({"port": 65536}, "A port must be from 1 to 65535"),
        ({"program": ()}, "A program must be given"),
        ({"program": ("x", "\udcff")}, "must be text in UTF-8"),
    ],
)
def test_wrong_input(changes, message):
    right = {"roles": Roles(2), "program": ("x",), "name": "train", "image": "image"}
    with pytest.raises(ClusterConfigError) as error:
        KubernetesJob(**(right | changes))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_the_longest_name_that_is_right():
    name = "t" * (63 - len("-worker-10"))
    KubernetesJob(Roles(11), ("x",), name, "image")
    with pytest.raises(ClusterConfigError, match="which has 64"):
        KubernetesJob(Roles(11), ("x",), name + "t", "image")
