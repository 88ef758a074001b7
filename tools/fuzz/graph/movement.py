"""Statements on places: views, copies, strides, writes in place and through views, states, gather and scatter."""

from __future__ import annotations

from graph.builder import Builder, Statement


def _ranked(b: Builder, least: int = 1) -> str:
    return b.any(lambda value: value.dim() >= least)


def view(b: Builder) -> None:
    value = _ranked(b)
    shape, axis = list(b.of(value).shape), b.axis(value)
    extent = shape[axis]
    choices = [
        f"{value}.transpose({axis}, {b.axis(value)})",
        f"{value}.unsqueeze({axis})",
        f"{value}.squeeze({axis})",
        f"{value}.flip({axis})",
        f"{value}.select({axis}, {b.rng.randrange(-extent, extent) if extent else 0})",
        f"{value}.reshape(-1)",
        f"{value}.flatten({b.rng.randrange(len(shape))})",
        f"{value}.permute({b.rng.sample(range(len(shape)), len(shape))})",
        f"{value}.movedim({axis}, {b.axis(value)})",
        f"{value}.mT" if len(shape) > 1 else f"{value}.contiguous()",
        f"{value}.diagonal(dim1={axis}, dim2={b.axis(value)})" if len(shape) > 1 else f"{value}.clone()",
        f"{value}.contiguous()",
        f"{value}.clone()",
        f"{value}.unfold({axis}, {max(1, extent // 2)}, {b.pick(1, 2)})",
        f"torch.roll({value}, {b.pick(1, -2, 3)}, {axis})",
        f"{value}.repeat({', '.join(str(b.pick(1, 1, 2)) for _ in shape)})",
        f"{value}.repeat_interleave({b.pick(1, 2, 3)}, {axis})",
        f"torch.tril({value}, {b.pick(-1, 0, 1)})",
        f"torch.triu({value}, {b.pick(-1, 0, 1)})",
        f"{value}.expand({[b.pick(2, 3), *shape]})",
        f"torch.tile({value}, ({b.pick(1, 2)},))",
    ]
    b.emit(b.rng.choice(choices))


def reshape(b: Builder) -> None:
    value = b.any()
    count = b.of(value).numel()
    shape: list[int] = []
    while count > 1 and len(shape) < 4:
        factors = [d for d in range(2, count + 1) if count % d == 0]
        factor = b.rng.choice(factors[:6])
        shape.append(factor)
        count //= factor
    shape.append(max(count, 1) if b.of(value).numel() else 0)
    b.rng.shuffle(shape)
    if b.rng.random() < 0.3 and b.of(value).numel():
        shape[b.rng.randrange(len(shape))] = -1
    b.emit(f"{value}.{b.pick('reshape', 'view', 'reshape')}({shape})")


def strided(b: Builder) -> None:
    """``as_strided`` reads the memory as it lies, behind ops that may or may not copy."""
    value = _ranked(b)
    if b.rng.random() < 0.6:
        step = b.pick("transpose(0, -1).contiguous()", "mT.reshape(-1)", "flatten()", "contiguous()", "clone()",
                      "transpose(0, -1)",
                      "expand_as({v}).contiguous()", "to(memory_format=torch.channels_last)",
                      "clone(memory_format=torch.channels_last)",
                      "permute(*range({r} - 1, -1, -1)).reshape({v}.shape)")  # fmt: skip
        (value,) = b.emit(f"{value}.{step.format(v=value, r=b.of(value).dim())}")
    count = b.of(value).numel()
    rows, columns = b.pick(1, 2, 3), b.pick(1, 2, 4)
    offset = b.pick(0, 0, 1, 2)
    strides = (b.pick(0, 1, 2, columns), b.pick(1, 1, 2))
    if (rows - 1) * strides[0] + (columns - 1) * strides[1] + offset >= count:
        raise LookupError("it reads beyond the memory")
    b.emit(f"torch.as_strided({value}, ({rows}, {columns}), {strides}, {offset})")


def cut(b: Builder) -> None:
    value = _ranked(b)
    axis = b.rng.randrange(b.of(value).dim())
    extent = b.of(value).shape[axis]
    low, high = sorted((b.rng.randint(-extent - 1, extent + 1), b.rng.randint(-extent - 1, extent + 1)))
    step = b.pick("", "", ":2", ":3")
    before = ":, " * axis
    text = b.pick(f"{before}{low}:{high}{step}", f"..., {low}:{high}{step}", f"{before}::2", f"{before}None")
    b.emit(f"{value}[{text}]")


