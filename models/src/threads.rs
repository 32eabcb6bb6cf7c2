//! A persistent pool that runs one job at a time over a fixed list of tasks.
//!
//! Which thread runs a task never reaches a result: a task owns its outputs. Idle threads park, because a shared core
//! punishes spinning. A job started from inside a task runs on the calling thread alone, so that the same op code
//! serves whole-machine products and the rows of one decode worker.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

type Task = dyn Fn(usize) + Sync;

/// The job that workers should join: a task function and the number of tasks.
#[derive(Clone, Copy)]
struct Job {
    task: *const Task,
    tasks: usize,
}

// SAFETY: the pointer is only followed while `Pool::run` waits for every worker that took the job to leave it.
unsafe impl Send for Job {}

#[derive(Default)]
struct State {
    epoch: u64,
    job: Option<Job>,
    /// Workers inside the present job.
    active: usize,
    panic: Option<Box<dyn std::any::Any + Send>>,
    shutdown: bool,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    start: Condvar,
    done: Condvar,
    next: AtomicUsize,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs tasks until none is left; a panic is kept for the caller of the job.
    fn work(&self, job: Job) {
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            NESTED.with(|n| n.set(true));
            loop {
                let task = self.next.fetch_add(1, Ordering::Relaxed);
                if task >= job.tasks {
                    break;
                }
                // SAFETY: the job's owner keeps the function alive until all workers have left.
                unsafe { (*job.task)(task) };
            }
        }));
        NESTED.with(|n| n.set(false));
        if let Err(panic) = outcome {
            self.next.store(usize::MAX / 2, Ordering::Relaxed);
            self.lock().panic.get_or_insert(panic);
        }
    }
}

thread_local! {
    /// Whether this thread is inside a task.
    static NESTED: Cell<bool> = const { Cell::new(false) };
}

/// A pool of threads; the caller of [`Pool::run`] is one of them.
pub struct Pool {
    shared: Arc<Shared>,
    /// Held while a job runs, so that two callers take turns.
    turn: Mutex<()>,
    workers: Vec<JoinHandle<()>>,
}

impl Pool {
    /// A pool of `threads` threads in all (at least 1).
    pub fn new(threads: usize) -> Self {
        let shared = Arc::new(Shared::default());
        let workers = (1..threads)
            .filter_map(|i| {
                let shared = shared.clone();
                // A machine that refuses a thread leaves the pool smaller; results do not depend on it.
                std::thread::Builder::new().name(format!("ragen-{i}")).spawn(move || serve(&shared)).ok()
            })
            .collect();
        Pool { shared, turn: Mutex::new(()), workers }
    }

