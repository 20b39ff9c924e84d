//! [`GraphCache`]: captured steps by their shape.
//!
//! Invariants: a graph is replayed only at the epoch it was captured in, that is, while no buffer it uses has moved; a
//! shape whose capture failed runs eagerly and is not tried again in that epoch, unless newer shapes evict it; a full
//! cache evicts the shape used least recently.

use std::{collections::HashMap, hash::Hash};

use crate::Graph;

/// Largest number of shapes. There are far fewer buckets; a graph takes some memory of the driver's.
const MAX_SHAPES: usize = 256;

/// Captured steps by shape.
#[derive(Debug)]
pub struct GraphCache<K, V = ()> {
    entries: HashMap<K, Entry<V>>,
    max_shapes: usize,
    epoch: u64,
    /// Counts look-ups, to find the entry that was used least recently.
    n_asked: u64,
}

#[derive(Debug)]
struct Entry<V> {
    /// `None` if the capture failed.
    captured: Option<(Graph, V)>,
    last_asked: u64,
}

/// Says how to run a step.
#[derive(Debug)]
pub enum GraphPlan<'a, V> {
    /// Replay this.
    Replay(&'a mut Graph, &'a V),
    /// Capture the step, insert the graph, and replay it: capturing runs nothing.
    Capture,
    /// Run it launch by launch.
    Eager,
}

impl<K, V> Default for GraphCache<K, V> {
    fn default() -> Self {
        Self::with_capacity(MAX_SHAPES)
    }
}

impl<K, V> GraphCache<K, V> {
    /// Keeps up to `max_shapes` shapes.
    pub fn with_capacity(max_shapes: usize) -> Self {
        Self {
            entries: HashMap::new(),
            max_shapes,
            epoch: 0,
            n_asked: 0,
        }
    }
}

impl<K: Clone + Hash + Eq, V> GraphCache<K, V> {
    /// Decides how to run a step of this shape. A new epoch drops every graph.
    pub fn plan(&mut self, key: &K, epoch: u64) -> GraphPlan<'_, V> {
        if epoch != self.epoch {
            self.entries.clear();
            self.epoch = epoch;
        }
        self.n_asked += 1;
        let Some(entry) = self.entries.get_mut(key) else {
            return GraphPlan::Capture;
        };
        entry.last_asked = self.n_asked;
        match &mut entry.captured {
            Some((graph, value)) => GraphPlan::Replay(graph, value),
            None => GraphPlan::Eager,
        }
    }

    /// Keeps a captured step with the data that belongs to it.
    pub fn insert(&mut self, key: K, graph: Graph, value: V) {
        self.keep(key, Some((graph, value)));
    }

    /// Notes that a shape cannot be captured.
    pub fn give_up(&mut self, key: K) {
        self.keep(key, None);
    }

    fn keep(&mut self, key: K, captured: Option<(Graph, V)>) {
        if self.entries.len() >= self.max_shapes && !self.entries.contains_key(&key) {
            let oldest = self.entries.iter().min_by_key(|(_, entry)| entry.last_asked);
            if let Some(oldest) = oldest.map(|(key, _)| key.clone()) {
                self.entries.remove(&oldest);
            }
        }
        let last_asked = self.n_asked;
        self.entries.insert(key, Entry { captured, last_asked });
    }

    /// Graphs kept.
    pub fn n_graphs(&self) -> usize {
        self.entries
            .values()
            .filter(|entry| entry.captured.is_some())
            .count()
    }
}