def pieces(b: Builder) -> None:
    value = _ranked(b)
    axis = b.axis(value)
    extent = b.of(value).shape[axis]
    match b.rng.randrange(5):
        case 0:
            parts = b.pick(2, 3)
            b.emit(f"torch.chunk({value}, {parts}, dim={axis})", parts=min(parts, max(extent, 1)))
        case 1:
            first = b.rng.randint(0, extent)
            b.emit(f"torch.split({value}, [{first}, {extent - first}], dim={axis})", parts=2)
        case 2:
            b.emit(f"torch.narrow({value}, {axis}, {extent // 3}, {extent - extent // 3})")
        case 3:
            other = b.tensor(tuple(b.of(value).shape), b.dtype_of(value))
            b.emit(f"torch.{b.pick('cat', 'stack')}([{value}, {other}], dim={axis})")
        case _:
            other = b.any(lambda v: v.dim() == b.of(value).dim())
            b.emit(f"torch.cat([{value}, {other}, {value}], dim={axis})")


def pad(b: Builder) -> None:
    value = _ranked(b)
    amounts = [b.pick(0, 1, 2, 3, -1) for _ in range(2 * b.rng.randint(1, min(2, b.of(value).dim())))]
    mode = b.pick("constant", "constant", "reflect", "replicate", "circular")
    b.emit(
        f"F.pad({value}, {amounts}" + (f", value={b.pick(0, 1.5, -2)})" if mode == "constant" else f", mode={mode!r})")
    )


def look_up(b: Builder) -> None:
    value = _ranked(b)
    shape, axis = list(b.of(value).shape), b.axis(value)
    extent = shape[axis]
    kind = b.pick("int64", "int64", "int32")
    match b.rng.randrange(7):
        case 0:
            index = b.tensor((b.pick(1, 3, 9),), kind, holds="index", bound=extent)
            b.emit(f"torch.index_select({value}, {axis}, {index})")
        case 1:
            size = list(shape)
            size[axis] = b.pick(1, 2, 5)
            index = b.tensor(tuple(size), "int64", holds="index", bound=extent)
            b.emit(f"torch.gather({value}, {axis}, {index})")
        case 2:
            index = b.tensor(b.shape(b.pick(0, 1, 2), 60), kind, holds="index", bound=shape[0])
            b.emit(f"{value}[{index}{b.pick('', ' - ' + str(shape[0]))}]")
        case 3:
            index = b.tensor(b.shape(1, 60), kind, holds="index", bound=shape[-1])
            b.emit(f"{value}[..., {index}]")
        case 4 if len(shape) > 1:
            size = b.shape(1, 60)
            rows = b.tensor(size, "int64", holds="index", bound=shape[0])
            columns = b.tensor(b.pick(size, (1,)), "int64", holds="index", bound=shape[1])
            b.emit(f"{value}[{rows}, {columns}]")
        case 5:
            index = b.tensor(b.shape(1, 60), "int64", holds="index", bound=b.of(value).numel())
            b.emit(f"torch.take({value}, {index})")
        case _:
            index = b.tensor(b.pick((3,), (2, 3)), kind, holds="index", bound=shape[0])
            b.emit(f"F.embedding({index}, {value})")


