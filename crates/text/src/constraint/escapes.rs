//! [`Follower`] follows a text through one grammar and adds the JSON escapes that the grammar compiler does not know.
//!
//! JSON lets `\/` stand for a slash, and models write it, but the compiler knows only the slash. In strings with a pattern the compiler
//! knows `\u` only for control characters, so a model that begins another escape could not finish it. Each grammar has its own text.
//! Invariants: an escape that may begin can be finished, also by a token that contains more than it; the grammar sees the unescaped
//! text.

use std::sync::Arc;

use llguidance::Matcher;
use toktrie::SimpleVob;

use super::{
    error::{ConstraintError, step_error},
    escape_tokens::{EscapesFrom, Scan, Unescaped},
    vocabulary::Vocabulary,
};

/// Says where JSON may occur in the texts of a grammar.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct JsonPlaces {
    /// Whether the grammar has JSON.
    pub(super) has_json: bool,
    /// Whether free text, in which quotes mean nothing, may be next to the JSON.
    pub(super) has_free_text: bool,
    /// Whether strings may have patterns.
    pub(super) has_patterns: bool,
}

/// Records which tokens the grammar consumed for one token of the text.
#[derive(Clone, Debug)]
struct Told {
    /// The tokens that the grammar consumed.
    ids: Vec<u32>,
    before: Scan,
    /// Tokens that the grammar had consumed for the previous token before they were replaced.
    instead_of: Option<Vec<u32>>,
}

/// Says how the grammar reads a token.
struct Way {
    /// The tokens that it consumes.
    ids: Vec<u32>,
    /// The tokens that it consumes for the previous token instead of the earlier ones.
    instead: Option<Vec<u32>>,
    after: Scan,
}

/// Follows a text through a grammar.
pub(super) struct Follower {
    matcher: Matcher,
    vocabulary: Arc<Vocabulary>,
    places: JsonPlaces,
    scan: Scan,
    /// Tokens consumed so far; empty if the grammar has no JSON.
    told: Vec<Told>,
}

impl Follower {
    pub(super) fn new(matcher: Matcher, vocabulary: Arc<Vocabulary>, places: JsonPlaces) -> Self {
        Self {
            matcher,
            vocabulary,
            places,
            scan: Scan::Outside,
            told: Vec::new(),
        }
    }

    pub(super) fn deep_clone(&self) -> Self {
        Self {
            matcher: self.matcher.deep_clone(),
            vocabulary: Arc::clone(&self.vocabulary),
            places: self.places,
            scan: self.scan,
            told: self.told.clone(),
        }
    }

    /// Returns whether the text is complete and nothing may follow it.
    pub(super) fn is_stopped(&self) -> bool {
        self.matcher.is_stopped()
    }

    /// Says whether the text may end.
    pub(super) fn is_accepting(&mut self) -> Result<bool, ConstraintError> {
        self.matcher.is_accepting().map_err(|error| step_error(&error))
    }

    /// Computes the mask of the tokens that may come next.
    pub(super) fn mask(&mut self) -> Result<SimpleVob, ConstraintError> {
        let mut mask = self.grammar_mask()?;
        if !self.places.has_json {
            return Ok(mask);
        }
        let vocabulary = Arc::clone(&self.vocabulary);
        let tokens = &vocabulary.escapes;
        let scan = self.scan;
        match scan {
            Scan::Outside => self.add_escapes(&mut mask, &tokens.outside)?,
            Scan::Beside => self.add_escapes(&mut mask, &tokens.beside)?,
            Scan::Inside => self.add_escapes(&mut mask, &tokens.inside)?,
            Scan::Escaped { is_told: false } => {
                self.add_escapes(&mut mask, &tokens.inside)?;
                mask = only(&mask, &tokens.with_slash);
            }
            Scan::Escaped { is_told: true } => {
                self.add_escapes(&mut mask, &tokens.escaped)?;
                let takes_slash = tokens.with_slash.iter().any(|&id| mask.is_allowed(id));
                if !takes_slash && let Some(instead) = self.newest_without_backslash() {
                    let slashes = self.with_newest(&instead, |this| {
                        let mut mask = this.grammar_mask()?;
                        this.add_escapes(&mut mask, &tokens.inside)?;
                        Ok(only(&mask, &tokens.with_slash))
                    })?;
                    mask.or(&slashes);
                }
            }
        }
        Ok(mask)
    }

    fn grammar_mask(&mut self) -> Result<SimpleVob, ConstraintError> {
        self.matcher.compute_mask().map_err(|error| step_error(&error))
    }

