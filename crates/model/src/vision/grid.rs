//! [`ImageGrid`]: the size at which an image is encoded, and the rows that it becomes.
//!
//! Prompts are built from sizes alone, before anything is encoded. Invariant: a grid from [`ImageSize::grid`]
//! has at most [`ImageSize::max_rows`] rows.
//!
//! Source: transformers, `smart_resize` of `models/qwen2_vl/image_processing_qwen2_vl.py`.

/// The size at which an image is encoded, and the rows that it becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageGrid {
    /// Width in pixels.
    pub width: usize,
    /// Height in pixels.
    pub height: usize,
    /// Number of the model's rows per line of the image.
    pub n_across: usize,
    /// Number of lines of such rows.
    pub n_down: usize,
}

impl ImageGrid {
    /// Returns the number of rows that the image becomes.
    pub fn n_rows(&self) -> usize {
        self.n_across * self.n_down
    }
}

/// The sizes that an encoder accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageSize {
    /// Squares of one size.
    Square {
        /// Side in pixels.
        side: usize,
        /// Rows per side.
        n_side: usize,
    },
    /// Any size within limits; sides are rounded to multiples, keeping the aspect ratio as well as possible.
    Free {
        /// Side in pixels of the square that becomes one row.
        multiple: usize,
        /// Minimum pixels of an image.
        min_pixels: usize,
        /// Maximum pixels of an image.
        max_pixels: usize,
    },
}

/// Maximum ratio of the sides.
const MAX_RATIO: usize = 200;

impl ImageSize {
    /// Returns the maximum number of rows of an image.
    pub fn max_rows(&self) -> usize {
        match *self {
            Self::Square { n_side, .. } => n_side * n_side,
            Self::Free {
                multiple, max_pixels, ..
            } => max_pixels / (multiple * multiple),
        }
    }

    /// Returns how an image of a size is encoded; `None` if its aspect ratio is too large.
    pub fn grid(&self, width: usize, height: usize) -> Option<ImageGrid> {
        match *self {
            Self::Square { side, n_side } => Some(ImageGrid {
                width: side,
                height: side,
                n_across: n_side,
                n_down: n_side,
            }),
            Self::Free {
                multiple,
                min_pixels,
                max_pixels,
            } => {
                let sides = smart_resize([width, height], multiple, min_pixels, max_pixels)?;
                let [width, height] = shrunk(sides, multiple, max_pixels);
                let grid = ImageGrid {
                    width,
                    height,
                    n_across: width / multiple,
                    n_down: height / multiple,
                };
                (1..=self.max_rows()).contains(&grid.n_rows()).then_some(grid)
            }
        }
    }
}

fn smart_resize(
    sides: [usize; 2],
    multiple: usize,
    min_pixels: usize,
    max_pixels: usize,
) -> Option<[usize; 2]> {
    let [width, height] = sides;
    if width.max(height) > MAX_RATIO * width.min(height) {
        return None;
    }
    let n_pixels = (width * height) as f64;
    let unit = multiple as f64;
    let rounded = sides.map(|side| (side as f64 / unit).round_ties_even() as usize * multiple);
    if rounded[0] * rounded[1] > max_pixels {
        let shrink = (n_pixels / max_pixels as f64).sqrt();
        let side = |side: usize| ((side as f64 / shrink / unit).floor() as usize * multiple).max(multiple);
        return Some(sides.map(side));
    }
    if rounded[0] * rounded[1] < min_pixels {
        let grow = (min_pixels as f64 / n_pixels).sqrt();
        return Some(sides.map(|side| (side as f64 * grow / unit).ceil() as usize * multiple));
    }
    Some(rounded)
}

/// Removes rows and columns from the longer side until the product is at most `max_pixels`. It is needed when
/// the limits are close: sides that grew to the minimum may have been rounded beyond the maximum.
fn shrunk(mut sides: [usize; 2], multiple: usize, max_pixels: usize) -> [usize; 2] {
    while sides[0] * sides[1] > max_pixels {
        let longer = usize::from(sides[1] > sides[0]);
        if sides[longer] <= multiple {
            break;
        }
        sides[longer] -= multiple;
    }
    sides
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_transformers() {
        let file = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../tests/data/vision/smart_resize.json"
        );
        let cases: Vec<[usize; 7]> = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
        assert!(cases.len() >= 30);
        for [
            width,
            height,
            multiple,
            min_pixels,
            max_pixels,
            new_width,
            new_height,
        ] in cases
        {
            let found = smart_resize([width, height], multiple, min_pixels, max_pixels);
            assert_eq!(found, Some([new_width, new_height]), "{width} x {height}");
        }
    }

    #[test]
    fn a_small_image_has_a_grid_where_few_sizes_are_left() {
        for min_rows in [16, 15, 14] {
            let size = ImageSize::Free {
                multiple: 28,
                min_pixels: 28 * 28 * min_rows,
                max_pixels: 28 * 28 * 16,
            };
            for (width, height) in [(30, 30), (30, 40), (10, 100), (100, 30), (1000, 999), (1, 1)] {
                let grid = size.grid(width, height);
                let n_rows = grid.map_or(0, |grid| grid.n_rows());
                assert!((1..=16).contains(&n_rows), "{width} x {height}: {grid:?}");
            }
        }
    }

    #[test]
    fn sides_that_differ_too_much_have_no_grid() {
        let size = ImageSize::Free {
            multiple: 28,
            min_pixels: 56 * 56,
            max_pixels: 28 * 28 * 1280,
        };
        assert!(size.grid(10, 2000).is_some());
        assert_eq!(size.grid(10, 2001), None);
        assert_eq!(size.grid(2001, 10), None);
    }
}
