"""Runs command lines in forked processes of one that has everything imported: a fresh process in milliseconds.

Started as ``python -m tests.support.bad_inputs.server``; reads a JSON request a line, answers a JSON line. The child of
a request has its own limits of memory and file size, its own folder and its own temporary folder. The answer says how
much processor time it took; what is not done after ``_HANGS`` seconds is killed.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import resource
import signal
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

_HANGS = 300.0


def _import_everything() -> None:
    import importlib

    for name in (
        "torch.export",
        "torch._export.serde.serialize",
        "onnx.version_converter",
        "llvmlite.binding",
        "lowerkit.capture.onnx.capture",
        "lowerkit.capture.load_model",
        "lowerkit.capture.torchscript.capture",
        "lowerkit.capture.program_cache",
        "lowerkit.compiler",
        "lowerkit.targets.cpu.target",
        "lowerkit.targets.cpu.families",
        "lowerkit.artifact.writer",
        "lowerkit.runtimes.verify",
        "lowerkit.parity.check",
        *(f"lowerkit.cli.{command}_command" for command in ("compile", "run", "inspect", "verify", "check")),
    ):
        importlib.import_module(name)
    from lowerkit.pipeline import STAGES, stage_passes

    for stage in STAGES[1:-1]:
        stage_passes(stage)


_GRAPH = """<ir_version: 10, opset_import: ["" : 21]> g (float[2, 3] x) => (float[2, 3] y) { y = Exp (x) }"""


def _compile_each_kind() -> None:
    """Compiles a model of each kind, so that no request does again what the first compilation of a process does.

    They are other models than those of the requests: these must find none of their results in a cache.
    """
    import onnx.parser
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh()).eval()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        paths = [Path(folder) / f"model.{kind}" for kind in ("pt2", "pt", "onnx")]
        torch.export.save(torch.export.export(model, (torch.ones(2, 3),)), paths[0])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.jit.save(torch.jit.trace(model, torch.ones(2, 3)), paths[1])
        onnx.save(onnx.parser.parse_model(_GRAPH), paths[2])
        made = Path(folder) / "made.lk"
        for path in paths:
            given = ("--input", "input:2x3:f32") if path.suffix == ".pt" else ()
            _command("compile", str(path), *given, "-o", str(made), "--no-cache", "-q")
            _command("verify", str(made))
            made.unlink()  # it was made


def _command(*arguments: str) -> None:
    from lowerkit.cli.main import main

    sys.argv = ["lowerkit", *arguments]
    with contextlib.suppress(SystemExit):
        main()


def _address_space() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()


def _child(request: dict[str, Any]) -> None:
    """Becomes the command; does not return."""
    os.setsid()
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        file = os.open(request[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, descriptor)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(request["folder"])
    os.environ.update(request["environment"])
    limit = _address_space() + request["megabytes"] * (1 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if request["file_bytes"] is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (request["file_bytes"], request["file_bytes"]))
    if request["kill_at"] is not None:
        _die_at(request["kill_at"])
    if request["change"] is not None:
        _change_after_capture(*request["change"])
    tempfile.tempdir = None
    sys.argv = ["lowerkit", *request["arguments"]]
    from lowerkit.cli.main import main

    code = 99
    try:
        main()
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else 0
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _die_at(count: int) -> None:
    """Ends the process with SIGKILL at the ``count``-th call that writes an output."""
    calls = 0

    def wrapped(function: Any) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == count:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **named)

        return call

    for name in ("open", "fsync", "link", "rename", "fdopen"):
        setattr(os, name, wrapped(getattr(os, name)))


def _change_after_capture(how: str, name: str) -> None:
    """Changes a file as soon as the model is captured and lowered, before its kernels are made."""
    from lowerkit.codegen import assemble

    right: Any = assemble.compile_stages

    def compile_after(*arguments: Any, **named: Any) -> Any:
        path = Path(name)
        data = path.read_bytes()
        match how:
            case "truncate":
                os.truncate(path, 10)
            case "rewrite":
                path.write_bytes(bytes(len(data)))
            case "append":
                with path.open("ab") as file:
                    file.write(b"more")
            case "replace":
                path.with_name("other").write_bytes(data)
                path.with_name("other").rename(path)
            case _:
                path.unlink()
        return right(*arguments, **named)

    assemble.compile_stages = compile_after


def _wait(children: dict[int, float]) -> list[dict[str, Any]]:
    answers: dict[int, dict[str, Any]] = {}
    started = dict(children)
    while len(answers) < len(children):
        for child in list(children):
            if child in answers:
                continue
            done, status, usage = os.wait4(child, os.WNOHANG)
            elapsed = time.monotonic() - started[child]
            if done:
                answers[child] = {
                    "code": os.waitstatus_to_exitcode(status),
                    "seconds": usage.ru_utime + usage.ru_stime,
                    "megabytes": usage.ru_maxrss >> 10,
                }
            elif elapsed > _HANGS:
                os.killpg(child, signal.SIGKILL)
                os.waitpid(child, 0)
                answers[child] = {"code": "timeout", "seconds": elapsed, "megabytes": 0}
        time.sleep(0.002)
    return [answers[child] for child in children]


def main() -> None:
    """Serves until its input ends."""
    _import_everything()
    _compile_each_kind()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        requests: list[dict[str, Any]] = json.loads(line)
        children: dict[int, float] = {}
        for request in requests:
            child = os.fork()
            if child == 0:
                _child(request)
            children[child] = time.monotonic()
        sys.stdout.write(json.dumps(_wait(children)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
