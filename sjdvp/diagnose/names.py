"""Names of the laws that the next draft could be drawn from. Imports no torch; `sjdvp.diagnose.candidates` makes the laws."""

BETAS = (0.5, 1.0)
PULLS = (0.25, -0.25, -0.5)
CANDIDATES = (
    "plain",  # likelihood only: the last law, as SJD drafts
    *(f"growth {beta:g}" for beta in BETAS),  # the published fusion, log p' = log p + beta * M * S
    *(f"history {pull:g}" for pull in PULLS),
    "gain only",  # prior only: the growth gain without the law that it is meant to correct
)
