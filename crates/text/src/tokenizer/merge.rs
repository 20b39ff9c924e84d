//! Merging adjacent symbols in order of rank: the inner loop of byte-pair encoding and of SentencePiece's BPE.
//!
//! The two models differ in their symbols and in the source of ranks. Invariant: the pair of least rank is merged
//! first, the leftmost among equal ranks; O(n log n) for any input.

use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    sync::atomic::{AtomicU8, Ordering},
};

/// Supplies the ranks of adjacent symbols.
pub(crate) trait MergeTable {
    /// Returns the rank of joining the symbols at `left` and `right` and the id of the result; `None` if they
    /// do not join.
    fn join(&self, left: &Symbol, right: &Symbol) -> Option<(u32, u32)>;
}

/// A stretch of the text that is one token so far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Symbol {
    /// The token's id; [`Symbol::UNKNOWN`] if the vocabulary has none.
    pub(crate) id: u32,
    /// Where its bytes begin in the text.
    pub(crate) start: u32,
    /// How many bytes it has; 0 once it was merged into the symbol on its left.
    pub(crate) n_bytes: u32,
    prev: u32,
    next: u32,
}

impl Symbol {
    /// The id of a stretch that is not a token.
    pub(crate) const UNKNOWN: u32 = u32::MAX;

    pub(crate) fn end(&self) -> usize {
        (self.start + self.n_bytes) as usize
    }
}

const NONE: u32 = u32::MAX;

/// Above this many symbols a heap finds the next pair, below it a scan does.
const LINEAR_SYMBOLS: usize = 32;

/// Marks a pair that does not join.
const NO_JOIN: (u32, u32) = (u32::MAX, Symbol::UNKNOWN);

/// Buffers for merging, reused from word to word.
#[derive(Default)]
pub(crate) struct Merger {
    symbols: Vec<Symbol>,
    /// For each symbol the `(rank, id)` of joining it with the next one; only for short words.
    joins: Vec<(u32, u32)>,
    heap: BinaryHeap<Reverse<Candidate>>,
}

/// A pair that may be merged, ordered by rank, then by place.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    rank: u32,
    left: u32,
    right: u32,
    /// Bytes of both together: the candidate is stale once this no longer fits.
    n_bytes: u32,
    id: u32,
}

impl Merger {
    /// Empties the word.
    pub(crate) fn clear(&mut self) {
        self.symbols.clear();
    }

    /// Appends a symbol to the word.
    pub(crate) fn push(&mut self, id: u32, start: usize, n_bytes: usize) {
        let at = self.symbols.len() as u32;
        if let Some(last) = self.symbols.last_mut() {
            last.next = at;
        }
        self.symbols.push(Symbol {
            id,
            start: start as u32,
            n_bytes: n_bytes as u32,
            prev: at.wrapping_sub(1),
            next: NONE,
        });
    }

    /// Merges the word as far as `table` allows and returns its symbols in order.
    pub(crate) fn merge(&mut self, table: &impl MergeTable) -> impl Iterator<Item = &Symbol> {
        if self.symbols.len() <= LINEAR_SYMBOLS {
            self.merge_short(table);
        } else {
            self.merge_long(table);
        }
        self.symbols.iter().filter(|symbol| symbol.n_bytes > 0)
    }

    /// Compacts the symbols as it merges; quadratic, for few of them.
    fn merge_short(&mut self, table: &impl MergeTable) {
        let Self { symbols, joins, .. } = self;
        let join = |pair: &[Symbol]| table.join(&pair[0], &pair[1]).unwrap_or(NO_JOIN);
        joins.clear();
        joins.extend(symbols.windows(2).map(join));
        while let Some((at, &(rank, id))) = joins.iter().enumerate().min_by_key(|&(_, &(rank, _))| rank) {
            if (rank, id) == NO_JOIN {
                break;
            }
            symbols[at].n_bytes += symbols[at + 1].n_bytes;
            symbols[at].id = id;
            symbols.remove(at + 1);
            joins.remove(at);
            if at > 0 {
                joins[at - 1] = join(&symbols[at - 1..=at]);
            }
            if at < joins.len() {
                joins[at] = join(&symbols[at..=at + 1]);
            }
        }
    }

