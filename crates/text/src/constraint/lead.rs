//! [`Lead`]: the text before a constrained text: reasoning, which may have a token limit, then text up to a call. If the
//! constrained text is a shape or a call with a mark each, reasoning is searched for both.
//!
//! After a call the text is free again, up to the next call.
//!
//! It needs no grammar: it looks only at the text of tokens. Invariants: it remembers no more of the text than the longest mark;
//! once reasoning has reached its limit, the tokens that end it are forced one after the other.

use std::sync::Arc;

use super::marker::Marker;

/// Describes the requested lead of a constrained text.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Begin {
    pub(super) thoughts: Option<Thoughts>,
    /// Marks that begin calls. If there are any, other text may come first, and so may the end, unless a text without a call must
    /// have a shape.
    pub(super) marks: Vec<Mark>,
}

/// Describes a model's reasoning.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Thoughts {
    pub(super) open: Open,
    /// Ends the reasoning.
    pub(super) close: String,
    /// Ends the head that `close` begins, if `close` does not end the reasoning by itself.
    pub(super) close_end: Option<String>,
    pub(super) budget: Option<Budget>,
}

/// Says how reasoning begins.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Open {
    /// It has begun.
    Begun,
    /// If the text begins with this.
    AtStart(String),
    /// After this, wherever it occurs.
    Anywhere(String),
    /// With this, which is forced.
    Always(String),
}

/// Bounds the length of reasoning.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Budget {
    pub(super) n_tokens: usize,
    /// Text that is then forced.
    pub(super) end: String,
    /// Text that may not follow, because it would begin reasoning again.
    pub(super) not_next: String,
}

/// A text that begins a constrained one.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Mark {
    pub(crate) text: String,
    /// Whether it counts only at the start of an answer.
    pub(crate) is_at_start: bool,
}

/// [`Begin`] in the tokens of a vocabulary.
#[derive(Debug)]
pub(super) struct LeadPlan {
    pub(super) opens: OpenPlan,
    pub(super) close: Option<Marker>,
    pub(super) budget: Option<BudgetPlan>,
    /// Marks of the constrained text, with their tokens.
    pub(super) marks: Vec<(Mark, Vec<u32>)>,
    /// Marks of the next call, if the constrained text can be a call and free text may follow it.
    pub(super) behind: Option<Vec<(Mark, Vec<u32>)>>,
    /// Whether calls in reasoning are calls too.
    pub(super) holds_in_thoughts: bool,
    /// Whether any text may come, and the end: there is no grammar, or it waits for a mark.
    pub(super) is_free: bool,
}

/// Says how reasoning begins, in tokens.
#[derive(Debug)]
pub(super) enum OpenPlan {
    Never,
    Begun,
    /// With one of these tokens, instead of the constrained text.
    Tokens(Vec<u32>),
    /// With this text, in text that is free anyway.
    Text(Mark),
    /// With these tokens.
    Always(Arc<[u32]>),
}

impl LeadPlan {
    /// Returns whether a mark in reasoning begins a call. The end of reasoning may begin a shaped text.
    pub(super) fn seeks_calls(&self) -> bool {
        (!self.is_free || self.holds_in_thoughts) && !self.marks.is_empty() && self.close.is_some()
    }
}

#[derive(Debug)]
pub(super) struct BudgetPlan {
    pub(super) n_tokens: usize,
    pub(super) end: Arc<[u32]>,
    pub(super) not_next: Vec<u32>,
}

/// A sample's progress in the lead.
#[derive(Clone, Debug)]
pub(super) struct Lead {
    plan: Arc<LeadPlan>,
    state: State,
    /// Reasoning tokens so far.
    n_thoughts: usize,
    /// Whether a call came before.
    is_behind: bool,
}

#[derive(Clone, Debug)]
enum State {
    /// Nothing came yet. Reasoning or the constrained text follows.
    Fresh,
    Thinking {
        close: Marker,
        /// Waits for calls in reasoning.
        watch: Option<Watch>,
    },
    /// These tokens are forced; then reasoning begins or ends.
    Forced {
        ids: Arc<[u32]>,
        n_done: usize,
        opens: bool,
    },
    Free(Watch),
    Over,
}

/// Waits for marks in free text.
#[derive(Clone, Debug)]
struct Watch {
    /// The text from its first letter, while it may be the beginning of a mark at the start.
    start: Option<Vec<u8>>,
    /// Bytes besides white space that may come before the first letter.
    skips: &'static [u8],
    /// Marks that count only at the start, each with its index in the plan.
    at_start: Arc<[(usize, Box<[u8]>)]>,
    anywhere: Vec<(usize, Marker)>,
    /// Whether reasoning has just ended.
    is_after_end: bool,
}