def put(b: Builder) -> None:
    value = _ranked(b)
    shape, axis, kind = list(b.of(value).shape), b.axis(value), b.dtype_of(value)
    size = list(shape)
    size[axis] = b.pick(1, 2, 4)
    match b.rng.randrange(6):
        case 0:
            index = b.tensor(tuple(size), "int64", holds="index", bound=shape[axis])
            b.emit(f"torch.scatter_add({value}, {axis}, {index}, {b.tensor(tuple(size), kind)})")
        case 1:
            index = b.tensor(tuple(size), "int64", holds="index", bound=shape[axis])
            reduction = b.pick("sum", "prod", "amax", "amin", "mean")
            keep = b.pick("True", "False")
            b.emit(
                f"torch.scatter_reduce({value}, {axis}, {index}, {b.tensor(tuple(size), kind)}, {reduction!r}, "
                f"include_self={keep})"
            )
        case 2:
            index = b.tensor((size[axis],), "int64", holds="index", bound=shape[axis])
            b.emit(f"torch.index_add({value}, {axis}, {index}, {b.tensor(tuple(size), kind)})")
        case 3:
            index = b.tensor((1,), "int64", holds="index", bound=shape[axis])
            size[axis] = 1
            b.emit(f"torch.index_copy({value}, {axis}, {index}, {b.tensor(tuple(size), kind)})")
        case 4:
            index = b.tensor(tuple(size), "int64", holds="index", bound=shape[axis])
            b.emit(f"torch.scatter({value}, {axis}, {index}, {b.pick('1', '0', '-2')})")
        case _:
            del size[axis]
            where = b.rng.randrange(shape[axis])
            b.emit(f"torch.select_scatter({value}, {b.tensor(tuple(size), kind)}, {axis}, {where})")


def write_in_place(b: Builder) -> None:
    """A write into a value, or through a view of it, that other names may see."""
    target = b.any(fresh=0.0)
    if b.rng.random() < 0.5 or not target.startswith("v"):
        (target,) = b.emit(f"{target}.clone()")
    if b.rng.random() < 0.5 and b.of(target).dim():
        view(b)
        target = list(b.values)[-1]
    shape, kind = tuple(b.of(target).shape), b.dtype_of(target)
    other = b.tensor(shape, kind)
    row = f"{target}[{b.rng.randrange(shape[0])}]" if shape and shape[0] else target
    statements = [
        f"{target}.add_({other})",
        f"{target}.mul_({b.pick('2', '0.5', other)})",
        f"{target}.copy_({other})",
        f"{target}.zero_()",
        f"{target}.relu_()",
        f"{target}.clamp_(-1, 1)",
        f"{target}.masked_fill_({target} > 0, {b.pick('0', '3')})",
        f"{row}.add_({b.pick('1', '2')})",
        f"{row}.fill_(3)",
        f"{target}[..., ::2] = {b.pick('0', '5')}",
        f"{target}[..., 1:] += {target}[..., :-1].clone()",
        f"{target}[{target} > 0] = 2",
        f"{target}.t_()" if len(shape) == 2 else f"{target}.neg_()",
        f"{target}.transpose(0, -1)[0].sub_({b.pick('1', '2')})",
        f"{target}.view(-1)[::2].add_({b.pick('1', '2')})",
        f"{target}.swapaxes_(0, -1)",
        f"{target}.unsqueeze_(0)",
    ]
    b.write(target, b.rng.choice(statements))
    if b.rng.random() < 0.5:
        b.emit(f"{target} + 1")


def state(b: Builder) -> None:
    """A buffer that a call changes and the next one reads."""
    found = [given.name for given in b.function.given if given.role == "state"]
    name = b.rng.choice(found) if found and b.rng.random() < 0.6 else ""
    if not name:
        name = b.tensor(b.shape(b.pick(1, 2, 3)), b.dtype(), role="state")
    shape, kind = tuple(b.of(name).shape), b.dtype_of(name)
    other = b.tensor(shape, kind)
    row = b.rng.randrange(max(shape[0], 1))
    index = b.tensor((1,), "int64", holds="index", bound=shape[0])
    statements = [
        f"{name}.add_({other})",
        f"{name}.copy_({other})",
        f"{name}[{row}] = {b.pick('1', '2')}",
        f"{name}[{row}].add_(1)",
        f"{name}[1:].copy_({name}[:-1].clone())",
        f"{name}.index_copy_(0, {index}, {other}[:1])",
        f"{name}.mul_(0.5)",
        f"{name}.transpose(0, -1).add_(1)",
        f"{name}[{index}] = {other}[:1]",
    ]
    if b.rng.random() < 0.3:
        b.emit(f"{name} * 2")
    b.write(name, b.rng.choice(statements))
    b.emit(b.pick(f"{name} + 1", f"{name}.clone()", f"{name}[0] * 1"))


STATEMENTS: list[tuple[float, Statement]] = [
    (16, view), (6, reshape), (3, strided), (7, cut), (6, pieces), (3, pad), (6, look_up), (4, put),
    (7, write_in_place), (2, state),
]  # fmt: skip