    /// Adds the tokens that the grammar accepts unescaped, and removes those whose `\u` escape could not be finished.
    fn add_escapes(&mut self, mask: &mut SimpleVob, from: &EscapesFrom) -> Result<(), ConstraintError> {
        // Most tokens share the text before the digits.
        let mut newest: Option<(&[u32], bool)> = None;
        for letter in &from.letters {
            if !self.places.has_patterns {
                break;
            }
            if !mask.is_allowed(letter.id) {
                continue;
            }
            let takes = match newest {
                Some((ids, takes)) if *ids == *letter.ids => takes,
                _ => self.validates(&letter.ids)?,
            };
            newest = Some((&letter.ids, takes));
            if !takes {
                mask.disallow_token(letter.id);
            }
        }
        for unescaped in &from.unescaped {
            let may_begin = unescaped.ids.first().is_none_or(|&id| mask.is_allowed(id));
            if !may_begin || mask.is_allowed(unescaped.id) {
                continue;
            }
            let is_in_mask = unescaped.ids.len() == 1 && !unescaped.awaits_slash;
            if is_in_mask || self.takes_unescaped(unescaped)? {
                mask.allow_token(unescaped.id);
            }
        }
        Ok(())
    }

    fn takes_unescaped(&mut self, unescaped: &Unescaped) -> Result<bool, ConstraintError> {
        if !unescaped.awaits_slash {
            return self.validates(&unescaped.ids);
        }
        let Some(slash) = self.vocabulary.escapes.slash else {
            return Ok(false);
        };
        self.validates(&[&unescaped.ids[..], &[slash]].concat())
    }

    /// Tokenizes the text that the grammar consumed for the newest token, without the backslash at its end; `None` if it has none.
    fn newest_without_backslash(&self) -> Option<Vec<u32>> {
        let newest = self.told.last()?;
        let bytes = newest.ids.iter().flat_map(|&id| self.vocabulary.bytes_of(id));
        let mut bytes: Vec<u8> = bytes.copied().collect();
        (bytes.pop() == Some(b'\\'))
            .then(|| self.vocabulary.spelled(&bytes))
            .flatten()
    }

    /// Runs a query while the grammar has consumed other tokens for the newest token.
    fn with_newest<T>(
        &mut self,
        ids: &[u32],
        ask: impl FnOnce(&mut Self) -> Result<T, ConstraintError>,
    ) -> Result<T, ConstraintError> {
        let before = self.tell_otherwise(ids)?;
        let answer = ask(self)?;
        if let Some(before) = before {
            self.tell_otherwise(&before)?;
        }
        Ok(answer)
    }

    /// Says whether a token may come next.
    pub(super) fn takes(&mut self, id: u32) -> Result<bool, ConstraintError> {
        Ok(!self.matcher.is_stopped() && self.way(id)?.is_some())
    }

    /// Says whether the grammar accepts these tokens.
    fn validates(&mut self, ids: &[u32]) -> Result<bool, ConstraintError> {
        let n_valid = self.matcher.validate_tokens(ids);
        Ok(n_valid.map_err(|error| step_error(&error))? == ids.len())
    }

    /// Returns how the grammar reads a token, if the token may come next.
    fn way(&mut self, id: u32) -> Result<Option<Way>, ConstraintError> {
        let vocabulary = Arc::clone(&self.vocabulary);
        let tokens = &vocabulary.escapes;
        let begins_with_slash = vocabulary.bytes_of(id).first() == Some(&b'/');
        if !self.places.has_json {
            return self.way_from(id, &EscapesFrom::default());
        }
        let scan = self.scan;
        match scan {
            Scan::Outside => self.way_from(id, &tokens.outside),
            Scan::Beside => self.way_from(id, &tokens.beside),
            Scan::Inside => self.way_from(id, &tokens.inside),
            Scan::Escaped { is_told: false } if begins_with_slash => self.way_from(id, &tokens.inside),
            Scan::Escaped { is_told: false } => Ok(None),
            Scan::Escaped { is_told: true } => {
                let way = self.way_from(id, &tokens.escaped)?;
                if way.is_none()
                    && begins_with_slash
                    && let Some(instead) = self.newest_without_backslash()
                {
                    let way = self.with_newest(&instead, |this| this.way_from(id, &tokens.inside))?;
                    return Ok(way.map(|way| Way {
                        instead: Some(instead),
                        ..way
                    }));
                }
                Ok(way)
            }
        }
    }

    /// Returns how the grammar reads a token, as it is or unescaped.
    fn way_from(&mut self, id: u32, from: &EscapesFrom) -> Result<Option<Way>, ConstraintError> {
        let after = self.scan.after(self.vocabulary.bytes_of(id));
        let letter = from.letter_of(id).filter(|_| self.places.has_patterns);
        let is_finished = letter.map_or(Ok(true), |letter| self.validates(&letter.ids))?;
        if is_finished && self.validates(&[id])? {
            return Ok(Some(Way {
                ids: vec![id],
                instead: None,
                after,
            }));
        }
        for unescaped in from.unescaped_of(id) {
            if self.takes_unescaped(unescaped)? {
                return Ok(Some(Way {
                    ids: unescaped.ids.to_vec(),
                    instead: None,
                    after: if unescaped.awaits_slash {
                        Scan::Escaped { is_told: false }
                    } else {
                        after
                    },
                }));
            }
        }
        Ok(None)
    }

