//! The Qwen VL families: images of any size, with patches merged two by two and two-dimensional row
//! positions.
//!
//! ```text
//! x = W_1 patch + W_2 patch                       a still image is two frames that are the same
//! x += position(row, column)                      Qwen 3 VL: learned, interpolated between the nearest four
//! rows = tower(x)                                 rope turns by row and column; Qwen 2.5 VL: most layers see a window
//! output = W_b gelu(W_a [4 rows])                 [n_rows, n_embd]
//! deep_i = W_b gelu(W_a norm([4 rows after a layer]))
//! ```
//!
//! The tower is a network like others. Invariant: the four patches of a row are consecutive.
//!
//! Source: transformers, `models/qwen2_vl`, `qwen2_5_vl` and `qwen3_vl`; llama.cpp, `tools/mtmd/models/qwen2vl.cpp`, `qwen3vl.cpp`
//! and `conversion/qwenvl.py`.

use tokenmill_backend::{
    Activation, BackendError, NormKind,
    program::{HostRows, LinearId, NormId},
};
use tokenmill_gguf::Metadata;

use crate::{LoadError, NormDescriptor, Presence, WeightSource, error::check, loader::Loader};

use super::{ImageGrid, ImageSize, MAX_PATCHES, VisionFamily, VisionShape};

/// Default maximum of an image's rows: more take minutes on a CPU.
const MAX_IMAGE_ROWS: usize = 1280;

/// Properties of the Qwen families only.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct QwenShape {
    /// Period of the layers that see all patches, the last of each group; the others see a window.
    pub(super) window_period: Option<usize>,
    /// Side of a window, in rows of the model.
    window: usize,
    /// Layers after which parts of the rows are computed.
    pub(super) taps: Vec<usize>,
    /// Side of the square of learned positions.
    n_positions: Option<usize>,
}

impl VisionShape {
    /// Returns the widest window of the layers that have one, in patches.
    pub(super) fn window_patches(&self) -> Option<usize> {
        let qwen = self.qwen.as_ref()?;
        let side = qwen.window * self.n_merged;
        qwen.window_period.map(|_| side * side)
    }
}

/// Fills in values that follow from the rest of the file.
pub(super) fn finish(
    metadata: &Metadata,
    weights: &dyn WeightSource,
    n_side: usize,
    shape: &VisionShape,
) -> Result<VisionShape, LoadError> {
    let family = shape.family;
    let n_merged = opt(metadata, "spatial_merge_size")?.unwrap_or(2);
    check(
        "merged patches",
        n_merged,
        (1..=8).contains(&n_merged),
        "between 1 and 8",
    )?;
    let head_dim = shape.n_vision / shape.n_heads;
    check(
        "width of a head of the encoder",
        head_dim,
        head_dim.is_multiple_of(4),
        "a multiple of 4",
    )?;
    let dims = |name: &str| {
        let tensor = weights.tensor(name).ok_or_else(|| LoadError::MissingTensor {
            name: name.to_owned(),
        })?;
        Ok::<_, LoadError>(tensor.dims)
    };
    // The converter of Qwen 2 VL writes a different number in the key.
    let up = dims("v.blk.0.ffn_up.weight")?;
    let n_ff = match up[..] {
        [n_in, n_ff] if n_in == shape.n_vision => n_ff,
        [n_ff, n_out] if n_out == shape.n_vision => n_ff,
        _ => shape.n_ff,
    };
    let width = |what, width: usize| check(what, width, (1..=1 << 20).contains(&width), "between 1 and 2^20");
    width("feed-forward length of the encoder", n_ff)?;
    // Checked before anything is allocated for widths that the file only claims.
    let merged = dims("mm.0.weight")?;
    check(
        "embedding length of the encoder",
        shape.n_vision,
        merged.first() == Some(&(shape.n_vision * n_merged * n_merged)),
        "that of the merger's inputs",
    )?;
    let n_embd = dims("mm.2.weight")?.get(1).copied().unwrap_or(0);
    width("width of an image's rows", n_embd)?;
    let size = size_of(metadata, shape, n_merged * shape.patch_size, n_merged)?;
    let window_period = match family {
        VisionFamily::Qwen25Vl => Some(metadata.u32("clip.vision.n_wa_pattern")? as usize).filter(|&n| n > 0),
        _ => None,
    };
    let window = opt(metadata, "window_size")?.unwrap_or(112) / (n_merged * shape.patch_size);
    check(
        "window of the encoder",
        window,
        (1..=128).contains(&window),
        "between 1 and 128 rows to a side",
    )?;
    let taps: Vec<usize> = if metadata.get("clip.vision.is_deepstack_layers").is_some() {
        let layers = metadata.bool_array("clip.vision.is_deepstack_layers")?;
        (layers.iter().enumerate())
            .filter_map(|(layer_idx, &is_tapped)| is_tapped.then_some(layer_idx))
            .collect()
    } else {
        Vec::new()
    };
    let n_layers = shape.n_layers;
    let is_right = taps.iter().all(|&tap| tap < n_layers);
    check(
        "layer whose stream is read",
        format_args!("{taps:?}"),
        is_right,
        "layers that there are",
    )?;
    Ok(VisionShape {
        size,
        n_embd,
        n_deep: taps.len(),
        n_merged,
        n_ff,
        qwen: Some(QwenShape {
            window_period,
            window,
            taps,
            n_positions: (family == VisionFamily::Qwen3Vl).then_some(n_side),
        }),
        ..shape.clone()
    })
}

