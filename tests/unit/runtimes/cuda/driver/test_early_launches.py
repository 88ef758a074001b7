"""Launches that start before the one in front of them ends: griddepcontrol, and what must not stand before its wait."""

from __future__ import annotations

import numpy as np
import pytest

from lowerkit.runtimes.cuda.simulated import LaunchBuffer, LaunchTensorMap, SimulatedGpu
from lowerkit.runtimes.cuda.simulated.faults import KernelFault, UnknownPtx
from lowerkit.runtimes.cuda.simulated_driver import SimulatedDriver
from tests.unit.runtimes.cuda.ptx_programs import assemble, kernel, run_on_words

WAIT = "griddepcontrol.wait;"
HEAD = """.reg .b64 %a;
.reg .b32 %v, %t;
.reg .pred %q;
.shared .align 128 .b8 room[1024];
ld.param.b64 %a, [p];
mov.u32 %t, %tid.x;
mov.b32 %v, 7;
"""
STORE = "st.global.b32 [%a], %v;"


def run(body: str, *, early: bool = True, parameters: str = ".param .u64 p, .param .align 64 .b8 m[128]") -> None:
    ptx = kernel(HEAD + body + "\nret;", parameters)
    assemble(ptx)
    gpu = SimulatedGpu(refuse_unwritten=True)
    address = gpu.allocate(1024)
    gpu.write(address, bytes(1024))
    buffer = LaunchBuffer(address, 1024, "result 0")
    tensor = LaunchTensorMap(buffer, (16, 4), (64,), (16, 4), 7)
    gpu.launch(gpu.load(ptx).kernels["k"], [2], [32], [buffer, tensor], early=early)


def test_a_wait_changes_no_value() -> None:
    body = f"{HEAD}{WAIT}\ngriddepcontrol.launch_dependents;\n{STORE}\nret;"
    assert run_on_words(kernel(body, ".param .u64 p"), 1).tolist() == [7]


@pytest.mark.parametrize("early", [False, True])
def test_a_thread_that_waits_before_its_first_access(early: bool) -> None:
    run(f"{WAIT}\ngriddepcontrol.launch_dependents;\n{STORE}", early=early)
    run(f"griddepcontrol.launch_dependents;\nst.shared.b32 [room], %t;\n{WAIT}\n{STORE}", early=early)


COMPLETION = "mbarrier::complete_tx::bytes"
ACCESSES = {
    "ld.global.b32 %v, [%a];": "reads 4 bytes",
    STORE: "writes 4 bytes",
    "st.b32 [%a], %v;": "writes 4 bytes",
    "atom.global.add.u32 %v, [%a], 1;": "changes 4 bytes",
    "red.global.add.u32 [%a], 1;": "changes 4 bytes",
    "cp.async.ca.shared.global [room], [%a], 4;": "reads 4 bytes",
    "@%q cp.async.bulk.global.shared::cta.bulk_group [%a], [room], 16;": "begins a copy to global memory",
    "@%q cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [m2, {%v, %v}], [room];": "begins a copy",
    f"@%q cp.async.bulk.shared::cluster.global.{COMPLETION} [room], [%a], 16, [room+512];": "copies from",
}


@pytest.mark.parametrize("access", ACCESSES)
def test_an_access_before_the_wait(access: str) -> None:
    before = "setp.eq.u32 %q, %t, 0;\nmov.b32 %v, 0;\n.reg .b64 m2;\nmov.b64 m2, m;\ncvta.param.u64 m2, m2;"
    with pytest.raises(KernelFault, match="has not run griddepcontrol.wait") as caught:
        run(f"{before}\n{access}\n{WAIT}")
    assert ACCESSES[access] in caught.value.message
    assert caught.value.op is not None and "PTX line" in caught.value.op and access.split(" ", 1)[1] in caught.value.op


def test_some_threads_wait_and_others_do_not() -> None:
    skipped = f"setp.eq.u32 %q, %t, 3;\n@%q bra OVER;\n{WAIT}\nOVER:\n"
    with pytest.raises(KernelFault, match="has not run griddepcontrol.wait"):
        run(skipped + STORE)
    with pytest.raises(KernelFault, match=r"thread \(3, 0, 0\) of block \(0, 0, 0\) ends without griddepcontrol.wait"):
        run(skipped)


def test_a_kernel_that_never_waits() -> None:
    with pytest.raises(KernelFault, match="kernel k: .* ends without griddepcontrol.wait") as caught:
        run("st.shared.b32 [room], %v;")
    assert caught.value.hint is not None and "not launched early" in caught.value.hint
    run("st.shared.b32 [room], %v;", early=False)


def test_a_graph_keeps_what_is_early() -> None:
    driver = SimulatedDriver()
    ptx = kernel(f"{HEAD}{STORE}\n{WAIT}\nret;", ".param .u64 p")
    loaded = driver.kernel(driver.load(ptx.encode(), b"", "sm_90"), "k")
    buffer = LaunchBuffer(driver.allocate(256), 4, "result 0")
    driver.launch(loaded, 1, 1, 0, [buffer], 0)
    driver.begin_capture(0)
    driver.launch(loaded, 1, 1, 0, [buffer], 0, early=True)
    graph = driver.end_capture(0)
    with pytest.raises(KernelFault, match="has not run griddepcontrol.wait"):
        driver.launch_graph(graph, 0)
    found = np.zeros(4, np.uint8)
    driver.read(found, buffer.address, 0)
    assert found.view(np.int32).tolist() == [7]


@pytest.mark.parametrize("form", ["griddepcontrol;", "griddepcontrol.wait.sync;", "griddepcontrol.wait %v;"])
def test_forms_that_are_not_known(form: str) -> None:
    with pytest.raises(UnknownPtx):
        SimulatedGpu().load(kernel(f"{HEAD}{form}\nret;", ".param .u64 p"))