    /// Consumes a token.
    pub(super) fn consume(&mut self, id: u32) -> Result<(), ConstraintError> {
        if !self.places.has_json {
            return self.tell(&[id]);
        }
        let vocabulary = Arc::clone(&self.vocabulary);
        let bytes = vocabulary.bytes_of(id);
        let may_be_read_otherwise = bytes.contains(&b'\\') || matches!(self.scan, Scan::Escaped { .. });
        let way = if may_be_read_otherwise {
            self.way(id)?
        } else {
            None
        };
        // The grammar refuses a token without a way.
        let way = way.unwrap_or_else(|| Way {
            ids: vec![id],
            instead: None,
            after: self.scan.after(bytes),
        });
        let is_quoted_beside_text = self.places.has_free_text && bytes.contains(&b'"');
        let mut after = way.after;
        if is_quoted_beside_text && self.is_free_text(self.scan)? {
            // Quotes count only after the mark that ends the text.
            let end = bytes.iter().position(|&byte| byte == b'>').unwrap_or(bytes.len());
            after = Scan::Beside.after(&bytes[end..]);
        }
        let instead_of = match &way.instead {
            Some(ids) => self.tell_otherwise(ids)?,
            None => None,
        };
        self.tell(&way.ids)?;
        self.told.push(Told {
            ids: way.ids,
            before: self.scan,
            instead_of,
        });
        let is_free = is_quoted_beside_text && self.is_free_text(after)?;
        self.scan = if is_free { Scan::Beside } else { after };
        Ok(())
    }

    /// Says whether the text that continues from `scan` is free text, which takes `\/` as it is.
    fn is_free_text(&mut self, scan: Scan) -> Result<bool, ConstraintError> {
        let (Some(backslash), Some(slash)) =
            (self.vocabulary.escapes.backslash, self.vocabulary.escapes.slash)
        else {
            return Ok(false);
        };
        match scan {
            _ if self.matcher.is_stopped() => Ok(false),
            Scan::Outside | Scan::Beside | Scan::Inside => self.validates(&[backslash, slash]),
            Scan::Escaped { is_told: true } => self.validates(&[slash]),
            Scan::Escaped { is_told: false } => Ok(false),
        }
    }

    /// Removes the newest tokens.
    pub(super) fn rollback(&mut self, n_tokens: usize) -> Result<(), ConstraintError> {
        if !self.places.has_json {
            return self.take_back(n_tokens);
        }
        for _ in 0..n_tokens {
            let Some(told) = self.told.pop() else {
                return Err(ConstraintError::Step {
                    reason: "more tokens are removed than there are".to_owned(),
                });
            };
            self.take_back(told.ids.len())?;
            self.scan = told.before;
            if let Some(ids) = told.instead_of {
                self.tell_otherwise(&ids)?;
            }
        }
        Ok(())
    }

    /// Returns to the start of the text.
    pub(super) fn reset(&mut self) -> Result<(), ConstraintError> {
        self.scan = Scan::Outside;
        self.told.clear();
        self.matcher.reset().map_err(|error| step_error(&error))
    }

    /// Replaces the tokens that the grammar consumed for the newest token; returns the earlier ones.
    fn tell_otherwise(&mut self, ids: &[u32]) -> Result<Option<Vec<u32>>, ConstraintError> {
        let Some(newest) = self.told.last_mut() else {
            return Ok(None);
        };
        let before = std::mem::replace(&mut newest.ids, ids.to_vec());
        self.take_back(before.len())?;
        self.tell(ids)?;
        Ok(Some(before))
    }

    fn tell(&mut self, ids: &[u32]) -> Result<(), ConstraintError> {
        self.matcher
            .consume_tokens(ids)
            .map_err(|error| step_error(&error))
    }

    fn take_back(&mut self, n_tokens: usize) -> Result<(), ConstraintError> {
        self.matcher
            .rollback(n_tokens)
            .map_err(|error| step_error(&error))
    }
}

/// Keeps only these tokens of a mask.
fn only(mask: &SimpleVob, ids: &[u32]) -> SimpleVob {
    let mut part = mask.clone();
    part.set_all(false);
    for &id in ids.iter().filter(|&&id| mask.is_allowed(id)) {
        part.allow_token(id);
    }
    part
}
