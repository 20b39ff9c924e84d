//! [`ConstraintMatcher`]: one sample's progress in a constraint.
//!
//! Samples share the compiled constraint. Invariants: a mask has a bit for each token that the text may continue with and for nothing
//! else, with the ends only if the text is complete; a token outside the mask is an error, not a panic.

use std::{collections::VecDeque, fmt, sync::Arc};

use super::{
    alternatives::{Alternatives, CALLS, SHAPE},
    error::ConstraintError,
    lead::{Allowed, Lead, LeadPlan, Pushed},
    vocabulary::Vocabulary,
};

/// Largest number of tokens that spell the beginning of one text.
const MAX_SPELLINGS: u32 = 64;

/// Number of tokens before the grammar that can be taken back without reading all of them again: more than a draft has.
const MAX_LEADS: usize = 40;

/// One sample's progress in a constraint.
pub struct ConstraintMatcher {
    /// `None` without a grammar, and after a call until the next begins.
    grammars: Option<Alternatives>,
    /// The grammar in its start state, if several calls may follow each other.
    fresh: Option<Alternatives>,
    vocabulary: Arc<Vocabulary>,
    end_ids: Box<[u32]>,
    plan: Arc<LeadPlan>,
    /// Follows the text before the grammar.
    lead: Lead,
    /// Tokens before the grammar, from the end of the previous call to the mark that starts the grammar.
    before: Vec<u32>,
    /// Earlier states of the lead, before each of the newest of those tokens.
    leads: VecDeque<Lead>,
    /// Tokens since then.
    n_inside: usize,
    /// The last complete call.
    called: Option<Box<Called>>,
    /// All tokens up to the end of that call.
    through_calls: Vec<u32>,
    /// State of the lead after the last call and the text in that call's last token; before the first call, its initial state.
    first_lead: Lead,
    /// Tokens of the grammar since then.
    inside: Vec<u32>,
    is_complete: bool,
    /// Whether the newest token is an end token.
    has_ended: bool,
    leaving: Leaving,
}

/// Holds a complete call with the state that a rollback into it needs.
struct Called {
    grammars: Option<Alternatives>,
    lead: Lead,
    before: Vec<u32>,
    leads: VecDeque<Lead>,
    inside: Vec<u32>,
    first_lead: Lead,
}

/// The treatment of a text that leaves the grammar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leaving {
    /// It fails.
    Fails,
    /// It continues without the grammar.
    IsAllowed,
    /// It has left the grammar.
    HasHappened {
        /// Tokens since then, including the one with which it left.
        n_since: usize,
        /// Whether it left before a token, because there was no mask for it.
        by_mask: bool,
    },
}

impl fmt::Debug for ConstraintMatcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConstraintMatcher")
            .field("lead", &self.lead)
            .field("n_inside", &self.n_inside)
            .field("is_complete", &self.is_complete)
            .finish_non_exhaustive()
    }
}

impl ConstraintMatcher {
    pub(super) fn new(
        grammars: Option<Alternatives>,
        vocabulary: Arc<Vocabulary>,
        end_ids: &[u32],
        plan: Arc<LeadPlan>,
        is_lenient: bool,
    ) -> Self {
        let fresh = plan.behind.as_ref().and(grammars.as_ref());
        let lead = Lead::new(Arc::clone(&plan));
        Self {
            fresh: fresh.map(Alternatives::deep_clone),
            grammars,
            vocabulary,
            end_ids: end_ids.into(),
            first_lead: lead.clone(),
            lead,
            plan,
            before: Vec::new(),
            leads: VecDeque::new(),
            n_inside: 0,
            called: None,
            through_calls: Vec::new(),
            inside: Vec::new(),
            is_complete: false,
            has_ended: false,
            leaving: if is_lenient {
                Leaving::IsAllowed
            } else {
                Leaving::Fails
            },
        }
    }

