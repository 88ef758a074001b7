"""Each rule of the lint on a few instructions: what it needs, what satisfies it, and along which paths."""

from __future__ import annotations

import pytest

from lowerkit.runtimes.cuda.simulated.faults import UnknownPtx
from lowerkit.runtimes.cuda.simulated.ordering_lint import check
from tests.unit.runtimes.cuda.ptx_programs import kernel

HEAD = """
  .reg .pred %p<4>; .reg .b32 %r<20>; .reg .b64 %d<9>; .reg .b32 %f<8>; .reg .b32 %a<4>;
  .shared .align 1024 .b8 data[8192]; .shared .align 8 .b8 bar[8];
  mov.u32 %r0, %tid.x; mov.u32 %r1, data; shl.b32 %r2, %r0, 2; add.u32 %r3, %r1, %r2;
"""
_D = "{%f0, %f1, %f2, %f3}"
PRODUCT = f"wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {_D}, %d0, %d1, %p0, 1, 1, 0, 0;"
WITH_REGISTERS = f"wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {_D}, {{%a0, %a1, %a2, %a3}}, %d1, %p0, 1, 1, 0;"
FENCE, COMMIT = "wgmma.fence.sync.aligned;", "wgmma.commit_group.sync.aligned;"
WAIT = "wgmma.wait_group.sync.aligned 0;"
WHOLE = f"{FENCE} {PRODUCT} {COMMIT} {WAIT}"
BLACKWELL = "tcgen05.mma.cta_group::1.kind::f16 [%r5], %d0, %d1, %r6, %p0;"
STORE = "st.shared.u32 [%r3], %r0;"
PROXY = "fence.proxy.async.shared::cta;"
BULK = "cp.async.bulk.global.shared::cta.bulk_group [%d2], [%r1], 512;"
LOAD = "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r1], [%d2], 512, [%r4];"
COPY = "cp.async.cg.shared.global [%r3], [%d2], 16;"


def rules(body: str) -> list[str]:
    """Returns the rule of every finding."""
    return [finding.rule for finding in check(kernel(HEAD + body + "\n ret;"))]


@pytest.mark.parametrize("use", [BULK, WHOLE, LOAD, BLACKWELL])
@pytest.mark.parametrize(
    "write",
    [
        STORE,
        "stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r3], {%r0};",
        "red.shared.add.u32 [%r3], 1;",
        f"{COPY} cp.async.commit_group; cp.async.wait_group 0;",
        f"{COPY} cp.async.wait_all;",
        "tensormap.replace.tile.rank.shared::cta.b1024.b32 [%d3], 1;",
    ],
)
def test_writes_of_threads_are_fenced(write: str, use: str) -> None:
    assert rules(f"{write} bar.sync 0; {use}") == ["shared_writes"]
    assert rules(f"{write} {PROXY} bar.sync 0; {use}") == []
    assert rules(f"{write} fence.proxy.async; bar.sync 0; {use}") == []
    assert rules(f"{write} fence.proxy.async.global; bar.sync 0; {use}") == ["shared_writes"]
    assert rules(f"@%p0 {PROXY} {write} {use}") == ["shared_writes"]
    assert rules(use) == []


def test_a_copy_of_threads_is_fenced_behind_its_wait() -> None:
    assert rules(f"{COPY} cp.async.commit_group; {PROXY} cp.async.wait_group 0; {BULK}") == ["shared_writes"]
    assert rules(f"{COPY} cp.async.commit_group; cp.async.wait_group 1; {PROXY} {BULK}") == []
    again = f"{COPY} cp.async.commit_group; cp.async.wait_group 1; {PROXY} cp.async.wait_group 0; {BULK}"
    assert rules(again) == ["shared_writes"]


def test_all_paths_count() -> None:
    """Around a branch, over a loop's back edge, and through a table of labels."""
    around = f"{STORE} @%p1 bra $skip; {PROXY}\n$skip: {BULK}"
    assert rules(around) == ["shared_writes"]
    assert rules(f"{STORE} @%p1 bra $other; {PROXY} bra $join;\n$other: {PROXY}\n$join: {BULK}") == []
    assert rules(f"$loop: {BULK} {STORE} @%p1 bra $loop;") == ["shared_writes"]
    assert rules(f"$loop: {BULK} {STORE} {PROXY} @%p1 bra $loop;") == []
    table = "$t: .branchtargets $x, $y;\n brx.idx %r0, $t;\n"
    assert rules(f"{STORE} {table} $x: {PROXY} bra $z;\n$y: mov.u32 %r5, 0;\n$z: {BULK}") == ["shared_writes"]
    assert rules(f"{STORE} ret; {BULK}") == []
    assert rules(f"{STORE} @%p1 exit; {BULK}") == ["shared_writes"]


