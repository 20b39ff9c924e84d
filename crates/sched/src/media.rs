//! [`Media`]: non-token inputs of a prompt, such as an image's rows.
//!
//! The prompt has arbitrary tokens in their places. Invariant: the scheduler sees only a
//! [`MediaSpan`], integers that state the position and identity of the inputs; the numbers bypass it into the
//! batch.

use std::{fmt, ops::Range, sync::Arc};

use tokenmill_backend::{ExecutorLimits, PAGE_TOKENS};

use crate::error::EngineError;

/// Non-token inputs of a prompt. The prompt has arbitrary tokens in their places, which are
/// ignored.
#[derive(Clone, PartialEq)]
pub struct Media {
    /// Position and identity of the inputs.
    pub span: MediaSpan,
    /// The inputs, `[span.n_inputs(), n_embd]`.
    pub rows: Arc<[f32]>,
}

/// The position of non-token inputs in a prompt, and their identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MediaSpan {
    /// Index of the first input.
    pub start: usize,
    /// Index after the last input.
    pub end: usize,
    /// A collision-resistant hash of their content: cached pages are found only with the same content.
    pub content: u128,
    /// Whether they attend to each other, including later ones. They are then computed in one step.
    pub sees_itself: bool,
    /// Their rope positions.
    pub places: MediaPlaces,
}

/// The rope positions of a medium's inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MediaPlaces {
    /// The positions that tokens would have.
    Line,
    /// Positions in a plane, line after line: all inputs have the time of the first, and later tokens
    /// continue as if the medium had as many inputs as its longer side.
    Plane {
        /// Number of inputs per line.
        n_across: usize,
    },
}

impl MediaPlaces {
    /// Returns the rope position of an input (time, row and column), if the inputs begin at position `start`.
    fn of_input(self, start: usize, input: usize) -> [u32; 3] {
        let place = match self {
            Self::Line => [start + input; 3],
            Self::Plane { n_across } => [start, start + input / n_across, start + input % n_across],
        };
        place.map(|position| position as u32)
    }

    /// Returns the number of positions that `n_inputs` inputs occupy.
    fn n_positions(self, n_inputs: usize) -> usize {
        match self {
            Self::Line => n_inputs,
            Self::Plane { n_across } => n_across.max(n_inputs.div_ceil(n_across)),
        }
    }
}

/// Returns the rope position of a sequence's input: time, row and column. `media` are the sequence's media in
/// order.
pub(crate) fn rope_position(media: &[Media], input: usize) -> [u32; 3] {
    // Positions that the preceding media did not occupy.
    let mut n_free = 0;
    for span in media.iter().map(|media| &media.span) {
        if input < span.start {
            break;
        }
        if input < span.end {
            return span.places.of_input(span.start - n_free, input - span.start);
        }
        n_free += span
            .n_inputs()
            .saturating_sub(span.places.n_positions(span.n_inputs()));
    }
    [(input - n_free) as u32; 3]
}

impl MediaSpan {
    /// Returns the number of inputs.
    pub fn n_inputs(&self) -> usize {
        self.end - self.start
    }

    /// Returns the medium's part of the inputs in `range`.
    pub(crate) fn within(&self, range: &Range<usize>) -> Option<Range<usize>> {
        let (start, end) = (self.start.max(range.start), self.end.min(range.end));
        (start < end).then_some(start..end)
    }

    /// Returns whether a step that ends before input `end` would separate inputs that attend to each other.
    pub(crate) fn is_cut_at(&self, end: usize) -> bool {
        self.sees_itself && self.start < end && end < self.end
    }
}

/// Returns the identity of the media with inputs in a page, as one number; `None` if there are none.
pub(crate) fn content_in(media: &[MediaSpan], page: &Range<usize>) -> Option<u128> {
    let contents = media.iter().filter(|span| span.within(page).is_some());
    let contents = contents.map(|span| span.content);
    contents.reduce(|all, content| all.rotate_left(1) ^ content)
}

impl fmt::Debug for Media {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Printing the numbers would be long and useless.
        f.debug_struct("Media")
            .field("span", &self.span)
            .finish_non_exhaustive()
    }
}

