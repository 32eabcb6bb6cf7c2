//! Making the number of a step's episodes divisible, as the published code does before it trains.
//!
//! Mini-batches here are split as evenly as can be, so nothing asks for it; it is there to train as the published code does.
//! Advantages are estimated before, so a copy never counts in a group's statistics.

use crate::config::BatchAdjust;
use ragen_models::random::Key;

/// The episodes that are trained on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Adjusted {
    /// Their places: all, in order, and behind them the copies; or those that are left, in order.
    pub picked: Vec<usize>,
    /// Copies.
    pub added: usize,
    /// Episodes left out.
    pub removed: usize,
}

/// What the number of episodes is made a multiple of: the least common multiple of groups, mini-batch and devices.
pub fn divisor(groups: usize, mini_batch: usize, devices: usize) -> usize {
    fn gcd(a: usize, b: usize) -> usize {
        if b == 0 { a } else { gcd(b, a % b) }
    }
    let lcm = |a: usize, b: usize| a / gcd(a, b).max(1) * b;
    [mini_batch, devices].into_iter().fold(groups.max(1), |all, n| lcm(all, n.max(1)))
}

/// The number of episodes after adjustment by the published rule, under which `delete` may leave none.
pub fn published_size(how: BatchAdjust, n: usize, divisor: usize) -> usize {
    match how {
        BatchAdjust::None => n,
        BatchAdjust::Copy => n.next_multiple_of(divisor),
        BatchAdjust::Delete => n - n % divisor,
    }
}

/// Chooses `n` episodes, or more, or fewer, at random: copies without repetition as long as there are enough.
pub fn adjust(how: BatchAdjust, n: usize, divisor: usize, key: Key) -> Adjusted {
    let size = match published_size(how, n, divisor) {
        0 => published_size(BatchAdjust::Copy, n, divisor),
        size => size,
    };
    let mut picked: Vec<usize> = (0..n).collect();
    if size < n {
        picked = key.permutation(n)[..size].to_vec();
        picked.sort_unstable();
    }
    let added = size.saturating_sub(n);
    if added <= n {
        picked.extend(&key.permutation(n)[..added]);
    } else if n > 0 {
        picked.extend((0..added).map(|i| key.below(i as u64, n)));
    }
    Adjusted { picked, added, removed: n.saturating_sub(size) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_follow_all_others_and_repeat_only_when_they_must() {
        let adjusted = adjust(BatchAdjust::Copy, 5, 8, Key::new(1));
        assert_eq!(adjusted.picked[..5], [0, 1, 2, 3, 4]);
        let mut copies = adjusted.picked[5..].to_vec();
        copies.sort_unstable();
        copies.dedup();
        assert_eq!((copies.len(), adjusted.added, adjusted.removed), (3, 3, 0));
        let adjusted = adjust(BatchAdjust::Copy, 2, 16, Key::new(1));
        assert!(adjusted.picked.len() == 16 && adjusted.picked.iter().all(|i| *i < 2));
        assert!(adjust(BatchAdjust::Copy, 0, 16, Key::new(1)).picked.is_empty());
    }

    #[test]
    fn what_is_left_keeps_its_order_and_is_never_nothing() {
        let adjusted = adjust(BatchAdjust::Delete, 21, 8, Key::new(1));
        assert!(adjusted.picked.is_sorted() && adjusted.picked.len() == 16 && adjusted.removed == 5);
        assert_ne!(adjusted.picked, (0..16).collect::<Vec<_>>(), "not always the same ones");
        assert_eq!(adjust(BatchAdjust::Delete, 5, 8, Key::new(1)).picked.len(), 8);
        assert_eq!(adjust(BatchAdjust::None, 5, 8, Key::new(1)).picked, [0, 1, 2, 3, 4]);
    }
}
