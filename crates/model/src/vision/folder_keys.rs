//! Derives the keys of an encoder's file from the configurations of a folder.
//!
//! Tensors do not depend on them. Invariant: a property without a key (activation, number of frames,
//! full-attention layers) is refused if it differs from the readers' assumption.
//!
//! Source: llama.cpp, `conversion/base.py` (`MmprojModel`), `conversion/gemma.py`, `qwenvl.py` and `qwen3vl.py`.

use std::path::Path;

use serde_json::{Map, Value};
use tokenmill_gguf::{Metadata, RegularFile};

use crate::{LoadError, hf_config::HfConfig};

use super::VisionFamily;

/// Name prefix of the tensors that embed patches.
pub(super) const PATCHES: &str = "v.patch_embd.";

/// The classes of models with supported encoders.
const CLASSES: [(&str, VisionFamily); 5] = [
    ("Gemma3ForConditionalGeneration", VisionFamily::Gemma3),
    ("Qwen2VLForConditionalGeneration", VisionFamily::Qwen2Vl),
    ("Qwen2_5_VLForConditionalGeneration", VisionFamily::Qwen25Vl),
    ("Qwen3VLForConditionalGeneration", VisionFamily::Qwen3Vl),
    ("Qwen3VLMoeForConditionalGeneration", VisionFamily::Qwen3Vl),
];

/// The epsilon of Qwen's encoders, which no configuration states.
const QWEN_EPS: f32 = 1e-6;

/// Image side in pixels with which Qwen 2 encoders are warmed up; images may have any size.
const QWEN_IMAGE_SIZE: u32 = 560;

/// Side of a window in pixels, as all readers assume.
const WINDOW: u32 = 112;

/// Side of the squares of patches that Gemma 3's readers average by default.
const SQUARE: u32 = 4;

/// Largest accepted size in bytes; real files have a few kilobytes.
const MAX_PROCESSOR_BYTES: usize = 16 << 20;

/// Returns the family of a folder's encoder, if it is supported.
pub(super) fn family_of(config: &HfConfig) -> Option<VisionFamily> {
    config.get(SECTION)?;
    let class = config.class().ok()?;
    CLASSES
        .into_iter()
        .find_map(|(name, family)| (name == class).then_some(family))
}

/// The key of the encoder's section.
const SECTION: &str = "vision_config";

/// Returns the family, the keys, and the tapped layers in the order of the folder.
pub(super) fn read(
    folder: &Path,
    config: &HfConfig,
) -> Result<(VisionFamily, Metadata, Vec<usize>), LoadError> {
    let encoder = Encoder::of(config)?;
    let family = family_of(config).ok_or_else(|| {
        let names = CLASSES.map(|(name, _)| name).join(", ");
        encoder.bad(format!(
            "the image encoder of {} is not supported; supported are those of {names}",
            config.class().unwrap_or("an unnamed class")
        ))
    })?;
    encoder.check_what_no_key_says(family)?;
    let mut keys = Metadata::new();
    let processor = Processor::open(folder)?;
    keys.insert("clip.has_vision_encoder", true)?;
    let n_embd = (config.opt_usize("hidden_size")?).and_then(|width| u32::try_from(width).ok());
    let n_embd = n_embd.ok_or_else(|| config.wrong("hidden_size", "a count"))?;
    keys.insert("clip.vision.projection_dim", n_embd)?;
    let sizes = encoder.sizes(family)?;
    for (key, value) in [
        ("image_size", sizes.image),
        ("patch_size", sizes.patch),
        ("embedding_length", sizes.n_embd),
        ("feed_forward_length", sizes.n_ff),
        ("block_count", sizes.n_layers),
        ("attention.head_count", sizes.n_heads),
    ] {
        keys.insert(format!("clip.vision.{key}"), value)?;
    }
    for key in ["image_mean", "image_std"] {
        keys.insert(format!("clip.vision.{key}"), processor.channels(folder, key)?)?;
    }
    keys.insert("clip.projector_type", family.name())?;
    let eps = match family {
        VisionFamily::Gemma3 => encoder.number("layer_norm_eps")?.unwrap_or(1e-6),
        _ => QWEN_EPS,
    };
    keys.insert("clip.vision.attention.layer_norm_epsilon", eps)?;
    let mut taps = Vec::new();
    match family {
        VisionFamily::Gemma3 => {
            keys.insert("clip.use_gelu", true)?;
            let square = square_of(config, &sizes)?;
            if square != SQUARE {
                keys.insert("clip.vision.projector.scale_factor", square)?;
            }
        }
        VisionFamily::Qwen2Vl => {}
        VisionFamily::Qwen25Vl => {
            keys.insert("clip.use_silu", true)?;
            keys.insert("clip.vision.n_wa_pattern", encoder.window_period(sizes.n_layers)?)?;
            let window = encoder.opt_count("window_size")?.unwrap_or(WINDOW);
            if window != WINDOW {
                keys.insert("clip.vision.window_size", window)?;
            }
        }
        VisionFamily::Qwen3Vl => {
            keys.insert("clip.use_gelu", true)?;
            taps = encoder.taps(sizes.n_layers)?;
            let is_tapped = (0..sizes.n_layers as usize).map(|layer_idx| taps.contains(&layer_idx));
            let is_tapped: Vec<bool> = is_tapped.collect();
            keys.insert("clip.vision.is_deepstack_layers", is_tapped)?;
        }
    }
    let merged = encoder.opt_count("spatial_merge_size")?;
    if let Some(merged) = merged.filter(|&merged| family == VisionFamily::Qwen3Vl || merged != 2) {
        keys.insert("clip.vision.spatial_merge_size", merged)?;
    }
    Ok((family, keys, taps))
}