/// Checks the media of a prompt of `n_tokens`, for an executor with inputs of `width` numbers, if it accepts
/// any, and steps of at most `max_step_tokens`.
pub(crate) fn check_media(
    limits: &ExecutorLimits,
    width: Option<usize>,
    max_step_tokens: usize,
    n_tokens: usize,
    media: &[Media],
) -> Result<(), EngineError> {
    if media.is_empty() {
        return Ok(());
    }
    let width = width.ok_or(EngineError::TakesNoMedia)?;
    // Rows of a model with recurrent states end at page borders, even between inputs that attend to each
    // other.
    if limits.n_states > 0 && media.iter().any(|media| media.span.sees_itself) {
        return Err(EngineError::TakesNoMedia);
    }
    let mut done = 0;
    for (index, Media { span, rows }) in media.iter().enumerate() {
        let is_placed = done <= span.start && span.start < span.end && span.end <= n_tokens;
        if !is_placed {
            return Err(EngineError::MediaOutOfPlace { index, n_tokens });
        }
        done = span.end;
        if span.places == (MediaPlaces::Plane { n_across: 0 }) {
            return Err(EngineError::MediaOutOfPlace { index, n_tokens });
        }
        if rows.len() != span.n_inputs() * width {
            return Err(EngineError::MediaWidth {
                index,
                expected: width,
                found: rows.len() / span.n_inputs(),
            });
        }
        if !span.sees_itself {
            continue;
        }
        let windows = limits.groups().filter_map(|(_, group)| group.window);
        let maximum = windows.fold(max_step_tokens.min(limits.max_batch_tokens), usize::min);
        if span.n_inputs() > maximum {
            return Err(EngineError::MediaTooLong {
                index,
                found: span.n_inputs(),
                maximum,
            });
        }
        for (_, group) in limits.groups() {
            // The window before them, and all of them at once.
            let needed = (group.window).map_or(n_tokens, |window| {
                n_tokens.min(window + span.n_inputs() + PAGE_TOKENS)
            });
            let needed_pages = needed.div_ceil(PAGE_TOKENS);
            if needed_pages > group.n_pages {
                return Err(EngineError::PoolTooSmall {
                    needed_pages,
                    n_pages: group.n_pages,
                });
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_follows_an_image_continues_behind_its_longer_side() {
        let media = |start, n_across, n_down| Media {
            span: MediaSpan {
                start,
                end: start + n_across * n_down,
                content: 0,
                sees_itself: false,
                places: MediaPlaces::Plane { n_across },
            },
            rows: Arc::from([]),
        };
        let media = [media(2, 3, 2), media(9, 1, 4)];
        let positions: Vec<[u32; 3]> = (0..15).map(|input| rope_position(&media, input)).collect();
        let expected = [
            [0, 0, 0],
            [1, 1, 1],
            [2, 2, 2],
            [2, 2, 3],
            [2, 2, 4],
            [2, 3, 2],
            [2, 3, 3],
            [2, 3, 4],
            [5, 5, 5],
            [6, 6, 6],
            [6, 7, 6],
            [6, 8, 6],
            [6, 9, 6],
            [10, 10, 10],
            [11, 11, 11],
        ];
        assert_eq!(positions, expected);
    }

    #[test]
    fn models_with_states_take_no_inputs_that_see_each_other() {
        let check = |n_states, sees_itself| {
            let limits = ExecutorLimits {
                n_vocab: 100,
                n_embd: 2,
                n_ctx: 64,
                n_pages: 8,
                n_host_pages: 0,
                max_batch_tokens: 32,
                max_batch_seqs: 1,
                max_logit_rows: 1,
                kv_window: None,
                window_group: None,
                pooling: None,
                is_encoder: false,
                n_states,
            };
            let media = Media {
                span: MediaSpan {
                    start: 1,
                    end: 3,
                    content: 0,
                    sees_itself,
                    places: MediaPlaces::Line,
                },
                rows: vec![0.0; 4].into(),
            };
            check_media(&limits, Some(2), 32, 8, &[media])
        };
        assert!(check(0, true).is_ok());
        assert!(check(4, false).is_ok());
        assert!(matches!(check(4, true), Err(EngineError::TakesNoMedia)));
    }
}
