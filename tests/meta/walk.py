"""Compile a convolution or an LSTM and print the files whose functions run: `walk.py FOLDER convolution|LSTM`."""

from __future__ import annotations

import sys
from types import FrameType

import numpy as np
from onnx import ModelProto, TensorProto, ValueInfoProto, helper, numpy_helper, save

import rammer


def model(kind: str) -> ModelProto:
    def value(name: str, *shape: int) -> ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    def weight(name: str, *shape: int) -> TensorProto:
        return numpy_helper.from_array(np.ones(shape, np.float32), name)

    if kind == "convolution":
        conv = helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1], strides=[2, 2])
        nodes = [conv, helper.make_node("Relu", ["c"], ["y"])]
        x, y, weights = value("x", 1, 16, 32, 32), value("y", 1, 32, 16, 16), {"w": (32, 16, 3, 3), "b": (32,)}
    else:
        nodes = [helper.make_node("LSTM", ["x", "w", "r", "b"], ["y"], hidden_size=32)]
        x, y, weights = value("x", 3, 1, 16), value("y", 3, 1, 1, 32), {"w": (1, 128, 16), "r": (1, 128, 32)}
        weights["b"] = (1, 256)
    constants = [weight(name, *shape) for name, shape in weights.items()]
    graph = helper.make_graph(nodes, kind, [x], [y], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def compile_once(path: str) -> None:
    rammer.compile(path, "cpu", device=2, arch="x86-64-avx2@here", tune_seconds=0).close()


def main(folder: str, kind: str) -> None:
    path = f"{folder}/{kind}.onnx"
    save(model(kind), path)
    compile_once(path)  # imports modules, which runs code of every file
    ran: set[str] = set()

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            ran.add(frame.f_code.co_filename)

    sys.setprofile(note)
    compile_once(path)
    sys.setprofile(None)
    print("\n".join(sorted(ran)))


if __name__ == "__main__":
    main(*sys.argv[1:])
