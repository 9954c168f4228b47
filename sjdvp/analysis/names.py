"""Names of the distributions that the next draft could be drawn from. Imports no torch; `sjdvp.analysis.candidates` makes the distributions."""

BETAS = (0.5, 1.0)
PULLS = (0.25, -0.25, -0.5)
CANDIDATES = (
    "plain",  # likelihood only: the last distribution, as SJD drafts
    *(f"growth {beta:g}" for beta in BETAS),  # the published fusion, log p' = log p + beta * M * S
    *(f"history {pull:g}" for pull in PULLS),
    "gain only",  # prediction only: the growth gain without the distribution that it is meant to correct
)
