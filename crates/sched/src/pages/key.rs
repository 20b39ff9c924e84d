//! [`PageKey`]: identifies a whole KV page by its tokens and all tokens before them.
//!
//! Keys are pure arithmetic. Invariant: pages with equal keys hold the same values, because a key is chained
//! over every token from position 0 on and starts from the model and the adapter.

use std::{
    collections::{BTreeMap, hash_map::RandomState},
    hash::{BuildHasher, Hasher},
    ops::Range,
};

#[expect(
    deprecated,
    reason = "the one hash of the standard library that takes a key, so that names can outlive the process"
)]
use std::hash::SipHasher;

use tokenmill_backend::{AdapterId, PAGE_TOKENS, PageGroup};

use crate::media::MediaSpan;

/// The key of a whole page: a 128-bit hash chained over its tokens and those of all earlier pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PageKey(u128);

impl PageKey {
    /// Returns half of its bits: enough to distinguish the pages of a cache, but not to prove that two are
    /// equal.
    pub(crate) fn low_bits(self) -> u64 {
        self.0 as u64
    }

    /// Returns the key as a number.
    pub fn number(self) -> u128 {
        self.0
    }

    /// Returns the key from its [`Self::number`].
    pub fn from_number(number: u128) -> Self {
        Self(number)
    }
}

/// Computes [`PageKey`]s.
///
/// The hash is keyed with random numbers, drawn at the hasher's creation or given, so that a client who
/// chooses prompts cannot construct two prefixes with one key and read another client's pages. Keys are
/// meaningless to a hasher with other numbers.
#[derive(Clone, Debug)]
pub(crate) struct PrefixHasher {
    secret: [u64; 4],
    model_salt: u64,
    /// The contents of adapters, if keys outlive their numbers.
    adapter_contents: BTreeMap<AdapterId, AdapterContent>,
}

/// The inputs of the keys of a sequence's pages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PageNaming<'a> {
    pub(crate) tokens: &'a [u32],
    pub(crate) media: &'a [MediaSpan],
    pub(crate) salt: u64,
    pub(crate) adapter: Option<AdapterId>,
}

/// The contents of an adapter: a hash of its matrices, and its strength.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AdapterContent {
    pub(crate) matrices: u64,
    /// The bits of the strength.
    pub(crate) strength: u32,
}

impl PrefixHasher {
    pub(crate) fn new(model_salt: u64) -> Self {
        let random = RandomState::new();
        Self::with_secret(std::array::from_fn(|n| random.hash_one(n)), model_salt)
    }

    /// Creates a hasher whose keys equal those of any other with the same numbers.
    pub(crate) fn with_secret(secret: [u64; 4], model_salt: u64) -> Self {
        Self {
            secret,
            model_salt,
            adapter_contents: BTreeMap::new(),
        }
    }

    /// Makes an adapter's keys depend on its contents instead of its number.
    pub(crate) fn set_adapter_content(&mut self, id: AdapterId, content: AdapterContent) {
        self.adapter_contents.insert(id, content);
    }

    pub(crate) fn adapter_content(&self, id: AdapterId) -> Option<AdapterContent> {
        self.adapter_contents.get(&id).copied()
    }

    /// Returns the key before the first page, for requests of one tenant with one adapter.
    pub(crate) fn root(&self, request_salt: u64, adapter: Option<AdapterId>) -> PageKey {
        self.hash(|hasher| {
            hasher.write_u64(self.model_salt);
            hasher.write_u64(request_salt);
            match adapter.and_then(|id| self.adapter_content(id)) {
                // Longer than the roots without an adapter and with a numbered one, so it differs from both.
                Some(content) => {
                    hasher.write_u64(content.matrices);
                    hasher.write_u32(content.strength);
                }
                None => hasher.write_u32(adapter.map_or(0, AdapterId::number)),
            }
        })
    }

    /// Returns the key of a page of `tokens`, beginning with input `first` of its sequence; `media` are the
    /// sequence's media.
    pub(crate) fn next_with_media(
        &self,
        parent: PageKey,
        tokens: &[u32],
        first: usize,
        media: &[MediaSpan],
    ) -> PageKey {
        debug_assert_eq!(tokens.len(), PAGE_TOKENS);
        let page = first..first + PAGE_TOKENS;
        self.hash(|hasher| {
            hasher.write_u128(parent.0);
            for &token in tokens {
                hasher.write_u32(token);
            }
            // A page without media ends here, and no other page has the same length.
            write_media(hasher, page.clone(), media);
        })
    }

