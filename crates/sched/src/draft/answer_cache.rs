//! [`AnswerCache`]: earlier answers, from which the same answer is drafted when it is requested again.
//!
//! This is all that a request's drafts take from other requests, so what they can reveal is decided here. An
//! answer's name covers its whole prompt, its domain of the prefix cache, and its [`SamplingKey`](crate::SamplingKey).
//! A request that finds it would therefore generate the same tokens without it. Invariants: an answer without
//! such a name is not kept; the kept answers stay within the bound.

use std::collections::{BTreeMap, HashMap};

use tokenmill_backend::AdapterId;

use crate::{pages::key::PageKey, sync::Arc};

/// Maximum size of the kept answers: their tokens, plus [`ENTRY_TOKENS`] per answer.
const MAX_KEPT_TOKENS: usize = 1 << 18;

/// Overhead of an answer besides its tokens, in tokens of 4 bytes.
const ENTRY_TOKENS: usize = 48;

/// The name of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct AnswerName(PageKey);

impl AnswerName {
    /// Wraps a name from [`PrefixHasher::name_answer`](crate::pages::key::PrefixHasher::name_answer).
    pub(crate) fn new(name: PageKey) -> Self {
        Self(name)
    }
}

/// An answer with its origin.
#[derive(Debug)]
struct Kept {
    tokens: Arc<[u32]>,
    /// The first page of its prompt.
    first_page: PageKey,
    adapter: Option<AdapterId>,
    /// Sequence number of the answer.
    age: u64,
}

/// The kept answers by name.
#[derive(Debug, Default)]
pub(crate) struct AnswerCache {
    kept: HashMap<AnswerName, Kept>,
    /// Names by age, oldest first.
    by_age: BTreeMap<u64, AnswerName>,
    next_age: u64,
    /// Size of the kept answers, as the bound counts it.
    n_tokens: usize,
}

impl AnswerCache {
    pub(crate) fn get(&self, name: AnswerName) -> Option<Arc<[u32]>> {
        self.kept.get(&name).map(|kept| Arc::clone(&kept.tokens))
    }

    /// Keeps an answer, replacing the one with the same name. If the old answer begins with the new one, the
    /// old one is kept and counts as new.
    pub(crate) fn keep(
        &mut self,
        name: AnswerName,
        tokens: &[u32],
        first_page: PageKey,
        adapter: Option<AdapterId>,
    ) {
        let n_needed = tokens.len() + ENTRY_TOKENS;
        if tokens.is_empty() || n_needed > MAX_KEPT_TOKENS {
            return;
        }
        let old = self.remove(name).filter(|old| old.starts_with(tokens));
        let tokens = old.unwrap_or_else(|| Arc::from(tokens));
        let n_needed = tokens.len() + ENTRY_TOKENS;
        while self.n_tokens + n_needed > MAX_KEPT_TOKENS {
            let (_, &oldest) = self.by_age.first_key_value().expect("something is kept");
            self.remove(oldest);
        }
        self.n_tokens += n_needed;
        self.by_age.insert(self.next_age, name);
        let kept = Kept {
            tokens,
            first_page,
            adapter,
            age: self.next_age,
        };
        self.kept.insert(name, kept);
        self.next_age += 1;
    }

    fn remove(&mut self, name: AnswerName) -> Option<Arc<[u32]>> {
        let kept = self.kept.remove(&name)?;
        self.by_age.remove(&kept.age);
        self.n_tokens -= kept.tokens.len() + ENTRY_TOKENS;
        Some(kept.tokens)
    }

    fn forget_where(&mut self, is_forgotten: impl Fn(&Kept) -> bool) {
        let of_kept = self.kept.iter().filter(|(_, kept)| is_forgotten(kept));
        let names: Vec<AnswerName> = of_kept.map(|(&name, _)| name).collect();
        for name in names {
            self.remove(name);
        }
    }

    /// Drops the answers to prompts that begin with a page.
    pub(crate) fn forget_first_page(&mut self, first_page: PageKey) {
        self.forget_where(|kept| kept.first_page == first_page);
    }

