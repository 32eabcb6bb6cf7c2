//! The scripted player of FrozenLake: the shortest way where moves do as they are told, else the surest.
//!
//! It knows a lake and how often a move slips, and nothing of episodes.

use super::{CYCLE, FrozenLake, Lake, Tile};
use crate::Stream;
use crate::grid::{Cell, Direction};

/// How much a way is worth that takes a move more, on slippery ice. A player without haste turns its back on a hole and
/// waits to slip past it, for hundreds of moves; with 0.95 it reaches the goal within the ten moves of the shipped tags
/// as often, to a point, as the best play for ten moves does.
const HASTE: f64 = 0.95;
/// Sweeps of value iteration end when no value changes by more.
const PRECISION: f64 = 1e-9;

/// Moves to the goal from each cell around holes; `usize::MAX` where there is no way.
pub(super) fn distances(lake: &Lake) -> Vec<usize> {
    let mut distances = vec![usize::MAX; lake.tiles.len()];
    distances[lake.goal.0 * lake.size + lake.goal.1] = 0;
    let mut queue = vec![lake.goal];
    let mut head = 0;
    while let Some(&cell) = queue.get(head) {
        head += 1;
        for next in CYCLE.iter().filter_map(|d| d.from_cell(cell, (lake.size, lake.size))) {
            let i = next.0 * lake.size + next.1;
            if lake.tiles[i] == Tile::Ice && distances[i] == usize::MAX {
                distances[i] = distances[cell.0 * lake.size + cell.1] + 1;
                queue.push(next);
            }
        }
    }
    distances
}

/// What each cell is worth: the probability of reaching the goal from it, a factor [`HASTE`] less for every move.
///
/// **Source** value iteration (Sutton and Barto, section 4.4).
fn worth(lake: &Lake, slip_weights: [f64; 3]) -> Vec<f64> {
    let mut worth: Vec<f64> = lake.tiles.iter().map(|tile| f64::from(u8::from(*tile == Tile::Goal))).collect();
    loop {
        let mut change = 0.0f64;
        for cell in lake.cells().filter(|cell| lake.tile(*cell) == Tile::Ice) {
            let best =
                (0..4).map(|index| HASTE * prospect(lake, &worth, slip_weights, cell, index)).fold(0.0, f64::max);
            let now = &mut worth[cell.0 * lake.size + cell.1];
            change = change.max((best - *now).abs());
            *now = best;
        }
        if change <= PRECISION {
            return worth;
        }
    }
}

/// The mean worth of where the direction `CYCLE[index]` leads to from a cell.
fn prospect(lake: &Lake, worth: &[f64], slip_weights: [f64; 3], cell: Cell, index: usize) -> f64 {
    let shifts = [3, 0, 1];
    let led_to = shifts.map(|shift| lake.next(cell, CYCLE[(index + shift) % 4]));
    slip_weights.iter().zip(led_to).map(|(weight, (row, col))| weight * worth[row * lake.size + col]).sum()
}

impl FrozenLake {
    /// The best moves from the player's cell, as if none slipped, each replaced by a random one with probability `noise`.
    pub(super) fn plan(&self, lake: &Lake, from: Cell, len: usize, noise: f64, draws: &mut Stream) -> Vec<Direction> {
        let distances = distances(lake);
        let distance = |(row, col): Cell| distances[row * lake.size + col];
        let mut plan = Vec::with_capacity(len);
        if distance(from) == usize::MAX {
            return plan;
        }
        let weights = self.slip_weights();
        let worth = if weights[1] < 1.0 { worth(lake, weights) } else { Vec::new() };
        let best = |at: Cell| match worth.is_empty() {
            true => CYCLE.into_iter().min_by_key(|direction| distance(lake.next(at, *direction))),
            false => {
                let prospects = [0, 1, 2, 3].map(|index| prospect(lake, &worth, weights, at, index));
                (0..4).rev().max_by(|a, b| prospects[*a].total_cmp(&prospects[*b])).map(|index| CYCLE[index])
            }
        };
        let mut at = from;
        while plan.len() < len && lake.tile(at) == Tile::Ice {
            let planned = best(at);
            let direction = if draws.chance(noise) { Some(CYCLE[draws.below(4)]) } else { planned };
            plan.extend(direction);
            at = direction.map_or(at, |direction| lake.next(at, direction));
        }
        plan
    }
}
