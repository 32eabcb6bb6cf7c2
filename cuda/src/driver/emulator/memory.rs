//! Device memory: host memory between pages that nobody may touch.

use super::runtime::Runtime;
use crate::CudaError;
use std::collections::BTreeMap;

struct Allocation {
    what: String,
    bytes: usize,
}

/// What an allocation of so many bytes takes.
pub fn taken(bytes: usize) -> usize {
    bytes.max(16)
}

/// All allocations of one emulator, by address.
pub struct Memory {
    runtime: &'static Runtime,
    allocations: BTreeMap<u64, Allocation>,
    used: usize,
    total: usize,
}

impl Memory {
    pub fn new(runtime: &'static Runtime, total: usize) -> Memory {
        Memory { runtime, allocations: BTreeMap::new(), used: 0, total }
    }

    pub fn free_and_total(&self) -> (usize, usize) {
        (self.total - self.used, self.total)
    }

    /// Memory whose end lies against a forbidden page. It begins at a multiple of 256 if its length is one, else at a multiple of 16.
    pub fn allocate(&mut self, what: &str, bytes: usize) -> Result<u64, CudaError> {
        let bytes = taken(bytes);
        let free = self.total - self.used;
        let address = if bytes <= free { self.runtime.map(bytes) } else { None };
        let Some(address) = address else {
            let what = what.into();
            return Err(CudaError::Memory { what, wanted_bytes: bytes, free_bytes: free, total_bytes: self.total });
        };
        self.used += bytes;
        self.allocations.insert(address, Allocation { what: what.into(), bytes });
        Ok(address)
    }

    pub fn free(&mut self, address: u64) {
        if let Some(allocation) = self.allocations.remove(&address) {
            self.used -= allocation.bytes;
            // SAFETY: it was mapped with this length and is no longer known.
            unsafe { self.runtime.unmap(address, allocation.bytes) };
        }
    }

    /// Refuses a range that does not lie in one allocation.
    pub fn check(&self, call: &str, address: u64, bytes: usize) -> Result<(), CudaError> {
        let inside = self.allocations.range(..=address).next_back().is_some_and(|(&start, allocation)| {
            (address - start) as usize <= allocation.bytes && bytes <= allocation.bytes - (address - start) as usize
        });
        if inside || bytes == 0 {
            return Ok(());
        }
        let reason = format!("{bytes} bytes at {}", self.whereabouts(address));
        Err(CudaError::Call { call: call.into(), reason })
    }

    /// Where an address lies, seen from the nearest allocation.
    pub fn whereabouts(&self, address: u64) -> String {
        let distance = |&(&start, allocation): &(&u64, &Allocation)| {
            let end = start + allocation.bytes as u64;
            if address < start { start - address } else { (address + 1).saturating_sub(end) }
        };
        let Some((&start, Allocation { what, bytes })) = self.allocations.iter().min_by_key(distance) else {
            return format!("{address:#x}, where nothing is allocated");
        };
        let end = start + *bytes as u64;
        if address < 4096 {
            format!("{address:#x}, at a null pointer")
        } else if address < start {
            format!("{address:#x}, {} bytes before the start of `{what}` ({bytes} bytes)", start - address)
        } else if address >= end {
            format!("{address:#x}, {} bytes past the end of `{what}` ({bytes} bytes)", address - end)
        } else {
            format!("{address:#x}, byte {} of `{what}` ({bytes} bytes)", address - start)
        }
    }

    /// Words for a byte beside an allocation that somebody has written, if there is one.
    pub fn find_stray_write(&self) -> Option<String> {
        self.allocations.iter().find_map(|(&start, allocation)| {
            // SAFETY: it is mapped with this length.
            let distance = unsafe { self.runtime.stray(start, allocation.bytes) };
            let address = start.wrapping_add_signed(distance);
            (distance != 0).then(|| format!("a thread has written to {}", self.whereabouts(address)))
        })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        for (&address, allocation) in &self.allocations {
            // SAFETY: it was mapped with this length; nobody holds the emulator any more.
            unsafe { self.runtime.unmap(address, allocation.bytes) };
        }
    }
}