    /// Returns the name of the answer to a prompt of whole pages, ending with `parent`, followed by `tail`,
    /// which begins with input `first`. Two requests have equal names exactly if their prompts, media,
    /// tenants, adapters and sampling keys are equal.
    pub(crate) fn name_answer(
        &self,
        parent: PageKey,
        tail: &[u32],
        first: usize,
        media: &[MediaSpan],
        sampling_key: &[u8],
    ) -> PageKey {
        debug_assert!(tail.len() < PAGE_TOKENS);
        self.hash(|hasher| {
            // Each part is preceded by its length.
            hasher.write_u128(parent.0);
            hasher.write_u64(tail.len() as u64);
            hasher.write_u64(sampling_key.len() as u64);
            hasher.write(sampling_key);
            for &token in tail {
                hasher.write_u32(token);
            }
            write_media(hasher, first..first + tail.len(), media);
        })
    }

    /// Appends the keys of a sequence's next pages, until there are `n_pages`.
    pub(crate) fn extend(&self, keys: &mut Vec<PageKey>, of: &PageNaming<'_>, n_pages: usize) {
        while keys.len() < n_pages {
            let parent = keys.last().copied();
            let parent = parent.unwrap_or_else(|| self.root(of.salt, of.adapter));
            let first = keys.len() * PAGE_TOKENS;
            let tokens = &of.tokens[first..first + PAGE_TOKENS];
            keys.push(self.next_with_media(parent, tokens, first, of.media));
        }
    }

    /// Makes an adapter's keys depend on its number again.
    pub(crate) fn forget_adapter_content(&mut self, id: AdapterId) {
        self.adapter_contents.remove(&id);
    }

    fn hash(&self, write: impl Fn(&mut dyn Hasher)) -> PageKey {
        let [a, b, c, d] = self.secret;
        let [high, low] = [(a, b), (c, d)].map(|(first, second)| {
            #[expect(deprecated, reason = "as where it is imported")]
            let mut hasher = SipHasher::new_with_keys(first, second);
            write(&mut hasher);
            u128::from(hasher.finish())
        });
        PageKey(high << 64 | low)
    }
}

/// Writes the part of `media` within a range of the inputs; nothing if there is none.
fn write_media(hasher: &mut dyn Hasher, part: Range<usize>, media: &[MediaSpan]) {
    for (span, inputs) in media.iter().filter_map(|span| Some((span, span.within(&part)?))) {
        hasher.write_u128(span.content);
        for place in [
            inputs.start - part.start,
            inputs.len(),
            inputs.start - span.start,
            span.n_inputs(),
        ] {
            hasher.write_u64(place as u64);
        }
    }
}

/// A prefix of whole pages from which a sequence continues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reuse {
    /// Length of the prefix, in pages.
    pub(crate) n_pages: usize,
    /// For each group, the first page still visible; earlier ones fell out of the attention window.
    pub(crate) first_pages: [usize; PageGroup::ALL.len()],
}

/// Returns the first page still visible to a token at `position` or later.
pub(crate) fn first_visible_page(position: usize, window: Option<usize>) -> usize {
    window.map_or(0, |window| (position + 1).saturating_sub(window) / PAGE_TOKENS)
}

