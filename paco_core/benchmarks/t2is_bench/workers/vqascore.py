"""VQAScore by the package t2v-metrics: a picture and texts in, the probability that each is shown out.

Reads lines ``{"picture": PATH, "texts": [TEXT]}``, writes lines ``[SCORE]``.
"""

from __future__ import annotations

import json
import os
import sys


def main(device: str, model: str) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the packages print must not be taken for an answer

    import t2v_metrics

    score = t2v_metrics.VQAScore(model=model or "clip-flant5-xxl", device=device)
    for line in sys.stdin:
        request = json.loads(line)
        scores = score(images=[request["picture"]], texts=request["texts"])[0]
        print(json.dumps([float(value) for value in scores]), file=answers, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
