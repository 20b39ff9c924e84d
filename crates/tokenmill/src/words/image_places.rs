//! [`ImagePlaces`]: the places of images in a prompt.
//!
//! Only models with an encoder have them. Invariant: an image gets as many tokens as the encoder makes rows.

use tokenmill_image::{ImageError, ImageLimits, size_of};
use tokenmill_model::{ImageGrid, ImageSize};
use tokenmill_sched::EngineError;
use tokenmill_text::ImageWords;

use crate::{
    Error,
    images::{ImageFile, PromptImage},
};

/// Describes the tokens that stand for an image in a prompt.
#[derive(Clone, Debug)]
pub(super) struct ImagePlaces {
    pub(super) words: ImageWords,
    /// The token that templates write for an image.
    pub(super) mark: u32,
    /// Number of rows that images become.
    pub(super) size: ImageSize,
    /// Tokens of a context.
    pub(super) n_ctx: usize,
}

/// Contexts that a prompt with images may be long: room is made for rows before the prompt is cut or refused, and only so much.
const MAX_CONTEXTS: usize = 16;

impl ImagePlaces {
    /// The rows that an image becomes; its header is read where they depend on its size.
    fn grid_of(&self, image_idx: usize, file: &[u8]) -> Result<ImageGrid, Error> {
        let size = match self.size {
            ImageSize::Square { side, .. } => Ok([side; 2]),
            ImageSize::Free { .. } => size_of(file, &ImageLimits::default()),
        };
        let grid = size.and_then(|[width, height]| {
            let grid = self.size.grid(width, height);
            grid.ok_or(ImageError::TooNarrow { width, height })
        });
        grid.map_err(|source| Error::Image { image_idx, source })
    }

    /// Rows that any image has at least.
    pub(super) fn least_rows(&self) -> usize {
        let grid = match self.size {
            ImageSize::Square { side, .. } => self.size.grid(side, side),
            ImageSize::Free { .. } => None,
        };
        grid.map_or(1, |grid| grid.n_rows())
    }

    /// Makes room for the rows of images at the marks of a template.
    ///
    /// # Errors
    /// [`Error::ImagePlaces`], and [`Error::Engine`] of a prompt that is many times as long as a context.
    pub(super) fn place(
        &self,
        tokens: &[u32],
        files: Vec<ImageFile>,
    ) -> Result<(Vec<u32>, Vec<PromptImage>), Error> {
        let found = tokens.iter().filter(|&&token| token == self.mark).count();
        if found != files.len() {
            return Err(Error::ImagePlaces {
                found,
                expected: files.len(),
            });
        }
        let grids = (files.iter().enumerate())
            .map(|(image_idx, file)| self.grid_of(image_idx, file))
            .collect::<Result<Vec<ImageGrid>, Error>>()?;
        let n_rows = grids.iter().map(ImageGrid::n_rows);
        let n_tokens = n_rows.fold(tokens.len(), usize::saturating_add);
        if n_tokens > self.n_ctx.saturating_mul(MAX_CONTEXTS) {
            return Err(EngineError::ContextLimitExceeded {
                provided: n_tokens,
                maximum: self.n_ctx,
            }
            .into());
        }
        let mut placed = Vec::with_capacity(n_tokens);
        let mut images = Vec::with_capacity(files.len());
        let mut files = files.into_iter().zip(grids);
        for &token in tokens {
            let file = if token == self.mark { files.next() } else { None };
            if file.is_none() || self.words.keeps_mark {
                placed.push(token);
            }
            if let Some((file, grid)) = file {
                let start = placed.len();
                images.push(PromptImage { start, grid, file });
                // Any token: the rows are in its place.
                placed.resize(start + grid.n_rows(), self.mark);
            }
        }
        Ok((placed, images))
    }
}