fn opt(metadata: &Metadata, key: &str) -> Result<Option<usize>, LoadError> {
    let value = metadata.opt_u32(&format!("clip.vision.{key}"))?;
    Ok(value.map(|value| value as usize))
}

/// Returns the image sizes stated by the file, or else the defaults of the family's processor, within a
/// limit.
fn size_of(
    metadata: &Metadata,
    shape: &VisionShape,
    multiple: usize,
    n_merged: usize,
) -> Result<ImageSize, LoadError> {
    let of_row = multiple * multiple;
    let min_rows = match shape.family {
        VisionFamily::Qwen3Vl => 64,
        _ => 4,
    };
    let min_pixels = opt(metadata, "image_min_pixels")?.unwrap_or(min_rows * of_row);
    let max_pixels = opt(metadata, "image_max_pixels")?.unwrap_or(MAX_IMAGE_ROWS * of_row);
    check(
        "number of pixels of an image",
        max_pixels,
        max_pixels >= of_row && min_pixels <= max_pixels,
        "the greatest of at least one row, and the least not above it",
    )?;
    // Published configurations allow four times as many.
    let max_pixels = max_pixels.min(MAX_PATCHES / (n_merged * n_merged) * of_row);
    let min_pixels = min_pixels.min(max_pixels);
    Ok(ImageSize::Free {
        multiple,
        min_pixels,
        max_pixels,
    })
}

/// The order in which the patches of an image are computed.
pub(super) struct PatchOrder {
    /// Row and column of each patch.
    pub(super) patches: Vec<[u32; 2]>,
    /// For each computed row, its index in the model's order.
    rows: Vec<usize>,
    /// First and last patch of each patch's window; empty if there are no windows.
    pub(super) windows: Vec<[u32; 2]>,
}

impl PatchOrder {
    pub(super) fn of(shape: &VisionShape, grid: &ImageGrid) -> Self {
        let mut order = Self {
            patches: Vec::new(),
            rows: Vec::new(),
            windows: Vec::new(),
        };
        let qwen = shape.qwen.as_ref();
        let has_windows = qwen.is_some_and(|qwen| qwen.window_period.is_some());
        let side = match qwen {
            Some(qwen) if has_windows => qwen.window,
            _ => grid.n_across.max(grid.n_down),
        };
        for top in (0..grid.n_down).step_by(side) {
            for left in (0..grid.n_across).step_by(side) {
                let first = order.patches.len();
                for down in top..grid.n_down.min(top + side) {
                    for across in left..grid.n_across.min(left + side) {
                        order.push_row(shape.n_merged, [down, across], grid);
                    }
                }
                let end = order.patches.len();
                if has_windows {
                    (order.windows).resize(end, [first as u32, end as u32 - 1]);
                }
            }
        }
        order
    }

    /// Returns the patches in row order.
    pub(super) fn by_rows(shape: &VisionShape, grid: &ImageGrid) -> Self {
        let [n_down, n_across] = [grid.n_down, grid.n_across].map(|n| (n * shape.n_merged) as u32);
        let row = |y| (0..n_across).map(move |x| [y, x]);
        Self {
            patches: (0..n_down).flat_map(row).collect(),
            rows: (0..grid.n_rows()).collect(),
            windows: Vec::new(),
        }
    }

