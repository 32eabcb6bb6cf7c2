//! A machine that does nothing and counts: what a model would hold of device memory, what a step would launch, multiply and move.
//!
//! It hands out addresses as aligned as the real ones, but there is no memory behind them: uploads go nowhere, downloads bring zeros.
//! So buffers of any size can be made, and whole steps run, in no time and on any machine. Memory is never short on it.

use super::gate::{Gate, Shelf};
use super::{Arg, Driver, Kind, Launch, Matmul, Module, Recorded, Unit};
use crate::CudaError;
use std::collections::BTreeMap;
use std::ops::{AddAssign, Sub};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Every allocation begins at a multiple of this.
const ALIGNMENT_BYTES: u64 = 256;

/// A machine that counts.
pub struct Ledger {
    /// What an allocation of so many bytes takes.
    taken: Box<dyn Fn(usize) -> usize + Send + Sync>,
    total_bytes: usize,
    book: Mutex<Book>,
    gate: Gate,
    recordings: Shelf<Arc<Counts>>,
}

#[derive(Default)]
struct Book {
    next: u64,
    /// Bytes that each address holds, and what for.
    held: BTreeMap<u64, (usize, String)>,
    now: Held,
    most: Held,
    counts: Counts,
}

/// Device memory in use, as the driver rounds it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// All of it.
    pub bytes: usize,
    /// By the name that it was asked for under.
    pub by_name: BTreeMap<String, usize>,
}

/// How often bytes were moved, and how many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Calls.
    pub times: u64,
    /// Bytes of all of them.
    pub bytes: u64,
}

/// A matrix product by the library, row-major: C `[m, n]` from A `[m, k]` and B `[k, n]`, each possibly stored transposed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Product {
    /// Rows of C.
    pub m: usize,
    /// Columns of C.
    pub n: usize,
    /// Terms of each sum.
    pub k: usize,
    /// Whether A and B are stored transposed.
    pub transposed: (bool, bool),
    /// Type of A and B.
    pub input: Kind,
    /// Type of C.
    pub output: Kind,
    /// Whether it adds to C, which is then read too.
    pub adds: bool,
}

impl Product {
    fn of(p: &Matmul) -> Self {
        // The library is column-major, so what it takes for A is our B.
        Product {
            m: p.n,
            n: p.m,
            k: p.k,
            transposed: (p.transpose_b, p.transpose_a),
            input: p.input,
            output: p.output,
            adds: p.beta != 0.0,
        }
    }

    /// Floating-point operations: a multiplication and an addition a term.
    pub fn flops(&self) -> f64 {
        2.0 * self.m as f64 * self.n as f64 * self.k as f64
    }

    /// Bytes that it moves when each matrix is read and written once.
    pub fn bytes(&self) -> f64 {
        let (m, n, k) = (self.m as f64, self.n as f64, self.k as f64);
        let of = |kind: Kind| kind.bytes() as f64;
        of(self.input) * (m * k + k * n) + of(self.output) * m * n * if self.adds { 2.0 } else { 1.0 }
    }
}

/// What was done so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Launches of each kernel.
    pub launches: BTreeMap<String, u64>,
    /// Products by the library, by shape.
    pub products: BTreeMap<Product, u64>,
    /// Copies within the device.
    pub copies: Moved,
    /// Memory set to zero.
    pub zeros: Moved,
    /// Copies to the device.
    pub uploads: Moved,
    /// Copies to the host, each of which waits for the device.
    pub downloads: Moved,
    /// Allocations.
    pub allocations: u64,
    /// Replays of recordings, what they start not among them: that is counted as if it had been asked for one by one.
    pub replays: u64,
}

impl Counts {
    /// Launches of all kernels, products not among them.
    pub fn kernel_launches(&self) -> u64 {
        self.launches.values().sum()
    }

    /// Products of all shapes.
    pub fn product_calls(&self) -> u64 {
        self.products.values().sum()
    }

