//! Hugging Face folders in FP8-E4M3: the same logits as the folder with the numbers in BF16, and possible faults.

use std::{collections::BTreeMap, fs, path::Path};

use half::bf16;
use safetensors::SafeTensors;
use serde_json::{Value, json};
use tokenmill_cpu_exec::CpuBackend;
use tokenmill_model::{LoadError, Model, ModelOptions};
use tokenmill_quant::CpuFeatures;
use tokenmill_testkit::{
    Comparisons, Random,
    engines::{self, Loaded},
    generate::all_logits,
};

/// A tensor of a safetensors file.
#[derive(Clone)]
struct Stored {
    dtype: String,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

type Tensors = BTreeMap<String, Stored>;

/// A matrix in FP8, with the scale of each block of `block` rows and columns.
struct Quantized {
    shape: [usize; 2],
    codes: Vec<u8>,
    block: [usize; 2],
    scales: Vec<f32>,
}

/// Returns the value of a code, from the definition of the format.
fn decode(code: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(code >> 3 & 15), f32::from(code & 7));
    let magnitude = match exponent {
        0 => 2_f32.powi(-6) * (mantissa / 8.0),
        _ => 2_f32.powi(exponent - 7) * (1.0 + mantissa / 8.0),
    };
    if code < 128 { magnitude } else { -magnitude }
}

/// Returns the code of the nearest value.
fn encode(value: f32) -> u8 {
    let distance = |code: &u8| (decode(*code) - value.abs()).abs();
    let code = (0..0x7f).min_by(|a, b| distance(a).total_cmp(&distance(b)));
    code.unwrap() | if value < 0.0 { 0x80 } else { 0 }
}

impl Quantized {
    fn n_blocks(shape: [usize; 2], block: [usize; 2]) -> [usize; 2] {
        [shape[0].div_ceil(block[0]), shape[1].div_ceil(block[1])]
    }

    fn scale_idx(&self, idx: usize) -> usize {
        let (row, col) = (idx / self.shape[1], idx % self.shape[1]);
        row / self.block[0] * Self::n_blocks(self.shape, self.block)[1] + col / self.block[1]
    }

    /// Quantizes to the nearest codes; the largest number of each block becomes the largest of the format.
    fn of(values: &[f32], shape: [usize; 2], block: [usize; 2]) -> Self {
        let mut quantized = Self {
            shape,
            codes: Vec::new(),
            block,
            scales: vec![0.0; Self::n_blocks(shape, block).iter().product()],
        };
        for (idx, value) in values.iter().enumerate() {
            let scale_idx = quantized.scale_idx(idx);
            let scale = &mut quantized.scales[scale_idx];
            *scale = scale.max(value.abs() / 448.0);
        }
        let scale_of = |idx| quantized.scales[quantized.scale_idx(idx)].max(f32::MIN_POSITIVE);
        let codes = values.iter().enumerate();
        quantized.codes = codes.map(|(idx, value)| encode(value / scale_of(idx))).collect();
        quantized
    }

    fn random(shape: [usize; 2], block: [usize; 2], random: &mut Random) -> Self {
        let n_scales = Self::n_blocks(shape, block).iter().product();
        Self {
            shape,
            codes: (0..shape[0] * shape[1])
                .map(|_| (random.below(0x7f) + 0x80 * random.below(2)) as u8)
                .collect(),
            block,
            scales: (0..n_scales)
                .map(|_| (1 + random.below(1000)) as f32 * 3e-7)
                .collect(),
        }
    }

    /// Returns the same numbers in BF16.
    fn dequantized(&self) -> Stored {
        let values = self.codes.iter().enumerate();
        let values =
            values.map(|(idx, &code)| bf16::from_f32(decode(code) * self.scales[self.scale_idx(idx)]));
        Stored {
            dtype: "BF16".to_owned(),
            shape: self.shape.to_vec(),
            bytes: values.flat_map(bf16::to_le_bytes).collect(),
        }
    }

