//! Two makers of Sokoban levels: rooms by a random walk and reverse play, and open floors by trial.
//!
//! They know levels and the solver; which one is used, and how long a solution may be, is the environment's setting.

use super::level::{FLOOR, Level, MAX_BOXES, MAX_SIDE, TARGET, WALL, cell, index, neighbour};
use super::solver::{Keys, Position};
use crate::Stream;
use crate::grid::{Cell, Direction};

type Codes = [u8; MAX_SIDE * MAX_SIDE];

/// Probability that the walk that digs a room turns at a step.
const TURN: f64 = 0.35;
/// Reverse play stops at this many positions.
const MAX_POSITIONS: usize = 300_000;
/// What the walk digs around a cell, as (rows down, columns right).
const MASKS: [&[(isize, isize)]; 5] = [
    &[(0, -1), (0, 0), (0, 1)],
    &[(-1, 0), (0, 0), (1, 0)],
    &[(0, 0), (0, -1), (1, 0)],
    &[(0, 0), (0, -1), (1, 0), (1, -1)],
    &[(0, 0), (0, 1), (1, 0)],
];

/// One try at a room: dig, place player and targets, pull the boxes away from their targets, shuffle the player.
/// Solvable by construction; no box starts on a target.
///
/// `None` if there is too little floor, or if no box could be pulled away in four rooms. `effort` is lowered by the
/// positions looked at; at 0 the search ends with what it has.
///
/// **Source** the generator of gym-sokoban, after Weber et al., *Imagination-Augmented Agents for Deep Reinforcement
/// Learning* (2017), appendix D.
pub fn rooms(
    size: (usize, usize),
    num_boxes: usize,
    search_depth: usize,
    draws: &mut Stream,
    effort: &mut usize,
) -> Option<Level> {
    for _ in 0..4 {
        let mut codes = dig(size, draws);
        let mut floor: Vec<u8> = (0..=u8::MAX).filter(|at| codes[*at as usize] == FLOOR).collect();
        if floor.len() <= num_boxes + 1 {
            return None;
        }
        let player = floor.swap_remove(draws.below(floor.len()));
        let mut targets = [0; MAX_BOXES];
        for target in &mut targets[..num_boxes] {
            *target = floor.swap_remove(draws.below(floor.len()));
            codes[*target as usize] = TARGET;
        }
        if let Some((mut position, displacement)) = pull_away(&codes, &targets, num_boxes, player, search_depth, effort)
        {
            shuffle_player(&codes, &mut position, num_boxes, displacement, draws);
            return Some(Level::assemble(size, codes, &position.boxes[..num_boxes], position.player));
        }
    }
    None
}

/// One try at an open floor: inside the ring every cell is wall with probability `wall_p`; player, boxes and targets
/// lie on distinct random cells. `None` if there is too little floor. Whether it can be solved is not known.
pub fn open(size: (usize, usize), num_boxes: usize, wall_p: f64, draws: &mut Stream) -> Option<Level> {
    let mut codes = [WALL; MAX_SIDE * MAX_SIDE];
    let mut floor: Vec<u8> = Vec::new();
    for at in (1..size.0 - 1).flat_map(|row| (1..size.1 - 1).map(move |col| index((row, col)))) {
        if !draws.chance(wall_p) {
            codes[at as usize] = FLOOR;
            floor.push(at);
        }
    }
    if floor.len() < 2 * num_boxes + 1 {
        return None;
    }
    let mut take = || floor.swap_remove(draws.below(floor.len()));
    let player = take();
    let boxes: Vec<u8> = (0..num_boxes).map(|_| take()).collect();
    for _ in 0..num_boxes {
        codes[take() as usize] = TARGET;
    }
    Some(Level::assemble(size, codes, &boxes, player))
}

