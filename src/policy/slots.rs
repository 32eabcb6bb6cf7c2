//! What a policy keeps of each open sequence.

use super::{PolicyError, SequenceId};

/// Open sequences by their ids; an id that was closed is given again.
#[derive(Clone, Debug)]
pub struct Slots<T> {
    places: Vec<Option<T>>,
    free: Vec<usize>,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Slots { places: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slots<T> {
    /// Opens a sequence of which this is kept.
    pub fn open(&mut self, kept: T) -> SequenceId {
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push(None);
            self.places.len() - 1
        });
        self.places[place] = Some(kept);
        SequenceId(place)
    }

    /// Closes a sequence; what was kept of it, if it was open.
    pub fn close(&mut self, sequence: SequenceId) -> Option<T> {
        let kept = self.places.get_mut(sequence.0)?.take()?;
        self.free.push(sequence.0);
        Some(kept)
    }

    /// What is kept of a sequence.
    ///
    /// **Errors** [`PolicyError::Invalid`] if it is not open.
    pub fn get(&self, sequence: SequenceId) -> Result<&T, PolicyError> {
        self.places.get(sequence.0).and_then(Option::as_ref).ok_or_else(|| not_open(sequence))
    }

    /// The same, to change it.
    ///
    /// **Errors** [`PolicyError::Invalid`] if it is not open.
    pub fn get_mut(&mut self, sequence: SequenceId) -> Result<&mut T, PolicyError> {
        self.places.get_mut(sequence.0).and_then(Option::as_mut).ok_or_else(|| not_open(sequence))
    }

    /// Sequences that are open.
    pub fn n_open(&self) -> usize {
        self.places.iter().flatten().count()
    }
}

fn not_open(sequence: SequenceId) -> PolicyError {
    PolicyError::Invalid(format!("sequence {} is not open", sequence.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_id_is_given_again_and_means_nothing_before() {
        let mut slots = Slots::default();
        let (a, b) = (slots.open('a'), slots.open('b'));
        assert!(a != b && *slots.get(b).unwrap() == 'b');
        assert_eq!((slots.close(a), slots.close(a), slots.n_open()), (Some('a'), None, 1));
        assert_eq!(
            slots.get_mut(a).unwrap_err().to_string(),
            PolicyError::Invalid("sequence 0 is not open".into()).to_string()
        );
        assert!(slots.get(SequenceId(7)).is_err() && slots.close(SequenceId(7)).is_none());
        assert_eq!((slots.open('c'), slots.open('d')), (a, SequenceId(2)));
        *slots.get_mut(a).unwrap() = 'e';
        assert_eq!((slots.close(a), slots.close(b)), (Some('e'), Some('b')));
    }
}