def test_places_that_are_known_to_be_apart() -> None:
    apart = "add.u32 %r5, %r1, 4096; cp.async.bulk.global.shared::cta.bulk_group [%d2], [%r5], 512;"
    assert (
        rules(f"and.b32 %r6, %r0, 127; shl.b32 %r7, %r6, 2; add.u32 %r8, %r1, %r7; st.shared.u32 [%r8], 1; {apart}")
        == []
    )
    assert rules(f"{STORE} {apart.replace('4096', '4092')}") == ["shared_writes"]  # up to 1023 threads, 4 bytes each
    assert rules(f"{STORE} {apart}") == []
    below = "mov.u32 %r4, bar; mbarrier.arrive.expect_tx.shared.b64 _, [%r4], 512;" + LOAD
    assert rules(f"st.shared.u32 [%r3+512], %r0; {below}") == []
    assert rules(f"st.shared.u32 [%r3+508], %r0; {below}") == ["shared_writes"]
    assert rules(f"add.u32 %r3, %r3, 4; {STORE} {apart}") == ["shared_writes"]  # of two definitions nothing is known


def test_the_bytes_of_an_mbarrier_that_has_ended_are_fenced() -> None:
    end = "mov.u32 %r4, data; mbarrier.inval.shared.b64 [%r4]; bar.sync 0;"
    assert rules(f"{end} {BULK}") == ["shared_writes"]
    assert rules(f"{end} {PROXY} {BULK}") == []
    assert rules(f"{end.replace('data', 'bar')} {BULK}") == []


def test_a_word_at_a_fixed_place_is_no_tile() -> None:
    assert rules(f"st.shared.u32 [data+4096], %r0; {WHOLE}") == []
    assert rules(f"st.shared.u32 [data+4096], %r0; {BULK}") == []
    assert rules(f"st.shared.u32 [data], %r0; {BULK}") == ["shared_writes"]


@pytest.mark.parametrize(
    ("gives", "takes"),
    [
        (
            "mbarrier.arrive.shared.b64 _, [%r4];",
            "$w: mbarrier.try_wait.parity.shared.b64 %p2, [%r4], 0; @!%p2 bra $w;",
        ),
        ("bar.sync 2, 256;", "barrier.sync 2, 256;"),
    ],
)
def test_what_other_warps_wrote_is_fenced(gives: str, takes: str) -> None:
    tasks = f"mov.u32 %r4, bar; @%p1 bra $other; {STORE} {{}} {gives} ret;\n$other: {takes} {{}} "
    assert rules(tasks.format("", "") + WHOLE) == ["shared_writes"]
    assert rules(tasks.format(PROXY, "") + WHOLE) == []
    assert rules(tasks.format("", PROXY) + WHOLE) == []
    assert (
        rules(tasks.format("", "").replace("2, 256; ret", "3, 256; ret").replace("arrive", "expect_tx") + WHOLE) == []
    )


def test_registers_are_fenced_before_a_product() -> None:
    assert rules(f"{PRODUCT} {COMMIT} {WAIT}") == ["product_registers"]
    assert rules(WHOLE) == []
    assert rules(f"{FENCE} mov.b32 %f1, 0; {PRODUCT} {COMMIT} {WAIT}") == ["product_registers"]
    assert rules(f"{WHOLE} mov.b32 %r5, %f1; {PRODUCT} {COMMIT} {WAIT}") == ["product_registers"]
    assert rules(f"{WHOLE} mov.b32 %r5, %f4; {PRODUCT} {COMMIT} {WAIT}") == []
    assert rules(f"{FENCE} mov.b32 %a2, 0; {WITH_REGISTERS} {COMMIT} {WAIT}") == ["product_registers"]
    assert rules(f"{FENCE} mov.b32 %a2, 0; {PRODUCT} {COMMIT} {WAIT}") == []
    assert rules(f"$loop: {PRODUCT} {COMMIT} {WAIT} @%p1 bra $loop;") == ["product_registers"]
    assert rules(f"{FENCE}\n$loop: {PRODUCT} {COMMIT} {WAIT} @%p1 bra $loop;") == []
    assert rules(f"{FENCE}\n$loop: {PRODUCT} {COMMIT} {WAIT} mov.b32 %r5, %f0; @%p1 bra $loop;") == [
        "product_registers"
    ]