    /// Adds the codes, and the scales as `{name}{suffix}`; a single one has no dimension.
    fn add_to(&self, tensors: &mut Tensors, name: &str, suffix: &str) {
        let codes = Stored {
            dtype: "F8_E4M3".to_owned(),
            shape: self.shape.to_vec(),
            bytes: self.codes.clone(),
        };
        let is_of_tensor = self.block == self.shape;
        let scales = Stored {
            dtype: "F32".to_owned(),
            shape: if is_of_tensor {
                Vec::new()
            } else {
                Self::n_blocks(self.shape, self.block).to_vec()
            },
            bytes: self.scales.iter().flat_map(|scale| scale.to_le_bytes()).collect(),
        };
        tensors.insert(name.to_owned(), codes);
        tensors.insert(format!("{name}{suffix}"), scales);
    }
}

fn write(folder: &Path, config: &Value, tensors: &Tensors) {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, tensor) in tensors {
        let start = data.len();
        data.extend(&tensor.bytes);
        let row = json!({"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [start, data.len()]});
        header.insert(name.clone(), row);
    }
    let header = Value::Object(header).to_string();
    let length = (header.len() as u64).to_le_bytes();
    fs::write(folder.join("config.json"), config.to_string()).unwrap();
    fs::write(
        folder.join("model.safetensors"),
        [&length, header.as_bytes(), &data].concat(),
    )
    .unwrap();
}

fn options() -> ModelOptions {
    ModelOptions {
        n_ctx: Some(16),
        max_batch_tokens: 16,
        ..ModelOptions::default()
    }
}

fn load(folder: &Path) -> Result<Loaded<CpuBackend>, LoadError> {
    let backend = CpuBackend::new(Some(1), CpuFeatures::detect())?;
    engines::load(&Model::open(folder)?, backend, &options())
}

/// Returns the logits of a network, and the bytes that its weights take in memory.
fn logits(config: &Value, tensors: &Tensors) -> (Vec<u32>, usize) {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), config, tensors);
    let backend = engines::cpu(1);
    let plan = Model::open(folder.path()).unwrap().plan(&backend, &options());
    let mut executor = load(folder.path()).unwrap();
    let logits = all_logits(&mut executor, &[1, 5, 9, 2, 6, 7, 30, 3]).unwrap();
    assert!(logits.iter().all(|logit| logit.is_finite()));
    let bits = logits.into_iter().map(f32::to_bits).collect();
    (bits, plan.unwrap().weights_bytes)
}

/// Returns the configuration with its FP8 settings.
fn with_fp8(config: &Value, block_size: Option<Value>) -> Value {
    let mut config = config.clone();
    config["quantization_config"] =
        json!({"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8"});
    if let Some(block_size) = block_size {
        config["quantization_config"]["weight_block_size"] = block_size;
    }
    config
}

#[test]
fn a_folder_in_fp8_gives_the_logits_of_its_numbers() {
    let mut comparisons = Comparisons::of("FP8 folders");
    for network in ["qwen2", "qwen3_moe", "deepseek_v3"] {
        let Some(folder) = comparisons.find(&format!("parity/{network}/hf")) else {
            continue;
        };
        let config = fs::read(folder.join("config.json")).unwrap();
        let config: Value = serde_json::from_slice(&config).unwrap();
        let bytes = fs::read(folder.join("model.safetensors")).unwrap();
        let (mut plain, mut fp8) = (Tensors::new(), Tensors::new());
        for (name, view) in SafeTensors::deserialize(&bytes).unwrap().tensors() {
            let stored = Stored {
                dtype: format!("{:?}", view.dtype()),
                shape: view.shape().to_vec(),
                bytes: view.data().to_vec(),
            };
            // Routers, norms and tables keep their type.
            if !name.contains("_proj") || view.shape().len() != 2 {
                plain.insert(name.clone(), stored.clone());
                fp8.insert(name, stored);
                continue;
            }
            let values = view.data().as_chunks().0.iter();
            let values: Vec<f32> = values.map(|bytes| bf16::from_le_bytes(*bytes).to_f32()).collect();
            let shape = [view.shape()[0], view.shape()[1]];
            let quantized = Quantized::of(&values, shape, [128, 128]);
            quantized.add_to(&mut fp8, &name, "_scale_inv");
            plain.insert(name, quantized.dequantized());
        }
        let of_fp8 = logits(&with_fp8(&config, Some(json!([128, 128]))), &fp8);
        assert_eq!(of_fp8, logits(&config, &plain), "{network}");
        comparisons.compared(1);
    }
}