    /// Floating-point operations of all products.
    pub fn product_flops(&self) -> f64 {
        self.products.iter().map(|(product, &times)| times as f64 * product.flops()).sum()
    }

    /// Bytes that all products move, each matrix once a product.
    pub fn product_bytes(&self) -> f64 {
        self.products.iter().map(|(product, &times)| times as f64 * product.bytes()).sum()
    }
}

/// What came after `before`, of which it must be a continuation.
impl Sub<&Counts> for &Counts {
    type Output = Counts;

    fn sub(self, before: &Counts) -> Counts {
        fn less<K: Ord + Clone>(now: &BTreeMap<K, u64>, before: &BTreeMap<K, u64>) -> BTreeMap<K, u64> {
            let left = now.iter().map(|(key, n)| (key.clone(), n - before.get(key).unwrap_or(&0)));
            left.filter(|(_, n)| *n > 0).collect()
        }
        let moved =
            |now: Moved, before: Moved| Moved { times: now.times - before.times, bytes: now.bytes - before.bytes };
        Counts {
            launches: less(&self.launches, &before.launches),
            products: less(&self.products, &before.products),
            copies: moved(self.copies, before.copies),
            zeros: moved(self.zeros, before.zeros),
            uploads: moved(self.uploads, before.uploads),
            downloads: moved(self.downloads, before.downloads),
            allocations: self.allocations - before.allocations,
            replays: self.replays - before.replays,
        }
    }
}

impl AddAssign<&Counts> for Counts {
    fn add_assign(&mut self, more: &Counts) {
        more.launches.iter().for_each(|(kernel, n)| *self.launches.entry(kernel.clone()).or_default() += n);
        more.products.iter().for_each(|(product, n)| *self.products.entry(*product).or_default() += n);
        for (moved, more) in [(&mut self.copies, more.copies), (&mut self.zeros, more.zeros)] {
            *moved = Moved { times: moved.times + more.times, bytes: moved.bytes + more.bytes };
        }
    }
}

impl AddAssign<usize> for Moved {
    fn add_assign(&mut self, bytes: usize) {
        self.times += 1;
        self.bytes += bytes as u64;
    }
}

impl Ledger {
    /// A machine of `total_bytes` on which an allocation takes as much as `taken` says.
    pub fn new(total_bytes: usize, taken: impl Fn(usize) -> usize + Send + Sync + 'static) -> Ledger {
        let book = Book { next: ALIGNMENT_BYTES, ..Book::default() };
        Ledger {
            taken: Box::new(taken),
            total_bytes,
            book: Mutex::new(book),
            gate: Gate::default(),
            recordings: Shelf::default(),
        }
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is held now.
    pub fn held(&self) -> Held {
        self.book().now.clone()
    }

    /// What was held when it was most.
    pub fn most(&self) -> Held {
        self.book().most.clone()
    }

    /// All that was done so far; subtract an earlier one for what a step does.
    pub fn counts(&self) -> Counts {
        self.book().counts.clone()
    }
}

/// The gate while it is shut; opened again however the recorded work ends. What is put down is counted by itself, and again at each replay.
struct Open<'a> {
    ledger: &'a Ledger,
    /// What was counted before; none once it has ended.
    before: Option<Counts>,
}

impl<'a> Open<'a> {
    fn begin(ledger: &'a Ledger) -> Result<Self, CudaError> {
        ledger.gate.shut()?;
        Ok(Open { ledger, before: Some(std::mem::take(&mut ledger.book().counts)) })
    }

    /// What was put down.
    fn end(mut self) -> Result<Counts, CudaError> {
        self.finish()
    }

    fn finish(&mut self) -> Result<Counts, CudaError> {
        let Some(before) = self.before.take() else { return Ok(Counts::default()) };
        let counted = std::mem::replace(&mut self.ledger.book().counts, before);
        let (returned, opened) = self.ledger.gate.open();
        returned.into_iter().for_each(|address| self.ledger.free(address));
        opened.map(|()| counted)
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        let _ = self.finish();
    }
}

