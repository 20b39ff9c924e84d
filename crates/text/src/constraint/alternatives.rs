//! [`Alternatives`]: the grammars that a text may follow: a shape, or calls of tools instead of it.
//!
//! Invariants: a text follows at least one grammar; a text that is a call follows only the grammar of calls, so that no shape
//! loosens the schema of a tool.

use std::sync::Arc;

use toktrie::SimpleVob;

use super::{error::ConstraintError, escapes::Follower, vocabulary::Vocabulary};

/// Index of the requested grammar, and of the grammar of calls.
pub(super) const SHAPE: usize = 0;
pub(super) const CALLS: usize = 1;

/// Says how a call is distinguished from a text of a shape.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Told {
    /// By its beginning, without white space.
    ByStart(Vec<String>),
    /// By its marks, in an answer that has marks around each of its parts.
    ByMark,
}

/// One or two grammars, and the progress of a text in each.
pub(super) struct Alternatives {
    branches: Vec<Branch>,
    /// Starts of a call, without white space.
    starts: Arc<[String]>,
    /// Tokens so far, if there are two grammars.
    ids: Vec<u32>,
}

struct Branch {
    matcher: Follower,
    /// Number of tokens that it took before the text left it; `None` while the text follows it.
    left_at: Option<usize>,
    /// Whether it was ruled out from the beginning.
    is_closed: bool,
}

impl Branch {
    fn is_open(&self) -> bool {
        self.left_at.is_none() && !self.is_closed
    }
}

impl Alternatives {
    /// Starts a text. The requested grammar is at index [`SHAPE`], and one of calls after it.
    pub(super) fn new(matchers: impl IntoIterator<Item = Follower>, starts: Arc<[String]>) -> Self {
        let branches = matchers.into_iter().map(|matcher| Branch {
            matcher,
            left_at: None,
            is_closed: false,
        });
        Self {
            branches: branches.collect(),
            starts,
            ids: Vec::new(),
        }
    }

    pub(super) fn deep_clone(&self) -> Self {
        let branches = self.branches.iter().map(|branch| Branch {
            matcher: branch.matcher.deep_clone(),
            ..*branch
        });
        Self {
            branches: branches.collect(),
            starts: Arc::clone(&self.starts),
            ids: self.ids.clone(),
        }
    }

    /// Rules out all grammars but the one at `idx`, if there are two.
    pub(super) fn keep_only(&mut self, idx: usize) {
        if idx < self.branches.len() {
            for (other, branch) in self.branches.iter_mut().enumerate() {
                branch.is_closed = other != idx;
            }
        }
    }

    /// Returns the mask of tokens that may come next, if any, and whether the text may end; `n_tokens` are in the vocabulary.
    pub(super) fn mask(&mut self, n_tokens: usize) -> Result<(Option<SimpleVob>, bool), ConstraintError> {
        let mut all: Option<SimpleVob> = None;
        let mut may_end = false;
        for branch in self.branches.iter_mut().filter(|branch| branch.is_open()) {
            if branch.matcher.is_stopped() {
                may_end = true;
                continue;
            }
            let mask = branch.matcher.mask()?;
            may_end |= mask.is_allowed(n_tokens as u32);
            match &mut all {
                Some(all) => all.or(&mask),
                None => all = Some(mask),
            }
        }
        Ok((all, may_end))
    }

    /// Takes tokens.
    pub(super) fn consume(&mut self, ids: &[u32], vocabulary: &Vocabulary) -> Result<(), ConstraintError> {
        match &mut self.branches[..] {
            [only] => ids.iter().try_for_each(|&id| only.matcher.consume(id)),
            _ => ids.iter().try_for_each(|&id| self.consume_one(id, vocabulary)),
        }
    }

    fn consume_one(&mut self, id: u32, vocabulary: &Vocabulary) -> Result<(), ConstraintError> {
        let n_before = self.ids.len();
        self.ids.push(id);
        let mut n_open = self.branches.iter().filter(|branch| branch.is_open()).count();
        // Calls first: if the text is a call, the others are ruled out.
        for idx in (0..self.branches.len()).rev() {
            let is_ruled_out = idx == SHAPE
                && n_open > 1
                && self.branches.get(CALLS).is_some_and(Branch::is_open)
                && self.is_call(vocabulary);
            let branch = &mut self.branches[idx];
            if !branch.is_open() {
                continue;
            }
            // The last grammar reports the error itself.
            if n_open > 1 {
                let takes = !is_ruled_out && branch.matcher.takes(id)?;
                if !takes {
                    branch.left_at = Some(n_before);
                    n_open -= 1;
                    continue;
                }
            }
            branch.matcher.consume(id)?;
        }
        Ok(())
    }

    /// Returns whether the text begins as only calls do.
    fn is_call(&self, vocabulary: &Vocabulary) -> bool {
        let n_longest = self.starts.iter().map(String::len).max().unwrap_or(0);
        let bytes = self.ids.iter().flat_map(|&id| vocabulary.bytes_of(id));
        let text: Vec<u8> = bytes
            .copied()
            .filter(|byte| !byte.is_ascii_whitespace())
            .take(n_longest)
            .collect();
        self.starts.iter().any(|start| text.starts_with(start.as_bytes()))
    }

    /// Returns whether the text is complete and nothing may follow it.
    pub(super) fn is_stopped(&self) -> bool {
        let mut open = self.branches.iter().filter(|branch| branch.is_open());
        open.all(|branch| branch.matcher.is_stopped())
    }

    /// Says whether the text may continue with these text tokens.
    pub(super) fn takes(&mut self, ids: &[u32], vocabulary: &Vocabulary) -> Result<bool, ConstraintError> {
        for (n_taken, &id) in ids.iter().enumerate() {
            let mut takes = false;
            for branch in self.branches.iter_mut().filter(|branch| branch.is_open()) {
                takes |= branch.matcher.takes(id)?;
            }
            if !takes {
                self.rollback(n_taken)?;
                return Ok(false);
            }
            self.consume(&[id], vocabulary)?;
        }
        self.rollback(ids.len())?;
        Ok(true)
    }

    /// Says whether the text is a complete call, even if others may follow it.
    pub(super) fn is_whole_call(&mut self) -> Result<bool, ConstraintError> {
        let of_calls = if self.branches.len() > 1 { CALLS } else { SHAPE };
        let mut is_whole = false;
        for (idx, branch) in self.branches.iter_mut().enumerate() {
            if !branch.is_open() {
                continue;
            }
            if idx != of_calls {
                return Ok(false);
            }
            is_whole = branch.matcher.is_stopped() || branch.matcher.is_accepting()?;
        }
        Ok(is_whole)
    }

    /// Takes back the newest tokens.
    pub(super) fn rollback(&mut self, n_tokens: usize) -> Result<(), ConstraintError> {
        if let [only] = &mut self.branches[..] {
            return only.matcher.rollback(n_tokens);
        }
        let n_left = self.ids.len().saturating_sub(n_tokens);
        let n_now = self.ids.len();
        self.ids.truncate(n_left);
        for branch in self.branches.iter_mut().filter(|branch| !branch.is_closed) {
            let n_taken = branch.left_at.unwrap_or(n_now);
            if n_taken >= n_left {
                branch.matcher.rollback(n_taken - n_left)?;
                branch.left_at = None;
            }
        }
        Ok(())
    }

    /// Begins again.
    pub(super) fn reset(&mut self) -> Result<(), ConstraintError> {
        self.ids.clear();
        for branch in &mut self.branches {
            (branch.left_at, branch.is_closed) = (None, false);
            branch.matcher.reset()?;
        }
        Ok(())
    }
}