    /// Appends the patches that become one row.
    fn push_row(&mut self, n_merged: usize, [down, across]: [usize; 2], grid: &ImageGrid) {
        self.rows.push(down * grid.n_across + across);
        for y in down * n_merged..(down + 1) * n_merged {
            let columns = across * n_merged..(across + 1) * n_merged;
            self.patches.extend(columns.map(|x| [y as u32, x as u32]));
        }
    }
}

/// Two matrices with an activation between them, applied to merged patches.
struct Merger {
    /// Norm of the merged patches together.
    norm: Option<NormId>,
    first: LinearId,
    second: LinearId,
}

impl Merger {
    fn load(
        shape: &VisionShape,
        [norm, first, second]: [Option<&str>; 3],
        loader: &mut Loader<'_>,
    ) -> Result<Self, LoadError> {
        let width = shape.n_vision * shape.n_merged * shape.n_merged;
        let layer_norm = NormDescriptor {
            kind: NormKind::Layer,
            eps: shape.eps,
            bias: Presence::Required,
        };
        let mut linear = |name: Option<&str>, n_out| {
            loader.linear(
                name.expect("a matrix has a name"),
                n_out,
                width,
                Presence::Required,
            )
        };
        let (first, second) = (linear(first, width)?, linear(second, shape.n_embd)?);
        Ok(Self {
            norm: norm
                .map(|name| loader.norm(name, width, layer_norm))
                .transpose()?,
            first,
            second,
        })
    }
}

/// The projector after the tower, and the learned positions before it.
pub(super) struct Projector {
    main: Merger,
    /// The mergers after the tapped layers.
    deep: Vec<Merger>,
    /// `[n_positions, n_positions, n_vision]`, with the number per side.
    positions: Option<(usize, Vec<f32>)>,
}

impl Projector {
    pub(super) fn load(shape: &VisionShape, loader: &mut Loader<'_>) -> Result<Self, LoadError> {
        let qwen = shape.qwen.as_ref().expect("a family of Qwen");
        let deep = |&layer_idx: &usize| {
            let name = |part| format!("v.deepstack.{layer_idx}.{part}");
            let names = [name("norm"), name("fc1"), name("fc2")];
            Merger::load(shape, [0, 1, 2].map(|at: usize| Some(names[at].as_str())), loader)
        };
        let deep = qwen.taps.iter().map(deep).collect::<Result<_, _>>()?;
        let positions = match qwen.n_positions {
            Some(n_side) => {
                let dims = [shape.n_vision, n_side * n_side];
                Some((n_side, loader.all_values("v.position_embd.weight", &dims)?))
            }
            None => None,
        };
        Ok(Self {
            main: Merger::load(shape, [None, Some("mm.0"), Some("mm.2")], loader)?,
            deep,
            positions,
        })
    }

    /// Adds the learned positions to the inputs of an image, `inputs: [n_patches, n_vision]`.
    pub(super) fn add_positions(
        &self,
        grid: &ImageGrid,
        n_merged: usize,
        order: &PatchOrder,
        inputs: &mut [f32],
    ) {
        let Some((n_side, table)) = &self.positions else {
            return;
        };
        let n_vision = table.len() / (n_side * n_side);
        let sizes = [grid.n_down * n_merged, grid.n_across * n_merged];
        for (input, &place) in inputs.chunks_exact_mut(n_vision).zip(&order.patches) {
            let [rows, columns] = [0, 1].map(|axis: usize| between(place[axis], sizes[axis], *n_side));
            for (row, row_weight) in rows {
                for (column, column_weight) in columns {
                    let position = &table[(row * n_side + column) * n_vision..][..n_vision];
                    let weight = row_weight * column_weight;
                    for (input, value) in input.iter_mut().zip(position) {
                        *input += weight * value;
                    }
                }
            }
        }
    }
}

/// Returns the two learned positions nearest to one of `n_places`, with their weights. The first and the last
/// place coincide with the first and the last position.
fn between(place: u32, n_places: usize, n_side: usize) -> [(usize, f32); 2] {
    let last = (n_side - 1) as f32;
    let at = if n_places > 1 {
        place as f32 * (last / (n_places - 1) as f32)
    } else {
        0.0
    };
    let before = (at as usize).min(n_side - 1);
    let part = at - before as f32;
    [(before, 1.0 - part), ((before + 1).min(n_side - 1), part)]
}