/// Returns the configuration of a layer whose matrices have several blocks, some of them cut off.
fn config() -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "hidden_size": 192, "intermediate_size": 320,
        "max_position_embeddings": 16, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 1,
        "rms_norm_eps": 1e-5, "vocab_size": 32, "tie_word_embeddings": true,
    })
}

/// Returns its weights in FP8, with scales of blocks or of tensors, and in BF16.
fn weights(has_blocks: bool, suffix: &str) -> [Tensors; 2] {
    let mut random = Random::new(3);
    let mut plain = Tensors::new();
    let bf16s = |shape: &[usize], random: &mut Random| Stored {
        dtype: "BF16".to_owned(),
        shape: shape.to_vec(),
        bytes: (0..shape.iter().product())
            .flat_map(|_| bf16::from_f32((random.below(2000) as f32 - 1000.0) / 1000.0).to_le_bytes())
            .collect(),
    };
    plain.insert(
        "model.embed_tokens.weight".to_owned(),
        bf16s(&[32, 192], &mut random),
    );
    for name in [
        "norm",
        "layers.0.input_layernorm",
        "layers.0.post_attention_layernorm",
    ] {
        plain.insert(format!("model.{name}.weight"), bf16s(&[192], &mut random));
    }
    let mut fp8 = plain.clone();
    for (name, shape) in [
        ("self_attn.q_proj", [192, 192]),
        ("self_attn.k_proj", [96, 192]),
        ("self_attn.v_proj", [96, 192]),
        ("self_attn.o_proj", [192, 192]),
        ("mlp.gate_proj", [320, 192]),
        ("mlp.up_proj", [320, 192]),
        ("mlp.down_proj", [192, 320]),
    ] {
        let name = format!("model.layers.0.{name}.weight");
        let block = if has_blocks { [128, 128] } else { shape };
        let quantized = Quantized::random(shape, block, &mut random);
        quantized.add_to(&mut fp8, &name, suffix);
        plain.insert(name, quantized.dequantized());
    }
    [fp8, plain]
}

#[test]
fn scales_of_blocks_and_of_tensors_are_read() {
    let config = config();
    for (has_blocks, suffix, block_size) in [
        (true, "_scale_inv", Some(json!([128, 128]))),
        (true, "_scale_inv", None),
        (false, "_scale_inv", Some(Value::Null)),
        (false, "_scale", None),
    ] {
        let [mut fp8, plain] = weights(has_blocks, suffix);
        // The way in which a layer's input was quantized changes nothing.
        let scale = fp8[&format!("model.layers.0.mlp.up_proj.weight{suffix}")].clone();
        fp8.insert("model.layers.0.mlp.up_proj.input_scale".to_owned(), scale);
        assert_eq!(
            logits(&with_fp8(&config, block_size), &fp8),
            logits(&config, &plain)
        );
    }
}

