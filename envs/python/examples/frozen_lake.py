"""Gymnasium's own FrozenLake for ragen: pip install "gymnasium[toy-text]"."""

import os
import sys

import gymnasium

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import ragen_env


class FrozenLake(ragen_env.Adapter):
    instruction = "Walk over the ice from S to the goal G and keep out of the holes H."
    actions = ["Left", "Down", "Right", "Up"]
    symbols = [("S", "start"), ("F", "ice"), ("H", "hole"), ("G", "goal"), ("[ ]", "around where you stand")]

    def make(self, settings):
        # {"is_slippery": false, "map_name": "8x8"} and so on, as Gymnasium has them.
        return gymnasium.make("FrozenLake-v1", render_mode="ansi", **settings)

    def observation(self, seen):
        env = self.env.unwrapped
        size = env.ncol
        rows = [[tile.decode() for tile in row] for row in env.desc]
        row, col = divmod(int(seen), size)
        rows[row][col] = f"[{rows[row][col]}]"
        return "\n".join(" ".join(tiles) for tiles in rows)


if __name__ == "__main__":
    ragen_env.main(FrozenLake)
