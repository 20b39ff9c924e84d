//! [`PageKey`]: the name of a whole KV page by the tokens it holds and all tokens before them.
//!
//! Separate from the pool because naming is pure arithmetic. Invariant: pages of equal keys hold the same values, for a
//! key is chained over every token from position 0 on and starts from the model and the adapter.

use std::{
    collections::hash_map::RandomState,
    hash::{BuildHasher, Hasher},
};

use tokenmill_backend::PAGE_TOKENS;

/// Name of a whole page: a 128-bit hash chained over its tokens and those of all pages before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PageKey(u128);

/// Computes [`PageKey`]s.
///
/// The hash is keyed with random numbers drawn when the hasher is made, so that a client who chooses prompts cannot
/// construct two prefixes of one key and read another client's pages. Keys therefore mean nothing outside of it.
#[derive(Clone, Debug)]
pub(crate) struct PrefixHasher {
    halves: [RandomState; 2],
    model_salt: u64,
}

impl PrefixHasher {
    pub(crate) fn new(model_salt: u64) -> Self {
        Self {
            halves: [RandomState::new(), RandomState::new()],
            model_salt,
        }
    }

    /// The key before the first page, for requests of one adapter or tenant.
    pub(crate) fn root(&self, request_salt: u64) -> PageKey {
        self.hash(|hasher| {
            hasher.write_u64(self.model_salt);
            hasher.write_u64(request_salt);
        })
    }

    /// The key of a page of `tokens` that follows the page named `parent`.
    pub(crate) fn next(&self, parent: PageKey, tokens: &[u32]) -> PageKey {
        debug_assert_eq!(tokens.len(), PAGE_TOKENS);
        self.hash(|hasher| {
            hasher.write_u128(parent.0);
            for &token in tokens {
                hasher.write_u32(token);
            }
        })
    }

    fn hash(&self, write: impl Fn(&mut dyn Hasher)) -> PageKey {
        let [high, low] = self.halves.each_ref().map(|state| {
            let mut hasher = state.build_hasher();
            write(&mut hasher);
            u128::from(hasher.finish())
        });
        PageKey(high << 64 | low)
    }
}

/// Pages of a prefix that a sequence continues from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reuse {
    /// Pages the prefix is long.
    pub(crate) n_pages: usize,
    /// The first page that is still looked at; those before it fell out of the attention window.
    pub(crate) first_page: usize,
}

/// The first page that a token at `position` or later still looks at.
pub(crate) fn first_visible_page(position: usize, window: Option<usize>) -> usize {
    window.map_or(0, |window| (position + 1).saturating_sub(window) / PAGE_TOKENS)
}

/// Finds the longest prefix of at most `n_pages` whole pages whose visible pages are all present.
///
/// A prefix ends only where `may_end` allows it: for recurrent models, where there is a snapshot of the state.
///
/// Without a window that is every page up to the first one missing; with a window, pages that no later token sees may
/// be missing.
pub(crate) fn longest_reuse(
    n_pages: usize,
    window: Option<usize>,
    mut is_present: impl FnMut(usize) -> bool,
    mut may_end: impl FnMut(usize) -> bool,
) -> Reuse {
    let mut longest = Reuse::default();
    // Start of the unbroken run of present pages that ends where we are.
    let mut run_start = 0;
    for page_idx in 0..n_pages {
        if !is_present(page_idx) {
            if window.is_none() {
                break;
            }
            run_start = page_idx + 1;
            continue;
        }
        let first_page = first_visible_page((page_idx + 1) * PAGE_TOKENS, window);
        if first_page >= run_start && may_end(page_idx) {
            longest = Reuse {
                n_pages: page_idx + 1,
                first_page,
            };
        }
    }
    longest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_depends_on_every_token_before_it_and_on_both_salts() {
        let hasher = PrefixHasher::new(1);
        let (a, b) = ([1; PAGE_TOKENS], [2; PAGE_TOKENS]);
        let key = |salt, pages: &[&[u32]]| {
            pages
                .iter()
                .fold(hasher.root(salt), |parent, tokens| hasher.next(parent, tokens))
        };
        assert_eq!(key(0, &[&a, &b]), key(0, &[&a, &b]));
        assert_ne!(key(0, &[&a, &b]), key(0, &[&b, &b]));
        assert_ne!(key(0, &[&a]), key(7, &[&a]));
        let other_model = PrefixHasher {
            model_salt: 2,
            ..hasher.clone()
        };
        assert_ne!(hasher.root(0), other_model.root(0));
    }

    #[track_caller]
    fn check(present: &[bool], window: Option<usize>, expected: (usize, usize)) {
        let reuse = longest_reuse(present.len(), window, |page| present[page], |_| true);
        assert_eq!((reuse.n_pages, reuse.first_page), expected);
    }

    #[test]
    fn reuse_without_a_window_ends_at_the_first_hole() {
        check(&[true, true, false, true], None, (2, 0));
        check(&[false, true], None, (0, 0));
    }

    #[test]
    fn reuse_ends_where_it_may() {
        let reuse = longest_reuse(4, None, |page| page < 3, |page| page == 1 || page == 3);
        assert_eq!((reuse.n_pages, reuse.first_page), (2, 0));
    }

    #[test]
    fn reuse_with_a_window_needs_only_the_visible_pages() {
        // The next token is at 64 and sees positions 45..: pages 2 and 3.
        check(&[false, false, true, true], Some(20), (4, 2));
        // Position 48 would see 29.., which page 1 holds.
        check(&[false, false, true], Some(20), (0, 0));
        check(&[true, true, false, true], Some(20), (2, 0));
    }
}
