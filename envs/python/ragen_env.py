"""Turns an environment class with Gymnasium's reset and step into a program that ragen plays.

Needs Python 3.8 and nothing else. The protocol is in docs/environments/protocol.md. In ten lines:

    import gymnasium, ragen_env

    class Lake(ragen_env.Adapter):
        instruction = "Walk from S to G. H is a hole."
        actions = ["Left", "Down", "Right", "Up"]

        def make(self, settings):
            return gymnasium.make("FrozenLake-v1", render_mode="ansi", **settings)

    ragen_env.main(Lake)

`python3 lake.py` answers on standard output, `python3 lake.py --port 8000` over HTTP.
"""

import argparse
import base64
import json
import math
import random
import sys
import threading
import traceback
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PROTOCOL = 1


class Adapter:
    """One environment. Override what differs; `self.env` is what `make` returned."""

    name = None
    instruction = ""
    #: Names of the actions in the order of their ids; None where an action is any text.
    actions = None
    #: Pairs of a symbol and its meaning, and a sentence on coordinates.
    symbols = ()
    coordinates = None
    #: Whether so many starts are possible that those of validation can be kept out of training.
    many_starts = False

    def make(self, settings):
        """The environment, from the settings of the run's configuration."""
        raise NotImplementedError("make(settings) must return an environment")

    def action(self, text):
        """What the environment's step takes for the text of an action; None for no action."""
        if self.actions is None:
            return text
        folded = text.strip().lower()
        for number, name in enumerate(self.actions):
            if name.lower() == folded:
                return number
        return None

    def observation(self, seen):
        """The text shown for what reset or step returned: Gymnasium's `ansi` rendering, if there is one."""
        if getattr(self.env, "render_mode", None) == "ansi":
            return str(self.env.render())
        return str(seen)

    def success(self, reward, terminated, truncated, info):
        """Whether the goal is reached: `info["success"]` or `info["is_success"]`, else an end that pays."""
        for key in ("success", "is_success"):
            if key in info:
                return bool(info[key])
        return bool(terminated) and reward > 0

    def numbers(self, info):
        """What of the information becomes metrics: its finite numbers."""
        found = {}
        for key, value in info.items():
            if isinstance(value, (int, float)) or hasattr(value, "__float__") and getattr(value, "ndim", 0) == 0:
                value = float(value)
                if math.isfinite(value):
                    found[str(key)] = value
        return found

    def picture(self):
        """Rows of pixels, each of three numbers 0 to 255: Gymnasium's `rgb_array` rendering. None where there is none."""
        if getattr(self.env, "render_mode", None) == "rgb_array":
            return self.env.render()
        return None

    # Where an environment can save itself, define both: save() returns what JSON can hold, load(saved) takes it back.
    save = None
    load = None


