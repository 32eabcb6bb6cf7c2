//! Work that waits for something outside, done side by side on a bounded number of threads.
//!
//! It knows nothing of environments. Results come in the order of the items, so that threads reach no result.

use std::sync::Mutex;

/// How much is done at once where nothing else is said: two items a core, at least 8, since most of them only wait.
pub fn workers() -> usize {
    std::thread::available_parallelism().map_or(8, |cores| (2 * cores.get()).max(8))
}

/// Calls `work` on each item and returns the results in the items' order: on this thread where no item `waits`, else on
/// `workers` threads at most, each of which takes the next item when it is free.
pub fn side_by_side<T: Send, R: Send>(
    items: Vec<T>,
    workers: usize,
    waits: impl Fn(&T) -> bool,
    work: impl Fn(T) -> R + Sync,
) -> Vec<R> {
    let workers = workers.min(items.len());
    if workers < 2 || !items.iter().any(waits) {
        return items.into_iter().map(work).collect();
    }
    let mut results: Vec<Option<R>> = items.iter().map(|_| None).collect();
    let next = Mutex::new(items.into_iter().zip(results.iter_mut()));
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    // The lock is held to take an item, not to work on it.
                    let taken = next.lock().map_or(None, |mut next| next.next());
                    let Some((item, result)) = taken else { break };
                    *result = Some(work(item));
                }
            });
        }
    });
    results.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    #[test]
    fn four_items_that_wait_for_each_other_are_done_by_four_workers_in_order() {
        let barrier = Barrier::new(4);
        let together = |n: usize| {
            barrier.wait();
            10 * n
        };
        assert_eq!(side_by_side((0..8).collect(), 4, |_| true, together), [0, 10, 20, 30, 40, 50, 60, 70]);
    }

    #[test]
    fn what_does_not_wait_stays_on_this_thread() {
        let here = std::thread::current().id();
        let on_this = |_| std::thread::current().id() == here;
        assert_eq!(side_by_side(vec![0, 1, 2], 4, |_| false, on_this), [true; 3]);
        assert_eq!(side_by_side(vec![0], 4, |_| true, on_this), [true]);
        assert_eq!(side_by_side(vec![0, 1], 1, |_| true, on_this), [true; 2]);
        assert_eq!(side_by_side(vec![0, 1, 2], 2, |n| *n == 2, on_this), [false; 3]);
    }
}
