//! [`SegmentCache`]: what was recorded of steps between the borders of a split, by the shape of the step.
//!
//! Separate from [`GraphCache`](crate::GraphCache), which has one graph for a shape: a step with many borders has many. Invariants: no more
//! graphs are kept than there is room for, whatever their shapes; where one more does not fit, the shapes used least recently make
//! room; a shape that could not be recorded is remembered, and takes the room of a shape but of no graph.

use std::{collections::HashMap, hash::Hash};

/// Graphs kept at most, of all shapes together. A driver takes some tens of KiB for each.
const MAX_GRAPHS: usize = 4096;
/// Shapes kept at most.
const MAX_SHAPES: usize = 256;

/// Recorded steps: of each shape its graphs, from border to border, and what belongs to them.
pub(super) struct SegmentCache<K, G, V> {
    entries: HashMap<K, Entry<G, V>>,
    max_graphs: usize,
    max_shapes: usize,
    /// Counts questions, so that the shape asked for least recently is known.
    n_asked: u64,
}

/// The cached knowledge about a step's shape.
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

    /// Returns a graph of a step, if there is one.
    pub(super) fn graph_mut(&mut self, shape: &K, segment: usize) -> Option<&mut G> {
        let (graphs, _) = self.entries.get_mut(shape)?.recorded.as_mut()?;
        graphs.get_mut(segment)
    }

    /// Keeps a recorded step, or that it could not be recorded. A step of more graphs than there is room for alone is kept all the same.
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
        // All that there is room for.
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