    /// Writes the mask of the tokens that may come next: bit `id % 32` of word `id / 32`. Words beyond the vocabulary become
    /// zero.
    ///
    /// # Errors
    /// [`ConstraintError::Step`] if a limit of a step is exceeded.
    pub fn mask(&mut self, words: &mut [u32]) -> Result<(), ConstraintError> {
        if self.has_left() {
            self.fill_all(words, true);
            return Ok(());
        }
        match self.lead.allowed() {
            Allowed::Any { ends, but } => {
                self.fill_all(words, ends);
                for &id in but {
                    set(words, id, false);
                }
                Ok(())
            }
            Allowed::Only(id) => {
                words.fill(0);
                set(words, id, true);
                Ok(())
            }
            Allowed::Grammar(others) => {
                let others = others.to_vec();
                match self.fill(words) {
                    Err(_) if self.leaving == Leaving::IsAllowed => {
                        self.leaving = Leaving::HasHappened {
                            n_since: 0,
                            by_mask: true,
                        };
                        self.fill_all(words, true);
                    }
                    filled => filled?,
                }
                for id in others {
                    set(words, id, true);
                }
                Ok(())
            }
        }
    }

    /// Allows every token of the vocabulary.
    fn fill_all(&self, words: &mut [u32], may_end: bool) {
        words.fill(0);
        let n_tokens = self.vocabulary.n_tokens;
        let n_words = n_tokens.div_ceil(32).min(words.len());
        words[..n_words].fill(u32::MAX);
        clear_from(words, n_tokens);
        self.set_ends(words, may_end);
    }

    fn fill(&mut self, words: &mut [u32]) -> Result<(), ConstraintError> {
        words.fill(0);
        let n_tokens = self.vocabulary.n_tokens;
        if !self.is_complete {
            let Some(grammars) = &mut self.grammars else {
                self.fill_all(words, true);
                return Ok(());
            };
            let (mask, may_end) = grammars.mask(n_tokens)?;
            if let Some(mask) = &mask {
                for (word, &bits) in words.iter_mut().zip(mask.as_slice()) {
                    *word = bits;
                }
            }
            clear_from(words, n_tokens);
            if words.iter().any(|&word| word != 0) {
                self.set_ends(words, may_end);
                return Ok(());
            }
            if !may_end {
                return Err(ConstraintError::Step {
                    reason: "no token of the vocabulary continues the text".to_owned(),
                });
            }
            self.is_complete = true;
        }
        self.set_ends(words, true);
        Ok(())
    }

    /// Takes the chosen token.
    ///
    /// # Errors
    /// [`ConstraintError::Step`] for a token that the mask forbids, or if a limit is exceeded.
    pub fn commit(&mut self, id: u32) -> Result<(), ConstraintError> {
        if let Leaving::HasHappened { n_since, .. } = &mut self.leaving {
            *n_since += 1;
            return Ok(());
        }
        match self.step(id) {
            Err(_) if self.leaving == Leaving::IsAllowed => {
                self.leaving = Leaving::HasHappened {
                    n_since: 1,
                    by_mask: false,
                };
                self.is_complete = false;
                Ok(())
            }
            taken => taken,
        }
    }

    fn step(&mut self, id: u32) -> Result<(), ConstraintError> {
        if !self.lead.is_over() {
            let ahead = self.lead.clone();
            match self.lead.push(id, self.vocabulary.bytes_of(id)) {
                Pushed::Lead => {
                    self.push_before(id, ahead);
                    return Ok(());
                }
                Pushed::Begins(ids, behind) => {
                    self.push_before(id, ahead);
                    return self.begin(ids, behind);
                }
                Pushed::Grammar => {}
            }
        }
        self.n_inside += 1;
        if self.fresh.is_some() {
            self.inside.push(id);
        }
        if self.end_ids.contains(&id) {
            (self.is_complete, self.has_ended) = (true, true);
            return Ok(());
        }
        if self.is_complete {
            return Err(ConstraintError::Step {
                reason: format!("token {id} comes after the end"),
            });
        }
        self.consume(&[id])
    }

    fn push_before(&mut self, id: u32, ahead: Lead) {
        self.before.push(id);
        if self.leads.len() == MAX_LEADS {
            self.leads.pop_front();
        }
        self.leads.push_back(ahead);
    }

