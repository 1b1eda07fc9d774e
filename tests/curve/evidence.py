"""Evidence of a curve for tests that do not simulate a grid."""

from pacdp.curve import CurveEvidence


def make_evidence(**changes):
    """A complete evidence of one budget, with some of its fields changed."""
    content = {
        "budgets": [1.0],
        "bounds": [1.0],
        "seeds": [0],
        "scores": [[[0.5]]],
        "metric": "accuracy",
        "plan": {},
        "proxy": dict.fromkeys(("name", "stands_for", "made_by", "source", "sha256"), "any"),
        "version": "any",
    }
    return CurveEvidence.model_validate(content | changes)
