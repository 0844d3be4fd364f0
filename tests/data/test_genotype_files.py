"""Genotypes as rows: counts of alleles, matched by id, flipped where needed, missing ones 2p."""

import numpy as np
import pgenlib
import pytest

from fedpower import CodeBook, FedPCA
from fedpower.exceptions import InputError
from fedpower.linalg import sin_theta
from fedpower.rows.opening import open_source
from fedpower.rows.plink import PlinkSource, read_variants
from fedpower.rules.treatment import RowTreatment
from fedpower.sums.local import local_moment
from genotypes import people, write_bed

IDS = ("rs1", "rs2", "rs3", "rs4", "rs5")
ALLELES = (("A", "G"), ("T", "C"), ("C", "A"), ("G", "T"), ("A", "C"))
COUNTS = people(11, 5, seed=3)[0]


@pytest.fixture
def bed(tmp_path):
    return write_bed(tmp_path / "north.bed", COUNTS, alleles=ALLELES, ids=IDS)


def rows_of(source, max_rows=4):
    return np.vstack(list(source.blocks(max_rows)))


def filled_at(source, values):
    return local_moment(source, RowTreatment(center=values), rank=1, steps=1).source


def first_in_the_alphabet():
    flip = np.array([one > two for one, two in ALLELES])
    return np.where(flip, 2 - COUNTS, COUNTS)


def test_rows_are_samples_and_columns_are_called_by_the_counted_allele(bed):
    source = open_source(bed)
    assert isinstance(source, PlinkSource)
    assert source.columns == ("rs1_A", "rs2_C", "rs3_A", "rs4_G", "rs5_A")
    assert (source.n_rows, source.n_features) == COUNTS.shape
    assert source.samples[:2] == ("P0", "P1")
    assert np.array_equal(rows_of(source), first_in_the_alphabet())


def test_silos_whose_files_have_alleles_the_other_way_round_are_matched(tmp_path, bed):
    turned = write_bed(
        tmp_path / "south.bed",
        2 - COUNTS[:, ::-1],
        alleles=[(two, one) for one, two in ALLELES[::-1]],
        ids=IDS[::-1],
    )
    rows = open_source(turned, columns=open_source(bed).columns)
    assert np.array_equal(rows_of(rows), first_in_the_alphabet())
    one = FedPCA(2, epsilon=float("inf")).fit_silos([bed])
    with pytest.warns(UserWarning, match="hold the same rows"):  # and so they do, once matched
        both = FedPCA(2, epsilon=float("inf")).fit_silos([bed, turned])
    assert sin_theta(one.components_.T, both.components_.T) < 1e-10


def test_a_missing_genotype_is_refused_without_a_frequency_and_2p_with_one(tmp_path):
    counts = COUNTS.copy()
    counts[6, 2] = -1
    bed = write_bed(tmp_path / "gap.bed", counts, alleles=ALLELES, ids=IDS)
    with pytest.raises(InputError, match="got none for 'rs3_A' of sample 7"):
        rows_of(open_source(bed))
    filled = rows_of(filled_at(open_source(bed), np.array([0.2, 0.4, 0.6, 0.8, 1.0])))
    assert filled[6, 2] == 0.6
    known = counts >= 0
    assert np.array_equal(filled[known], first_in_the_alphabet()[known])


def test_a_fit_puts_its_public_offset_in_the_place_of_missing_genotypes(tmp_path):
    counts, p = people(60, 12)
    gaps = counts.copy()
    gaps[np.random.default_rng(1).random(counts.shape) < 0.1] = -1
    alleles, ids = [("A", "G")] * 12, [f"rs{place}" for place in range(12)]
    bed = write_bed(tmp_path / "all.bed", gaps, alleles=alleles, ids=ids)
    scale = np.sqrt(2 * p * (1 - p))
    model = FedPCA(
        2, epsilon=float("inf"), standardize=False, codebook=CodeBook(offset=2 * p, scale=scale)
    ).fit_silos([bed])
    rows = (np.where(gaps < 0, 2 * p, gaps) - 2 * p) / scale
    rows -= rows.mean(axis=0)
    assert sin_theta(model.components_.T, np.linalg.svd(rows)[2][:2].T) < 1e-10
    assert model.transform(bed) == pytest.approx(rows @ model.components_.T, abs=1e-10)


