"""A GPU: the fused product and the exact moment of private fits against plain PyTorch.

Needs a CUDA device with room for twice ``--gigabytes``. The unit is bytes of M over seconds, so that a
kernel that reads M twice has at most half the read bandwidth.
"""

import argparse
import statistics
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from torch.profiler import ProfilerActivity, profile

from benchmarks.common import parser, report
from fedpower.rows.opening import open_source
from fedpower.rows.treatment import RowTreatment
from fedpower.sums.device import open_device, sum_products, treat
from fedpower.sums.device_exact import device_sums
from fedpower.sums.device_moment import DeviceProduct
from fedpower.sums.local import local_moment

SHAPES = [
    (100, 5), (100, 16), (128, 16), (192, 16), (256, 16), (512, 16), (1024, 16), (2048, 16), (4096, 16),
]  # fmt: skip
EXACT_WIDTHS = (64, 100, 128, 256, 512)
RULE = RowTreatment(row_norm=1.0)


@triton.jit
def read_all(x, out, count, SIZE: tl.constexpr, PROGRAMS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Read every value once and write one sum per lane."""
    program = tl.program_id(0)
    total = tl.zeros([SIZE], dtype=tl.float32)
    for block in tl.range(program, count // SIZE, PROGRAMS, num_stages=4):
        total += tl.load(x + block.to(tl.int64) * SIZE + tl.arange(0, SIZE))
    tl.store(out + program * SIZE + tl.arange(0, SIZE), total)


def main() -> None:
    """Measure and report."""
    options = _options()
    count = int(options.gigabytes * 2**30) // 4
    device = open_device("cuda", single=True)
    bandwidth = _bandwidth(count, options.repetitions)
    rows, raw = [], {"read bandwidth TB/s": bandwidth, "products": []}
    for n_features, rank in SHAPES:
        found = _product(count // n_features, n_features, rank, device, options.repetitions)
        raw["products"].append(found)
        ours, plain, bounded = (found[name] for name in ("ours", "plain", "plain bounded"))
        rows.append(
            [
                n_features, rank, f"{ours:.2f}", f"{ours / bandwidth:.0%}",
                f"{found['kernel'] / bandwidth:.0%}", f"{plain:.2f}", f"{ours / plain:.1f}",
                f"{bounded:.2f}", f"{ours / bounded:.1f}", f"{found['error']:.0e}",
            ]
        )  # fmt: skip
    last = raw["products"][-1]
    host = 4e-9 * count * (1 / last["ours"] - 1 / last["kernel"])
    fits = _fits(count, device, options.repetitions)
    raw["fits"] = fits
    raw["exact"] = [
        _exact(count, n_features, dtype, options.repetitions)
        for n_features in EXACT_WIDTHS
        for dtype in (torch.float32, torch.float64)
    ]
    report(
        options,
        name="accelerator",
        settings={
            "gigabytes": options.gigabytes,
            "repetitions": options.repetitions,
            "device": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "triton": triton.__version__,
            "rows": "Gaussian float32, about half of them longer than the bound",
            "seed": 0,
        },
        columns=[
            "d", "r", "ours, TB/s", "of the read bandwidth", "the kernel alone", "Mᵀ(MZ), TB/s",
            "times as fast", "with bounded rows, TB/s", "times as fast ", "error",
        ],
        rows=rows,
        raw=raw,
        notes=[
            f"Bytes of M over the median time of {options.repetitions} products; reading alone moves "
            f"{bandwidth:.2f} TB/s. 'Ours' bounds the rows and multiplies; Mᵀ(MZ) is PyTorch on rows as "
            "they are, and with bounded rows PyTorch bounds them first. The kernel alone leaves out "
            f"what a product takes around it ({host:.1f} ms at 4096 columns). Error: of ours against "
            "float64 over all rows, relative, Frobenius."
        ],
        more=[
            (
                f"The leading 16 components of {options.gigabytes:g} GB in 100 columns, "
                "in seconds (median):",
                ["way", "seconds"],
                [[way, f"{seconds:.4f}"] for way, seconds in fits.items()],
            ),
            (
                "The moment of bounded rows in whole numbers, as in a private fit, mean and checks "
                "included, in TB/s of the rows' own bytes (median):",
                ["d", "rows", "ours", "of the read bandwidth", "bounded in float64", "times as fast",
                 "Gram matrix of rows as they are"],
                [
                    [
                        found["d"], found["dtype"], f"{found['ours']:.2f}",
                        f"{found['ours'] / bandwidth:.0%}", f"{found['float64']:.2f}",
                        f"{found['ours'] / found['float64']:.1f}", f"{found['plain']:.2f}",
                    ]
                    for found in raw["exact"]
                ],
            ),
        ],
    )  # fmt: skip


def _bandwidth(count: int, repetitions: int) -> float:
    """Return how many TB/s a kernel reads that does nothing else."""
    x = torch.randn(count, device="cuda")
    found = []
    for size, programs in ((4096, 528), (8192, 528), (4096, 1056)):
        out = torch.empty(size * programs, device="cuda")

        def read(size: int = size, programs: int = programs, out: Any = out) -> None:
            read_all[(programs,)](x, out, count, SIZE=size, PROGRAMS=programs, num_warps=8)

        found.append(4e-12 * count / _seconds(read, repetitions))
    return max(found)


def _product(n_rows: int, n_features: int, rank: int, device: Any, repetitions: int) -> dict[str, Any]:
    """Return TB/s of the product, by us and by PyTorch, and our error."""
    torch.manual_seed(0)
    rows = torch.randn(n_rows, n_features, device="cuda") / n_features**0.5
    basis = torch.linalg.qr(torch.randn(n_features, rank, dtype=torch.float64))[0].numpy()
    kernel = DeviceProduct(open_source(rows), RULE, device)
    kernel.summary()
    z = torch.tensor(basis, dtype=torch.float32, device="cuda")

    def bounded() -> None:
        norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
        moved = rows / norms.clamp(min=1.0)
        _ = moved.T @ (moved @ z)

    terabytes = 4e-12 * rows.numel()
    found = {
        "d": n_features,
        "r": rank,
        "ours": terabytes / _seconds(lambda: kernel.product(basis), repetitions),
        "kernel": terabytes / _kernel_seconds(lambda: kernel.product(basis), repetitions),
        "plain": terabytes / _seconds(lambda: rows.T @ (rows @ z), repetitions),
        "plain bounded": terabytes / _seconds(bounded, repetitions),
    }
    expected: Any = 0.0
    for part in rows.split(2**28 // n_features):
        exact = part.double()
        exact /= torch.linalg.vector_norm(exact, dim=1, keepdim=True).clamp(min=1.0)
        expected = expected + exact.T @ (exact @ torch.tensor(basis, device="cuda"))
    expected = expected.cpu().numpy() / n_rows
    error = np.linalg.norm(kernel.product(basis) - expected) / np.linalg.norm(expected)
    found["error"] = float(error)
    return found


def _exact(count: int, n_features: int, dtype: Any, repetitions: int) -> dict[str, Any]:
    """Return TB/s of the exact moment of bounded rows, and of two ways in floating point."""
    torch.manual_seed(0)
    size = torch.empty(0, dtype=dtype).element_size()
    rows = torch.randn(4 * count // (size * n_features), n_features, dtype=dtype, device="cuda")
    rows /= n_features**0.5
    source, device = open_source(rows), open_device("cuda")

    def in_float64() -> None:
        for part in rows.split(2**26 // n_features):
            moved, _ = treat(RULE, part.double())
            sum_products(moved, moved)

    terabytes = 1e-12 * size * rows.numel()
    return {
        "d": n_features,
        "dtype": str(dtype).removeprefix("torch."),
        "ours": terabytes / _seconds(lambda: device_sums(source, RULE, device), repetitions),
        "float64": terabytes / _seconds(in_float64, repetitions),
        "plain": terabytes / _seconds(lambda: rows.T @ rows, repetitions),
    }


def _kernel_seconds(work: Callable[[], object], repetitions: int) -> float:
    """Return the mean time that the device spends in the fused kernel for a piece of work."""
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(repetitions):
            work()
        torch.cuda.synchronize()
    ours = [event for event in seen.key_averages() if "sum_bounded_products" in event.key]
    return sum(event.self_device_time_total for event in ours) / repetitions / 1e6


def _fits(count: int, device: Any, repetitions: int) -> dict[str, float]:
    """Return the seconds that several ways take to the leading components of 100 columns."""
    rows = torch.randn(count // 100, 100, device="cuda") * torch.linspace(2, 0.5, 100).cuda()
    source = open_source(rows)

    def ours(rule: RowTreatment) -> Callable[[], object]:
        def once() -> object:
            silo = local_moment(source, rule, rank=16, steps=20, device=device)
            return np.linalg.eigh(silo.moment(silo.mean()))

        return once

    def private() -> object:
        sums = device_sums(source, RowTreatment(row_norm=10.0), open_device("cuda"))
        mean = sums.total / sums.n_rows
        return np.linalg.eigh(sums.squares.to_float() / sums.n_rows - np.outer(mean, mean))

    return {
        "torch.pca_lowrank(q=16)": _seconds(lambda: torch.pca_lowrank(rows, q=16), repetitions),
        "torch: Gram and eigh, not centred": _seconds(lambda: torch.linalg.eigh(rows.T @ rows), repetitions),
        "ours, exact, float32": _seconds(ours(RowTreatment()), repetitions),
        "ours, rows bounded, float32": _seconds(ours(RowTreatment(row_norm=10.0)), repetitions),
        "ours, whole numbers, as in a private fit": _seconds(private, repetitions),
    }


def _seconds(work: Callable[[], object], repetitions: int) -> float:
    """Return the median time of a piece of work on the device, after one to warm up."""
    work()
    taken = []
    for _ in range(repetitions):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        start.record()
        work()
        stop.record()
        stop.synchronize()
        taken.append(start.elapsed_time(stop) / 1e3)
    return statistics.median(taken)


def _options() -> argparse.Namespace:
    made = parser(__doc__)
    made.add_argument("--gigabytes", type=float, default=8.0, help="size of M")
    made.add_argument("--repetitions", type=int, default=7)
    return made.parse_args()


if __name__ == "__main__":
    main()
