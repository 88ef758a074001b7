"""Ray Serve and Ray Data in a real local cluster: protocol, limit, a replica that dies, an update, a data set."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from lowerkit.cli.main import cli
from lowerkit.errors import ArtifactError, UnsupportedError, UsageError
from lowerkit.runtimes.session import load
from lowerkit.serving import LowerkitPredictor, deployment
from tests.support.mesh.processes import await_value
from tests.support.ranks import PATIENCE
from tests.support.scale_out.artifacts import numbers, write_counter, write_fixed, write_rows
from tests.support.scale_out.cluster import Answer, Cluster, cluster
from tests.support.scale_out.page import ON_RAY, block, write_files

pytest.importorskip("ray", reason="pip install 'lowerkit[ray]'")
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ray")]

INFER = "/v2/models/rows/infer"


@pytest.fixture(scope="module")
def served() -> Generator[Cluster]:
    with cluster(cpus=4) as made:
        yield made


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_rows(tmp_path_factory.mktemp("served") / "rows.lk")


@pytest.fixture(scope="module")
def rows(served: Cluster, artifact: Path) -> Cluster:
    """Serves ``y = x + z`` by two replicas."""
    from ray import serve

    serve.run(deployment(artifact, replicas=2), name="rows", route_prefix="/")
    return served


def tensor(name: str, array: Any) -> dict[str, Any]:
    return {"name": name, "datatype": "FP32", "shape": list(array.shape), "data": array.ravel().tolist()}


def inference(x: Any, z: Any, **fields: Any) -> dict[str, Any]:
    return {"inputs": [tensor("x", x), tensor("z", z)], **fields}


def output(answer: Answer) -> Any:
    assert answer.status == 200, answer.body
    (row,) = answer.document["outputs"]
    return np.array(row["data"], np.float32).reshape(row["shape"])


def test_routes_of_the_protocol(rows: Cluster, artifact: Path) -> None:
    content_id = load(artifact, threads=1).manifest.content_id
    version = content_id[:12]
    server = rows.ask("/v2").document
    assert server["name"] == "lowerkit" and server["extensions"] == ["binary_tensor_data"]
    assert rows.ask("/v2/health/live").document == {"live": True}
    assert rows.ask("/v2/health/ready").document == {"ready": True}
    assert rows.ask("/v2/models/rows/ready").document == {"name": "rows", "ready": True}
    assert rows.ask(f"/v2/models/rows/versions/{version}/ready").status == 200
    assert rows.ask("/v2/models/rows/versions/0/ready").status == 400
    model = rows.ask("/v2/models/rows").document
    assert model["versions"] == [version] and model["parameters"] == {"content_id": content_id, "batching": "along n"}
    assert model["inputs"][0] == {"name": "x", "datatype": "FP32", "shape": [-1, -1]}
    for path, body, status in (
        ("/v2/models/other", None, 404), ("/v3", None, 404), (INFER, None, 405), ("/v2", {}, 405),
        (INFER, b"{", 400), ("/v2/models/rows/versions/0/infer", inference(numbers(1), numbers(1)), 404),
    ):  # fmt: skip
        answer = rows.ask(path, body)
        assert answer.status == status and answer.document["code"] == "LK1012", (path, answer)


def test_tensors_in_json_and_as_bytes(rows: Cluster) -> None:
    x, z = numbers(3), numbers(3, seed=1)
    answer = rows.ask(INFER, inference(x, z, id="first"))
    assert np.array_equal(output(answer), x + z) and answer.document["id"] == "first"
    parameters = {"binary_data_size": x.nbytes}
    head = json.dumps(
        {
            "inputs": [
                {"name": name, "datatype": "FP32", "shape": [3, 4], "parameters": parameters} for name in ("z", "x")
            ],
            "outputs": [{"name": "y", "parameters": {"binary_data": True}}],
        }
    ).encode()
    answer = rows.ask(INFER, head + z.tobytes() + x.tobytes(), {"Inference-Header-Content-Length": str(len(head))})
    assert answer.status == 200, answer.body
    length = int(answer.headers["Inference-Header-Content-Length"])
    assert answer.body[length:] == (x + z).tobytes()
    assert json.loads(answer.body[:length])["outputs"][0]["parameters"] == {"binary_data_size": x.nbytes}


def test_what_does_not_fit_is_the_clients_error(rows: Cluster) -> None:
    answer = rows.ask(INFER, inference(numbers(3), numbers(2)))
    assert answer.status == 400 and answer.document["code"] == "LK8004"
    assert "input 'z', axis 0: 2, expected n = 3" in answer.document["error"]
    answer = rows.ask(INFER, {"inputs": [tensor("x", numbers(1))]})
    assert answer.status == 400 and "input 'z' is missing" in answer.document["error"]


def test_a_replica_dies_and_the_model_is_replaced_under_load(rows: Cluster, artifact: Path, tmp_path: Path) -> None:
    """No request is lost, none is wrong: each answer is that of the version that it names."""
    from ray import serve

    first = load(artifact, threads=1).manifest.content_id[:12]
    newer = write_rows(tmp_path / "newer.lk", twice=True)
    second = load(newer, threads=1).manifest.content_id[:12]
    stop = threading.Event()
    answers: list[tuple[str, int]] = []

    def client(number: int) -> None:
        for turn in range(100_000):
            if stop.is_set():
                return
            x, z = (numbers(1 + turn % 4, 4 + turn % 2, seed=1000 * number + turn + one) for one in (0, 500))
            answer = rows.ask(INFER, inference(x, z))
            y = output(answer)
            version = answer.document["model_version"]
            assert np.array_equal(y, {first: x + z, second: x + x}[version]), version
            answers.append((version, answer.document["parameters"]["batch_rows"]))
            time.sleep(0.002)

    def more(version: str, count: int) -> None:
        have = sum(one == version for one, _ in answers)
        await_value(lambda: stop.is_set() or sum(one == version for one, _ in answers) >= have + count, f"no {version}")

    with ThreadPoolExecutor(6) as clients:
        running = [clients.submit(client, number) for number in range(6)]
        try:
            more(first, 50)
            before = rows.replicas("rows")
            assert len(before) == 2
            os.kill(before[0], signal.SIGKILL)
            more(first, 100)
            await_value(lambda: set(rows.replicas("rows")) - set(before), "nothing took the dead replica's place")
            shutil.copy(newer, artifact.with_suffix(".new"))
            artifact.with_suffix(".new").rename(artifact)
            serve.run(deployment(artifact, replicas=2), name="rows", route_prefix="/")
            more(second, 50)
        finally:
            stop.set()
        for one in running:
            one.result(PATIENCE)
    versions = [version for version, _ in answers]
    assert {first, second} == set(versions)
    assert max(count for _, count in answers) > 4, "no requests ran together"
    assert rows.ask("/v2/models/rows").document["versions"] == [second]


def test_what_is_too_much_is_sent_away(served: Cluster, tmp_path: Path) -> None:
    from ray import serve

    from tests.support.scale_out.ray_classes import load_gated

    path = write_fixed(tmp_path / "gated.lk")
    application = deployment(path, max_queued=2, max_bytes=1000, loader=load_gated)
    serve.run(application, name="gated", route_prefix="/v2gated")
    try:
        x = numbers(1)[0]
        with ThreadPoolExecutor(12) as clients:
            asked: list[Future[Answer]] = []
            for _ in range(12):
                asked.append(clients.submit(served.ask, "/v2gated/v2/models/gated/infer", inference(x, x)))
                time.sleep(0.1)  # a request that a replica is about to take counts as one that waits
            # At most four are with the replica, and two wait: the others are answered before the gate opens.
            await_value(lambda: sum(one.done() for one in asked) >= 6, "fewer than six requests were sent away")
            path.with_suffix(".go").touch()
            answers = [one.result(PATIENCE) for one in asked]
        refused = [answer for answer in answers if answer.status == 503]
        assert 6 <= len(refused) < 12
        for answer in refused:
            assert answer.headers["Retry-After"] == "1" and answer.document["code"] == "LK7005"
            assert "2 requests wait for the model 'gated', and no more may" in answer.document["error"]
        assert all(np.array_equal(output(answer), x + x) for answer in answers if answer not in refused)
        large = served.ask("/v2gated/v2/models/gated/infer", bytes(1001))
        assert large.status == 413 and "the server takes 1000" in large.document["error"]
        batching = served.ask("/v2gated/v2/models/gated").document["parameters"]["batching"]
        assert batching.startswith("no: no input has a symbolic first dim")
    finally:
        serve.delete("gated")


def test_a_data_set_and_one_copy_of_the_weights(served: Cluster, tmp_path: Path) -> None:
    import ray.data
    from ray.data import ActorPoolStrategy

    from tests.support.scale_out.ray_classes import LookingPredictor

    assert served.port
    path = write_rows(tmp_path / "ballast.lk", most=5, ballast=8 << 20)
    x, z = numbers(60), numbers(60, seed=1)
    items = [{"x": x[row], "z": z[row], "number": row} for row in range(len(x))]
    found = (
        ray.data.from_items(items, override_num_blocks=4)
        .map_batches(LookingPredictor, fn_constructor_args=[str(path)], batch_size=8, compute=ActorPoolStrategy(size=2))
        .take_all()
    )
    assert sorted(int(row["number"]) for row in found) == list(range(60))
    for row in found:
        assert np.array_equal(row["y"], x[int(row["number"])] + z[int(row["number"])])
    kilobytes = [tuple(map(int, file.read_text().split())) for file in tmp_path.glob("*.kb")]
    assert len(kilobytes) == 2 and all(present >= 8 << 10 and own == 0 for present, own in kilobytes), kilobytes


def test_blocks_of_the_page(served: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/scale-out.md: the blocks that need Ray, in its order; test_page.py runs the others."""
    from ray import serve

    serve.delete("rows")  # the page deploys where it was
    write_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    compiling = block("compile").splitlines()[0].split()[1:]
    assert CliRunner().invoke(cli, compiling, catch_exceptions=False).exit_code == 0
    for name in ON_RAY:
        text = block(name).replace("127.0.0.1:8000", f"127.0.0.1:{served.port}").replace('"model.lk"', "str(ARTIFACT)")
        exec(compile(text, name, "exec"), {"ARTIFACT": tmp_path / "model.lk"})


