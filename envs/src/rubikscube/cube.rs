//! The cube of 2×2×2: stickers, quarter turns, and the shortest way to solve it.
//!
//! It knows stickers and turns, and nothing of episodes. Turns are worked out from where stickers lie in space, so that
//! every one of them is what a cube of plastic does.

use std::collections::HashMap;
use std::sync::LazyLock;

/// Names of the turns: a face clockwise as seen from it, and back.
pub const NAMES: [&str; 12] = ["U", "U'", "D", "D'", "L", "L'", "R", "R'", "F", "F'", "B", "B'"];
/// The faces in the order of the stickers.
pub const FACES: [char; 6] = ['U', 'L', 'F', 'R', 'B', 'D'];
/// The colour of each face when solved: white, orange, green, red, blue, yellow.
pub const COLOURS: [char; 6] = ['W', 'O', 'G', 'R', 'B', 'Y'];

/// Turns on either side of a search that has not met: together the most that any cube needs.
const DEPTH: usize = 7;

type Vector = [i8; 3];

/// Each face's outward direction, and right and down as seen from outside.
const AXES: [[Vector; 3]; 6] = [
    [[0, 1, 0], [1, 0, 0], [0, 0, 1]],
    [[-1, 0, 0], [0, 0, 1], [0, -1, 0]],
    [[0, 0, 1], [1, 0, 0], [0, -1, 0]],
    [[1, 0, 0], [0, 0, -1], [0, -1, 0]],
    [[0, 0, -1], [-1, 0, 0], [0, -1, 0]],
    [[0, -1, 0], [1, 0, 0], [0, 0, -1]],
];
/// The face of each pair of turns, as an index into [`FACES`].
const TURNED: [usize; 6] = [0, 5, 1, 3, 2, 4];

/// Where a sticker lies: its corner of the cube and its outward direction.
fn place(sticker: usize) -> (Vector, Vector) {
    let [out, right, down] = AXES[sticker / 4];
    let sign = |second: bool| if second { 1 } else { -1 };
    let (across, along) = (sign(sticker % 2 == 1), sign(sticker % 4 >= 2));
    ([0, 1, 2].map(|i| out[i] + across * right[i] + along * down[i]), out)
}

/// `v` turned by a quarter clockwise, as seen against `axis`.
fn turned(v: Vector, axis: Vector) -> Vector {
    let along: i8 = (0..3).map(|i| v[i] * axis[i]).sum();
    [0, 1, 2].map(|i| {
        let (j, k) = ((i + 1) % 3, (i + 2) % 3);
        v[j] * axis[k] - v[k] * axis[j] + axis[i] * along
    })
}

/// Of each turn, by the index into [`NAMES`]: the sticker that comes to each position, `new[i] = old[source[i]]`.
pub static SOURCES: LazyLock<[[u8; 24]; 12]> = LazyLock::new(|| {
    let mut sources = [[0; 24]; 12];
    for (pair, face) in TURNED.into_iter().enumerate() {
        let axis = AXES[face][0];
        for from in 0..24 {
            let (corner, out) = place(from);
            let is_moved = (0..3).map(|i| corner[i] * axis[i]).sum::<i8>() == 1;
            let moved = if is_moved { (turned(corner, axis), turned(out, axis)) } else { (corner, out) };
            let to = (0..24).find(|to| place(*to) == moved).unwrap_or(from);
            sources[2 * pair][to] = from as u8;
            sources[2 * pair + 1][from] = to as u8;
        }
    }
    sources
});

/// A cube: the colour of each sticker, faces in the order of [`FACES`], each in reading order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cube(pub [u8; 24]);

impl Cube {
    /// Every face in its own colour.
    pub fn solved() -> Cube {
        Cube(std::array::from_fn(|sticker| (sticker / 4) as u8))
    }

    /// The cube after a turn.
    pub fn turn(&self, turn: usize) -> Cube {
        let source = &SOURCES[turn];
        Cube(std::array::from_fn(|i| self.0[source[i] as usize]))
    }

    /// Every face has one colour, however the cube lies.
    pub fn is_solved(&self) -> bool {
        self.0.chunks_exact(4).all(|face| face.iter().all(|colour| *colour == face[0]))
    }

