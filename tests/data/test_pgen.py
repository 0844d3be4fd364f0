"""PLINK's .pgen files as rows: the genotypes of a .bed file, by Pgenlib, missing ones and flips too."""

import numpy as np
import pgenlib
import pytest

from fedpower.errors import InputError
from fedpower.rows.opening import open_source
from fedpower.rows.plink import fill_missing
from genotypes import people, write_bed

IDS = ("rs1", "rs2", "rs3", "rs4", "rs5")
ALLELES = (("A", "G"), ("T", "C"), ("C", "A"), ("G", "T"), ("A", "C"))
COUNTS = people(11, 5, seed=3)[0]


def write_pgen(path, counts, *, alleles=ALLELES, ids=IDS):
    """Write counts of each variant's first allele, as ALT, with .pvar and .psam; -1 is missing."""
    n, d = counts.shape
    calls = np.where(counts < 0, -9, counts).astype(np.int8)
    with pgenlib.PgenWriter(str(path).encode(), n, variant_ct=d, nonref_flags=False) as writer:
        for column in calls.T:
            writer.append_biallelic(np.ascontiguousarray(column))
    path.with_suffix(".pvar").write_text(
        "##source=test\n#CHROM\tPOS\tID\tREF\tALT\n"
        + "".join(
            f"1\t{place + 1}\t{one}\t{ref}\t{alt}\n"
            for place, (one, (alt, ref)) in enumerate(zip(ids, alleles, strict=True))
        )
    )
    path.with_suffix(".psam").write_text(
        "#FID\tIID\tSEX\n" + "".join(f"F{place}\tP{place}\tNA\n" for place in range(n))
    )
    return path


def rows_of(source, max_rows=4):
    return np.vstack(list(source.blocks(max_rows)))


@pytest.fixture
def both(tmp_path):
    counts = COUNTS.copy()
    counts[2, 1] = counts[7, 4] = -1
    bed = write_bed(tmp_path / "north.bed", counts, alleles=ALLELES, ids=IDS)
    return open_source(bed), open_source(write_pgen(tmp_path / "south.pgen", counts))


@pytest.mark.parametrize("max_rows", [1, 3, 4, 100])
def test_it_holds_what_the_bed_file_of_the_same_genotypes_holds(both, max_rows):
    bed, pgen = (fill_missing(source, np.arange(5) / 4) for source in both)
    assert (pgen.columns, pgen.samples, pgen.n_rows) == (bed.columns, bed.samples, bed.n_rows)
    assert max(len(block) for block in pgen.blocks(max_rows)) <= max_rows
    assert np.array_equal(rows_of(pgen, max_rows), rows_of(bed, max_rows))


def test_what_is_no_pgen_file_is_refused_in_one_sentence(tmp_path):
    path = write_pgen(tmp_path / "north.pgen", COUNTS)
    variants = path.with_suffix(".pvar")
    written = variants.read_text()
    variants.write_text(written.replace("rs2\tC\tT", "rs2\tC\tT,G"))
    with pytest.raises(InputError, match=r"two alleles, got more for 'rs2'.*multiallelics=-"):
        open_source(path)
    variants.write_text(written.replace("#CHROM", "CHROM"))
    with pytest.raises(InputError, match="a line of names with CHROM, POS, ID, REF, ALT"):
        open_source(path)
    variants.write_text(written + "1\t9\trs9\tA\tC\n")
    with pytest.raises(InputError, match="6 variants of 11 samples, got other bytes"):
        open_source(path)
    variants.write_text(written)
    path.write_bytes(b"no genotypes")
    with pytest.raises(InputError, match=r"must be a \.pgen file of PLINK 2"):
        open_source(path)
    path.with_suffix(".psam").unlink()
    with pytest.raises(InputError, match=r"north\.psam beside it"):
        open_source(path)