def test_what_cannot_be_deployed_is_refused_at_once(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "m.lk")
    with pytest.raises(UnsupportedError, match="it keeps the state 'sum'"):
        deployment(write_counter(tmp_path / "state.lk"))
    with pytest.raises(UnsupportedError, match="max_batch is 8, and fixed.lk has no batch"):
        deployment(write_fixed(tmp_path / "fixed.lk"), max_batch=8)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"replicas": 0}, "replicas is 0"), ({"batch_wait": -1}, "batch_wait is -1"),
    ]  # fmt: skip
    for options, said in wrong:
        with pytest.raises(UsageError, match=said):
            deployment(path, **options)
    with pytest.raises(ArtifactError, match="LK1001"):
        deployment(tmp_path / "missing.lk")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(ArtifactError, match="LK8001"):
        deployment(path)


def test_columns_of_a_predictor(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "m.lk")
    x = numbers(20)
    predictor = LowerkitPredictor(path, inputs={"x": "a", "z": "a"}, outputs={"y": "sum"}, keep=False)
    (name,) = result = predictor({"a": x})
    assert name == "sum" and np.array_equal(result["sum"], x + x)
    with pytest.raises(UsageError, match="the batch has no column 'a', it has b"):
        predictor({"b": x})
    with pytest.raises(UsageError, match="inputs names 'w', the model has x, z"):
        LowerkitPredictor(path, inputs={"w": "a"})
    with pytest.raises(UsageError, match="the batch has a column 'y' already"):
        LowerkitPredictor(path)({"x": x, "z": x, "y": x})
    with pytest.raises(UnsupportedError, match="LK4008"):
        LowerkitPredictor(write_counter(tmp_path / "state.lk"))
