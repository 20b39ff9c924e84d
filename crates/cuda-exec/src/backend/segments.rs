//! [`SegmentCache`]: the recorded graphs of steps between the borders of a split, by the shape of the step.
//!
//! [`GraphCache`](crate::GraphCache) has one graph for a shape, but a step with many borders has many graphs. Invariants: the number of
//! graphs is limited, whatever their shapes; a new step evicts the least recently used shapes; a shape that could not be recorded is
//! remembered, and counts as a shape but not as a graph.

use std::{collections::HashMap, hash::Hash};

/// Largest number of graphs, of all shapes together. A driver takes some tens of KiB for each.
const MAX_GRAPHS: usize = 4096;
/// Largest number of shapes.
const MAX_SHAPES: usize = 256;

/// Holds the recorded steps: for each shape the graphs between borders, and the data that belongs to them.
pub(super) struct SegmentCache<K, G, V> {
    entries: HashMap<K, Entry<G, V>>,
    max_graphs: usize,
    max_shapes: usize,
    /// Counts look-ups, to find the shape that was used least recently.
    n_asked: u64,
}

/// The state of a step's shape.
#[derive(Debug, PartialEq)]
pub(super) enum Known<'a, V> {
    Nothing,
    /// It cannot be recorded.
    Failed,
    /// It was recorded, and this belongs to its graphs.
    Recorded(&'a V),
}

struct Entry<G, V> {
    /// `None` where recording failed.
    recorded: Option<(Vec<G>, V)>,
    last_asked: u64,
}

impl<G, V> Entry<G, V> {
    fn n_graphs(&self) -> usize {
        self.recorded.as_ref().map_or(0, |(graphs, _)| graphs.len())
    }
}

impl<K, G, V> Default for SegmentCache<K, G, V> {
    fn default() -> Self {
        Self::with_room(MAX_GRAPHS, MAX_SHAPES)
    }
}

impl<K, G, V> SegmentCache<K, G, V> {
    fn with_room(max_graphs: usize, max_shapes: usize) -> Self {
        Self {
            entries: HashMap::new(),
            max_graphs,
            max_shapes,
            n_asked: 0,
        }
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        self.entries.clear();
    }
}

impl<K: Copy + Hash + Eq, G, V> SegmentCache<K, G, V> {
    /// Looks up a step's shape.
    pub(super) fn find(&mut self, shape: &K) -> Known<'_, V> {
        self.n_asked += 1;
        let Some(entry) = self.entries.get_mut(shape) else {
            return Known::Nothing;
        };
        entry.last_asked = self.n_asked;
        match &entry.recorded {
            None => Known::Failed,
            Some((_, value)) => Known::Recorded(value),
        }
    }

    /// Returns a graph of a step, if it exists.
    pub(super) fn graph_mut(&mut self, shape: &K, segment: usize) -> Option<&mut G> {
        let (graphs, _) = self.entries.get_mut(shape)?.recorded.as_mut()?;
        graphs.get_mut(segment)
    }

    /// Keeps a recorded step, or the fact that it could not be recorded. A step with more graphs than the limit is still kept.
    pub(super) fn keep(&mut self, shape: K, recorded: Option<(Vec<G>, V)>) {
        self.entries.remove(&shape);
        let entry = Entry {
            recorded,
            last_asked: self.n_asked,
        };
        let mut n_graphs: usize = self.entries.values().map(Entry::n_graphs).sum();
        while self.entries.len() >= self.max_shapes
            || n_graphs + entry.n_graphs() > self.max_graphs && n_graphs > 0
        {
            let oldest = self.entries.iter().min_by_key(|(_, entry)| entry.last_asked);
            let Some(oldest) = oldest.map(|(shape, _)| *shape) else {
                break;
            };
            n_graphs -= self.entries.remove(&oldest).map_or(0, |entry| entry.n_graphs());
        }
        self.entries.insert(shape, entry);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache() -> SegmentCache<u32, &'static str, u32> {
        SegmentCache::with_room(6, 4)
    }

    fn known(cache: &SegmentCache<u32, &'static str, u32>) -> Vec<u32> {
        let mut shapes: Vec<_> = cache.entries.keys().copied().collect();
        shapes.sort_unstable();
        shapes
    }

    #[test]
    fn the_shape_used_least_recently_makes_room_for_graphs() {
        let mut cache = cache();
        for shape in 1..=3 {
            assert_eq!(cache.find(&shape), Known::Nothing);
            cache.keep(shape, Some((vec!["a", "b"], shape)));
        }
        assert_eq!(cache.find(&1), Known::Recorded(&1));
        cache.find(&4);
        cache.keep(4, Some((vec!["a"], 4)));
        assert_eq!(known(&cache), [1, 3, 4]);
        assert_eq!(cache.graph_mut(&1, 1), Some(&mut "b"));
        assert_eq!(cache.graph_mut(&1, 2), None);
        assert_eq!(cache.graph_mut(&2, 0), None);
        // Uses the whole limit.
        cache.find(&5);
        cache.keep(5, Some((vec!["c"; 9], 5)));
        assert_eq!(known(&cache), [5]);
    }

    #[test]
    fn a_shape_that_cannot_be_recorded_is_remembered_and_takes_no_graph() {
        let mut cache = cache();
        for shape in 0..9 {
            cache.find(&shape);
            cache.keep(shape, None);
        }
        assert_eq!(known(&cache), [5, 6, 7, 8]);
        assert_eq!(cache.find(&8), Known::Failed);
        cache.find(&9);
        cache.keep(9, Some((vec!["a"; 6], 9)));
        assert_eq!(known(&cache), [6, 7, 8, 9]);
        cache.clear();
        assert_eq!(cache.find(&8), Known::Nothing);
    }
}