fn dig((rows, cols): (usize, usize), draws: &mut Stream) -> Codes {
    let mut codes = [WALL; MAX_SIDE * MAX_SIDE];
    // The start may lie on the far edge: the first move brings it inside.
    let mut at: Cell = (1 + draws.below(rows - 1), 1 + draws.below(cols - 1));
    let mut direction = Direction::ALL[draws.below(4)];
    for _ in 0..(1.7 * (rows + cols) as f64) as usize {
        if draws.chance(TURN) {
            direction = Direction::ALL[draws.below(4)];
        }
        let moved = direction.from_cell(at, (rows, cols)).unwrap_or(at);
        at = (moved.0.clamp(1, rows - 2), moved.1.clamp(1, cols - 2));
        for (down, right) in MASKS[draws.below(MASKS.len())] {
            let (row, col) = (at.0.wrapping_add_signed(*down), at.1.wrapping_add_signed(*right));
            if (1..rows - 1).contains(&row) && (1..cols - 1).contains(&col) {
                codes[index((row, col)) as usize] = FLOOR;
            }
        }
    }
    codes
}

/// Depth-first search over pulls from the solved position. A position counts only with every target free; its score is
/// the number of times that the pulled box changed, times the sum of the boxes' Manhattan distances from home.
/// Returns the first best position and its sum of distances; `None` if the best score is 0.
fn pull_away(
    codes: &Codes,
    targets: &[u8; MAX_BOXES],
    num_boxes: usize,
    player: u8,
    search_depth: usize,
    effort: &mut usize,
) -> Option<(Position, usize)> {
    #[derive(Clone, Copy)]
    struct Frame {
        position: Position,
        last_pulled: usize,
        changes: usize,
        next: usize,
    }
    let n = num_boxes;
    let distance = |a: u8, b: u8| {
        let ((row_a, col_a), (row_b, col_b)) = (cell(a), cell(b));
        row_a.abs_diff(row_b) + col_a.abs_diff(col_b)
    };
    let is_target = |at: u8| codes[at as usize] == TARGET;
    let start = Position { player, boxes: *targets };
    let mut seen = Keys::default();
    seen.insert(start.key(n));
    let mut best = (0, None);
    let limit = seen.len() + MAX_POSITIONS.min(*effort);
    let mut stack = vec![Frame { position: start, last_pulled: usize::MAX, changes: 0, next: 0 }];
    while let Some(top) = stack.last_mut() {
        if top.next == 4 {
            stack.pop();
            continue;
        }
        let (direction, behind) = (Direction::ALL[top.next], Direction::ALL[top.next ^ 1]);
        top.next += 1;
        let mut frame = Frame { next: 0, ..*top };
        let boxes = &mut frame.position.boxes[..n];
        let from = top.position.player;
        let to = neighbour(from, direction);
        if codes[to as usize] == WALL || boxes.contains(&to) {
            continue;
        }
        if let Some(pulled) = boxes.iter().position(|at| *at == neighbour(from, behind)) {
            boxes[pulled] = from;
            frame.changes += usize::from(pulled != frame.last_pulled);
            frame.last_pulled = pulled;
        }
        frame.position.player = to;
        if stack.len() >= search_depth || seen.len() >= limit || !seen.insert(frame.position.key(n)) {
            continue;
        }
        let boxes = &frame.position.boxes[..n];
        let displacement: usize = boxes.iter().zip(targets).map(|(at, home)| distance(*at, *home)).sum();
        let all_free = !is_target(to) && !boxes.iter().any(|at| is_target(*at));
        if all_free && frame.changes * displacement > best.0 {
            best = (frame.changes * displacement, Some((frame.position, displacement)));
        }
        stack.push(frame);
    }
    *effort -= seen.len() - 1;
    best.1
}

/// Often lets the player walk one to three random steps to cells it has not been on, so that it does not always stand
/// beside the box it pulled last.
fn shuffle_player(codes: &Codes, position: &mut Position, num_boxes: usize, displacement: usize, draws: &mut Stream) {
    if !draws.chance(if displacement == 1 { 0.8 } else { 0.5 }) {
        return;
    }
    let mut visited = vec![position.player];
    for _ in 0..3 {
        let is_free = |at: &u8| codes[*at as usize] != WALL && !position.boxes[..num_boxes].contains(at);
        let ways = Direction::ALL.map(|direction| neighbour(position.player, direction));
        let ways: Vec<u8> = ways.into_iter().filter(|at| is_free(at) && !visited.contains(at)).collect();
        if ways.is_empty() {
            return;
        }
        position.player = ways[draws.below(ways.len())];
        visited.push(position.player);
        if !draws.chance(0.5) {
            return;
        }
    }
}