/// Says which tokens may come next.
#[derive(Clone, Copy, Debug)]
pub(super) enum Allowed<'p> {
    /// All tokens except these, and the ends if so stated.
    Any { ends: bool, but: &'p [u32] },
    /// Only this token.
    Only(u32),
    /// Tokens of the grammar, and these.
    Grammar(&'p [u32]),
}

/// Says which part of the text a token belongs to.
#[derive(Debug)]
pub(super) enum Pushed {
    /// It is part of the lead.
    Lead,
    /// It ends the lead; the grammar begins with these tokens, then with this text.
    Begins(Vec<u32>, Vec<u8>),
    /// It is the grammar's first.
    Grammar,
}

impl Lead {
    pub(super) fn new(plan: Arc<LeadPlan>) -> Self {
        let state = match (&plan.opens, &plan.close) {
            (OpenPlan::Begun, Some(close)) => Self::thinking(&plan, close),
            (OpenPlan::Always(ids), _) => State::Forced {
                ids: Arc::clone(ids),
                n_done: 0,
                opens: true,
            },
            (OpenPlan::Tokens(_), _) => State::Fresh,
            _ => Self::after(&plan),
        };
        Self {
            state,
            plan,
            n_thoughts: 0,
            is_behind: false,
        }
    }

    /// Starts after a call; then any text, the end, or the next call may follow.
    pub(super) fn behind(plan: Arc<LeadPlan>) -> Self {
        Self {
            state: State::Free(Watch::behind(&plan)),
            plan,
            n_thoughts: 0,
            is_behind: true,
        }
    }

    /// Returns the state at the beginning of reasoning.
    fn thinking(plan: &LeadPlan, close: &Marker) -> State {
        State::Thinking {
            close: close.clone(),
            watch: plan.seeks_calls().then(|| Watch::new(plan)),
        }
    }

    /// Returns the state after reasoning, or without it.
    fn after(plan: &LeadPlan) -> State {
        if plan.is_free {
            State::Free(Watch::new(plan))
        } else {
            State::Over
        }
    }

    pub(super) fn is_over(&self) -> bool {
        matches!(self.state, State::Over)
    }

    pub(super) fn allowed(&self) -> Allowed<'_> {
        let (plan, ends) = (&*self.plan, self.plan.is_free || self.is_behind);
        match &self.state {
            State::Over => Allowed::Grammar(&[]),
            State::Fresh => match &plan.opens {
                OpenPlan::Tokens(ids) => Allowed::Grammar(ids),
                _ => Allowed::Grammar(&[]),
            },
            State::Forced { ids, n_done, .. } => Allowed::Only(ids[*n_done]),
            State::Thinking { .. } => match &plan.budget {
                Some(budget) if self.n_thoughts >= budget.n_tokens => Allowed::Only(budget.end[0]),
                _ => Allowed::Any { ends, but: &[] },
            },
            State::Free(watch) => Allowed::Any {
                ends,
                but: match &plan.budget {
                    Some(budget) if watch.is_after_end => &budget.not_next,
                    _ => &[],
                },
            },
        }
    }

    /// Takes a token and its text.
    pub(super) fn push(&mut self, id: u32, bytes: &[u8]) -> Pushed {
        let plan = Arc::clone(&self.plan);
        match &mut self.state {
            State::Over => Pushed::Grammar,
            State::Fresh => {
                if let (OpenPlan::Tokens(ids), Some(close)) = (&plan.opens, &plan.close)
                    && ids.contains(&id)
                {
                    self.state = Self::thinking(&plan, close);
                    return Pushed::Lead;
                }
                self.state = State::Over;
                Pushed::Grammar
            }
            State::Forced { ids, n_done, opens } => {
                *n_done += 1;
                if *n_done < ids.len() {
                    return Pushed::Lead;
                }
                if *opens && let Some(close) = &plan.close {
                    self.state = Self::thinking(&plan, close);
                    return Pushed::Lead;
                }
                self.leave(&[])
            }
            State::Thinking { .. } => {
                let budget = plan.budget.as_ref();
                if let Some(budget) = budget.filter(|budget| self.n_thoughts >= budget.n_tokens)
                    && id == budget.end[0]
                {
                    if budget.end.len() == 1 {
                        return self.leave(&[]);
                    }
                    self.state = State::Forced {
                        ids: Arc::clone(&budget.end),
                        n_done: 1,
                        opens: false,
                    };
                    return Pushed::Lead;
                }
                self.n_thoughts += 1;
                self.think(bytes)
            }
            State::Free(_) => self.push_free(bytes),
        }
    }

    /// Takes free text.
    pub(super) fn push_free(&mut self, bytes: &[u8]) -> Pushed {
        let State::Free(watch) = &mut self.state else {
            return Pushed::Lead;
        };
        watch.is_after_end = false;
        match watch.push(bytes) {
            None => Pushed::Lead,
            Some((idx, behind)) => self.found(idx, behind),
        }
    }

    /// Takes text of reasoning.
    fn think(&mut self, bytes: &[u8]) -> Pushed {
        let State::Thinking { close, watch } = &mut self.state else {
            return Pushed::Lead;
        };
        let call = (watch.as_mut()).and_then(|watch| watch.push(bytes));
        let closed = close.push(bytes);
        match (call, closed) {
            (Some((idx, behind)), _) => self.found(idx, behind),
            (None, Some(behind)) => self.leave(&behind),
            (None, None) => Pushed::Lead,
        }
    }

    /// Ends the reasoning; `behind` is the text after it.
    fn leave(&mut self, behind: &[u8]) -> Pushed {
        self.state = Self::after(&self.plan);
        let plan = Arc::clone(&self.plan);
        let State::Free(watch) = &mut self.state else {
            // Space after reasoning belongs to the template, not to the constraint.
            return Pushed::Begins(Vec::new(), behind.trim_ascii_start().to_vec());
        };
        watch.is_after_end = (plan.budget.as_ref()).is_some_and(|budget| self.n_thoughts >= budget.n_tokens);
        if behind.is_empty() {
            return Pushed::Lead;
        }
        match watch.push(behind) {
            None => Pushed::Lead,
            Some((idx, behind)) => self.found(idx, behind),
        }
    }

    /// Continues after a mark without a call: waits for the next mark, which may begin in the text after this one.
    pub(super) fn resume(&mut self, behind: &[u8]) -> Pushed {
        if let (true, false, Some(close)) = (self.plan.seeks_calls(), self.is_behind, &self.plan.close) {
            self.state = Self::thinking(&self.plan, close);
            if let State::Thinking {
                watch: Some(watch), ..
            } = &mut self.state
            {
                watch.start = None;
            }
            return self.think(behind);
        }
        self.state = if self.is_behind {
            State::Free(Watch::behind(&self.plan))
        } else {
            Self::after(&self.plan)
        };
        let State::Free(watch) = &mut self.state else {
            return Pushed::Grammar;
        };
        watch.start = None;
        match watch.push(behind) {
            None => Pushed::Lead,
            Some((idx, behind)) => self.found(idx, behind),
        }
    }

    fn found(&mut self, idx: usize, behind: Vec<u8>) -> Pushed {
        let plan = Arc::clone(&self.plan);
        let marks = match &plan.behind {
            Some(behind) if self.is_behind => behind,
            _ => &plan.marks,
        };
        if let Some((_, ids)) = marks.get(idx) {
            self.state = State::Over;
            return Pushed::Begins(ids.clone(), behind);
        }
        let Some(close) = &plan.close else {
            return Pushed::Lead;
        };
        self.state = Self::thinking(&plan, close);
        self.think(&behind)
    }
}

