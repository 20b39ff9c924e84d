//! [`Media`]: inputs of a prompt that are no tokens, such as an image's rows.
//!
//! Separate from the prompt's tokens, of which there is any in each of their places. Invariant: the scheduler sees a
//! [`MediaSpan`] alone, integers that say where the inputs lie and what they are; the numbers go past it into the batch.

use std::{fmt, ops::Range, sync::Arc};

use tokenmill_backend::{ExecutorLimits, PAGE_TOKENS};

use crate::error::EngineError;

/// Inputs of a prompt that are no tokens. At their places the prompt has any token, which is not looked at.
#[derive(Clone, PartialEq)]
pub struct Media {
    /// Where they lie, and what they are.
    pub span: MediaSpan,
    /// The inputs, `[span.n_inputs(), n_embd]`.
    pub rows: Arc<[f32]>,
}

/// Where inputs that are no tokens lie in a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MediaSpan {
    /// Index of the first.
    pub start: usize,
    /// Index after the last.
    pub end: usize,
    /// A hash of what they are made of that cannot be found twice: cached pages are found with the same content only.
    pub content: u128,
    /// Whether they see each other, those after them too. They are then computed in one step.
    pub sees_itself: bool,
    /// The positions that rope turns them by.
    pub places: MediaPlaces,
}

/// The positions that rope turns the inputs of a medium by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MediaPlaces {
    /// Those that tokens would have.
    Line,
    /// Places in a plane, line after line: all have the time of the first, and what comes behind them continues as if they were as
    /// many as the longer side.
    Plane {
        /// Inputs of a line.
        n_across: usize,
    },
}

impl MediaPlaces {
    /// The position that rope turns an input by, of inputs that begin at position `start`: time, row and column.
    fn of_input(self, start: usize, input: usize) -> [u32; 3] {
        let place = match self {
            Self::Line => [start + input; 3],
            Self::Plane { n_across } => [start, start + input / n_across, start + input % n_across],
        };
        place.map(|position| position as u32)
    }

    /// How many positions `n_inputs` take.
    fn n_positions(self, n_inputs: usize) -> usize {
        match self {
            Self::Line => n_inputs,
            Self::Plane { n_across } => n_across.max(n_inputs.div_ceil(n_across)),
        }
    }
}

/// The position that rope turns an input of a sequence by, among whose inputs are `media`, in their order: time, row and column.
pub(crate) fn rope_position(media: &[Media], input: usize) -> [u32; 3] {
    // Positions that the media before it did not take.
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
    /// Number of inputs.
    pub fn n_inputs(&self) -> usize {
        self.end - self.start
    }

    /// The inputs among those of `range`.
    pub(crate) fn within(&self, range: &Range<usize>) -> Option<Range<usize>> {
        let (start, end) = (self.start.max(range.start), self.end.min(range.end));
        (start < end).then_some(start..end)
    }

    /// Whether a step that ends before input `end` would part inputs that see each other.
    pub(crate) fn is_cut_at(&self, end: usize) -> bool {
        self.sees_itself && self.start < end && end < self.end
    }
}

/// What the media are whose inputs lie in a page: one number for all of them; `None` where there are none.
pub(crate) fn content_in(media: &[MediaSpan], page: &Range<usize>) -> Option<u128> {
    let contents = media.iter().filter(|span| span.within(page).is_some());
    let contents = contents.map(|span| span.content);
    contents.reduce(|all, content| all.rotate_left(1) ^ content)
}

impl fmt::Debug for Media {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The numbers say nothing, and there are many.
        f.debug_struct("Media")
            .field("span", &self.span)
            .finish_non_exhaustive()
    }
}

/// Checks the media of a prompt of `n_tokens`, for an executor whose inputs are `width` wide where it takes such, and steps of at
/// most `max_step_tokens`.
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
    // The rows of a model with recurrent states end at the borders of pages, also among inputs that see each other.
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