    /// Begins the grammar with a mark, or after reasoning without one, and with the text after it. A token of free text may complete a
    /// mark and run past it; if no call continues this way, the text remains free.
    fn begin(&mut self, mark: Vec<u32>, behind: Vec<u8>) -> Result<(), ConstraintError> {
        let (mut mark, mut behind) = (mark, behind);
        loop {
            let is_mark = !mark.is_empty();
            if self.grammars.is_none() {
                self.grammars = self.fresh.as_ref().map(Alternatives::deep_clone);
            }
            if (self.plan.seeks_calls() || !self.through_calls.is_empty())
                && let Some(grammars) = &mut self.grammars
            {
                grammars.keep_only(if is_mark { CALLS } else { SHAPE });
            }
            mark.extend(self.vocabulary.text_tokens(&behind));
            let begun = self.consume(&mark);
            if begun.is_ok() || !is_mark {
                return begun;
            }
            self.grammars = self.fresh.as_ref().map(Alternatives::deep_clone);
            self.is_complete = false;
            match self.lead.resume(&behind) {
                Pushed::Begins(next, rest) => (mark, behind) = (next, rest),
                Pushed::Lead | Pushed::Grammar => return Ok(()),
            }
        }
    }

    /// Takes tokens of the grammar. If they complete a call, the rest of them is text after it.
    fn consume(&mut self, ids: &[u32]) -> Result<(), ConstraintError> {
        let Some(grammars) = &mut self.grammars else {
            return Ok(());
        };
        if self.plan.behind.is_none() {
            grammars.consume(ids, &self.vocabulary)?;
            self.is_complete = grammars.is_stopped();
            return Ok(());
        }
        for (idx, &id) in ids.iter().enumerate() {
            grammars.consume(&[id], &self.vocabulary)?;
            if let Some(mut behind) = text_behind_call(grammars, id, &self.vocabulary)? {
                let rest = ids[idx + 1..].iter().flat_map(|&id| self.vocabulary.bytes_of(id));
                behind.extend(rest);
                return self.end_call(&behind);
            }
        }
        self.is_complete = grammars.is_stopped();
        Ok(())
    }

    /// Ends a call whose last token also holds the text `behind`; the text is then free up to the next call, which may begin there.
    fn end_call(&mut self, behind: &[u8]) -> Result<(), ConstraintError> {
        self.through_calls.extend(&self.before);
        self.through_calls.extend(&self.inside);
        let lead = std::mem::replace(&mut self.lead, Lead::behind(Arc::clone(&self.plan)));
        self.called = Some(Box::new(Called {
            grammars: self.grammars.take(),
            lead,
            before: std::mem::take(&mut self.before),
            leads: std::mem::take(&mut self.leads),
            inside: std::mem::take(&mut self.inside),
            first_lead: self.first_lead.clone(),
        }));
        self.n_inside = 0;
        self.is_complete = false;
        let begun = match self.lead.push_free(behind) {
            Pushed::Begins(mark, rest) => self.begin(mark, rest),
            Pushed::Lead | Pushed::Grammar => Ok(()),
        };
        self.first_lead = self.lead.clone();
        begun
    }

    /// Rolls back by more tokens than came since the last complete call, into that call.
    fn reopen(&mut self, n_tokens: usize) -> Result<(), ConstraintError> {
        let n_back = n_tokens - self.before.len() - self.n_inside;
        let Some(n_left) = self.through_calls.len().checked_sub(n_back) else {
            return Err(too_many(n_tokens));
        };
        let called = self.called.take();
        self.has_ended = false;
        if let Some(called) = called.filter(|called| n_back <= called.before.len() + called.inside.len()) {
            let n_call = called.before.len() + called.inside.len();
            self.through_calls.truncate(self.through_calls.len() - n_call);
            let called = *called;
            self.n_inside = called.inside.len();
            (self.grammars, self.lead) = (called.grammars, called.lead);
            (self.before, self.leads, self.inside) = (called.before, called.leads, called.inside);
            self.first_lead = called.first_lead;
            return self.rollback(n_back);
        }
        let mut tokens = std::mem::take(&mut self.through_calls);
        tokens.truncate(n_left);
        self.grammars = self.fresh.as_ref().map(Alternatives::deep_clone);
        self.lead = Lead::new(Arc::clone(&self.plan));
        self.first_lead = self.lead.clone();
        (self.n_inside, self.is_complete) = (0, false);
        self.before.clear();
        self.leads.clear();
        self.inside.clear();
        tokens.into_iter().try_for_each(|id| self.step(id))
    }

