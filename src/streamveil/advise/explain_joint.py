"""What a statement of several private answers promises: all of them together, and each."""

from __future__ import annotations

from dataclasses import replace

from streamveil.advise.explain import Explanation, Section, explain
from streamveil.core.accounting.budget import exact
from streamveil.core.accounting.guarantee import Guarantee, rounded_up
from streamveil.plan.joint import JointPlan


def explain_joint(joint: JointPlan, together: Guarantee, *, forecast: bool = False) -> Explanation:
    """Describes every answer, and before them what all of them come to."""
    each = [explain(part, forecast=forecast) for part in joint.parts]
    delta = sum(exact("delta", part.budget.quoted_delta) for part in joint.parts)
    costs = [(part.name, made.facts["epsilon"], made.facts["delta"])
             for part, made in zip(joint.parts, each, strict=True)]  # fmt: skip
    total = together.epsilon(delta)
    rows = [(name, f"epsilon = {rounded_up(epsilon)}, delta = {lost:.3g}")
            for name, epsilon, lost in (*costs, ("all together", total, float(delta)))]  # fmt: skip
    sections = [Section("PRIVATE ANSWERS (each is charged for itself)", tuple(rows))]
    for part, made in zip(joint.parts, each, strict=True):
        sections += [replace(one, title=f"{part.name}: {one.title}") for one in made.sections]
    words = tuple((post.words,) for post in joint.post)
    free = "POST-PROCESSING (of the releases of all answers: it costs nothing)"
    sections += [Section(free, words)] if words else []
    facts = {
        "epsilon": total, "delta": float(delta), "guarantee": together.to_dict(),
        "parts": {part.name: made.facts for part, made in zip(joint.parts, each, strict=True)},
    }  # fmt: skip
    return Explanation(together.sentence(delta), tuple(sections), facts)
