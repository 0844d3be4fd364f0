"""The paper's section 5 made anew: its figures, its sentences put to the test, and what is better."""
