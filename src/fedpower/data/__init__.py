"""From sources of rows to their moment or product, block by block in bounded memory."""

from fedpower.data.columns import columns_of_fit, match_columns, public_vector
from fedpower.data.device import Device, open_device
from fedpower.data.fingerprint import fingerprint, reading_of
from fedpower.data.kernel import KernelChoice, block_rows, choose_kernel, shares_blocks
from fedpower.data.local import LocalMoment, local_moment
from fedpower.data.moment import Moments, accumulate_moment
from fedpower.data.networks import NetworkSource, open_network
from fedpower.data.opening import open_query, open_source, split_by_group
from fedpower.data.product import RowProduct
from fedpower.data.rows import RowTreatment, largest_row_norm
from fedpower.data.source import Block, RowSource
from fedpower.data.sql import SqlQuery

__all__ = [
    "Block",
    "Device",
    "KernelChoice",
    "LocalMoment",
    "Moments",
    "NetworkSource",
    "RowProduct",
    "RowSource",
    "RowTreatment",
    "SqlQuery",
    "accumulate_moment",
    "block_rows",
    "choose_kernel",
    "columns_of_fit",
    "fingerprint",
    "largest_row_norm",
    "local_moment",
    "match_columns",
    "open_device",
    "open_network",
    "open_query",
    "open_source",
    "public_vector",
    "reading_of",
    "shares_blocks",
    "split_by_group",
]
