//! [`GraphCache`]: captured steps by their shape.
//!
//! Separate from capturing, which knows no shapes. Invariants: a graph is replayed only at the epoch it was captured in,
//! that is, while no buffer it holds has moved; a shape whose capture failed runs eagerly ever after and is not tried
//! again in that epoch.

use std::{collections::HashMap, hash::Hash};

use crate::Graph;

/// Shapes kept at most. Buckets are far fewer; a caller without buckets runs eagerly beyond.
const MAX_GRAPHS: usize = 256;

/// Captured steps by shape.
#[derive(Debug)]
pub struct GraphCache<K, V = ()> {
    /// `None` where the capture failed.
    entries: HashMap<K, Option<(Graph, V)>>,
    epoch: u64,
}

/// How to run a step.
#[derive(Debug)]
pub enum StepPlan<'a, V> {
    /// Replay this.
    Replay(&'a mut Graph, &'a V),
    /// Capture the step, insert the graph, and replay it: capturing runs nothing.
    Capture,
    /// Run it as it is.
    Eager,
}

impl<K, V> Default for GraphCache<K, V> {
    fn default() -> Self {
        Self {
            entries: HashMap::new(),
            epoch: 0,
        }
    }
}

impl<K: Hash + Eq, V> GraphCache<K, V> {
    /// Says how to run a step of this shape. A new epoch drops every graph.
    pub fn plan(&mut self, key: &K, epoch: u64) -> StepPlan<'_, V> {
        if epoch != self.epoch {
            self.entries.clear();
            self.epoch = epoch;
        }
        let is_full = self.entries.len() >= MAX_GRAPHS;
        match self.entries.get_mut(key) {
            Some(Some((graph, value))) => StepPlan::Replay(graph, value),
            Some(None) => StepPlan::Eager,
            None if is_full => StepPlan::Eager,
            None => StepPlan::Capture,
        }
    }

    /// Keeps a captured step with what belongs to it.
    pub fn insert(&mut self, key: K, graph: Graph, value: V) {
        self.entries.insert(key, Some((graph, value)));
    }

    /// Notes that a shape cannot be captured.
    pub fn give_up(&mut self, key: K) {
        self.entries.insert(key, None);
    }

    /// Graphs kept.
    pub fn n_graphs(&self) -> usize {
        self.entries.values().flatten().count()
    }
}
