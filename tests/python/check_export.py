#!/usr/bin/env python3
"""Loads the checkpoints that ragen saves in Hugging Face transformers (and their adapters in peft) and compares logits.

    cargo run -p ragen-models --example export_check -- DIR
    python3 tests/python/check_export.py DIR

Each folder in DIR has a checkpoint and check.json: rows of token ids, ragen's logits of the last positions of each, and
how far they may be apart. Needs torch and transformers, and peft for the adapters; what is missing is said, and with it
the check of that is skipped. Exits with 1 when a model does not load or a logit differs.
"""

import json
import pathlib
import sys


def import_or_skip(name):
    try:
        return __import__(name)
    except Exception as error:  # A broken installation is as good as none, but it says more.
        print(f"skipped: python3 cannot import {name}: {error}")
        return None


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    torch, transformers = import_or_skip("torch"), import_or_skip("transformers")
    if torch is None or transformers is None:
        return
    peft = import_or_skip("peft")
    torch.set_num_threads(2)
    transformers.utils.logging.disable_progress_bar()
    folders = sorted(path.parent for path in pathlib.Path(sys.argv[1]).glob("*/check.json"))
    if not folders:
        sys.exit(f"{sys.argv[1]} has no folder with a check.json")
    failed = []
    for folder in folders:
        check = json.loads((folder / "check.json").read_text())
        adapter = folder / "adapter"
        if adapter.exists() and peft is None:
            continue
        model, report = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True, local_files_only=True
        )
        unused = {key: list(value) for key, value in report.items() if value}
        if adapter.exists():
            model = peft.PeftModel.from_pretrained(model, adapter)
        model.eval()
        worst = 0.0
        for row, logits in zip(check["rows"], check["logits"], strict=True):
            with torch.no_grad():
                theirs = model(torch.tensor([row])).logits[0]
            ours = torch.tensor(logits)
            worst = max(worst, (theirs[-len(ours) :] - ours).abs().max().item())
        good = worst <= check["tolerance"] and not unused
        kind = f"{model.config.model_type}{' with adapters' if adapter.exists() else ''}"
        print(f"{'equal' if good else 'DIFFERENT'}: {folder.name} ({kind}), at most {worst:.1e} of {check['tolerance']:.0e}")
        if unused:
            print(f"  not all weights found their place: {unused}")
        if not good:
            failed.append(folder.name)
    if failed:
        sys.exit(f"logits differ: {', '.join(failed)}")
    print(f"{len(folders)} checkpoints give equal logits in transformers {transformers.__version__}, torch {torch.__version__}")


main()
