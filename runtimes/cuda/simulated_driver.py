"""The driver without a card: the PTX of an artifact, launch for launch, on the simulated device.

A launch may touch its own buffers and nothing beside them, may not write its operands, may not read what nothing has
written, and may not access one place by two threads that nothing orders: each is a fault (LK8017) that names the
instruction and the buffer. So are launches and copies of different queues that nothing orders, a graph of launches
whose memory is gone, and reads of a value over which another one was written (:mod:`simulated_values`).
"""

from __future__ import annotations

from collections.abc import Sequence

from lowerkit.errors import ResourceError
from lowerkit.runtimes.cuda.driver import Driver, LaunchBuffer, LaunchTensorMap
from lowerkit.runtimes.cuda.driver_faults import DriverFaults, FaultyCalls
from lowerkit.runtimes.cuda.simulated import Kernel, Module, SimulatedGpu
from lowerkit.runtimes.cuda.simulated.faults import KernelFault
from lowerkit.runtimes.cuda.simulated.queues.launch_graphs import CapturedCopy, CapturedGraph, CapturedLaunch, Forgotten
from lowerkit.runtimes.cuda.simulated.stream_order import Clock, StreamOrder, Touch
from lowerkit.runtimes.cuda.simulated_values import ValuePlaces, words_of
from lowerkit.runtimes.device import Bytes


class Event:
    """A point in a queue; it is waited for once."""

    def __init__(self, clock: Clock) -> None:
        self.clock: Clock | None = clock