#[test]
fn faulty_folders_in_fp8_are_named() {
    const UP: &str = "model.layers.0.mlp.up_proj.weight";
    const UP_SCALES: &str = "model.layers.0.mlp.up_proj.weight_scale_inv";
    let check = |change: &dyn Fn(&mut Value, &mut Tensors), expected: &str| {
        let mut config = with_fp8(&config(), Some(json!([128, 128])));
        let [mut tensors, _] = weights(true, "_scale_inv");
        change(&mut config, &mut tensors);
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), &config, &tensors);
        let found = load(folder.path()).map(drop).unwrap_err().to_string();
        assert_eq!(
            found.replace(&folder.path().display().to_string(), "FOLDER"),
            expected
        );
    };
    let says = |key: &'static str, value: Value| {
        move |config: &mut Value, _: &mut Tensors| config["quantization_config"][key] = value.clone()
    };
    check(
        &says("quant_method", json!("gptq")),
        "FOLDER/config.json: `quant_method` is \"gptq\", expected fp8 or mxfp4",
    );
    check(
        &says("fmt", json!("e5m2")),
        "FOLDER/config.json: `fmt` is \"e5m2\", expected e4m3",
    );
    for size in [json!([64, 128]), json!([128]), json!(128)] {
        let expected = format!(
            "FOLDER/config.json: `weight_block_size` is {size}, expected [128, 128], or null for a scale of each tensor"
        );
        check(&says("weight_block_size", size), &expected);
    }
    check(
        &|config, tensors| {
            config["quantization_config"] = Value::Null;
            tensors.retain(|name, _| name == UP);
        },
        "FOLDER/model.safetensors: tensor `model.layers.0.mlp.up_proj.weight` has type F8_E4M3, but \
         `quantization_config` in config.json does not have the `quant_method` fp8",
    );
    let of_type = |name: &'static str, dtype: &'static str| {
        move |_: &mut Value, tensors: &mut Tensors| {
            let tensor = tensors.get_mut(name).unwrap();
            dtype.clone_into(&mut tensor.dtype);
            let n_bytes = tensor.shape.iter().product();
            tensor.bytes.resize(n_bytes, 0);
        }
    };
    check(
        &of_type(UP, "F8_E5M2"),
        "FOLDER/model.safetensors: tensor `model.layers.0.mlp.up_proj.weight` has type F8_E5M2, expected F32, F16, BF16 or \
         F8_E4M3",
    );
    check(
        &of_type(UP_SCALES, "F8_E8M0"),
        "FOLDER/model.safetensors: tensor `model.layers.0.mlp.up_proj.weight_scale_inv` has type F8_E8M0, expected F32, F16 or \
         BF16",
    );
    check(
        &|_, tensors| drop(tensors.remove(UP_SCALES)),
        "FOLDER: tensor `model.layers.0.mlp.up_proj.weight` has type F8_E4M3, and \
         `model.layers.0.mlp.up_proj.weight_scale_inv` or `model.layers.0.mlp.up_proj.weight_scale` is missing",
    );
    check(
        &|_, tensors| drop(tensors.remove(UP)),
        "FOLDER: tensor `model.layers.0.mlp.up_proj.weight_scale_inv` is there, but `model.layers.0.mlp.up_proj.weight` is not, \
         or not in F8_E4M3",
    );
    check(
        &|_, tensors| {
            let scales = tensors[UP_SCALES].clone();
            tensors.insert(format!("{UP}_scale"), scales);
        },
        "FOLDER/model.safetensors: tensors `model.layers.0.mlp.up_proj.weight_scale` and \
         `model.layers.0.mlp.up_proj.weight_scale_inv` have one place in the network",
    );
    check(
        &|_, tensors| tensors.get_mut(UP_SCALES).unwrap().shape.reverse(),
        "FOLDER: tensor `model.layers.0.mlp.up_proj.weight_scale_inv` has shape [3, 2], expected [2, 3], a scale for each block \
         of 128x128",
    );
    check(
        &|_, tensors| {
            tensors.get_mut(UP).unwrap().bytes[192 + 3] = 0x7f;
            let scales = &mut tensors.get_mut(UP_SCALES).unwrap().bytes;
            *scales = 1_f32.to_le_bytes().repeat(6);
        },
        "cannot read tensor `blk.0.ffn_up.weight`: number 3 of row 1 is NaN, of the code 0x7f and the scale 1e0; the file is \
         damaged",
    );
}