/// Finds the longest prefix of at most `n_pages` whole pages with all visible pages present, in every group
/// of pages.
///
/// `windows` has the window of each group, and `is_present` is called with a group and a page.
///
/// A prefix may end only where `may_end` allows it: in recurrent models, at a snapshot of the state.
///
/// Without a window, the prefix includes every page up to the first missing one; with a window, pages that no
/// later token sees may be missing.
pub(crate) fn longest_reuse(
    n_pages: usize,
    windows: &[Option<usize>],
    mut is_present: impl FnMut(usize, usize) -> bool,
    mut may_end: impl FnMut(usize) -> bool,
) -> Reuse {
    let mut longest = Reuse::default();
    // For each group, the start of the unbroken run of present pages that ends at the current page.
    let mut run_starts = [0; PageGroup::ALL.len()];
    for page_idx in 0..n_pages {
        let mut first_pages = [0; PageGroup::ALL.len()];
        let mut is_whole = true;
        for (group_idx, &window) in windows.iter().enumerate() {
            if !is_present(group_idx, page_idx) {
                if window.is_none() {
                    return longest;
                }
                run_starts[group_idx] = page_idx + 1;
                is_whole = false;
            }
            first_pages[group_idx] = first_visible_page((page_idx + 1) * PAGE_TOKENS, window);
            is_whole &= first_pages[group_idx] >= run_starts[group_idx];
        }
        if is_whole && may_end(page_idx) {
            longest = Reuse {
                n_pages: page_idx + 1,
                first_pages,
            };
        }
    }
    longest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::media::MediaPlaces;

    #[test]
    fn a_key_depends_on_every_token_before_it_and_on_both_salts() {
        let hasher = PrefixHasher::new(1);
        let (a, b) = ([1; PAGE_TOKENS], [2; PAGE_TOKENS]);
        let key = |salt, pages: &[&[u32]]| {
            pages.iter().fold(hasher.root(salt, None), |parent, tokens| {
                hasher.next_with_media(parent, tokens, 0, &[])
            })
        };
        assert_eq!(key(0, &[&a, &b]), key(0, &[&a, &b]));
        assert_ne!(key(0, &[&a, &b]), key(0, &[&b, &b]));
        assert_ne!(key(0, &[&a]), key(7, &[&a]));
        let other_model = PrefixHasher {
            model_salt: 2,
            ..hasher.clone()
        };
        assert_ne!(hasher.root(0, None), other_model.root(0, None));
        let adapter = std::num::NonZeroU32::MIN;
        assert_ne!(
            hasher.root(0, None),
            hasher.root(0, Some(AdapterId::new(adapter)))
        );
    }

    #[test]
    fn a_key_depends_on_the_content_of_media_and_where_it_lies() {
        let hasher = PrefixHasher::new(1);
        let tokens = [5; PAGE_TOKENS];
        let span = MediaSpan {
            start: 20,
            end: 60,
            content: 7,
            sees_itself: true,
            places: MediaPlaces::Line,
        };
        let key =
            |first, media: &[MediaSpan]| hasher.next_with_media(hasher.root(0, None), &tokens, first, media);
        let plain = hasher.next_with_media(hasher.root(0, None), &tokens, 0, &[]);
        // Pages outside the medium equal those of plain text.
        assert_eq!(key(0, &[span]), plain);
        assert_eq!(key(64, &[span]), plain);
        let of_media = key(16, &[span]);
        assert_eq!(of_media, key(16, &[span]));
        for other in [
            MediaSpan { content: 8, ..span },
            MediaSpan { start: 21, ..span },
            MediaSpan { end: 61, ..span },
        ] {
            assert_ne!(of_media, key(16, &[other]), "{other:?}");
        }
        assert_ne!(of_media, plain);
        assert_ne!(of_media, key(32, &[span]));
    }

    #[track_caller]
    fn check(present: &[bool], window: Option<usize>, expected: (usize, usize)) {
        let reuse = longest_reuse(present.len(), &[window], |_, page| present[page], |_| true);
        assert_eq!((reuse.n_pages, reuse.first_pages[0]), expected);
    }

    #[test]
    fn reuse_without_a_window_ends_at_the_first_hole() {
        check(&[true, true, false, true], None, (2, 0));
        check(&[false, true], None, (0, 0));
    }

    #[test]
    fn reuse_ends_where_it_may() {
        let reuse = longest_reuse(4, &[None], |_, page| page < 3, |page| page == 1 || page == 3);
        assert_eq!((reuse.n_pages, reuse.first_pages[0]), (2, 0));
    }

    #[test]
    fn reuse_with_a_window_needs_only_the_visible_pages() {
        // The next token is at 64 and sees positions 45..: pages 2 and 3.
        check(&[false, false, true, true], Some(20), (4, 2));
        // Position 48 would see 29.., which page 1 holds.
        check(&[false, false, true], Some(20), (0, 0));
        check(&[true, true, false, true], Some(20), (2, 0));
    }

    #[test]
    fn reuse_of_two_groups_needs_what_each_sees() {
        let check = |main: [bool; 5], window: [bool; 5], expected| {
            let present = [main, window];
            let reuse = longest_reuse(5, &[None, Some(20)], |group, page| present[group][page], |_| true);
            assert_eq!((reuse.n_pages, reuse.first_pages), expected);
        };
        let all = [true; 5];
        check(all, all, (5, [0, 3]));
        check(all, [false, false, true, true, false], (4, [0, 2]));
        check(all, [false, false, false, false, true], (0, [0, 0]));
        check([true, true, true, false, true], all, (3, [0, 1]));
    }
}
