//! [`Arena`]: the existing sequences, by [`SeqId`].
//!
//! Ids outlive their sequences: a step in flight may refer to sequences that have ended. Invariant: an id
//! never refers to another sequence than the one it was created for.

use std::fmt;

/// Identifies a sequence for the lifetime of the engine; ids are never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SeqId {
    slot: u32,
    serial: u32,
}

impl SeqId {
    /// Returns the index of the sequence's slot; small, and reused after the sequence ends.
    pub fn slot(self) -> usize {
        self.slot as usize
    }
}

impl fmt::Debug for SeqId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seq {}.{}", self.slot, self.serial)
    }
}

impl fmt::Display for SeqId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Values by [`SeqId`]; all operations take constant time.
#[derive(Debug)]
pub(crate) struct Arena<T> {
    places: Vec<Place<T>>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Place<T> {
    serial: u32,
    value: Option<T>,
}

impl<T> Arena<T> {
    pub(crate) fn new() -> Self {
        Self {
            places: Vec::new(),
            free: Vec::new(),
        }
    }

    pub(crate) fn insert(&mut self, value: T) -> SeqId {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.places.push(Place {
                serial: 0,
                value: None,
            });
            self.places.len() as u32 - 1
        });
        let place = &mut self.places[slot as usize];
        place.value = Some(value);
        SeqId {
            slot,
            serial: place.serial,
        }
    }

    pub(crate) fn remove(&mut self, id: SeqId) -> Option<T> {
        let place = self.places.get_mut(id.slot())?;
        if place.serial != id.serial {
            return None;
        }
        let value = place.value.take()?;
        place.serial = place.serial.wrapping_add(1);
        self.free.push(id.slot);
        Some(value)
    }

    pub(crate) fn get(&self, id: SeqId) -> Option<&T> {
        let place = self.places.get(id.slot())?;
        if place.serial == id.serial {
            place.value.as_ref()
        } else {
            None
        }
    }

    pub(crate) fn get_mut(&mut self, id: SeqId) -> Option<&mut T> {
        let place = self.places.get_mut(id.slot())?;
        if place.serial == id.serial {
            place.value.as_mut()
        } else {
            None
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (SeqId, &T)> {
        self.places.iter().enumerate().filter_map(|(slot, place)| {
            let id = SeqId {
                slot: slot as u32,
                serial: place.serial,
            };
            place.value.as_ref().map(|value| (id, value))
        })
    }
}

impl<T> std::ops::Index<SeqId> for Arena<T> {
    type Output = T;

    fn index(&self, id: SeqId) -> &T {
        self.get(id).expect("the sequence is alive")
    }
}

impl<T> std::ops::IndexMut<SeqId> for Arena<T> {
    fn index_mut(&mut self, id: SeqId) -> &mut T {
        self.get_mut(id).expect("the sequence is alive")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_id_does_not_name_the_next_tenant() {
        let mut arena = Arena::new();
        let first = arena.insert('a');
        assert_eq!(arena.remove(first), Some('a'));
        let second = arena.insert('b');
        assert_eq!(first.slot(), second.slot());
        assert_eq!(arena.remove(first), None);
        assert_eq!(arena.get(first), None);
        assert_eq!((arena[second], arena.len()), ('b', 1));
    }
}