    /// Threads in all.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs `task(0)`, …, `task(tasks − 1)`, each once, on any thread; returns when all are done.
    ///
    /// **Panics** with the panic of a task.
    pub fn run(&self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        if tasks <= 1 || self.workers.is_empty() || NESTED.with(Cell::get) {
            for i in 0..tasks {
                task(i);
            }
            return;
        }
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: only the lifetime is erased; this function returns after every worker has left the job.
        let task = unsafe { std::mem::transmute::<*const (dyn Fn(usize) + Sync), *const Task>(task) };
        let job = Job { task, tasks };
        {
            let mut state = self.shared.lock();
            self.shared.next.store(0, Ordering::Relaxed);
            state.epoch += 1;
            state.job = Some(job);
        }
        self.shared.start.notify_all();
        self.shared.work(job);
        let mut state = self.shared.lock();
        state.job = None;
        while state.active > 0 {
            state = self.shared.done.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if let Some(panic) = state.panic.take() {
            drop(state);
            resume_unwind(panic);
        }
    }

    /// Splits `0..n` into pieces of at least `grain` (a multiple of `unit`) and runs `body(range)` on each.
    pub fn split(&self, n: usize, grain: usize, unit: usize, body: &(dyn Fn(std::ops::Range<usize>) + Sync)) {
        // A few pieces a thread even out a core that another process shares.
        let pieces = (n / grain.max(1)).clamp(1, 4 * self.threads());
        let size = n.div_ceil(pieces).next_multiple_of(unit.max(1));
        self.run(n.div_ceil(size.max(1)), &|i| body(i * size..((i + 1) * size).min(n)));
    }
}

fn serve(shared: &Shared) {
    let mut seen = 0;
    let mut state = shared.lock();
    loop {
        if state.shutdown {
            return;
        }
        match state.job {
            Some(job) if state.epoch != seen => {
                seen = state.epoch;
                state.active += 1;
                drop(state);
                shared.work(job);
                state = shared.lock();
                state.active -= 1;
                if state.active == 0 {
                    shared.done.notify_one();
                }
            }
            _ => state = shared.start.wait(state).unwrap_or_else(PoisonError::into_inner),
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.lock().shutdown = true;
        self.shared.start.notify_all();
        for worker in self.workers.drain(..) {
            // A worker cannot panic outside a task, and task panics were handed to the caller.
            let _ = worker.join();
        }
    }
}

/// A slice whose disjoint parts are written by different tasks.
#[derive(Clone, Copy)]
pub(crate) struct Shards<'a, T> {
    data: *mut T,
    len: usize,
    lifetime: std::marker::PhantomData<&'a mut [T]>,
}

// SAFETY: parts are handed out by `Shards::part`, whose callers promise that they do not overlap.
unsafe impl<T: Send> Send for Shards<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Shards<'_, T> {}

impl<'a, T> Shards<'a, T> {
    /// Takes the slice over for the time of a job.
    pub(crate) fn new(data: &'a mut [T]) -> Self {
        Shards { data: data.as_mut_ptr(), len: data.len(), lifetime: std::marker::PhantomData }
    }

    /// The part `range`, to write.
    ///
    /// # Safety
    /// Parts that are alive at the same time must not overlap.
    #[allow(clippy::mut_from_ref)] // that is the point: the caller promises disjoint parts
    pub(crate) unsafe fn part(&self, range: std::ops::Range<usize>) -> &'a mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "part {range:?} of {}", self.len);
        // SAFETY: in bounds by the assertion; disjoint by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.data.add(range.start), range.len()) }
    }

    /// Pointer to element `index`, for strided parts.
    pub(crate) fn at(&self, index: usize) -> *mut T {
        assert!(index <= self.len);
        // SAFETY: in bounds by the assertion.
        unsafe { self.data.add(index) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    #[test]
    fn every_task_runs_once_and_nested_jobs_run_inline() {
        for threads in [1, 2, 5] {
            let pool = Pool::new(threads);
            for tasks in [0, 1, 2, 7, 100] {
                let sum = AtomicU64::new(0);
                pool.run(tasks, &|i| {
                    pool.run(3, &|j| {
                        sum.fetch_add((i * 3 + j) as u64 + 1, Ordering::Relaxed);
                    });
                });
                let n = 3 * tasks as u64;
                assert_eq!(sum.into_inner(), n * (n + 1) / 2);
            }
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
        let pool = Pool::new(3);
        let outcome = catch_unwind(AssertUnwindSafe(|| pool.run(50, &|i| assert!(i != 17, "seventeen"))));
        assert!(outcome.is_err());
        let count = AtomicUsize::new(0);
        pool.run(10, &|_| {
            count.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(count.into_inner(), 10);
    }

    #[test]
    fn split_covers_the_range_in_units() {
        let pool = Pool::new(2);
        let seen = Mutex::new(Vec::new());
        pool.split(103, 8, 6, &|r| seen.lock().unwrap().push(r));
        let mut seen = seen.into_inner().unwrap();
        seen.sort_by_key(|r| r.start);
        assert_eq!(seen[0].start, 0);
        assert_eq!(seen[seen.len() - 1].end, 103);
        assert!(seen.windows(2).all(|w| w[0].end == w[1].start && w[1].start % 6 == 0));
    }
}