    /// Returns whether the text is complete and nothing may follow it.
    pub fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Returns whether the text has left its grammar, so that anything may follow.
    pub fn has_left(&self) -> bool {
        matches!(self.leaving, Leaving::HasHappened { .. })
    }

    /// Takes back the newest tokens, for instance the rejected tokens of a draft.
    ///
    /// # Errors
    /// [`ConstraintError::Step`] for more tokens than there are, or than came since the text left its grammar, to which it cannot
    /// return.
    pub fn rollback(&mut self, n_tokens: usize) -> Result<(), ConstraintError> {
        if n_tokens == 0 {
            return Ok(());
        }
        if let Leaving::HasHappened { n_since, by_mask } = &mut self.leaving {
            let n_left = n_since.checked_sub(n_tokens);
            let n_left = n_left.filter(|&n_left| n_left > 0 || *by_mask);
            *n_since = n_left.ok_or_else(|| ConstraintError::Step {
                reason: "a text that has left its grammar does not return".to_owned(),
            })?;
            return Ok(());
        }
        if n_tokens <= self.n_inside {
            self.n_inside -= n_tokens;
            self.inside.truncate(self.n_inside);
            // The token of an end never reached the grammar.
            let n_in_grammar = n_tokens - usize::from(std::mem::take(&mut self.has_ended));
            self.is_complete = false;
            if let Some(grammars) = &mut self.grammars {
                grammars.rollback(n_in_grammar)?;
                self.is_complete = grammars.is_stopped();
            }
            if self.n_inside == 0 && self.before.is_empty() {
                self.lead = self.first_lead.clone();
            }
            return Ok(());
        }
        let n_left = (self.before.len() + self.n_inside).checked_sub(n_tokens);
        let Some(n_left) = n_left else {
            return self.reopen(n_tokens);
        };
        if self.lead.is_over()
            && let Some(grammars) = &mut self.grammars
        {
            grammars.reset()?;
        }
        self.n_inside = 0;
        self.inside.clear();
        (self.is_complete, self.has_ended) = (false, false);
        let n_back = self.before.len() - n_left;
        if let Some(idx) = self.leads.len().checked_sub(n_back)
            && let Some(lead) = self.leads.drain(idx..).next()
        {
            self.before.truncate(n_left);
            self.lead = lead;
            return Ok(());
        }
        self.leads.clear();
        self.lead = self.first_lead.clone();
        let mut before = std::mem::take(&mut self.before);
        before.truncate(n_left);
        before.into_iter().try_for_each(|id| self.step(id))
    }

    /// Returns the next token if the mask `words` allows only one text: all allowed tokens spell the beginning of this text, and this
    /// token spells most of it. Models usually write it this way.
    pub fn forced(&self, words: &[u32]) -> Option<u32> {
        let n_allowed: u32 = words.iter().map(|word| word.count_ones()).sum();
        if n_allowed > MAX_SPELLINGS {
            return None;
        }
        let ids = (words.iter().zip(0..)).flat_map(|(&word, idx)| {
            let bits = (0..32).filter(move |bit| word >> bit & 1 == 1);
            bits.map(move |bit| idx * 32 + bit)
        });
        let ids: Vec<u32> = ids.collect();
        if let [only] = ids[..] {
            return Some(only);
        }
        let longest = ids
            .iter()
            .copied()
            .max_by_key(|&id| self.vocabulary.bytes_of(id).len())?;
        let text = self.vocabulary.bytes_of(longest);
        let is_spelled = ids.iter().all(|id| {
            let bytes = self.vocabulary.bytes_of(*id);
            !bytes.is_empty() && text.starts_with(bytes) && !self.end_ids.contains(id)
        });
        is_spelled.then_some(longest)
    }

    fn set_ends(&self, words: &mut [u32], may_end: bool) {
        for &id in &self.end_ids {
            set(words, id, may_end);
        }
    }
}

