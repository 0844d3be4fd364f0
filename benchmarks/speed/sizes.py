"""How large everything is that is timed: as reported, or just large enough to run."""

from dataclasses import dataclass

SEED = 0
"""Of every draw of rows and of the order in which things are timed."""

RANK = 4
EPSILON = 0.5
ROW_NORM = 1.0
"""A private fit here is ``FedPCA(4, epsilon=0.5, row_norm=1.0)``, on rows of norm 1."""

WIDE_RANK = 10
"""k of the exact fits of wide rows."""

PRIVATE_FIT = f"FedPCA({RANK}, epsilon={EPSILON}, row_norm={ROW_NORM})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What every part of the benchmark measures.

    Attributes
    ----------
    repeats
        How often everything is timed, in turn, unless a part has its own number.
    kernel_values, kernel_columns, kernel_repeats
        Values in each array that a moment is made of, and the widths they are arranged in.
    passes_shape
        Of the array and the file whose single passes are timed.
    sparse
        Rows, columns and density of each sparse matrix.
    peer_shape, peer_limit_s, peers
        The array of the comparison with other libraries, the seconds a process gets, and which of
        `methods.METHODS` take part; None for all.
    fit_rows, csv_rows, fit_columns, fit_silos
        The fits from beginning to end, from memory and Parquet, and from CSV.
    readers
        Which libraries read files for scikit-learn.
    grown_rows, grown_rows_columns
        n, in a file of so many columns.
    grown_columns, grown_columns_rows
        d, with so many rows.
    grown_silos, grown_silos_shape
        m, sharing an array of this shape; the first is one silo.
    grown_ranks, grown_ranks_shape
        r, on an array of this shape, every step noised.
    wide_columns, wide_rows, wide_sparse_rows, wide_density, wide_repeats
        Data too wide for a moment; each fit has ten steps, so that fewer repeats do.
    wide_exact, wide_exact_silos
        Rows and columns of what is fitted exactly, and how many silos share them.
    starts
        How often each process is started.
    """

    repeats: int
    kernel_values: int
    kernel_columns: tuple[int, ...]
    kernel_repeats: int
    passes_shape: tuple[int, int]
    sparse: tuple[tuple[int, int, float], ...]
    peer_shape: tuple[int, int]
    peer_limit_s: float
    peers: tuple[str, ...] | None
    fit_rows: int
    csv_rows: int
    fit_columns: int
    fit_silos: int
    readers: tuple[str, ...]
    grown_rows: tuple[int, ...]
    grown_rows_columns: int
    grown_columns: tuple[int, ...]
    grown_columns_rows: int
    grown_silos: tuple[int, ...]
    grown_silos_shape: tuple[int, int]
    grown_ranks: tuple[int, ...]
    grown_ranks_shape: tuple[int, int]
    wide_columns: int
    wide_rows: int
    wide_sparse_rows: int
    wide_density: float
    wide_repeats: int
    wide_exact: tuple[int, int]
    wide_exact_silos: int
    starts: int


FULL = Sizes(
    repeats=3,
    kernel_values=50_000_000,
    kernel_columns=(64, 100, 512, 2048),
    kernel_repeats=5,
    passes_shape=(200_000, 100),
    sparse=((200_000, 2_000, 0.01), (100_000, 500, 0.05)),
    peer_shape=(1_000_000, 100),
    peer_limit_s=90.0,
    peers=None,
    fit_rows=2_000_000,
    csv_rows=400_000,
    fit_columns=100,
    fit_silos=20,
    readers=("pandas", "polars"),
    grown_rows=(10_000, 100_000, 300_000, 1_000_000, 3_000_000, 10_000_000),
    grown_rows_columns=32,
    grown_columns=(32, 128, 512, 1024, 2048, 4096),
    grown_columns_rows=20_000,
    grown_silos=(1, 2, 10, 100, 1_000),
    grown_silos_shape=(1_000_000, 100),
    grown_ranks=(8, 32, 128),
    grown_ranks_shape=(50_000, 512),
    wide_columns=200_000,
    wide_rows=500,
    wide_sparse_rows=20_000,
    wide_density=1e-4,
    wide_repeats=2,
    wide_exact=(1_500, 14_000),
    wide_exact_silos=3,
    starts=15,
)

QUICK = Sizes(
    repeats=2,
    kernel_values=20_000,
    kernel_columns=(8,),
    kernel_repeats=2,
    passes_shape=(500, 6),
    sparse=((200, 40, 0.05),),
    peer_shape=(2_000, 10),
    peer_limit_s=90.0,
    peers=(
        "X.T @ X and eigh",
        "PCA, covariance_eigh",
        "fedpower, exact, 1 silo",
        "fedpower, private, 1 silo",
        "fedpower, private, 20 silos",
    ),
    fit_rows=2_000,
    csv_rows=1_000,
    fit_columns=10,
    fit_silos=4,
    readers=("pandas",),
    grown_rows=(500, 1_000, 2_000),
    grown_rows_columns=8,
    grown_columns=(8, 16, 32),
    grown_columns_rows=200,
    grown_silos=(1, 2, 4),
    grown_silos_shape=(1_000, 8),
    grown_ranks=(4, 6, 8),
    grown_ranks_shape=(400, 16),
    wide_columns=500,
    wide_rows=20,
    wide_sparse_rows=100,
    wide_density=1e-3,
    wide_repeats=1,
    wide_exact=(40, 200),
    wide_exact_silos=3,
    starts=1,
)