impl Watch {
    /// Waits for the marks of a plan, and for the beginning of reasoning in free text.
    fn new(plan: &LeadPlan) -> Self {
        let thoughts = match &plan.opens {
            OpenPlan::Text(mark) => Some(mark),
            _ => None,
        };
        Self::of(plan.marks.iter().map(|(mark, _)| mark).chain(thoughts))
    }

    /// Waits for the next call. A start of text counts again, and reasoning may begin anywhere.
    fn behind(plan: &LeadPlan) -> Self {
        let thoughts = match &plan.opens {
            OpenPlan::Text(mark) if !mark.is_at_start => Some(mark),
            _ => None,
        };
        let marks = plan.behind.iter().flatten();
        let mut watch = Self::of(marks.map(|(mark, _)| mark).chain(thoughts));
        watch.skips = b";";
        watch
    }

    fn of<'m>(marks: impl Iterator<Item = &'m Mark>) -> Self {
        let (mut at_start, mut anywhere) = (Vec::new(), Vec::new());
        for (idx, mark) in marks.enumerate() {
            if mark.is_at_start {
                at_start.push((idx, mark.text.as_bytes().into()));
            } else {
                anywhere.push((idx, Marker::new(&mark.text, None)));
            }
        }
        Self {
            start: Some(Vec::new()),
            skips: b"",
            at_start: at_start.into(),
            anywhere,
            is_after_end: false,
        }
    }

    /// Takes text; returns the complete mark by its index in the plan, and the text after it.
    fn push(&mut self, bytes: &[u8]) -> Option<(usize, Vec<u8>)> {
        if let Some(start) = &mut self.start {
            let mut bytes = bytes;
            if start.is_empty() {
                let is_skipped = |byte: &u8| byte.is_ascii_whitespace() || self.skips.contains(byte);
                let n_skipped = bytes.iter().take_while(|byte| is_skipped(byte)).count();
                bytes = &bytes[n_skipped..];
            }
            start.extend_from_slice(bytes);
            if let Some((idx, mark)) = self.at_start.iter().find(|(_, mark)| start.starts_with(mark)) {
                let behind = start.split_off(mark.len());
                return Some((*idx, behind));
            }
            if !self.at_start.iter().any(|(_, mark)| mark.starts_with(start)) {
                self.start = None;
            }
        }
        let mut first = None;
        for (idx, marker) in &mut self.anywhere {
            let behind = marker.push(bytes);
            if first.is_none() {
                first = behind.map(|behind| (*idx, behind));
            }
        }
        first
    }
}