    /// A shortest sequence of turns that solves it, always the same; `None` if there is none, which no cube of plastic is.
    ///
    /// A turn of one face is a turn of the opposite one and of the whole cube, so turns of three faces that share no sticker with
    /// the corner down, back and left are enough. That corner says which way the solved cube lies. The search goes from both
    /// ends.
    pub fn solution(&self) -> Option<Vec<usize>> {
        const TURNS: [usize; 6] = [0, 1, 6, 7, 8, 9];
        let opposite = |colour: u8| [5, 3, 4, 1, 2, 0][colour as usize];
        // The stickers of the corner down, back and left.
        let (down, back, left) = (self.0[22], self.0[19], self.0[6]);
        let colours = [opposite(down), left, opposite(back), opposite(left), back, down];
        let goal = Cube(std::array::from_fn(|sticker| colours[sticker / 4]));
        if *self == goal {
            return Some(Vec::new());
        }
        // Of each cube that was reached from either end: the turn that led to it.
        let mut reached = [HashMap::from([(*self, None)]), HashMap::from([(goal, None)])];
        let mut edges = [vec![*self], vec![goal]];
        for round in 0..2 * DEPTH {
            let side = round % 2;
            let mut next = Vec::new();
            for cube in std::mem::take(&mut edges[side]) {
                for turn in TURNS {
                    let after = cube.turn(turn);
                    if reached[side].contains_key(&after) {
                        continue;
                    }
                    reached[side].insert(after, Some(turn));
                    if reached[1 - side].contains_key(&after) {
                        return Some(join(&reached, after));
                    }
                    next.push(after);
                }
            }
            edges[side] = next;
        }
        None
    }
}

/// The turns from one end to the other through a cube that both have reached.
fn join(reached: &[HashMap<Cube, Option<usize>>; 2], meeting: Cube) -> Vec<usize> {
    let back = |side: usize| {
        let mut turns = Vec::new();
        let mut at = meeting;
        while let Some(Some(turn)) = reached[side].get(&at) {
            turns.push(*turn);
            at = at.turn(turn ^ 1);
        }
        turns
    };
    let mut turns = back(0);
    turns.reverse();
    // From the goal's side every turn is undone.
    turns.extend(back(1).into_iter().map(|turn| turn ^ 1));
    turns
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Stream;

    fn scrambled(seed: u64, turns: usize) -> Cube {
        let mut draws = Stream::new(seed);
        (0..turns).fold(Cube::solved(), |cube, _| cube.turn(draws.below(12)))
    }

    #[test]
    fn four_turns_are_none_and_a_turn_is_undone_by_its_prime() {
        let cube = scrambled(1, 30);
        for turn in 0..12 {
            assert_eq!((0..4).fold(cube, |cube, _| cube.turn(turn)), cube);
            assert_eq!(cube.turn(turn).turn(turn ^ 1), cube);
            assert_ne!(cube.turn(turn), cube);
        }
    }

    /// The order of the commutator of neighbouring faces; with corners that come apart it would be 35.
    #[test]
    fn the_commutator_of_two_neighbours_has_order_six() {
        for (a, b) in [(10, 6), (0, 6), (8, 0), (4, 10)] {
            let round = |cube: Cube| [a, b, a ^ 1, b ^ 1].into_iter().fold(cube, |cube, turn| cube.turn(turn));
            let mut cube = round(Cube::solved());
            let mut order = 1;
            while cube != Cube::solved() {
                cube = round(cube);
                order += 1;
            }
            assert_eq!(order, 6);
        }
    }

    #[test]
    fn opposite_turns_turn_the_whole_cube() {
        let cube = Cube::solved().turn(0).turn(3);
        assert!(cube.is_solved() && cube != Cube::solved());
        assert_eq!(cube.solution(), Some(vec![]));
    }

    /// No scramble of 30 turns needs more than 14; breadth-first search says how many a short one needs.
    #[test]
    fn solutions_solve_and_are_shortest() {
        for seed in 0..12 {
            let cube = scrambled(seed, 30);
            let solution = cube.solution().unwrap();
            assert!(solution.len() <= 14, "{solution:?}");
            assert!(solution.iter().fold(cube, |cube, turn| cube.turn(*turn)).is_solved());
        }
        for seed in 0..60 {
            let cube = scrambled(seed, 3);
            let mut edge = vec![cube];
            let mut depth = 0;
            while !edge.iter().any(Cube::is_solved) {
                edge = edge.iter().flat_map(|cube| (0..12).map(|turn| cube.turn(turn))).collect();
                depth += 1;
            }
            assert_eq!(cube.solution().unwrap().len(), depth, "seed {seed}");
        }
    }

    #[test]
    fn a_cube_that_came_apart_has_no_solution() {
        let mut cube = Cube::solved();
        cube.0.swap(0, 4);
        assert_eq!(cube.solution(), None);
    }
}
