"""Gymnasium's own Taxi for ragen: pip install "gymnasium[toy-text]"."""

import os
import sys

import gymnasium

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import ragen_env

STOPS = ["R (row 0, column 0)", "G (row 0, column 4)", "Y (row 4, column 0)", "B (row 4, column 3)"]


class Taxi(ragen_env.Adapter):
    instruction = "Drive the taxi to the passenger, pick the passenger up, and drop the passenger off at the destination."
    actions = ["South", "North", "East", "West", "Pickup", "Dropoff"]
    many_starts = False

    def make(self, settings):
        return gymnasium.make("Taxi", **settings)

    def observation(self, seen):
        row, col, passenger, destination = self.env.unwrapped.decode(int(seen))
        where = "in the taxi" if passenger == 4 else f"at {STOPS[passenger]}"
        return f"Taxi: row {row}, column {col}. Passenger: {where}. Destination: {STOPS[destination]}."


if __name__ == "__main__":
    ragen_env.main(Taxi)