    fn merge_long(&mut self, table: &impl MergeTable) {
        let Self { symbols, heap, .. } = self;
        let candidate = |symbols: &[Symbol], left: u32, right: u32| {
            let (first, second) = (&symbols[left as usize], &symbols[right as usize]);
            table.join(first, second).map(|(rank, id)| {
                Reverse(Candidate {
                    rank,
                    left,
                    right,
                    n_bytes: first.n_bytes + second.n_bytes,
                    id,
                })
            })
        };
        let mut seeds = std::mem::take(heap).into_vec();
        seeds.clear();
        seeds.extend((1..symbols.len() as u32).filter_map(|right| candidate(symbols, right - 1, right)));
        *heap = BinaryHeap::from(seeds);
        while let Some(Reverse(best)) = heap.pop() {
            let (left, right) = (symbols[best.left as usize], symbols[best.right as usize]);
            let is_stale =
                left.n_bytes == 0 || right.n_bytes == 0 || left.n_bytes + right.n_bytes != best.n_bytes;
            if is_stale {
                continue;
            }
            symbols[best.right as usize].n_bytes = 0;
            let merged = &mut symbols[best.left as usize];
            merged.n_bytes = best.n_bytes;
            merged.id = best.id;
            merged.next = right.next;
            if right.next != NONE {
                symbols[right.next as usize].prev = best.left;
                heap.extend(candidate(symbols, best.left, right.next));
            }
            if left.prev != NONE {
                heap.extend(candidate(symbols, left.prev, best.left));
            }
        }
    }
}

/// Caches whether each token's own text merges back into just that token; determined at its first use.
///
/// Most words of most texts are tokens, and this saves merging them. The result depends only on the word, so threads
/// that determine it at the same time write the same value.
#[derive(Debug)]
pub(crate) struct Wholeness(Vec<AtomicU8>);

const UNDECIDED: u8 = 0;
const WHOLE: u8 = 1;
const BROKEN: u8 = 2;

impl Wholeness {
    pub(crate) fn new(n_vocab: usize) -> Self {
        Self((0..n_vocab).map(|_| AtomicU8::new(UNDECIDED)).collect())
    }

    /// Appends the tokens of a word that is the text of token `id`; `merge` appends them by merging.
    pub(crate) fn encode(&self, id: u32, out: &mut Vec<u32>, merge: impl FnOnce(&mut Vec<u32>)) {
        let state = &self.0[id as usize];
        match state.load(Ordering::Relaxed) {
            WHOLE => out.push(id),
            BROKEN => merge(out),
            _ => {
                let start = out.len();
                merge(out);
                let found = if out[start..] == [id] { WHOLE } else { BROKEN };
                state.store(found, Ordering::Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Joins by rank of an arbitrary hash of both ids; result ids are arbitrary too.
    struct Hashed(u32);

    impl MergeTable for Hashed {
        fn join(&self, left: &Symbol, right: &Symbol) -> Option<(u32, u32)> {
            let hash = (left.id.wrapping_mul(31) ^ right.id.wrapping_mul(17)).wrapping_mul(self.0 | 1);
            (!hash.is_multiple_of(3)).then_some((hash % 7, hash % 13))
        }
    }

    proptest! {
        #[test]
        fn heap_and_linear_scan_merge_alike(ids in prop::collection::vec(0u32..9, 0..60), seed: u32) {
            let fill = |merger: &mut Merger| {
                for (at, &id) in ids.iter().enumerate() {
                    merger.push(id, at, 1);
                }
            };
            let result = |merger: &Merger| {
                merger.symbols.iter().filter(|s| s.n_bytes > 0).map(|s| (s.id, s.start, s.n_bytes)).collect::<Vec<_>>()
            };
            let (mut short, mut long) = (Merger::default(), Merger::default());
            fill(&mut short);
            short.merge_short(&Hashed(seed));
            fill(&mut long);
            long.merge_long(&Hashed(seed));
            prop_assert_eq!(result(&short), result(&long));
        }
    }
}