    pub(crate) fn forget_adapter(&mut self, adapter: AdapterId) {
        self.forget_where(|kept| kept.adapter == Some(adapter));
    }

    pub(crate) fn forget_all(&mut self) {
        self.forget_where(|_| true);
    }

    /// Checks the invariants.
    ///
    /// # Panics
    /// If one does not hold.
    pub(crate) fn assert_consistent(&self) {
        let n_tokens: usize = (self.kept.values())
            .map(|kept| kept.tokens.len() + ENTRY_TOKENS)
            .sum();
        assert!(n_tokens == self.n_tokens && n_tokens <= MAX_KEPT_TOKENS);
        assert_eq!(self.by_age.len(), self.kept.len());
        for (age, name) in &self.by_age {
            assert_eq!(self.kept[name].age, *age);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(number: u128) -> AnswerName {
        AnswerName(PageKey::from_number(number))
    }

    fn keep(answers: &mut AnswerCache, number: u128, tokens: &[u32]) {
        let adapter = std::num::NonZeroU32::new(number as u32 % 3).map(AdapterId::new);
        answers.keep(name(number), tokens, PageKey::from_number(number / 10), adapter);
        answers.assert_consistent();
    }

    fn numbers(answers: &AnswerCache) -> Vec<u128> {
        let mut numbers: Vec<u128> = answers.kept.keys().map(|name| name.0.number()).collect();
        numbers.sort_unstable();
        numbers
    }

    #[test]
    fn the_longest_of_equal_answers_and_the_newest_of_others_is_kept() {
        let mut answers = AnswerCache::default();
        let mut check = |tokens: &[u32], expected: &[u32]| {
            keep(&mut answers, 1, tokens);
            assert_eq!(answers.get(name(1)).as_deref(), Some(expected));
        };
        check(&[1, 2], &[1, 2]);
        check(&[1], &[1, 2]);
        check(&[], &[1, 2]);
        check(&[1, 2, 3], &[1, 2, 3]);
        check(&[1, 5], &[1, 5]);
        assert_eq!(answers.get(name(2)), None);
    }

    #[test]
    fn the_oldest_make_room_and_what_is_said_again_is_new() {
        let mut answers = AnswerCache::default();
        let quarter = vec![7; MAX_KEPT_TOKENS / 4 - ENTRY_TOKENS];
        for number in 1..=4 {
            keep(&mut answers, number, &quarter);
        }
        keep(&mut answers, 1, &quarter[..5]);
        keep(&mut answers, 5, &[1]);
        assert_eq!(numbers(&answers), [1, 3, 4, 5]);
        keep(&mut answers, 6, &vec![7; MAX_KEPT_TOKENS - ENTRY_TOKENS]);
        assert_eq!(numbers(&answers), [6]);
        keep(&mut answers, 7, &vec![7; MAX_KEPT_TOKENS - ENTRY_TOKENS + 1]);
        assert_eq!(numbers(&answers), [6], "it fits in no case");
        // Many short answers are bounded, too.
        for number in 10..2 * MAX_KEPT_TOKENS / ENTRY_TOKENS {
            answers.keep(name(number as u128), &[1], PageKey::from_number(0), None);
        }
        answers.assert_consistent();
        assert_eq!(answers.kept.len(), MAX_KEPT_TOKENS / (ENTRY_TOKENS + 1));
    }

    #[test]
    fn what_is_to_be_forgotten_is_and_the_rest_is_not() {
        let filled = || {
            let mut answers = AnswerCache::default();
            for number in [11, 12, 13, 21, 22] {
                keep(&mut answers, number, &[1, 2]);
            }
            answers
        };
        let mut answers = filled();
        answers.forget_first_page(PageKey::from_number(1));
        answers.assert_consistent();
        assert_eq!(numbers(&answers), [21, 22]);
        let mut answers = filled();
        answers.forget_adapter(AdapterId::new(std::num::NonZeroU32::MIN));
        answers.assert_consistent();
        assert_eq!(numbers(&answers), [11, 12, 21]);
        answers.forget_all();
        answers.assert_consistent();
        assert!(answers.kept.is_empty());
    }
}