def test_registers_are_left_alone_until_the_wait() -> None:
    begun = f"{FENCE} {PRODUCT}"
    read, write = "mov.b32 %r5, %f3;", "mov.b32 %f3, 0;"
    for use in (read, write, "@%p1 mov.b32 %f3, 0;", "st.shared.u32 [%f2], 0;"):
        assert rules(f"{begun} {use}") == ["product_registers"]
        assert rules(f"{begun} {COMMIT} {use}") == ["product_registers"]
        assert rules(f"{begun} {WAIT} {use}") == ["product_registers"]
        assert rules(f"{begun} {COMMIT} {WAIT} {use}") == []
    assert rules(f"{FENCE} {WITH_REGISTERS} mov.b32 %r5, %a1; {COMMIT} {WAIT}") == []
    assert rules(f"{FENCE} {WITH_REGISTERS} mov.b32 %a1, 0; {COMMIT} {WAIT}") == ["product_registers"]
    earlier = f"{begun} {COMMIT} {COMMIT} wgmma.wait_group.sync.aligned"
    assert rules(f"{earlier} 1; {read}") == []
    assert rules(f"{earlier} 2; {read}") == ["product_registers"]
    branch = f"{begun} {COMMIT} @%p1 bra $skip; {WAIT}\n$skip: {read}"
    assert rules(branch) == ["product_registers"]


def test_products_of_one_shape_may_follow_one_another() -> None:
    assert rules(f"{FENCE} {PRODUCT} {PRODUCT} {COMMIT} {WAIT}") == []
    other = PRODUCT.replace(_D, "{%f2, %f3, %f4, %f5}")
    assert rules(f"{FENCE} {PRODUCT} {other} {COMMIT} {WAIT}") == ["product_registers"]
    factor = WITH_REGISTERS.replace(_D, "{%f4, %f5, %f6, %f7}").replace("%a1", "%f1")
    assert rules(f"{FENCE} {PRODUCT} {factor} {COMMIT} {WAIT}") == ["product_registers"]


@pytest.mark.parametrize(
    "use",
    [
        LOAD,
        "mbarrier.arrive.shared.b64 _, [%r4];",
        "mbarrier.try_wait.parity.shared.b64 %p1, [%r4], 0;",
        "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r4];",
    ],
)
def test_an_mbarrier_is_ordered_behind_its_making(use: str) -> None:
    make = "mov.u32 %r4, bar; @%p0 mbarrier.init.shared.b64 [%r4], 1;"
    assert rules(f"{make} {use}") == ["barrier_inits"]
    for order in ("bar.sync 0;", "barrier.sync 1, 64;", "fence.mbarrier_init.release.cluster;", PROXY):
        assert rules(f"{make} {order} {use}") == []
    assert rules(f"{make} bar.warp.sync -1; {use}") == ["barrier_inits"]


def test_a_tensor_map_is_fenced_behind_its_change() -> None:
    copy = "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%d4], [%d5], 128;"
    fence = "fence.proxy.tensormap::generic.acquire.gpu [%d4], 128;"
    use = "cp.async.bulk.tensor.1d.global.shared::cta.bulk_group [%d6, {%r0}], [%r1];"
    same = "mov.b64 %d4, %d3; cvta.global.u64 %d6, %d4;"
    assert rules(f"{same} {copy} {use}") == ["map_changes"]
    assert rules(f"{same} {copy} {fence} {use}") == []
    assert rules(f"{same} @%p0 {copy} @%p0 {fence} {use}") == []
    assert rules(f"{same} {copy} @%p0 {fence} {use}") == ["map_changes"]
    assert rules(f"{same} {copy} {fence.replace('%d4', '%d4+128')} {use}") == ["map_changes"]
    assert rules(f"{same} {copy} {fence.replace('acquire.gpu [%d4], 128', 'release.gpu')} {use}") == ["map_changes"]
    assert rules(f"add.s64 %d4, %d3, 128; cvta.global.u64 %d6, %d3; {copy} {use}") == []  # another map
    assert rules(f"{same} tensormap.replace.tile.rank.global.b1024.b32 [%d4], 1; {use}") == ["map_changes"]
    assert rules(f"{copy} {use}") == ["map_changes"]  # maps that may be one


def test_a_finding_says_where() -> None:
    ptx = kernel(HEAD + f".loc 1 7 1\n{STORE}\n.loc 1 9 1\n{BULK}\n ret;") + '.file 1 "/somewhere/model.py"\n'
    (finding,) = check(ptx)
    line = kernel(HEAD).count("\n", 0, kernel(HEAD).index(HEAD[-20:])) + HEAD[-20:].count("\n") + 2
    assert (finding.since, finding.line) == (line, line + 2)
    assert finding.source == "model.py:9" and finding.kernel == "k"
    assert str(finding) == (
        f"kernel k, PTX line {line + 2} (model.py:9): fence.proxy.async is missing before a bulk copy, behind a write "
        f"to shared memory by threads (line {line})"
    )
    (first,) = check(kernel(HEAD + f"{PRODUCT} {COMMIT} {WAIT} ret;"))
    assert first.since == 0 and str(first).endswith("wgmma.fence is missing before wgmma, the first in the kernel")


def test_labels_that_are_not_known() -> None:
    with pytest.raises(UnknownPtx, match="label 'there' is not known"):
        check(kernel("bra there;"))
    assert check(kernel("ret;")) == []
