//! Breadth-first search over player and boxes: the shortest solution in moves.
//!
//! It knows the rules only; it serves the generators, the scripted player, and the tests as their oracle.

use super::level::{Level, MAX_BOXES, neighbour};
use crate::grid::Direction;
use std::collections::HashSet;
use std::hash::{BuildHasherDefault, Hasher};

/// Positions searched before a level is given up.
const EFFORT: usize = 1_000_000;

/// Player and boxes; boxes in ascending order, so that equal positions are equal keys.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Position {
    pub(crate) player: u8,
    pub(crate) boxes: [u8; MAX_BOXES],
}

impl Position {
    /// The order of boxes does not matter to the key.
    pub(crate) fn key(mut self, num_boxes: usize) -> u128 {
        self.boxes[..num_boxes].sort_unstable();
        self.boxes[..num_boxes].iter().fold(self.player as u128, |key, at| key << 8 | *at as u128)
    }
}

/// A hash set of position keys; only membership is asked, so its order reaches no result.
pub(crate) type Keys = HashSet<u128, BuildHasherDefault<KeyHasher>>;

/// One multiplication a half, folded: keys are small and trusted.
#[derive(Default)]
pub(crate) struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u128(*byte as u128));
    }

    fn write_u128(&mut self, key: u128) {
        let halves = (key as u64) ^ ((key >> 64) as u64).rotate_left(29).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let product = halves.wrapping_mul(0xbf58_476d_1ce4_e5b9);
        self.0 = (self.0.rotate_left(5) ^ product) ^ (product >> 32);
    }
}

/// Cells from which a box can be pushed onto some target if nothing else stands in the way.
fn live_cells(level: &Level) -> [bool; 256] {
    let mut alive = [false; 256];
    let mut queue: Vec<u8> = (0..=u8::MAX).filter(|at| level.is_target(*at)).collect();
    queue.iter().for_each(|at| alive[*at as usize] = true);
    while let Some(at) = queue.pop() {
        for direction in Direction::ALL {
            // Reverse of a push: the box comes from `from`, the player stood one further.
            let from = neighbour(at, direction);
            if !level.is_wall(from) && !level.is_wall(neighbour(from, direction)) && !alive[from as usize] {
                alive[from as usize] = true;
                queue.push(from);
            }
        }
    }
    alive
}

/// The shortest solution, the first in the order up, down, left, right among equals; `None` if there is none of at
/// most `max_moves` moves (or none within a million positions, which bounds time and memory).
pub fn solve(level: &Level, max_moves: usize) -> Option<Vec<Direction>> {
    search(level, max_moves, &mut { EFFORT })
}

/// As [`solve`], with a count of positions that may still be looked at, which it lowers: work is limited by counting,
/// never by a clock, so that a result is the same on every machine.
pub(crate) fn search(level: &Level, max_moves: usize, effort: &mut usize) -> Option<Vec<Direction>> {
    struct Node {
        position: Position,
        parent: u32,
        direction: Direction,
    }
    if level.is_solved() {
        return Some(Vec::new());
    }
    let n = level.num_boxes();
    let alive = live_cells(level);
    let mut start = Position { player: level.player_index(), boxes: [0; MAX_BOXES] };
    start.boxes.iter_mut().zip(level.boxes()).for_each(|(slot, at)| *slot = at);
    if start.boxes[..n].iter().any(|at| !alive[*at as usize]) {
        return None;
    }
    let mut seen = Keys::default();
    seen.insert(start.key(n));
    let mut nodes = vec![Node { position: start, parent: u32::MAX, direction: Direction::Up }];
    let (mut head, mut level_end, mut moves) = (0, 1, 1);
    while head < nodes.len() && moves <= max_moves && head < EFFORT && *effort > 0 {
        *effort -= 1;
        let position = nodes[head].position;
        for direction in Direction::ALL {
            let mut next = position;
            next.player = neighbour(position.player, direction);
            if level.is_wall(next.player) {
                continue;
            }
            if let Some(pushed) = position.boxes[..n].iter().position(|at| *at == next.player) {
                let onto = neighbour(next.player, direction);
                if !alive[onto as usize] || position.boxes[..n].contains(&onto) {
                    continue;
                }
                next.boxes[pushed] = onto;
            }
            if !seen.insert(next.key(n)) {
                continue;
            }
            nodes.push(Node { position: next, parent: head as u32, direction });
            if next.boxes[..n].iter().all(|at| level.is_target(*at)) {
                let chain = std::iter::successors(nodes.last(), |node| nodes.get(node.parent as usize));
                let mut plan: Vec<Direction> = chain.map(|node| node.direction).collect();
                plan.pop(); // the start has no move
                plan.reverse();
                return Some(plan);
            }
        }
        head += 1;
        if head == level_end {
            level_end = nodes.len();
            moves += 1;
        }
    }
    None
}
