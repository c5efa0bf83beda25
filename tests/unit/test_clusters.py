"""Covers the files for clusters: each is what its own tool reads, and starts `grpo launch` with flags that it has."""

import importlib.util
import re
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from qwen_vl_grpo.cli import app

CLUSTERS = Path(__file__).resolve().parents[2] / "clusters"
SCRIPTS = [CLUSTERS / "slurm.sbatch", *sorted((CLUSTERS.parent / "scripts").glob("*.sh"))]
VERSION = "1.33"
"""Of Kubernetes: one that clusters have by now; what is used here is far older."""


def test_slurm_reads_its_options_before_the_first_command():
    lines = (CLUSTERS / "slurm.sbatch").read_text(encoding="utf-8").splitlines()
    first = next(number for number, line in enumerate(lines) if line and not line.startswith("#"))
    options = [line for line in lines if line.startswith("#SBATCH ")]
    assert options == [line for line in lines[:first] if line.startswith("#SBATCH ")]
    assert all(re.fullmatch(r"#SBATCH --[a-z-]+(=\S+)?", line) for line in options)
    assert {"#SBATCH --requeue", "#SBATCH --signal=B:USR1@300", "#SBATCH --ntasks-per-node=1"} <= set(options)


def test_the_jobset_is_consistent_in_itself():
    jobset = yaml.safe_load((CLUSTERS / "jobset.yaml").read_text(encoding="utf-8"))
    assert (jobset["apiVersion"], jobset["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    (group,) = jobset["spec"]["replicatedJobs"]
    job = group["template"]["spec"]
    pod = job["template"]["spec"]
    (container,) = pod["containers"]
    nodes = next(variable["value"] for variable in container["env"] if variable["name"] == "NODES")
    assert job["parallelism"] == job["completions"] == int(nodes)
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    assert f"{jobset['metadata']['name']}-{group['name']}-0-0.{jobset['metadata']['name']}:" in container["args"][-1]
    assert pod["terminationGracePeriodSeconds"] == 300


def told_by_kubernetes(manifest):
    """Raise what an API server would: a field that it does not know, or one that is missing or of another type."""
    validator = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed here: make setup")
    validator.validate(manifest, VERSION, strict=True)


def test_kubernetes_takes_the_job_in_the_jobset():
    """A JobSet is not Kubernetes' own, and the job that it makes is."""
    jobset = yaml.safe_load((CLUSTERS / "jobset.yaml").read_text(encoding="utf-8"))
    (group,) = jobset["spec"]["replicatedJobs"]
    told_by_kubernetes({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "grpo"}} | group["template"])


def documented_pod():
    text = (CLUSTERS.parent / "docs/containers.md").read_text(encoding="utf-8")
    (pod,) = (yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL))
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "grpo"}} | pod


def test_kubernetes_takes_the_documented_pod():
    pod = documented_pod()
    told_by_kubernetes(pod)
    (container,) = pod["spec"]["containers"]
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["spec"]["volumes"]}


def pod_of_the_jobset():
    jobset = yaml.safe_load((CLUSTERS / "jobset.yaml").read_text(encoding="utf-8"))
    return jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]


@pytest.mark.parametrize("pod", [pod_of_the_jobset, documented_pod])
def test_kubernetes_goes_through_the_entrypoint_and_its_user_may_write_to_the_volumes(pod):
    """`command` replaces the entrypoint, `args` only the CMD; a volume is root's unless the pod says whose group it is."""
    spec = pod()["spec"]
    owner = re.search(r"install -d -o (\d+) -g \1 /workspace", (CLUSTERS.parent / "Dockerfile").read_text(encoding="utf-8"))
    assert owner and spec["securityContext"]["fsGroup"] == int(owner[1])
    assert [container.get("command") for container in spec["containers"]] == [None]
    assert spec["containers"][0]["args"][0] in ("bash", "python3")


@pytest.mark.parametrize("key", ["terminationGracePeriod", "serviceAccount_name"])
def test_a_field_that_kubernetes_does_not_know_would_be_found(key):
    pod = documented_pod()
    pod["spec"][key] = 300
    with pytest.raises(Exception, match=key):
        told_by_kubernetes(pod)


@pytest.mark.skipif(
    importlib.util.find_spec("sky") is None, reason="SkyPilot is not installed here; pip install skypilot brings its parser"
)
def test_skypilot_reads_its_task():
    import sky

    task = sky.Task.from_yaml(str(CLUSTERS / "skypilot.yaml"))
    assert task.num_nodes == 1


def test_every_cluster_starts_the_launcher_with_flags_that_it_has():
    known = set(re.findall(r"--\w+", CliRunner().invoke(app, ["launch", "--help"], env={"COLUMNS": "200"}).output))
    for path in [*CLUSTERS.iterdir(), *SCRIPTS]:
        text = path.read_text(encoding="utf-8")
        for started in re.findall(r"(?:grpo|qwen_vl_grpo) launch((?:[^\n]|\\\n)*)", text):
            assert set(re.findall(r"(?<=\s)--\w+", started)) <= known, path.name