def test_variants_are_listed_by_id_or_with_their_frequencies(tmp_path, bed):
    ids = tmp_path / "pruned.prune.in"
    ids.write_text("rs4\nrs2\n")
    assert read_variants(ids).columns(open_source(bed)) == ("rs4_G", "rs2_C")
    assert read_variants(ids).offset is None
    frequencies = tmp_path / "all.afreq"
    frequencies.write_text("#CHROM\tID\tREF\tALT\tALT_FREQS\tOBS_CT\n1\trs1\tA\tG\t0.25\t22\n")
    listed = read_variants(frequencies)
    assert listed.columns(open_source(bed)) == ("rs1_G",)
    assert listed.offset == pytest.approx([0.5])
    assert listed.scale == pytest.approx([np.sqrt(0.375)])


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "at least one variant"),
        ("rs1\nrs1\n", "more than once"),
        ("#ID\tALT\nrs1\tA\n", "with ID, ALT, ALT_FREQS"),
        ("#ID\tALT\tALT_FREQS\nrs1\tA\t1.0\n", "between 0 and 1"),
    ],
)
def test_lists_that_are_none_are_refused(tmp_path, text, sentence):
    path = tmp_path / "list"
    path.write_text(text)
    with pytest.raises(InputError, match=sentence):
        read_variants(path)


def write_pgen(path, counts):
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
            for place, (one, (alt, ref)) in enumerate(zip(IDS, ALLELES, strict=True))
        )
    )
    path.with_suffix(".psam").write_text(
        "#FID\tIID\tSEX\n" + "".join(f"F{place}\tP{place}\tNA\n" for place in range(n))
    )
    return path


@pytest.mark.parametrize("max_rows", [1, 3, 4, 100])
def test_it_holds_what_the_bed_file_of_the_same_genotypes_holds(tmp_path, max_rows):
    counts = COUNTS.copy()
    counts[2, 1] = counts[7, 4] = -1
    bed = write_bed(tmp_path / "north.bed", counts, alleles=ALLELES, ids=IDS)
    both = open_source(bed), open_source(write_pgen(tmp_path / "south.pgen", counts))
    assert both[0].samples == both[1].samples
    bed, pgen = (filled_at(source, np.arange(5) / 4) for source in both)
    assert (pgen.columns, pgen.n_rows) == (bed.columns, bed.n_rows)
    assert max(len(block) for block in pgen.blocks(max_rows)) <= max_rows
    assert np.array_equal(rows_of(pgen, max_rows), rows_of(bed, max_rows))


@pytest.mark.parametrize(
    ("file", "spoil", "sentence"),
    [
        ("one.bed", lambda data: b"\x6c\x1b\x00" + data[3:], "variant by variant"),
        ("one.bed", lambda data: data[:-1], "5 variants of 11 samples"),
        ("one.fam", None, "must have one.fam next to it"),
        ("one.bim", lambda _: b"1 rs1 0\n", "6 words in every line"),
        ("two.pvar", lambda data: data.replace(b"rs2\tC\tT", b"rs2\tC\tT,G"),
         r"two alleles, got more for 'rs2'.*multiallelics=-"),
        ("two.pvar", lambda data: data.replace(b"#CHROM", b"CHROM"), "header with CHROM, POS, ID, REF"),
        ("two.pvar", lambda data: data + b"1\t9\trs9\tA\tC\n", "6 variants of 11 samples, got other bytes"),
        ("two.pgen", lambda _: b"no genotypes", r"must be a \.pgen file of PLINK 2"),
        ("two.psam", None, r"two\.psam next to it"),
    ],
)  # fmt: skip
def test_what_is_no_file_of_genotypes_is_refused_in_one_sentence(tmp_path, file, spoil, sentence):
    opened = {
        "one": write_bed(tmp_path / "one.bed", COUNTS, alleles=ALLELES, ids=IDS),
        "two": write_pgen(tmp_path / "two.pgen", COUNTS),
    }
    path = tmp_path / file
    if spoil is None:
        path.unlink()
    else:
        path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(InputError, match=sentence):
        open_source(opened[path.stem])