struct Sizes {
    image: u32,
    patch: u32,
    n_embd: u32,
    n_ff: u32,
    n_layers: u32,
    n_heads: u32,
}

/// Returns the side of the squares of patches that become one row.
fn square_of(config: &HfConfig, sizes: &Sizes) -> Result<u32, LoadError> {
    let n_rows = config.opt_usize("mm_tokens_per_image")?.unwrap_or(256);
    let n_side = n_rows.isqrt();
    let n_patches = sizes.image.checked_div(sizes.patch).unwrap_or(0) as usize;
    let is_square = n_side > 0 && n_side * n_side == n_rows && n_patches.is_multiple_of(n_side);
    let square = is_square
        .then(|| (n_patches / n_side) as u32)
        .filter(|&square| square > 0);
    square.ok_or_else(|| {
        config.wrong(
            "mm_tokens_per_image",
            "a square of patches of the encoder for each",
        )
    })
}

/// The section `vision_config`.
struct Encoder<'a> {
    config: &'a HfConfig,
    values: &'a Map<String, Value>,
}

impl<'a> Encoder<'a> {
    fn of(config: &'a HfConfig) -> Result<Self, LoadError> {
        let Some(section) = config.get(SECTION) else {
            return Err(config.bad(format!(
                "there is no `{SECTION}`, so the folder has no image encoder"
            )));
        };
        let values =
            (section.as_object()).ok_or_else(|| config.bad(format!("`{SECTION}` is not an object")))?;
        Ok(Self { config, values })
    }

    fn bad(&self, reason: String) -> LoadError {
        self.config.bad(reason)
    }

    fn get(&self, key: &str) -> Option<&Value> {
        self.values.get(key).filter(|value| !value.is_null())
    }

    fn wrong(&self, key: &str, expected: &str) -> LoadError {
        self.bad(match self.get(key) {
            Some(found) => format!("`{SECTION}.{key}` is {found}, expected {expected}"),
            None => format!("`{SECTION}.{key}` is missing, expected {expected}"),
        })
    }

    fn opt_count(&self, key: &str) -> Result<Option<u32>, LoadError> {
        let count = |value: &Value| value.as_u64().and_then(|count| u32::try_from(count).ok());
        (self.get(key))
            .map(|value| count(value).ok_or_else(|| self.wrong(key, "a count")))
            .transpose()
    }

    fn count(&self, key: &str) -> Result<u32, LoadError> {
        self.opt_count(key)?.ok_or_else(|| self.wrong(key, "a count"))
    }

    fn number(&self, key: &str) -> Result<Option<f32>, LoadError> {
        (self.get(key))
            .map(|value| value.as_f64().ok_or_else(|| self.wrong(key, "a number")))
            .transpose()
            .map(|number| number.map(|number| number as f32))
    }

    /// Reads a list of layers.
    fn layers(&self, key: &str, n_layers: u32) -> Result<Vec<usize>, LoadError> {
        let layer = |value: &Value| value.as_u64().filter(|&idx| idx < u64::from(n_layers));
        let layers = (self.get(key).and_then(Value::as_array)).and_then(|layers| {
            layers
                .iter()
                .map(|value| layer(value).map(|idx| idx as usize))
                .collect()
        });
        layers.ok_or_else(|| self.wrong(key, "a list of layers that there are"))
    }

