//! [`References`] measures how deeply the rules of a grammar, or the definitions of a schema, refer to each other.
//!
//! The check comes first: compilers of grammars follow references by recursion, so a long chain of them overflows the stack and ends the
//! process. Invariants: nothing here recurses over its input; no compiler can follow more references than are counted, in whatever order
//! it goes.

use std::collections::HashMap;

/// Holds a graph of references between the rules of a grammar or the definitions of a schema.
#[derive(Debug, Default)]
pub(super) struct References {
    /// Targets of each node.
    to: Vec<Vec<usize>>,
    /// Levels between each node and its deepest reference.
    n_levels: Vec<usize>,
}

/// Measures the longest path along references.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Longest {
    /// Nodes on the path.
    pub(super) n_nodes: usize,
    /// Levels on the path.
    pub(super) n_levels: usize,
}

impl References {
    /// Adds a node of one level.
    pub(super) fn add(&mut self) -> usize {
        self.to.push(Vec::new());
        self.n_levels.push(1);
        self.to.len() - 1
    }

    /// Adds a node that only represents all of its targets, and that no path counts.
    pub(super) fn add_choice(&mut self) -> usize {
        self.to.push(Vec::new());
        self.n_levels.push(0);
        self.to.len() - 1
    }

    /// Counts the references between all nodes.
    #[cfg(test)]
    pub(super) fn n_references(&self) -> usize {
        self.to.iter().map(Vec::len).sum()
    }

    /// Adds a reference from a node to another, `n_levels` below the first.
    pub(super) fn refer(&mut self, from: usize, to: usize, n_levels: usize) {
        self.to[from].push(to);
        self.deepen(from, n_levels);
    }

    /// Raises the levels of a node to at least `n_levels`.
    pub(super) fn deepen(&mut self, node: usize, n_levels: usize) {
        self.n_levels[node] = self.n_levels[node].max(n_levels);
    }

    /// Finds the longest path. Each cycle counts with all of its nodes, because a path may pass through each of them once.
    ///
    /// Source: Tarjan, "Depth-first search and linear graph algorithms", with an explicit stack in place of recursion. A cycle is complete
    /// only after all that it leads to, so the longest path from it is then known.
    pub(super) fn longest(&self) -> Longest {
        const UNSEEN: usize = usize::MAX;
        let n = self.to.len();
        let mut order = vec![UNSEEN; n];
        let mut low = vec![0; n];
        let mut is_open = vec![false; n];
        // The longest path from the strongly connected component of each complete node.
        let mut from = vec![Longest::default(); n];
        let mut open = Vec::new();
        let mut walk: Vec<(usize, usize)> = Vec::new();
        let mut n_seen = 0;
        let mut best = Longest::default();
        for start in 0..n {
            if order[start] != UNSEEN {
                continue;
            }
            walk.push((start, 0));
            while let Some((node, next)) = walk.last_mut() {
                let node = *node;
                if *next == 0 {
                    order[node] = n_seen;
                    low[node] = n_seen;
                    n_seen += 1;
                    open.push(node);
                    is_open[node] = true;
                }
                if let Some(&other) = self.to[node].get(*next) {
                    *next += 1;
                    if order[other] == UNSEEN {
                        walk.push((other, 0));
                    } else if is_open[other] {
                        low[node] = low[node].min(order[other]);
                    }
                    continue;
                }
                walk.pop();
                if let Some(&(before, _)) = walk.last() {
                    low[before] = low[before].min(low[node]);
                }
                if low[node] < order[node] {
                    continue;
                }
                let at = open.iter().rposition(|&other| other == node);
                let group = open.split_off(at.expect("an open node is there"));
                let mut beyond = Longest::default();
                let mut own = Longest::default();
                for &member in &group {
                    is_open[member] = false;
                    // A choice has no level of its own.
                    own.n_nodes += usize::from(self.n_levels[member] > 0);
                    own.n_levels += self.n_levels[member];
                }
                for &member in &group {
                    for &other in &self.to[member] {
                        // Members of the component have no path yet.
                        beyond.n_nodes = beyond.n_nodes.max(from[other].n_nodes);
                        beyond.n_levels = beyond.n_levels.max(from[other].n_levels);
                    }
                }
                let whole = Longest {
                    n_nodes: own.n_nodes + beyond.n_nodes,
                    n_levels: own.n_levels + beyond.n_levels,
                };
                for member in group {
                    from[member] = whole;
                }
                best.n_nodes = best.n_nodes.max(whole.n_nodes);
                best.n_levels = best.n_levels.max(whole.n_levels);
            }
        }
        best
    }
}

/// Builds a graph of references by name; a name may be used before it is defined.
#[derive(Debug, Default)]
pub(super) struct NamedReferences<'n> {
    nodes: HashMap<&'n str, usize>,
    references: References,
}

impl<'n> NamedReferences<'n> {
    /// Returns the node of a name.
    pub(super) fn node(&mut self, name: &'n str) -> usize {
        let references = &mut self.references;
        *self.nodes.entry(name).or_insert_with(|| references.add())
    }

    /// Returns the graph of references.
    pub(super) fn references(&mut self) -> &mut References {
        &mut self.references
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(n_nodes: usize, pairs: &[(usize, usize)], expected: usize) {
        let mut references = References::default();
        for _ in 0..n_nodes {
            references.add();
        }
        for &(from, to) in pairs {
            references.refer(from, to, 1);
        }
        assert_eq!(references.longest().n_nodes, expected, "{pairs:?}");
    }

    #[test]
    fn longest_path_counts_whole_cycles() {
        check(0, &[], 0);
        check(3, &[], 1);
        check(1, &[(0, 0)], 1);
        check(4, &[(0, 1), (1, 2), (2, 3)], 4);
        check(4, &[(3, 2), (2, 1), (1, 0)], 4);
        // A diamond, and a short path next to a long one.
        check(4, &[(0, 1), (0, 2), (1, 3), (2, 3)], 3);
        check(4, &[(0, 3), (0, 1), (1, 2), (2, 3)], 4);
        // A cycle with a path in and a path out.
        check(6, &[(0, 1), (1, 2), (2, 3), (3, 1), (2, 4), (4, 5)], 6);
    }

    #[test]
    fn chains_cycles_and_diamonds_of_any_length_take_no_stack() {
        let n = 200_000;
        let chain: Vec<(usize, usize)> = (1..n).map(|idx| (idx - 1, idx)).collect();
        check(n, &chain, n);
        check(n, &[chain.as_slice(), &[(n - 1, 0)]].concat(), n);
        let diamonds: Vec<(usize, usize)> = (1..n - 1)
            .flat_map(|idx| [(idx - 1, idx), (idx - 1, idx + 1)])
            .collect();
        check(n, &diamonds, n - 1);
        check(n, &(1..n).map(|idx| (0, idx)).collect::<Vec<_>>(), 2);
    }

    #[test]
    fn levels_are_added_up_along_the_way() {
        let mut references = References::default();
        let [first, second, third] = std::array::from_fn(|_| references.add());
        references.refer(first, second, 10);
        references.refer(first, third, 3);
        references.refer(third, second, 50);
        let longest = references.longest();
        assert_eq!((longest.n_nodes, longest.n_levels), (3, 10 + 50 + 1));
    }
}