class SimulatedDriver(Driver):
    """A device whose queues are empty on return, and which holds calls to what would order them on a card.

    Attributes:
        gpu: the device itself.
        launches: how many there were.
        thread_instructions: how many instructions their threads ran.
    """

    def __init__(
        self, capacity: int = 1 << 33, *, check_races: bool = True, faults: DriverFaults | None = None
    ) -> None:
        """Opens the device.

        Args:
            capacity: bytes of its memory.
            check_races: whether accesses of a launch that nothing orders are a fault.
            faults: what goes wrong with it; nothing by itself.

        Raises:
            RuntimeFault: LK8020, ``faults`` ask for that.
        """
        self._calls = FaultyCalls(faults or DriverFaults())
        self.gpu = SimulatedGpu(capacity=capacity, refuse_unwritten=True, check_races=check_races)
        self.launches = 0
        self.thread_instructions = 0
        self._order = StreamOrder()
        self._values = ValuePlaces()
        self._captures: dict[int, CapturedGraph] = {}

    def allocate(self, size: int) -> int:
        """See :meth:`Driver.allocate`."""
        self._calls.allocate(size)
        self._refuse_in_capture("an allocation")
        try:
            return self.gpu.allocate(size)
        except ResourceError as error:
            raise MemoryError(error.message) from error

    def free(self, address: int) -> None:
        """See :meth:`Driver.free`."""
        self._calls.call("cuMemFree_v2")
        self._refuse_in_capture("the end of an allocation")
        allocation = self.gpu.allocation(address)
        self.gpu.free(address)
        self._order.synchronize_all()
        if allocation is not None:
            self._order.forget(allocation.base, allocation.end)
            self._values.forget(allocation.base, allocation.end)

    def write(self, address: int, data: Bytes, queue: int) -> None:
        """See :meth:`Driver.write`."""
        self._calls.call("cuMemcpyHtoDAsync_v2")
        self._refuse_in_capture("a copy from the host", queue)
        touch = Touch(address, address + data.size, writes=True, name=self._named(address, data.size))
        self.gpu.write(address, data)
        self._order.work(queue, f"a copy from the host{words_of(self.named)}", [touch])
        self._values.copy_to(address, data.size, self.named)

    def read(self, data: Bytes, address: int, queue: int) -> None:
        """See :meth:`Driver.read`."""
        self._calls.call("cuMemcpyDtoHAsync_v2")
        self._refuse_in_capture("a copy to the host", queue)
        touch = Touch(address, address + data.size, writes=False, name=self._named(address, data.size))
        self._values.copy_from(address, data.size, "a copy to the host", self.named)
        data[...] = self.gpu.read(address, data.size)
        self._order.work(queue, f"a copy to the host{words_of(self.named)}", [touch])
        self._order.synchronize(queue)

    def copy(self, target: int, source: int, size: int, queue: int) -> None:
        """See :meth:`Driver.copy`."""
        self._calls.call("cuMemcpyDtoDAsync_v2")
        held = [self.gpu.allocation(each) for each in (target, source)]
        copy = CapturedCopy(target, source, size, held, self.named)
        if queue in self._captures:
            self._captures[queue].steps.append(copy)
        else:
            self._copy(copy, queue)

    def forget(self, address: int, size: int) -> None:
        """See :meth:`Driver.forget`: a kernel that reads the bytes before it wrote them is at fault."""
        for graph in self._captures.values():
            graph.steps.append(Forgotten(address, size))
        if not self._captures:
            self._forget(address, size)

    def load(self, ptx: bytes, cubin: bytes, level: str) -> Module:
        """See :meth:`Driver.load`; machine code is of no use here.

        Raises:
            UnknownPtx: LK8018, something in the PTX is not known.
        """
        self._calls.load(ptx)
        return self.gpu.load(ptx.decode())

    def kernel(self, module: Module, name: str) -> Kernel:
        """See :meth:`Driver.kernel`."""
        self._calls.call("cuModuleGetFunction")
        return module.kernels[name]

    def launch(
        self,
        kernel: Kernel,
        blocks: int,
        threads: int,
        shared: int,
        arguments: Sequence[LaunchBuffer | LaunchTensorMap | int],
        queue: int,
        *,
        early: bool = False,
    ) -> None:
        """See :meth:`Driver.launch`; what an early launch must do holds for it wherever it stands in its queue.

        Raises:
            KernelFault: LK8017, a thread does what it must not, or nothing orders the launch behind what another queue
                does with its buffers.
        """
        self._calls.launch("cuLaunchKernel")
        taken = [each.buffer if isinstance(each, LaunchTensorMap) else each for each in arguments]
        buffers = [each for each in taken if isinstance(each, LaunchBuffer) and each.size]
        held = [self.gpu.allocation(each.address) for each in buffers]
        launch = CapturedLaunch(kernel, blocks, threads, shared, tuple(arguments), buffers, held, early, self.named)
        if queue in self._captures:
            self._captures[queue].steps.append(launch)
        else:
            self._run(launch, queue)

    def record(self, queue: int) -> Event:
        """See :meth:`Driver.record`."""
        self._calls.call("cuEventRecord")
        self._refuse_in_capture("an event", queue)
        return Event(self._order.record(queue))

    def wait(self, event: Event, queue: int) -> None:
        """See :meth:`Driver.wait`; an event is waited for once.

        Raises:
            KernelFault: LK8017, it was waited for before.
        """
        self._calls.call("cuStreamWaitEvent")
        self._refuse_in_capture("a wait for an event", queue)
        if event.clock is None:
            raise KernelFault("an event is waited for twice", hint="record one for each wait")
        self._order.wait(event.clock, queue)
        event.clock = None

    def synchronize(self, queue: int) -> None:
        """See :meth:`Driver.synchronize`."""
        self._calls.call("cuStreamSynchronize")
        self._refuse_in_capture("a synchronize", queue)
        self._order.synchronize(queue)

    def begin_capture(self, queue: int) -> None:
        """See :meth:`Driver.begin_capture`."""
        self._calls.call("cuStreamBeginCapture_v2")
        self._refuse_in_capture("another capture")
        self._captures[queue] = CapturedGraph()

    def end_capture(self, queue: int) -> CapturedGraph:
        """See :meth:`Driver.end_capture`.

        Raises:
            KernelFault: LK8017, none was begun.
        """
        self._calls.call("cuStreamEndCapture")
        if queue not in self._captures:
            raise KernelFault(f"queue {queue} has no capture that could end", hint="begin_capture begins one")
        self._calls.call("cuGraphInstantiateWithFlags")
        return self._captures.pop(queue)

    def launch_graph(self, graph: CapturedGraph, queue: int) -> None:
        """See :meth:`Driver.launch_graph`.

        Raises:
            KernelFault: LK8017, memory of the graph was given back since it was captured, the graph itself was, or as
                for :meth:`launch`.
        """
        self._calls.launch("cuGraphLaunch")
        self._refuse_in_capture("a graph", queue)
        if graph.destroyed:
            raise KernelFault("a graph is launched that was given back", hint="capture it again")
        for step in graph.steps:
            if not isinstance(step, Forgotten):
                self._check_held(step)
        for step in graph.steps:
            if isinstance(step, CapturedLaunch):
                self._run(step, queue)
            elif isinstance(step, CapturedCopy):
                self._copy(step, queue)
            else:
                self._forget(step.address, step.size)

    def destroy_graph(self, graph: CapturedGraph) -> None:
        """See :meth:`Driver.destroy_graph`.

        Raises:
            KernelFault: LK8017, it was given back before.
        """
        self._calls.call("cuGraphExecDestroy")
        if graph.destroyed:
            raise KernelFault("a graph is given back twice")
        graph.destroyed = True

    def close(self) -> None:
        """See :meth:`Driver.close`."""
        self.gpu = SimulatedGpu(capacity=0)
        self._calls = FaultyCalls(DriverFaults())
        self._order, self._values, self._captures = StreamOrder(), ValuePlaces(), {}

    def _run(self, launch: CapturedLaunch, queue: int) -> None:
        touches = [
            Touch(each.address, each.address + each.size, each.writable, f"{each.name} ({each.size} bytes)")
            for each in launch.buffers
        ]
        kernel = launch.kernel.name
        self._order.work(queue, f"a launch of {kernel}{words_of(launch.named)}", touches, f"kernel {kernel}")
        arguments = self._values.launch(launch.arguments, launch.buffers, launch.named)
        statistics = self.gpu.launch(
            launch.kernel,
            (launch.blocks,),
            (launch.threads,),
            arguments,
            launch.shared,
            early=launch.early,
        )
        self.launches += 1
        self.thread_instructions += statistics.thread_instructions

    def _copy(self, copy: CapturedCopy, queue: int) -> None:
        names = [self._named(address, copy.size) for address in (copy.target, copy.source)]
        touches = [
            Touch(address, address + copy.size, writes=not number, name=names[number])
            for number, address in enumerate((copy.target, copy.source))
        ]
        if max(copy.target, copy.source) < min(copy.target, copy.source) + copy.size:
            raise KernelFault(f"a copy from {names[1]} to {names[0]}, which overlap")
        self._values.copy_from(copy.source, copy.size, "a copy within the device", copy.named)
        self.gpu.write(copy.target, self.gpu.read(copy.source, copy.size))
        self._order.work(queue, f"a copy within the device{words_of(copy.named)}", touches)
        self._values.copy_to(copy.target, copy.size, copy.named)

    def _forget(self, address: int, size: int) -> None:
        self.gpu.forget(address, size)
        self._values.forget(address, address + size)

    def _check_held(self, step: CapturedLaunch | CapturedCopy) -> None:
        if isinstance(step, CapturedLaunch):
            what = f"launches {step.kernel.name}"
            places = [(each.address, each.name) for each in step.buffers]
        else:
            what = f"copies {step.size} bytes"
            places = [(step.target, "the target"), (step.source, "the source")]
        for (address, name), held in zip(places, step.held, strict=True):
            if held is not None and self.gpu.allocation(address) is not held:
                raise KernelFault(
                    f"a graph {what} with a stale address: {name} lay in {held.name} "
                    f"({held.size} bytes at 0x{held.base:x}), which was given back since the graph was captured",
                    hint="capture the graph again when memory has moved",
                )

    def _named(self, address: int, size: int) -> str:
        allocation = self.gpu.allocation(address)
        where = f"byte {address - allocation.base} of {allocation.name}" if allocation is not None else f"0x{address:x}"
        return f"{size} bytes at {where}"

    def _refuse_in_capture(self, what: str, queue: int | None = None) -> None:
        if self._captures and (queue is None or queue in self._captures):
            raise KernelFault(
                f"{what} in a capture",
                hint="between begin_capture and end_capture only launches and copies within the device may be put into "
                "the queue, and memory stays",
            )
