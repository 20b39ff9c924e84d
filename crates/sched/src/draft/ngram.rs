//! [`NgramIndex`]: finds earlier occurrences of the newest tokens in a sequence.
//!
//! It knows only tokens. Each n-gram has one entry, its latest occurrence, in a hash table. Matches are
//! compared token by token, so a collision can at most hide a match. Invariant: every n-gram before the
//! newest tokens was entered once, in order; a token costs two writes, amortized.

/// Lengths of the n-grams; the first that matches is used.
const LENGTHS: [usize; 2] = [4, 2];

/// Maximum number of tokens to compare for a match.
const MAX_MATCH: usize = 32;

/// An earlier occurrence of the newest tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Match {
    /// Index of the token that followed there.
    pub(crate) next: usize,
    /// Number of matching tokens, at most [`MAX_MATCH`].
    pub(crate) len: usize,
}

/// The n-grams of one sequence.
#[derive(Debug, Default)]
pub(crate) struct NgramIndex {
    /// For each length and hash, the index after the latest n-gram with that hash; 0 for none.
    tables: [Vec<u32>; LENGTHS.len()],
    /// Number of tokens with indexed n-grams.
    n_indexed: usize,
}

impl NgramIndex {
    /// Indexes the new part of `tokens`, and looks up the newest ones. `tokens` must begin with the tokens of
    /// earlier calls.
    pub(crate) fn find(&mut self, tokens: &[u32]) -> Option<Match> {
        self.extend(tokens);
        let found = LENGTHS.into_iter().zip(&self.tables).find_map(|(len, table)| {
            let newest = tokens.len().checked_sub(len).map(|start| &tokens[start..])?;
            let next = table[slot(newest, table.len())] as usize;
            (next >= len && tokens[next - len..next] == *newest).then_some((next, len))
        });
        let (next, len) = found?;
        let earlier = tokens[..next - len].iter().rev();
        let before_newest = tokens[..tokens.len() - len].iter().rev();
        let n_more = earlier
            .zip(before_newest)
            .take(MAX_MATCH - len)
            .take_while(|(a, b)| a == b)
            .count();
        Some(Match {
            next,
            len: len + n_more,
        })
    }

    /// Indexes all n-grams except those of the newest tokens, which would match themselves.
    fn extend(&mut self, tokens: &[u32]) {
        if tokens.len() > self.tables[0].len() / 2 {
            let n_slots = (tokens.len() * 4).next_power_of_two();
            for table in &mut self.tables {
                table.clear();
                table.resize(n_slots, 0);
            }
            self.n_indexed = 0;
        }
        for (len, table) in LENGTHS.into_iter().zip(&mut self.tables) {
            for end in (self.n_indexed + 1).max(len)..tokens.len() {
                let n_slots = table.len();
                table[slot(&tokens[end - len..end], n_slots)] = end as u32;
            }
        }
        self.n_indexed = tokens.len().saturating_sub(1);
    }
}

/// Returns the token at distance `offset` after a match; `draft` holds those before it. If the match reaches
/// into the newest tokens, it repeats.
pub(crate) fn followed_by(tokens: &[u32], found: Match, offset: usize, draft: &[u32]) -> u32 {
    let at = found.next + offset;
    match tokens.get(at) {
        Some(&id) => id,
        None => draft[at - tokens.len()],
    }
}

/// Returns the slot of an n-gram in a table whose size is a power of two.
fn slot(ngram: &[u32], n_slots: usize) -> usize {
    let hash = ngram.iter().fold(0u64, |hash, &id| {
        (hash.rotate_left(23) ^ u64::from(id)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    });
    (hash >> 32) as usize & (n_slots - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(tokens: &[u32], expected: Option<(usize, usize)>) {
        let found = NgramIndex::default().find(tokens);
        assert_eq!(found.map(|found| (found.next, found.len)), expected, "{tokens:?}");
        // Token by token it finds the same.
        let mut index = NgramIndex::default();
        for end in 1..tokens.len() {
            index.find(&tokens[..end]);
        }
        assert_eq!(index.find(tokens), found, "{tokens:?}");
    }

    #[test]
    fn the_latest_of_the_longest_occurrences_is_found() {
        check(&[], None);
        check(&[1, 1], None);
        check(&[1, 2, 3], None);
        check(&[1, 2, 3, 1, 2], Some((2, 2)));
        check(&[1, 2, 3, 1, 2, 4, 1, 2], Some((5, 2)));
        // A match of four tokens is preferred to a later one of two.
        check(&[5, 6, 1, 2, 3, 1, 2, 4, 5, 6, 1, 2], Some((4, 4)));
        check(&[9, 8, 7, 6, 5, 4, 0, 9, 8, 7, 6, 5, 4], Some((6, 6)));
        check(&[7; 100], Some((99, MAX_MATCH)));
    }

    #[test]
    fn a_draft_repeats_what_followed_also_beyond_the_newest_token() {
        let tokens = [4, 1, 2, 3, 1, 2];
        let found = NgramIndex::default().find(&tokens).unwrap();
        let mut draft = Vec::new();
        for offset in 0..7 {
            draft.push(followed_by(&tokens, found, offset, &draft));
        }
        assert_eq!(draft, [3, 1, 2, 3, 1, 2, 3]);
    }

    #[test]
    fn matches_are_those_of_a_search_through_all_tokens() {
        let mut state = 1u32;
        let mut tokens = Vec::new();
        let mut index = NgramIndex::default();
        for _ in 0..3000 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            tokens.push(state >> 29);
            let search = |len: usize| {
                let newest = tokens.len().checked_sub(len).map(|start| &tokens[start..])?;
                (len..tokens.len())
                    .rev()
                    .find(|&end| tokens[end - len..end] == *newest)
            };
            let expected = search(4).or_else(|| search(2));
            let found = index.find(&tokens);
            // If two n-grams share a slot, the older one is lost; nothing wrong is found.
            if let Some(found) = found {
                let len = found.len;
                assert_eq!(tokens[found.next - len..found.next], tokens[tokens.len() - len..]);
            }
            if tokens.len() < 1000 {
                continue;
            }
            assert_eq!(found.is_some(), expected.is_some());
        }
    }
}