#[cfg(test)]
mod tests {
    use crate::constraint::{
        Constraint, ConstraintCompiler, ConstraintMatcher, compiler::tests::bytes_tokenizer,
    };

    fn matcher(constraint: &Constraint) -> ConstraintMatcher {
        let compiler = ConstraintCompiler::new(&bytes_tokenizer()).unwrap();
        compiler.compile(constraint).unwrap().matcher(&[256])
    }

    fn mask(matcher: &mut ConstraintMatcher) -> [u32; 9] {
        let mut mask = [0; 9];
        matcher.mask(&mut mask).unwrap();
        mask
    }

    fn n_allowed(matcher: &mut ConstraintMatcher) -> u32 {
        mask(matcher).iter().map(|word| word.count_ones()).sum()
    }

    fn allows(matcher: &mut ConstraintMatcher, id: u32) -> bool {
        mask(matcher)[id as usize / 32] >> (id % 32) & 1 == 1
    }

    /// Feeds a text; each of its bytes must be allowed, and must be the only one if `is_forced`.
    fn feed(matcher: &mut ConstraintMatcher, text: &str, is_forced: bool) {
        for byte in text.bytes() {
            assert!(allows(matcher, u32::from(byte)), "{:?} of {text:?}", byte as char);
            assert_eq!(
                n_allowed(matcher) == 1,
                is_forced,
                "{:?} of {text:?}",
                byte as char
            );
            matcher.commit(u32::from(byte)).unwrap();
        }
    }

    #[test]
    fn thoughts_end_with_their_budget_and_the_constraint_begins() {
        let constraint = Constraint::regex("[0-9]{2}").begins_after("</t>");
        let mut matcher = matcher(&constraint.thinks_at_most(3, "</t>", ""));
        let text = "abc</t>42";
        let mut masks = vec![mask(&mut matcher)];
        for byte in text.bytes() {
            assert!(allows(&mut matcher, u32::from(byte)));
            matcher.commit(u32::from(byte)).unwrap();
            masks.push(mask(&mut matcher));
        }
        assert!(matcher.is_complete());
        for n_back in 1..=text.len() {
            matcher.rollback(n_back).unwrap();
            let n_left = text.len() - n_back;
            assert_eq!(mask(&mut matcher), masks[n_left], "{n_back} tokens back");
            for byte in text.bytes().skip(n_left) {
                matcher.commit(u32::from(byte)).unwrap();
            }
        }
    }

    #[test]
    fn thoughts_that_end_by_themselves_keep_the_rest_of_their_budget() {
        let anything = Constraint::anything().may_begin_after("<t>", "</t>");
        let mut matcher = matcher(&anything.thinks_at_most(6, "</t>", ""));
        feed(&mut matcher, "\n<t>a</t>and so on", false);
        assert!(allows(&mut matcher, 256), "free text may end");
        feed(&mut matcher, "<t>is text now, of any length", false);
    }

    #[test]
    fn free_text_thinks_where_its_mark_stands_and_not_again_at_once() {
        let anything = Constraint::anything().thinks_between("[a]", "[e]");
        let mut matcher = matcher(&anything.thinks_at_most(1, "[e][", "an"));
        feed(&mut matcher, "so [a]y", false);
        feed(&mut matcher, "[e][", true);
        assert!(!allows(&mut matcher, u32::from(b'a')));
        assert!(
            allows(&mut matcher, u32::from(b'n')),
            "it is not the first letter"
        );
        feed(&mut matcher, "fa", false);
    }

    #[test]
    fn thoughts_can_be_opened_in_any_case() {
        let constraint = Constraint::regex("[0-9]").opens_and_begins_after("<t>", "</t>");
        let mut matcher = matcher(&constraint.thinks_at_most(0, "</t>", ""));
        feed(&mut matcher, "<t></t>", true);
        feed(&mut matcher, "7", false);
        assert!(matcher.is_complete());
    }
}
