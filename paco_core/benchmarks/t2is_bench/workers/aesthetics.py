"""Aesthetics by the package aesthetic-predictor-v2-5 (1 to 10, here divided by 10).

Reads lines ``{"picture": PATH, "texts": [""]}``, writes lines ``[SCORE]``.
"""

from __future__ import annotations

import json
import os
import sys


def main(device: str, model: str) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the packages print must not be taken for an answer

    import torch
    from aesthetic_predictor_v2_5 import convert_v2_5_from_siglip
    from PIL import Image

    encoder = {"encoder_model_name": model} if model else {}
    predictor, prepare = convert_v2_5_from_siglip(low_cpu_mem_usage=True, **encoder)
    predictor = predictor.to(device)
    for line in sys.stdin:
        picture = Image.open(json.loads(line)["picture"])  # written by this project, as RGB
        pixels = prepare(images=picture, return_tensors="pt").pixel_values.to(device)
        with torch.inference_mode():
            value = predictor(pixels).logits.squeeze().float().item()
        print(json.dumps([value / 10]), file=answers, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