class Player:
    """Answers the messages about one environment."""

    def __init__(self, adapter, settings):
        self.adapter = adapter
        self.adapter.env = adapter.make(settings)
        self.text = None
        self.ended = self.won = False

    def hello(self, message):
        adapter = self.adapter
        return {
            "protocol": PROTOCOL,
            "name": adapter.name or type(adapter).__name__,
            "instruction": adapter.instruction,
            "actions": None if adapter.actions is None else list(adapter.actions),
            "symbols": [list(pair) for pair in adapter.symbols],
            "coordinates": adapter.coordinates,
            "keeps_state": adapter.save is not None and adapter.load is not None,
            "draws": getattr(adapter.env, "render_mode", None) == "rgb_array",
            "many_starts": bool(adapter.many_starts),
        }

    def reset(self, message):
        seed = message["seed"]
        # For environments that draw from the module; Gymnasium's own have a generator each.
        random.seed(seed)
        seen = self.adapter.env.reset(seed=seed)
        if isinstance(seen, tuple) and len(seen) == 2 and isinstance(seen[1], dict):
            seen = seen[0]
        self.text = self.adapter.observation(seen)
        self.ended = self.won = False
        return {"observation": self.text}

    def step(self, message):
        if self.text is None:
            raise ValueError("a step before the first reset")
        action = None if self.ended else self.adapter.action(message["action"])
        if action is None:
            return self.outcome(0.0, self.ended, False, self.won, False, {})
        returned = self.adapter.env.step(action)
        if len(returned) == 4:
            seen, reward, terminated, info = returned
            truncated = bool(info.get("TimeLimit.truncated", False))
            terminated = bool(terminated) and not truncated
        else:
            seen, reward, terminated, truncated, info = returned
        reward = float(reward)
        if not math.isfinite(reward):
            raise ValueError(f"the environment pays {reward}")
        self.text = self.adapter.observation(seen)
        self.won = bool(terminated) and bool(self.adapter.success(reward, terminated, truncated, info))
        self.ended = bool(terminated or truncated)
        return self.outcome(reward, bool(terminated), bool(truncated), self.won, True, self.adapter.numbers(info))

    def outcome(self, reward, terminated, truncated, success, valid, info):
        return {
            "observation": self.text,
            "reward": reward,
            "terminated": terminated,
            "truncated": truncated,
            "success": success,
            "valid": valid,
            "info": info,
        }

    def state(self, message):
        kept = {"text": self.text, "ended": self.ended, "won": self.won, "env": self.adapter.save()}
        return {"state": kept}

    def load_state(self, message):
        kept = message["state"]
        self.text, self.ended, self.won = kept["text"], kept["ended"], kept["won"]
        self.adapter.load(kept["env"])
        return {"observation": self.text}

    def render(self, message):
        rows = self.adapter.picture()
        if rows is None:
            raise ValueError("there is no picture: the environment's render_mode is not rgb_array")
        height, width = len(rows), len(rows[0])
        data = bytes(int(level) for row in rows for pixel in row for level in pixel[:3])
        return {"width": width, "height": height, "rgb": base64.b64encode(data).decode("ascii")}

    def close(self):
        close = getattr(self.adapter.env, "close", None)
        if close is not None:
            close()


class Server:
    """Answers messages about any number of environments."""

    OPS = ("hello", "reset", "step", "state", "load_state", "render")

    def __init__(self, adapter_class):
        self.adapter_class = adapter_class
        self.players = {}
        self.lock = threading.Lock()

    def answer(self, message):
        """The answer to a message; a failure is an answer too."""
        answer = {"id": message.get("id")}
        try:
            answer.update(self.act(message))
        except Exception as error:
            traceback.print_exc()
            answer["error"] = f"{type(error).__name__}: {error}"
        return answer

    def act(self, message):
        env, op = str(message.get("env")), message.get("op")
        if op == "close":
            with self.lock:
                player = self.players.pop(env, None)
            if player is not None:
                player.close()
            return {}
        if op not in self.OPS:
            raise ValueError(f"unknown op {op!r}")
        if op == "hello":
            player = Player(self.adapter_class(), message.get("settings") or {})
            with self.lock:
                self.players[env] = player
        player = self.players.get(env)
        if player is None:
            raise ValueError(f"environment {env!r} has not said hello")
        return getattr(player, op)(message)


def serve_lines(server):
    """Messages on standard input, answers on standard output, until the input ends."""
    answers = sys.stdout
    # What the environment prints must not come between the answers.
    sys.stdout = sys.stderr
    for line in sys.stdin:
        if line.strip():
            answers.write(json.dumps(server.answer(json.loads(line)), allow_nan=False) + "\n")
            answers.flush()


def serve_http(server, host, port):
    """Messages by POST to any path."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            try:
                text = json.dumps(server.answer(json.loads(body)), allow_nan=False).encode()
                status = 200
            except ValueError as error:
                text, status = json.dumps({"error": str(error)}).encode(), 400
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *of):
            pass

    httpd = ThreadingHTTPServer((host, port), Handler)
    print(f"http://{host}:{httpd.server_address[1]}", file=sys.stderr, flush=True)
    httpd.serve_forever()


def main(adapter_class, arguments=None):
    """Serves environments of a class: on standard output, or over HTTP with `--port`."""
    parser = argparse.ArgumentParser(description=f"plays {adapter_class.__name__} for ragen")
    parser.add_argument("--port", type=int, help="answer over HTTP on this port (0: any free one)")
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen on")
    chosen = parser.parse_args(arguments)
    server = Server(adapter_class)
    if chosen.port is None:
        serve_lines(server)
    else:
        serve_http(server, chosen.host, chosen.port)