// SAFETY: its addresses are only ever handed to itself, and it touches no memory.
unsafe impl Driver for Ledger {
    fn name(&self) -> String {
        "a machine that only counts".into()
    }

    fn memory(&self) -> Result<(usize, usize), CudaError> {
        Ok((self.total_bytes.saturating_sub(self.book().now.bytes), self.total_bytes))
    }

    fn taken(&self, bytes: usize) -> usize {
        (self.taken)(bytes)
    }

    fn allocate(&self, what: &str, bytes: usize) -> Result<u64, CudaError> {
        self.gate.refuse(|| format!("allocation of {bytes} bytes for {what}"))?;
        let taken = (self.taken)(bytes);
        let mut book = self.book();
        let address = book.next;
        book.next = (address + bytes.max(1) as u64).next_multiple_of(ALIGNMENT_BYTES);
        book.held.insert(address, (taken, what.to_string()));
        book.now.bytes += taken;
        *book.now.by_name.entry(what.to_string()).or_default() += taken;
        if book.now.bytes > book.most.bytes {
            book.most = book.now.clone();
        }
        book.counts.allocations += 1;
        Ok(address)
    }

    fn free(&self, address: u64) {
        if self.gate.takes(address) {
            return;
        }
        let mut book = self.book();
        let Some((bytes, what)) = book.held.remove(&address) else { return };
        book.now.bytes -= bytes;
        if let Some(named) = book.now.by_name.get_mut(&what) {
            *named -= bytes;
        }
    }

    fn upload(&self, _: u64, from: &[u8]) -> Result<(), CudaError> {
        self.gate.refuse(|| "upload".into())?;
        self.book().counts.uploads += from.len();
        Ok(())
    }

    fn download(&self, to: &mut [u8], _: u64) -> Result<(), CudaError> {
        self.gate.refuse(|| "download".into())?;
        self.book().counts.downloads += to.len();
        to.fill(0);
        Ok(())
    }

    fn copy(&self, _: u64, _: u64, bytes: usize) -> Result<(), CudaError> {
        self.book().counts.copies += bytes;
        Ok(())
    }

    fn zero(&self, _: u64, bytes: usize) -> Result<(), CudaError> {
        self.book().counts.zeros += bytes;
        Ok(())
    }

    fn load(&self, _: &Unit) -> Result<Module, CudaError> {
        Ok(Module(0))
    }

    unsafe fn launch(&self, _: Module, kernel: &str, _: Launch, _: &[Arg]) -> Result<(), CudaError> {
        let mut book = self.book();
        // Most launches are of a kernel that is known, and then make no text.
        match book.counts.launches.get_mut(kernel) {
            Some(times) => *times += 1,
            None => drop(book.counts.launches.insert(kernel.to_string(), 1)),
        }
        Ok(())
    }

    unsafe fn matmul(&self, product: &Matmul) -> Result<bool, CudaError> {
        *self.book().counts.products.entry(Product::of(product)).or_default() += 1;
        Ok(true)
    }

    fn synchronize(&self) -> Result<(), CudaError> {
        self.gate.refuse(|| "synchronize".into())
    }

    fn time_ms(&self, work: &mut dyn FnMut() -> Result<(), CudaError>) -> Result<Option<f32>, CudaError> {
        self.gate.refuse(|| "timing".into())?;
        work().map(|()| None)
    }

    fn record(&self, work: &mut dyn FnMut() -> Result<(), CudaError>) -> Result<Recorded, CudaError> {
        let open = Open::begin(self)?;
        let outcome = work();
        let counted = open.end();
        outcome.and(counted).map(|counted| self.recordings.put(Arc::new(counted)))
    }

    unsafe fn replay(&self, recorded: Recorded) -> Result<(), CudaError> {
        self.gate.refuse(|| "replay".into())?;
        let counted = self.recordings.get(recorded)?;
        let counts = &mut self.book().counts;
        counts.replays += 1;
        *counts += &*counted;
        Ok(())
    }

    fn forget(&self, recorded: Recorded) {
        self.recordings.take(recorded);
    }
}
