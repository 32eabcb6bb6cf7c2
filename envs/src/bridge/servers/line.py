"""A walk on a line to cell 4, for tests: good as it is, and bad in the way that settings["fault"] says."""

import json
import os
import subprocess
import sys
import time

at, fault, of, resets = None, "", {}, 0


def answer(message):
    global at, fault, of, resets
    op = message["op"]
    if op == "hello":
        of = message["settings"]
        fault = of.get("fault", "")
        if fault == "never says hello":
            time.sleep(100)
        if fault == "another version":
            return {"protocol": 2, "instruction": ""}
        if fault == "same actions":
            return {"protocol": 1, "instruction": "Walk right.", "actions": ["Left", "left"]}
        keeps = fault != "keeps no state"
        return {"protocol": 1, "name": "a line", "instruction": "Walk right.", "actions": ["Left", "Right"], "keeps_state": keeps}
    if op == "reset":
        resets += 1
        if fault == "dies at its second reset" and resets == 2:
            sys.stderr.write("no more levels\n")
            sys.exit(7)
        at = message["seed"] % 3
        return {"observation": f"at {at}"}
    if op == "state":
        return {"state": at}
    if op == "load_state":
        at = message["state"]
        return {"observation": f"at {at}"}
    change = {"Left": -1, "Right": 1}.get(message["action"], 0)
    misbehave()
    before, at = at, min(max(at + change, 0), 4)
    said = {
        "observation": f"at {at}",
        "reward": float(at == 4),
        "terminated": at == 4,
        "truncated": False,
        "success": at == 4,
        "valid": change != 0,
        "effective": at != before,
        "info": {"at": at},
    }
    said.update(of.get("says", {}))
    for name in of.get("lacks", []):
        del said[name]
    return said


def misbehave():
    if fault == "dies":
        sys.stderr.write("out of ideas\n")
        sys.stderr.flush()
        os._exit(3)
    if fault == "hangs":
        sys.stderr.write("thinking\n")
        sys.stderr.flush()
        # What it has started holds its output open.
        subprocess.run(["sleep", "100"])
    if fault == "hangs at seed 0" and at == 0:
        time.sleep(100)
    if fault == "floods":
        while True:
            sys.stdout.write("x" * 65536)
    if fault == "floods lines":
        while True:
            sys.stdout.write('{"id": 1}\n' * 4096)
    if fault == "is loud":
        sys.stderr.write("loud " * 400000 + "\nlast word\n")
    if fault == "chats":
        sys.stdout.write("just a moment\n")
    if fault == "raises":
        raise ValueError("no such cell")


while True:
    line = sys.stdin.readline()
    if not line:
        break
    message = json.loads(line)
    try:
        said = answer(message)
    except ValueError as error:
        said = {"error": str(error)}
    number = of["id"] if "id" in of and message["op"] == "step" else message["id"]
    sys.stdout.write(json.dumps({"id": number, **said}) + "\n")
    sys.stdout.flush()
    if fault == "reads no more" and message["op"] == "reset":
        time.sleep(100)
