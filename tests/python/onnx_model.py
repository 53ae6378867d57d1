# SPDX-License-Identifier: Apache-2.0
"""ONNX models for tests, written byte by byte: enough of protobuf to need no other package."""

FLOAT, UINT8, INT32, INT64, BOOL, DOUBLE = 1, 2, 6, 7, 9, 11


def field(number, kind, payload):
    """One field of a protobuf message. kind: 0 for a number, 2 for bytes."""

    def varint(value):
        out = b""
        while value > 127:
            out += bytes([value & 127 | 128])
            value >>= 7
        return out + bytes([value])

    if kind == 0:
        return varint(number << 3) + varint(payload)
    return varint(number << 3 | 2) + varint(len(payload)) + payload


def tensor(element, shape):
    """A tensor's type; None for a shape that is not told, text for a length that has only a name."""
    if shape is None:
        return field(1, 2, field(1, 0, element))
    axes = [field(2, 2, n.encode()) if isinstance(n, str) else field(1, 0, n) for n in shape]
    return field(1, 2, field(1, 0, element) + field(2, 2, b"".join(field(1, 2, axis) for axis in axes)))


def sequence(of):
    return field(4, 2, field(1, 2, of))


def node(op, inputs, outputs):
    names = [field(1, 2, name.encode()) for name in inputs] + [field(2, 2, name.encode()) for name in outputs]
    return b"".join(names) + field(4, 2, op.encode())


def model(nodes, inputs, outputs):
    """An ONNX file. inputs, outputs: types by name."""

    def values(number, named):
        return b"".join(
            field(number, 2, field(1, 2, name.encode()) + field(2, 2, kind)) for name, kind in named.items()
        )

    graph = (
        b"".join(field(1, 2, n) for n in nodes) + field(2, 2, b"g") + values(11, inputs) + values(12, outputs)
    )
    return field(1, 0, 8) + field(7, 2, graph) + field(8, 2, field(1, 2, b"") + field(2, 0, 13))


def doubling_model(n):
    """y = x + x for float32 vectors of n elements."""
    return model([node("Add", "xx", "y")], {"x": tensor(FLOAT, [n])}, {"y": tensor(FLOAT, [n])})