impl Projector {
    /// Computes an image's rows from the tower's output, `rows: [n_patches, n_vision]`, and from the streams
    /// that the device kept after the tapped layers.
    pub(super) fn run(
        &self,
        device: &mut dyn HostRows,
        order: &PatchOrder,
        rows: &[f32],
    ) -> Result<Vec<f32>, BackendError> {
        let n_rows = order.rows.len();
        let (n_embd, n_parts) = (self.main.second.n_out, 1 + self.deep.len());
        let mut output = vec![0.0; n_rows * n_parts * n_embd];
        let mut put = |part: usize, made: &[f32]| {
            for (made, &row) in made.chunks_exact(n_embd).zip(&order.rows) {
                output[(row * n_parts + part) * n_embd..][..n_embd].copy_from_slice(made);
            }
        };
        put(0, &self.main.run(device, n_rows, rows.to_vec())?);
        for (tap_idx, merger) in self.deep.iter().enumerate() {
            let stream = device.tap(tap_idx, order.patches.len());
            let stream = stream.expect("the program keeps a value for each merger");
            put(1 + tap_idx, &merger.run(device, n_rows, stream)?);
        }
        Ok(output)
    }
}

impl Merger {
    /// `rows: [n_rows, merged patches * n_vision]`.
    fn run(
        &self,
        device: &mut dyn HostRows,
        n_rows: usize,
        rows: Vec<f32>,
    ) -> Result<Vec<f32>, BackendError> {
        let width = self.first.n_in;
        let mut input = rows;
        if let Some(norm) = self.norm {
            let n_values = input.len();
            let unnormed = std::mem::replace(&mut input, vec![0.0; n_values]);
            device.norm(norm, &unnormed, n_rows, &mut input)?;
        }
        let mut inner = vec![0.0; n_rows * width];
        device.linear(self.first, &input, n_rows, &mut inner)?;
        device.activation(Activation::GeluErf, n_rows, width, &mut inner)?;
        let mut output = vec![0.0; n_rows * self.second.n_out];
        device.linear(self.second, &inner, n_rows, &mut output)?;
        Ok(output)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Qwen 2.5 VL: each row covers 4 patches of 14 pixels.
    fn shape() -> VisionShape {
        VisionShape {
            family: VisionFamily::Qwen25Vl,
            size: ImageSize::Square { side: 0, n_side: 0 },
            patch_size: 14,
            mean: [0.5; 3],
            std: [0.5; 3],
            n_embd: 2048,
            n_deep: 0,
            n_vision: 1280,
            n_layers: 32,
            n_merged: 2,
            qwen: None,
            n_heads: 16,
            n_ff: 3420,
            eps: 1e-6,
        }
    }

    #[test]
    fn what_a_file_allows_beyond_the_limit_is_lowered() {
        let check = |min: u32, max: u32, expected: Option<(usize, usize)>| {
            let mut metadata = Metadata::new();
            metadata.insert("clip.vision.image_min_pixels", min).unwrap();
            metadata.insert("clip.vision.image_max_pixels", max).unwrap();
            let found = size_of(&metadata, &shape(), 28, 2);
            let expected = expected.map(|(min_pixels, max_pixels)| ImageSize::Free {
                multiple: 28,
                min_pixels,
                max_pixels,
            });
            assert_eq!(found.ok(), expected, "{min} to {max}");
        };
        // As in transformers' configurations: 16,384 rows. Images are resized to 4,096.
        check(3136, 12_845_056, Some((3136, 4096 * 28 * 28)));
        check(3136, 1_003_520, Some((3136, 1_003_520)));
        check(12_000_000, 12_845_056, Some((4096 * 28 * 28, 4096 * 28 * 28)));
        check(3136, 783, None);
        check(5000, 4000, None);
    }

    #[test]
    fn all_that_is_held_around_the_layers_is_counted() {
        let size = size_of(&Metadata::new(), &shape(), 28, 2).unwrap();
        let shape = VisionShape { size, ..shape() };
        // 5,120 patches of 588 values, also stored as pixels; five times their 1,280 values; 1,280 rows of
        // 2,048, twice.
        let expected = 2 * 5120 * 588 + 5 * 5120 * 1280 + 2 * 1280 * 2048;
        assert_eq!((shape.max_patches(), shape.values_around()), (5120, expected));
    }

    #[test]
    fn places_lie_between_learned_positions() {
        assert_eq!(between(0, 5, 3), [(0, 1.0), (1, 0.0)]);
        assert_eq!(between(1, 5, 3), [(0, 0.5), (1, 0.5)]);
        assert_eq!(between(4, 5, 3), [(2, 1.0), (2, 0.0)]);
        assert_eq!(between(0, 1, 3), [(0, 1.0), (1, 0.0)]);
    }
}
