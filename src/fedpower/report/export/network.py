"""The projection as an ONNX graph: rows in, scores out, in float64, for any runtime that reads ONNX."""

import importlib.util
import json
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpower.errors import InputError, installing
from fedpower.report.export.provenance import provenance
from fedpower.report.findings import Findings

OPSET, IR_VERSION = 18, 9
"""Old enough for runtimes of 2023; nothing newer is needed."""

ROWS, SCORES = "rows", "scores"


def onnx() -> Any:
    """Return the onnx package, imported on first use, or refuse to go on without it."""
    if importlib.util.find_spec("onnx") is None:
        raise InputError(
            "a result must be written as ONNX with the onnx package, got none installed; run "
            + installing("onnx")
        )
    return import_module("onnx")


def write_onnx(result: Findings, path: Path) -> None:
    """Write the graph of `graph_of`, checked, with feature names and provenance in its metadata."""
    path.write_bytes(graph_of(result).SerializeToString())


def graph_of(result: Findings) -> Any:
    """Return the model: ``rows`` n×d of float64 to ``scores`` n×k.

    (rows − mean) times the components, divided by the scales where there are any: two nodes. Where the
    fit normalised rows they are centred, scaled and divided by their norm before; a zero row stays zero.
    """
    helper = onnx().helper
    nodes: list[Any] = []
    constants: list[Any] = []
    last = ROWS

    def then(kind: str, *inputs: str, output: str) -> None:
        nonlocal last
        nodes.append(helper.make_node(kind, list(inputs), [output]))
        last = output

    def constant(name: str, values: NDArray[np.generic]) -> str:
        constants.append(onnx().numpy_helper.from_array(np.ascontiguousarray(values), name))
        return name

    axes = result.components.T
    if result.normalize:
        if result.center is not None:
            then("Sub", last, constant("center", result.center), output="centred")
        if result.scale is not None:
            then("Div", last, constant("scale", result.scale), output="scaled")
        raw = last
        then("ReduceL2", raw, constant("along", np.array([1])), output="norms")
        tiny = constant("tiny", np.array(np.finfo(np.float64).tiny))
        then("Max", "norms", tiny, output="divisors")
        then("Div", raw, "divisors", output="unit")
    elif result.scale is not None:
        axes = axes / result.scale[:, np.newaxis]
    then("Sub", last, constant("mean", result.mean), output="about_the_mean")
    then("MatMul", last, constant("axes", axes), output=SCORES)

    double = onnx().TensorProto.DOUBLE
    graph = helper.make_graph(
        nodes,
        "fedpower",
        [helper.make_tensor_value_info(ROWS, double, ["n", result.n_features])],
        [helper.make_tensor_value_info(SCORES, double, ["n", result.n_components])],
        constants,
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION
    )
    told = {"fedpower": json.dumps(provenance(result), allow_nan=False)}
    if result.feature_names is not None:
        told["feature_names"] = json.dumps(result.feature_names)
    helper.set_model_props(model, told)
    onnx().checker.check_model(model, full_check=True)
    return model