/// Returns the text after the end of a call within its last token, `last`; `None` if the text is not a complete call.
fn text_behind_call(
    grammars: &mut Alternatives,
    last: u32,
    vocabulary: &Vocabulary,
) -> Result<Option<Vec<u8>>, ConstraintError> {
    let bytes = vocabulary.bytes_of(last);
    let is_whole = grammars.is_whole_call()?;
    // A token may end within a character. The grammar then waits for the rest of it, even after a call.
    let ends_in_character = str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none());
    if !is_whole && !ends_in_character {
        return Ok(None);
    }
    let nothing = is_whole.then(Vec::new);
    if bytes.len() < 2 || !vocabulary.is_text(last) {
        return Ok(nothing);
    }
    let mut ahead = grammars.deep_clone();
    ahead.rollback(1)?;
    for end in 1..bytes.len() {
        let Some(ids) = vocabulary.spelled(&bytes[..end]) else {
            continue;
        };
        if ahead.takes(&ids, vocabulary)? {
            ahead.consume(&ids, vocabulary)?;
            let is_whole = ahead.is_whole_call()?;
            ahead.rollback(ids.len())?;
            if is_whole {
                return Ok(Some(bytes[end..].to_vec()));
            }
        }
    }
    Ok(nothing)
}

fn too_many(n_tokens: usize) -> ConstraintError {
    ConstraintError::Step {
        reason: format!("{n_tokens} tokens are removed, but there are fewer"),
    }
}

fn set(words: &mut [u32], id: u32, is_allowed: bool) {
    if let Some(word) = words.get_mut(id as usize / 32) {
        let bit = 1 << (id % 32);
        *word = if is_allowed { *word | bit } else { *word & !bit };
    }
}

/// Clears the bits of the ids from `first` on.
fn clear_from(words: &mut [u32], first: usize) {
    if let Some(word) = words.get_mut(first / 32) {
        *word &= (1 << (first % 32)) - 1;
    }
    if let Some(rest) = words.get_mut(first / 32 + 1..) {
        rest.fill(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::constraint::{Constraint, ConstraintCompiler, compiler::tests::bytes_tokenizer};

    fn matcher(constraint: &Constraint) -> ConstraintMatcher {
        let compiler = ConstraintCompiler::new(&bytes_tokenizer()).unwrap();
        compiler.compile(constraint).unwrap().matcher(&[256])
    }

    #[test]
    fn a_text_that_left_ahead_of_a_token_stays_free_when_that_is_taken_back() {
        let mut matcher = matcher(&Constraint::regex("ab+"));
        let left = Leaving::HasHappened {
            n_since: 0,
            by_mask: true,
        };
        matcher.leaving = left;
        for id in [7, 8] {
            matcher.commit(id).unwrap();
        }
        matcher.rollback(2).unwrap();
        assert_eq!(matcher.leaving, left);
        assert!(matcher.rollback(1).is_err());
        matcher.leaving = Leaving::IsAllowed;
        matcher.commit(7).unwrap();
        assert!(matcher.has_left());
        assert!(matcher.rollback(1).is_err(), "it left with the token");
    }

    #[test]
    fn guesses_in_thoughts_are_taken_back_without_reading_all_of_them_again() {
        let constraint = Constraint::regex("[0-9]").begins_after("</t>");
        let mut matcher = matcher(&constraint);
        for id in [u32::from(b'x'); 100] {
            matcher.commit(id).unwrap();
        }
        for text in ["</", "<", "</t>4"] {
            text.bytes()
                .for_each(|byte| matcher.commit(u32::from(byte)).unwrap());
            matcher.rollback(text.len()).unwrap();
            assert_eq!(matcher.before.len(), 100);
            assert!(matcher.leads.len() < MAX_LEADS, "they are not pushed again");
        }
        matcher.rollback(60).unwrap();
        assert_eq!(matcher.before.len(), 40);
        for byte in *b"</t>" {
            matcher.commit(u32::from(byte)).unwrap();
        }
        let mut mask = [0; 9];
        matcher.mask(&mut mask).unwrap();
        let digits = (b'0'..=b'9').fold([0; 9], |mut digits, digit| {
            set(&mut digits, u32::from(digit), true);
            digits
        });
        assert_eq!(mask, digits);
    }
}
