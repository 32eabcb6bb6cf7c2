//! What may be done while work is recorded: the same on every machine.

use super::Recorded;
use crate::CudaError;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A number of this thread's own, from 1.
fn this_thread() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    thread_local!(static NUMBER: u64 = NEXT.fetch_add(1, Ordering::Relaxed));
    NUMBER.with(|number| *number)
}

/// Whether a machine records, and for whom.
#[derive(Default)]
pub(super) struct Gate {
    /// The thread that records now; 0 while none does.
    owner: AtomicU64,
    /// Memory that was given back meanwhile, and whether by the recording thread. What is put down may name it, so it is kept till the end.
    returned: Mutex<Vec<(u64, bool)>>,
}

impl Gate {
    /// Whether a call that can be recorded is one to put down and not to do.
    ///
    /// **Errors** [`CudaError::Call`] while another thread records: on the one stream its recording would take this call up.
    pub fn puts_down(&self, call: &str) -> Result<bool, CudaError> {
        match self.owner.load(Ordering::Acquire) {
            0 => Ok(false),
            owner if owner == this_thread() => Ok(true),
            _ => Err(refused(call, "another thread is recording work for this device; wait until it has")),
        }
    }

    /// Refuses a call that cannot be recorded while somebody records.
    ///
    /// **Errors** [`CudaError::Call`] then.
    pub fn refuse(&self, call: impl FnOnce() -> String) -> Result<(), CudaError> {
        if self.owner.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        let holds = "work is being recorded, and a recording holds launches, products, copies and zeros alone";
        Err(refused(&call(), &format!("{holds}; do this before or after it")))
    }

    /// Takes memory that is given back while somebody records; false when nobody does.
    pub fn takes(&self, address: u64) -> bool {
        let mut returned = self.returned();
        let owner = self.owner.load(Ordering::Acquire);
        if owner != 0 {
            returned.push((address, owner == this_thread()));
        }
        owner != 0
    }

    /// Begins a recording by this thread.
    ///
    /// **Errors** [`CudaError::Call`] when there is one already.
    pub fn shut(&self) -> Result<(), CudaError> {
        let taken = self.owner.compare_exchange(0, this_thread(), Ordering::AcqRel, Ordering::Acquire);
        taken.map(drop).map_err(|_| refused("record", "another recording is being made for this device"))
    }

    /// Ends the recording; gives the memory that was returned meanwhile, and an error where the recorded work itself returned some.
    pub fn open(&self) -> (Vec<u64>, Result<(), CudaError>) {
        let mut returned = self.returned();
        self.owner.store(0, Ordering::Release);
        let own = returned.iter().any(|(_, own)| *own);
        let error =
            refused("record", "memory was given back inside, which the recording may name; drop buffers after it");
        (returned.drain(..).map(|(address, _)| address).collect(), if own { Err(error) } else { Ok(()) })
    }

    fn returned(&self) -> MutexGuard<'_, Vec<(u64, bool)>> {
        self.returned.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn refused(call: &str, reason: &str) -> CudaError {
    CudaError::Call { call: call.to_string(), reason: reason.to_string() }
}

/// What a machine keeps for its recordings, by numbers that are never used again.
pub(super) struct Shelf<T>(Mutex<(usize, BTreeMap<usize, T>)>);

impl<T> Default for Shelf<T> {
    fn default() -> Self {
        Shelf(Mutex::default())
    }
}

impl<T: Clone> Shelf<T> {
    pub fn put(&self, kept: T) -> Recorded {
        let (next, all) = &mut *self.all();
        *next += 1;
        all.insert(*next, kept);
        Recorded(*next)
    }

    /// **Errors** [`CudaError::Call`] when it was forgotten.
    pub fn get(&self, recorded: Recorded) -> Result<T, CudaError> {
        let found = self.all().1.get(&recorded.0).cloned();
        found.ok_or_else(|| refused("replay", "the recording was forgotten, or is another device's"))
    }

    pub fn take(&self, recorded: Recorded) -> Option<T> {
        self.all().1.remove(&recorded.0)
    }

    pub fn take_all(&self) -> Vec<T> {
        std::mem::take(&mut self.all().1).into_values().collect()
    }

    fn all(&self) -> MutexGuard<'_, (usize, BTreeMap<usize, T>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recording_is_one_threads() {
        let gate = Gate::default();
        assert!(!gate.puts_down("launch").unwrap() && !gate.takes(1));
        gate.refuse(|| unreachable!()).unwrap();
        gate.shut().unwrap();
        assert!(gate.puts_down("launch").unwrap());
        assert!(gate.shut().unwrap_err().to_string().contains("another recording is being made"));
        let there = || {
            assert!(gate.takes(2));
            gate.puts_down("launch").unwrap_err().to_string()
        };
        let text = std::thread::scope(|scope| scope.spawn(there).join().unwrap());
        assert!(text.contains("launch failed: another thread is recording"), "{text}");
        assert!(
            gate.refuse(|| "upload".into())
                .unwrap_err()
                .to_string()
                .starts_with("upload failed: work is being recorded")
        );
        let (returned, outcome) = gate.open();
        assert!(returned == [2] && outcome.is_ok(), "what another thread gives back is its own affair");
        gate.shut().unwrap();
        assert!(gate.takes(3));
        let (returned, outcome) = gate.open();
        assert_eq!(returned, [3]);
        assert!(outcome.unwrap_err().to_string().contains("memory was given back inside"));
        assert!(!gate.puts_down("launch").unwrap());
    }

    #[test]
    fn numbers_are_not_used_again() {
        let shelf = Shelf::default();
        let first = shelf.put('a');
        assert_eq!((shelf.get(first).unwrap(), shelf.take(first), shelf.take(first)), ('a', Some('a'), None));
        let second = shelf.put('b');
        assert!(first != second && shelf.get(first).unwrap_err().to_string().contains("forgotten"));
        assert_eq!((shelf.take_all(), shelf.take_all()), (vec!['b'], vec![]));
    }
}