    fn sizes(&self, family: VisionFamily) -> Result<Sizes, LoadError> {
        let patch = self.count("patch_size")?;
        let image = self.opt_count("image_size")?;
        let is_gemma3 = family == VisionFamily::Gemma3;
        let (layers, heads) = if is_gemma3 {
            ("num_hidden_layers", "num_attention_heads")
        } else {
            ("depth", "num_heads")
        };
        // Qwen 2 VL has the encoder's width in `embed_dim`. Its `hidden_size` is the model's, and converters
        // write it as the inner width.
        let (width, inner) = match family {
            VisionFamily::Qwen2Vl => ("embed_dim", "hidden_size"),
            _ => ("hidden_size", "intermediate_size"),
        };
        Ok(Sizes {
            image: match (image, family) {
                (Some(image), _) => image,
                (None, VisionFamily::Gemma3) => self.count("image_size")?,
                (None, VisionFamily::Qwen3Vl) => {
                    let n_positions = self.opt_count("num_position_embeddings")?.unwrap_or(2304);
                    (n_positions.isqrt().checked_mul(patch)).ok_or_else(|| {
                        self.wrong("num_position_embeddings", "as many as an image has patches")
                    })?
                }
                (None, _) => QWEN_IMAGE_SIZE,
            },
            patch,
            n_embd: self.count(width)?,
            n_ff: self.count(inner)?,
            n_layers: self.n_layers(layers)?,
            n_heads: self.count(heads)?,
        })
    }

    /// Reads the number of layers, which bounds lists.
    fn n_layers(&self, key: &str) -> Result<u32, LoadError> {
        const MAX_LAYERS: u32 = 1024;
        let count = self.count(key)?;
        if count > MAX_LAYERS {
            return Err(self.wrong(key, "at most 1024"));
        }
        Ok(count)
    }

    /// Returns the period of the layers that see all patches; the last of each group does.
    fn window_period(&self, n_layers: u32) -> Result<u32, LoadError> {
        const KEY: &str = "fullatt_block_indexes";
        let layers = self.layers(KEY, n_layers)?;
        let irregular = || self.wrong(KEY, "the last of every few layers");
        let first = *layers.first().ok_or_else(irregular)?;
        let expected = (first..n_layers as usize).step_by(first + 1);
        if layers != expected.collect::<Vec<_>>() {
            return Err(irregular());
        }
        Ok(first as u32 + 1)
    }

    /// Reads the tapped layers.
    fn taps(&self, n_layers: u32) -> Result<Vec<usize>, LoadError> {
        const KEY: &str = "deepstack_visual_indexes";
        let taps = self.layers(KEY, n_layers)?;
        // The parts of a row are in the order of the layers.
        if !taps.is_sorted_by(|a, b| a < b) {
            return Err(self.wrong(KEY, "layers in their order, each once"));
        }
        Ok(taps)
    }

    fn check_what_no_key_says(&self, family: VisionFamily) -> Result<(), LoadError> {
        let activation = match family {
            VisionFamily::Gemma3 | VisionFamily::Qwen3Vl => "gelu_pytorch_tanh",
            VisionFamily::Qwen2Vl => "quick_gelu",
            VisionFamily::Qwen25Vl => "silu",
        };
        if self.get("hidden_act").is_some_and(|found| found != activation) {
            return Err(self.wrong("hidden_act", activation));
        }
        let numbers = [
            ("temporal_patch_size", 2),
            ("in_channels", 3),
            ("in_chans", 3),
            ("num_channels", 3),
        ];
        for (key, expected) in numbers {
            if self.opt_count(key)?.is_some_and(|found| found != expected) {
                return Err(self.wrong(key, &expected.to_string()));
            }
        }
        Ok(())
    }
}

/// The preprocessing of pixels.
struct Processor(Map<String, Value>);

impl Processor {
    /// Reads `preprocessor_config.json` and `processor_config.json`; the latter has priority.
    fn open(folder: &Path) -> Result<Self, LoadError> {
        let mut values = Map::new();
        for name in ["preprocessor_config.json", "processor_config.json"] {
            let path = folder.join(name);
            if !path.is_file() {
                continue;
            }
            let bytes = RegularFile::read_in_folder(folder, name, MAX_PROCESSOR_BYTES);
            let bytes = bytes.map_err(|source| LoadError::Read {
                path: path.clone(),
                source,
            })?;
            let own: Map<String, Value> =
                serde_json::from_slice(&bytes).map_err(|error| LoadError::BadConfig {
                    path,
                    reason: error.to_string(),
                })?;
            let of_images = own.get("image_processor").and_then(Value::as_object).cloned();
            values.extend(own);
            values.extend(of_images.into_iter().flatten());
        }
        Ok(Self(values))
    }

    /// Reads one number per channel.
    fn channels(&self, folder: &Path, key: &str) -> Result<Vec<f32>, LoadError> {
        let number = |value: &Value| value.as_f64().map(|number| number as f32);
        let numbers = self.0.get(key).and_then(Value::as_array);
        let numbers: Option<Vec<f32>> = numbers.and_then(|list| list.iter().map(number).collect());
        numbers.filter(|numbers| numbers.len() == 3).ok_or_else(|| LoadError::BadConfig {
            path: folder.to_owned(),
            reason: format!(
                "neither preprocessor_config.json nor processor_config.json has `{key}` with three numbers, which the image encoder needs"
            ),
        })
    }
}
